#!/usr/bin/env python3
"""data.stage: shards are copied to the local disk once a node, verified, taken again by later jobs, finished after a kill, removed by the limit; a run is
the same bit for bit.  And where images come from slowly, from thousands of shards, or are more than memory: what the program does and says of it.
stage_test.py [all]: with 2000 shards and 50000 images; without: 400 and 8000."""
import re
import resource

from shim import *

shards, images = (2000, 50000) if sys.argv[1:2] == ["all"] else (400, 8000)
folder = scratch()
runs, local = folder / "runs", folder / "local"
data = folder / "set"
call([convert, "shapes", data, "--train", 120, "--val", 30, "--shards", 6])
keys = {"data.path": data, "data.global_batch": 20, "model.name": "lenet", "optimizer.learning_rate": 0.02, "run.outputs": runs, "run.epochs": 2, "run.log_every": 2,
        "augment.train": "pad_crop"}
toml = write_input(folder / "stage.toml", **keys)


def said(what):
    print("ok:", what, flush=True)


def train(name, *overrides, **options):
    return run(["train", toml, f"run.name={name}", *overrides], **options)


def copies(stage=local):
    return {path.name: path for path in stage.glob("*-*-*") if path.is_dir()}


def copy_of(split, stage=local):
    (found,) = [path for name, path in copies(stage).items() if f"-{split}-" in name]
    return found


def error_line(text):
    lines = [line for line in text.splitlines() if ": error: " in line]
    assert len(lines) == 1, text
    return lines[0]


