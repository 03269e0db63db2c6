#!/usr/bin/env python3
"""Whatever the storage does, no older checkpoint is lost, no damaged one is resumed from, the file is named, and the records of a run are whole lines
without gaps: a full disk, a quota, errors, slow writes, a read-only and a deleted folder, damaged checkpoints, kills.
storage_test.py [all [SEED]]: every percent and 200 bits of a checkpoint, 40 kills; without: a tenth of it."""
import hashlib
import random
import re

from shim import *
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

is_all = sys.argv[1:2] == ["all"]
seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
dice = random.Random(seed)
print("seed", seed)
folder = scratch()
runs, data = folder / "runs", shapes(folder, train=40, val=20)
keys = {"data.path": data, "data.global_batch": 10, "model.name": "lenet", "optimizer.learning_rate": 0.02, "run.outputs": runs, "run.epochs": 3, "run.log_every": 1,
        "run.evaluate_every_epochs": 0, "checkpoint.every_steps": 2, "checkpoint.every_epochs": 0, "checkpoint.keep_last": 0}
toml = write_input(folder / "storage.toml", **keys)
endless = write_input(folder / "endless.toml", **{**keys, "run.epochs": 1000000, "checkpoint.every_steps": 5, "checkpoint.keep_last": 3})
last_step, tried = 12, 0


def said(what):
    print("ok:", what, flush=True)


def train(name, *overrides, **options):
    global tried
    tried += 1
    return run(["train", toml, f"run.name={name}", *overrides], **options)


def steps_of(name):
    return [int(path.stem.split("-")[1]) for path in checkpoints(runs / name)]


def sums(paths):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def error_line(text):
    lines = [line for line in text.splitlines() if ": error: " in line]
    assert len(lines) == 1, text
    return lines[0]


def events_of(name):
    """Steps of the train/loss events, as they lie in the files."""
    steps = []
    for path in sorted((runs / name).glob("events.out.tfevents.*")):
        whole = path.read_bytes()
        at = 0
        while at < len(whole):              # frames: length, checksum, data, checksum
            at += 16 + int.from_bytes(whole[at:at + 8], "little")
        assert at == len(whole), f"{path} ends within a frame"
        for event in EventFileLoader(str(path)).Load():
            steps += [event.step for value in event.summary.value if value.tag == "train/loss"]
    return steps


def require_whole_records(name, last):
    """Every step once and in order, in metrics.jsonl and in the event files."""
    text = (runs / name / "metrics.jsonl").read_text()
    assert text.endswith("\n"), text[-200:]
    want = list(range(1, last + 1))
    assert [r["step"] for r in records(runs / name, "train")] == want, [r["step"] for r in records(runs / name, "train")]
    assert events_of(name) == want, events_of(name)


def require_bits(whole, other):
    """A run that ends is evaluated: stops have had chances to be the best that the whole run did not have."""
    require_equal_bits(checkpoints(whole)[-1], checkpoints(other)[-1], but=("progress/best_step", "progress/best_top1", "progress/evaluated_step"))


def require_as_whole(name):
    require_bits(runs / "whole", runs / name)
    require_whole_records(name, last_step)
    assert not list((runs / name).rglob("*.partial"))


train("whole")
require_whole_records("whole", last_step)
assert steps_of("whole") == [2, 4, 6, 8, 10, 12]
size = checkpoints(runs / "whole")[0].stat().st_size

# ---- no checkpoint can be written: said once, exit code 2, nothing lost, and the next start makes it good -------------------------------
for i, (calls, code, after) in enumerate([("write", errno.ENOSPC, 0), ("write", errno.ENOSPC, size // 2), ("write", errno.EDQUOT, size - 20), ("write", errno.EIO, 3 * size), ("fsync", errno.EIO, 0),
                                          ("fsync", errno.EDQUOT, 1), ("close", errno.EDQUOT, 0), ("rename", errno.EIO, 0), ("open", errno.EROFS, 0)]):
    name = f"failing-{i}"
    train(name, "run.max_steps=4")
    before = sums(checkpoints(runs / name))
    with storage(f"{name}/checkpoints/", calls, code, after):
        text = train(name, expect=2)
    assert len(re.findall("warning: no checkpoint at step", text)) == 1, text
    line = error_line(text)
    assert f"{name}/checkpoints/step-00000012.h5" in line and words_of(code) in line and "last checkpoint" in line and "goes on from" in line, text
    kept = sums(checkpoints(runs / name))
    assert before.items() <= kept.items(), "an older checkpoint is gone or was changed"
    assert not list((runs / name).rglob("*.partial")), list((runs / name).rglob("*.partial"))
    require_whole_records(name, last_step)
    text = train(name)
    assert f"resumed from {max(kept)}" in text, text
    require_as_whole(name)
said("checkpoints that cannot be written")

# ---- for a while only: said once, tried again at the next point, the run goes on and ends well -----------------------------------------
trouble = folder / "trouble"
for name, path, calls, code, *after in (("while-checkpoints", "while-checkpoints/checkpoints/", "write", errno.ENOSPC), ("while-metrics", "while-metrics/metrics.jsonl", "write", errno.ENOSPC, 777),
                                        ("while-events", "while-events/events.out", "close", errno.EDQUOT), ("while-log", "while-log/log", "open", errno.EIO), ("while-all", "while-all/", "write open", errno.EROFS)):
    with storage(path, calls, code, *after, during=trouble):
        trouble.unlink(missing_ok=True)
        job = start(["train", endless, f"run.name={name}"])
        try:
            wait_until(lambda: len(steps_of(name)) > 1 or job.poll() is not None, 60, "checkpoints")
            trouble.touch()
            wait_until(lambda: "warning: " in output_of(job) or job.poll() is not None, 60, "a warning")
            at = re.findall(r"  step (\d+)  ", output_of(job))[-1]
            wait_until(lambda: int(re.findall(r"  step (\d+)  ", output_of(job))[-1]) > int(at) + 12 or job.poll() is not None, 60, "two more points")
            trouble.unlink()
            newest = max(steps_of(name))
            wait_until(lambda: max(steps_of(name)) > newest + 5 or job.poll() is not None, 60, "the next checkpoint")
            assert job.poll() is None, output_of(job)
            os.kill(job.pid, signal.SIGTERM)
            assert job.wait(60) == 75, output_of(job)
        finally:
            end(job)
    text = output_of(job)
    warnings = re.findall("warning: (.*)", text)
    assert all(words_of(code) in line and name in line for line in warnings) and len(warnings) == len({line.split(" cannot")[0].split(" at step")[0] for line in warnings}), warnings
    require_whole_records(name, max(steps_of(name)))
    assert (runs / name / "log").read_text().count("  loss ") == max(steps_of(name)), "lines of the log are lost"
said("trouble for a while")

# ---- records that never can be written: the run trains on, and says at its end which file lacks what -----------------------------------
for kind in ("metrics.jsonl", "events.out.tfevents"):
    name = "records-" + kind.split(".")[0]
    with storage(f"{name}/{kind}", "write", errno.ENOSPC, 3 * max((runs / "whole").glob(f"{kind}*")).stat().st_size // 4):
        text = train(name, expect=2)
    assert len(re.findall(f"warning: .*{kind}.* cannot be written", text)) == 1 and kind in error_line(text) and "bytes that belong at its end are lost" in error_line(text), text
    require_bits(runs / "whole", runs / name)
    if kind == "metrics.jsonl":
        lines = (runs / name / kind).read_text()
        assert lines.endswith("\n") and 0 < len([r for r in map(json.loads, lines.splitlines()) if r["kind"] == "train"]) < last_step, lines
    else:
        assert 0 < len(events_of(name)) < last_step and events_of(name) == list(range(1, len(events_of(name)) + 1))
# The evaluation's file and the report are made anew each time: a run does not end for one of them.
with storage("run-on/evaluation.json", "rename", errno.EDQUOT):
    text = train("run-on", "run.evaluate_every_epochs=1")
assert text.count("warning: no evaluation.json of step 4") == 1 and text.count("warning: no evaluation") == 1 and "finished" in text, text
said("records that cannot be written")

# ---- a start that cannot write -----------------------------------------------------------------------------------------------------------
for file in ("config.toml", "lock"):
    with storage(f"start/{file}", "open write", errno.EROFS):
        assert file in error_line(train("start", expect=2)), file
with storage("start/", "write", errno.EDQUOT):
    assert "start/" in error_line(train("start", expect=2))

# ---- slow storage: nothing is taken for a stall, no bit changes ---------------------------------------------------------------------------
with storage("slow/", "write fsync rename close open", delay=0.02):
    train("slow", "run.stall_seconds=3", "checkpoint.every_steps=6")
require_bits(runs / "whole", runs / "slow")
require_whole_records("slow", last_step)
said("starts that cannot write, slow storage")

# ---- a folder deleted under the run --------------------------------------------------------------------------------------------------------
for part in ("", "checkpoints"):
    name = f"deleted-{part}"
    job = start(["train", endless, f"run.name={name}"])
    try:
        wait_until(lambda: len(steps_of(name)) > 1 or job.poll() is not None, 60, "checkpoints")
        os.rename(runs / name / part, folder / f"gone-{name}")        # in one step, as the job writes into it
        wait_until(lambda: "warning: no checkpoint at step" in output_of(job) or job.poll() is not None, 60, "a warning")
        assert job.poll() is None, output_of(job)
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(60) == 2, output_of(job)
    finally:
        end(job)
    text = output_of(job)
    assert f"{name}/checkpoints/step-" in error_line(text) and words_of(errno.ENOENT) in error_line(text) and len(re.findall("warning: no checkpoint", text)) == 1, text
    assert not (runs / name / part).exists(), "what was deleted is made again"
said("a folder deleted under the run")

# ---- read errors ---------------------------------------------------------------------------------------------------------------------------
shard = next(data.glob("train-*.h5"))
with storage(shard, "read", errno.EIO, 60):
    assert re.search(rf"{shard.name}: image \d+ \(.*\) cannot be read: {words_of(errno.EIO)}", error_line(train("unread", expect=2)))
with storage(shard, "read", errno.EIO, 0):
    assert f"{shard.name}: cannot be read: {words_of(errno.EIO)}" in error_line(train("unread", expect=2))
train("unread", "run.max_steps=4")
with storage("unread/checkpoints/step-00000004", "read", errno.EIO, 0):
    text = train("unread")
assert re.search(rf"not resumed from \S*step-00000004.h5 cannot be read: {words_of(errno.EIO)}", text) and "step-00000002.h5" in text, text
require_as_whole("unread")
said("read errors")

# ---- damaged checkpoints: each is refused, named, and the older one taken ------------------------------------------------------------------
train("damaged", "run.max_steps=4")
old, new = checkpoints(runs / "damaged")
whole, untouched = new.read_bytes(), sums([old])
damages = [("truncated", whole[:len(whole) * percent // 100]) for percent in range(0, 100, 1 if is_all else 10)]
for bit in dice.sample(range(8 * len(whole)), 200 if is_all else 20):
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    damages.append((f"bit {bit}", bytes(flipped)))
for what, damaged in damages:
    new.write_bytes(damaged)
    text = train("damaged", "run.max_steps=2")
    assert re.search(rf"not resumed from {new} \S", text) and f"resumed from {old}\n" in text and "finished: 2 steps" in text, f"{what}:\n{text}"
    assert sums([old]) == untouched and new.read_bytes() == damaged
train("damaged")
require_as_whole("damaged")
said(f"{len(damages)} damaged checkpoints")

# ---- kills: whole lines and frames, without gaps or repeats ---------------------------------------------------------------------------------
kills = 0
while kills < (40 if is_all else 5):
    job = start(["train", toml, "run.name=killed", "run.epochs=100", "checkpoint.every_steps=3", "checkpoint.keep_last=2"])
    try:
        wait_until(lambda: "  step " in output_of(job) or job.poll() is not None, 60, "a step")
        time.sleep(dice.uniform(0, 0.5))
        killed = job.poll() is None
        for pid in rank_pids(job):
            os.kill(pid, signal.SIGKILL)
        assert job.wait(30) in (0, -signal.SIGKILL), output_of(job)
    finally:
        end(job)
    if not killed:                            # it had finished: another one
        shutil.rmtree(runs / "killed")
        continue
    kills += 1
    for file in [runs / "killed/metrics.jsonl", max((runs / "killed").glob("events.out*"))]:
        with open(file, "ab") as half:        # what a kill within the write, or a disk that was full there, leaves
            half.write(dice.choice([b"", b"", file.read_bytes()[-dice.randrange(20, 60):-1]]))
train("killed", "run.epochs=100")
require_whole_records("killed", 400)
said(f"{kills} kills")

# ---- a real disk of 20 MB --------------------------------------------------------------------------------------------------------------------
disk = folder / "disk"
disk.mkdir()
if private := has_small_disks():
    def on_disk(script, options="size=20m", expect=0):
        return call([*private, "sh", "-c", f"mount -t tmpfs -o {options} none {disk} && {script}"], expect=expect)

    command = f"{lockstep} train {toml} model.name=resnet20 run.outputs={disk} run.epochs=5 checkpoint.every_steps=1"
    result = folder / "of-disk"
    run(["train", toml, "model.name=resnet20", "run.epochs=5", "run.name=twenty"])
    # It fills up with checkpoints; one is deleted, and the next start ends with the bits of a run that had room.
    text = on_disk(f"{command}; echo code $?; cp -r {disk}/storage {result}; rm -f {disk}/storage/checkpoints/step-0000000[123].h5; {command} checkpoint.keep_last=2 && cp -r {disk}/storage {result}2")
    assert "code 2" in text and len(re.findall("warning: no checkpoint at step", text)) == 1 and words_of(errno.ENOSPC) in error_line(text), text
    left = checkpoints(result)
    assert 4 < len(left) < 20 and not list(result.rglob("*.partial")), left
    for path in left:
        assert "step" in run(["inspect", path])
    assert f"resumed from {disk}/storage/checkpoints/{left[-1].name}" in text, text
    require_bits(runs / "twenty", pathlib.Path(f"{result}2"))
    runs = folder                                # where require_whole_records looks
    require_whole_records("of-disk2", 20)
    # Full from the start, and read only: one line that names the file.
    assert str(disk) in error_line(on_disk(f"dd if=/dev/zero of={disk}/fill bs=4k status=none; {command}", expect=2))
    assert str(disk) in error_line(on_disk(command, options="ro", expect=2))
    said("a disk of 20 MB")
else:
    print("not tried: a real small disk (no mounts here); the shim's were")
print(f"{tried} runs, no fault")