def flip(shard, image):
    """One bit of one image."""
    with h5py.File(shard) as file:
        at = file["images"].id.get_offset() + image * int(numpy.prod(file["images"].shape[1:])) + 100
    with open(shard, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


# ---- copied once, taken again, equal bits -----------------------------------------------------------------------------------------------
train("read", ranks=2)
text = run(["check", toml, f"data.stage={local}"])
assert re.search(rf"stage +{local}: 0\.\d+ GiB \(train 0\.\d+, val 0\.\d+\) are copied there on each node", text), text
assert not local.exists(), "check has made a folder"
text = train("staged", f"data.stage={local}", ranks=2)
assert text.count("data.stage: copying") == 2 and "of train (6 of 6 shards)" in text and "copied and verified" in text, text
for split in ("train", "val"):
    for shard in data.glob(f"{split}-*.h5"):
        assert shard.read_bytes() == (copy_of(split) / shard.name).read_bytes()
text = train("again", f"data.stage={local}", ranks=4)
assert "copying" not in text and text.count(" lies in ") == 2, text
text = run(["check", toml, f"data.stage={local}"])
assert "of it already" in text
for name in ("staged",):
    require_equal_bits(checkpoints(runs / "read")[-1], checkpoints(runs / name)[-1])
text = train("read", "run.epochs=3", f"data.stage={local}", ranks=2)          # a run may begin to stage when it goes on
assert "resumed from" in text and "finished: 18 steps" in text, text
said("copied once, taken again")

# ---- killed while it copies, and two jobs at once -------------------------------------------------------------------------------------------
other = folder / "other"
with storage(f"{other}/", "write", delay=0.15):
    job = start(["train", toml, "run.name=killed", f"data.stage={other}"], ranks=2)
    wait_until(lambda: len(list(other.glob("*-train-*/*.h5"))) >= 2 or job.poll() is not None, 60, "two shards")
    end(job)
wait_until(lambda: not rank_pids(job), 10, "the end of a killed job")
there = len(list(other.glob("*-train-*/*.h5")))
assert 2 <= there < 6, there
text = train("killed", f"data.stage={other}")
left = int(re.search(r"of train \((\d) of 6 shards\)", text).group(1))
assert 6 - there - 1 <= left <= 6 - there and not list(other.rglob("*.partial")), text   # one may have got its name at the kill

shutil.rmtree(other)
with storage(f"{other}/", "write", delay=0.1):
    jobs = [start(["train", toml, f"run.name=job-{i}", f"data.stage={other}"]) for i in range(2)]
    for job in jobs:
        assert job.wait(120) == 0, output_of(job)
texts = [output_of(job) for job in jobs]
assert sum(text.count("of train (6 of 6 shards)") for text in texts) == 1, texts
for i in range(2):
    require_equal_bits(checkpoints(runs / "job-0")[-1], checkpoints(runs / "job-1")[-1])
said("finished after a kill; two jobs at once")

# ---- a new source, the limit ------------------------------------------------------------------------------------------------------------------
bytes_of = sum(path.stat().st_size for path in data.glob("*.h5"))
one_and_a_half = 1.5 * bytes_of / 2**30
before = copies(other)
shard = min(data.glob("train-*.h5"))
os.utime(shard, (1e9, 1e9))                                                   # made anew, as far as anybody can tell
text = train("touched", f"data.stage={other}", f"data.stage_gib={one_and_a_half}")
assert "of train (6 of 6 shards)" in text and "val lies in" in text and "removed " + str(copy_of("train", other)) not in text and "removed " in text, text
assert len(copies(other)) == 2 and len(copies(other).keys() & before.keys()) == 1, "the old copy of train is gone, that of val is used"
job = start(["train", toml, "run.name=user", f"data.stage={other}", "run.epochs=100000"])
try:
    wait_until(lambda: "  step " in output_of(job) or job.poll() is not None, 60, "a step")
    os.utime(shard, (1.1e9, 1.1e9))
    line = error_line(train("refused", f"data.stage={other}", f"data.stage_gib={one_and_a_half}", expect=2))
    assert str(other) in line and "host" in line and "other jobs use" in line and "data.stage_gib" in line, line
    assert job.poll() is None
finally:
    end(job)
assert "data.stage_gib" in error_line(train("refused", f"data.stage={other}", f"data.stage_gib={bytes_of / 2**32}", expect=2))
assert "data.stage_gib" in error_line(run(["check", toml, f"data.stage={other}", f"data.stage_gib={bytes_of / 2**32}"], expect=2))
said("a changed source, data.stage_gib")

# ---- what can be wrong: the folder, its host and the remedy are named -------------------------------------------------------------------------
(folder / "file").write_text("in the way")
cases = [(folder / "file", None), (pathlib.Path("/proc/none"), None)]
cases += [(folder / f"bad-{i}", fault) for i, fault in enumerate([("write", errno.ENOSPC, 200000), ("write", errno.EDQUOT, 0), ("open", errno.EROFS), ("rename", errno.EIO), ("fsync", errno.EIO)])]
for path, fault in cases:
    with storage(f"{path}/", *fault) if fault else contextlib.nullcontext():
        line = error_line(train("bad", f"data.stage={path}", ranks=2, expect=2))
    assert f'data.stage = "{path}" on host {os.uname().nodename.split(".")[0]}' in line and 'data.stage to ""' in line, line
    assert not fault or words_of(fault[1]) in line, line
    assert not list(path.rglob("*.partial"))
spoilt = folder / "spoilt"
shutil.copytree(data, spoilt)
flip(min(spoilt.glob("train-*.h5")), 5)
line = error_line(train("spoilt", f"data.path={spoilt}", f"data.stage={folder / 'of-spoilt'}", expect=2))
assert f"{min(spoilt.glob('train-*.h5'))}: 1 of 20 images differ from their checksums, the first is image 5 (" in line, line
# A copy that the local disk spoils later: noticed when it is read, and copied anew once it is removed.
copied = min(copy_of("train").glob("train-*.h5"))
os.utime(shard, ns=(int(re.search(r"^\d+ (\d+) .* " + shard.name + "$", (copy_of("train") / "manifest").read_text(), re.M).group(1)),) * 2)   # its time is that of the first copy again
flip(copied, 7)
line = error_line(train("rot", f"data.stage={local}", expect=2))
assert f"{copied}: image 7 (" in line and f"Remove {copied.parent} on host" in line, line
shutil.rmtree(copied.parent)
train("rot", f"data.stage={local}")
said("what can be wrong with data.stage")

# ---- thousands of shards ------------------------------------------------------------------------------------------------------------------------
many = folder / "many"
call([convert, "shapes", many, "--train", 2 * shards, "--val", shards, "--shards", shards])
assert len(list(many.glob("train-*.h5"))) == shards
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
began = time.monotonic()
text = train("many", f"data.path={many}", "data.global_batch=40", "data.eval_split=none", "run.epochs=1", "run.max_steps=10", f"data.stage={folder / 'many-here'}")
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert f"({shards} of {shards} shards)" in text and "  step 10  " in text, text
print(f"{shards} shards, at most 64 open files: {time.monotonic() - began:.1f} s in all, {re.search(r'first step [0-9.]+ s', text).group()} after start, with copying them")
shutil.rmtree(many), shutil.rmtree(folder / "many-here")

# ---- memory does not grow with the images that it reads --------------------------------------------------------------------------------------------


def peak_memory(name, count):
    """Bytes at most of a run over so many images; what the system keeps of files it has read is not among them."""
    path = folder / f"of-{count}"
    call([convert, "shapes", path, "--train", count, "--val", 10])
    process = subprocess.Popen(command(["train", toml, f"run.name={name}", f"data.path={path}", "data.global_batch=500", "run.epochs=1", "run.evaluate_every_epochs=0", "optimizer.learning_rate=0.001"]),
                               stdout=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    shutil.rmtree(path)
    return usage.ru_maxrss * 1024


small, large = peak_memory("small", images // 10), peak_memory("large", images)
growth = (large - small) / (images - images // 10)
print(f"memory: {small >> 20} MiB with {images // 10} images, {large >> 20} MiB with {images}: {growth:.0f} bytes an image of {32 * 32 * 3}")
assert growth < 400, "images stay in memory"

# ---- every read takes 20 ms, as over a slow network ---------------------------------------------------------------------------------------------------
toml = write_input(folder / "slow.toml", **{**keys, "data.global_batch": 40, "run.epochs": 5, "run.evaluate_every_epochs": 0})
latency, rates = 0.02, {}
with storage(data, "read", delay=latency):
    for name, overrides in (("two", []), ("many readers", ["data.readers=64", "data.slots=8"]), ("staged", [f"data.stage={local}"]), ("cached", ["data.cache=host", "data.readers=64"])):
        text = train(f"slow {name}", "data.eval_split=none", *overrides)
        last = records(runs / f"slow {name}", "train")[-1]
        rates[name] = last["images_per_second_average"]
        advice = re.findall("data waits: .*", text)
        assert len(advice) <= 5, text
        if name == "two":
            share = int(re.search(r"data waits: (\d+) % of the time rank 0 on ", advice[0]).group(1))
            assert share > 50 and "Raise data.readers (2 now)" in advice[0] and "data.stage" in advice[0] and 'data.cache to "host"' in advice[0], text
print("images a second where a read takes 20 ms:", ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
assert rates["two"] < 1.3 * 2 / latency, "two readers cannot be faster than that"
assert all(rates[name] > 2 * rates["two"] for name in ("many readers", "staged", "cached")), rates
said("slow reads are hidden, or told with what helps")
