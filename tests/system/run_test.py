#!/usr/bin/env python3
"""The main thread as a user goes it: convert, check, train on two ranks, eval, inspect, keys, bench.  Every file and field that README promises
is read back by an independent reader: json, h5py, TensorBoard's own, and torchvision, which must predict from our weights what we print."""
import math
import re
import tomllib

from harness import *

folder = scratch()
data = shapes(folder, train=80, val=50)
runs = folder / "runs"


def config(name, **keys):
    return write_input(folder / f"{name}.toml", **{
        "data.path": data, "data.global_batch": 40, "model.name": "lenet", "run.outputs": runs, "run.epochs": 2, "run.log_every": 1,
        "optimizer.learning_rate": 0.02, **keys})


def steps_of(name):
    return [int(path.stem.split("-")[1]) for path in checkpoints(runs / name)]


def require(text, *parts):
    for part in parts:
        assert str(part) in text, f"'{part}' is not in:\n{text}"


def said(what):
    print("ok:", what, flush=True)


# ---- train, two ranks ------------------------------------------------------------------------------------------------------------------
toml = config("whole", **{"model.name": "resnet18", "checkpoint.keep_last": 0, "model.sync_bn": True})
text = run(["check", toml, "run.ranks=3"])
require(text, "80 training images", "50 images of split val", "40 images: 14 or 13 on each of 3 ranks", "2 steps; 4 steps in all", "resnet18", "\nok\n")
assert not runs.exists(), "check has made a folder"

text = run(["train", toml], ranks=2)
require(text, "2 ranks", "first step", "finished: 4 steps")
assert text.count("finished") == 1, "more than one rank prints"
assert "\r" not in text and "\033" not in text, "control characters go to what is no terminal"
whole = runs / "whole"
assert steps_of("whole") == [2, 4], steps_of("whole")
log = (whole / "log").read_text()
require(log, "finished: 4 steps")
said("check and train")

# metrics.jsonl: names, types and ranges of README.
every, train, evals = records(whole), records(whole, "train"), records(whole, "eval")
assert [r["kind"] for r in every].count("start") == 1 and every[0]["kind"] == "start"
start_record = every[0]
assert start_record["ranks"] == 2 and len(start_record["hosts"]) == 2 and re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?|unknown", start_record["git_hash"]), start_record
require(start_record["versions"], "lockstep ", "Kokkos", "MPI", "HDF5")
assert isinstance(start_record["job"], str)

fields = {"step": int, "epoch": float, "loss": float, "top1": float, "top5": float, "learning_rate": float, "images_per_second": float,
          "images_per_second_average": float, "step_seconds": float, "data_wait": float, "loss_scale": float, "skipped": int, "grad_norm": float,
          "memory_bytes": int}
assert [r["step"] for r in train] == list(range(1, 5))
for r in train:
    assert r.keys() - {"kind"} == fields.keys(), r.keys() ^ fields.keys()
    for name, kind in fields.items():
        assert type(r[name]) is kind and math.isfinite(r[name]), f"{name} = {r[name]!r}"
    assert abs(r["epoch"] - r["step"] / 2) < 1e-9 and 0 <= r["top1"] <= r["top5"] <= 1 and 0 <= r["data_wait"] <= 1 and r["skipped"] == 0
    assert min(r["loss"], r["images_per_second"], r["images_per_second_average"], r["step_seconds"], r["grad_norm"], r["memory_bytes"]) > 0
    assert abs(40 * r["top1"] - round(40 * r["top1"])) < 1e-6, f"top1 {r['top1']} is no share of 40 images"
    assert abs(r["learning_rate"] - 0.02 * 0.5 * (1 + math.cos(math.pi * (r["step"] - 1) / 4))) < 1e-8, r
    assert abs(r["images_per_second"] * r["step_seconds"] - 40) < 1e-3, "rate and time of a step disagree"
assert [r["step"] for r in evals] == [2, 4]
for r in evals:
    assert r.keys() == {"kind", "step", "epoch", "loss", "top1", "top5", "images"}, r.keys()
    assert r["images"] == 50 and r["epoch"] == r["step"] / 2 and 0 <= r["top1"] <= r["top5"] <= 1 and r["loss"] > 0
said("metrics.jsonl")

# config.toml: every key, and an input that says the same.
resolved = tomllib.loads((whole / "config.toml").read_text()) if sys.version_info >= (3, 11) else None
named = re.findall(r"^([a-z][a-z0-9_.]*) = (\S+)", run(["keys"]), re.M)
assert len(named) > 60
for key, default in named:
    section, _, name = key.rpartition(".")
    there = resolved[section] if section else resolved
    assert name in there, f"config.toml lacks {key}"
    bare = default.strip('"')
    if section in ("schedule", "comm", "graph", "checkpoint") and key != "checkpoint.keep_last" and not default.startswith("["):
        assert there[name] == (bare if default.startswith('"') else {"true": True, "false": False}.get(bare) if bare in ("true", "false") else float(bare)), key
assert sum(len(v) if isinstance(v, dict) else 1 for v in resolved.values()) == len(named)
assert resolved["data"]["global_batch"] == 40 and resolved["model"]["classes"] == 10 and len(resolved["data"]["mean"]) == 3
text = run(["train", whole / "config.toml"], ranks=2)
require(text, "run whole is finished: 4 steps", "run.epochs")
assert tomllib.loads((whole / "config.toml").read_text()) == resolved, "config.toml does not read back as it was written"
assert [r for r in records(whole) if r["kind"] != "start"] == every[1:], "a finished run has changed its records"
assert (whole / "log").read_text().startswith(log), "log was not appended"
said("config.toml, keys, a finished run")

# TensorBoard's own reader.
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
scalars = {}
for path in sorted(whole.glob("events.out.tfevents.*")):
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag.startswith(("train/", "eval/")):
                number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                scalars.setdefault(value.tag, {})[event.step] = number
            elif value.tag == "config":
                require(value.tensor.string_val[0].decode(), "global_batch = 40")
                scalars["config"] = True
assert "config" in scalars
for tag in ("loss", "top1", "top5", "learning_rate", "images_per_second", "data_wait", "grad_norm"):
    assert sorted(scalars[f"train/{tag}"]) == list(range(1, 5)), tag
    assert all(math.isclose(scalars[f"train/{tag}"][r["step"]], r[tag], rel_tol=1e-6, abs_tol=1e-30) for r in train), tag
for tag in ("loss", "top1", "top5"):
    assert all(math.isclose(scalars[f"eval/{tag}"][r["step"]], r[tag], rel_tol=1e-6) for r in evals), tag
said("TensorBoard")

# ---- eval ------------------------------------------------------------------------------------------------------------------------------
best = max(evals, key=lambda r: (r["top1"], -r["step"]))
before = (whole / "metrics.jsonl").read_text()
text = run(["eval", toml], ranks=2)
require(text, f"step-{best['step']:08}.h5", "split val", "evaluated 50 images")
after = (whole / "metrics.jsonl").read_text()
assert after.startswith(before) and after[len(before):].count("\n") == 1 and after.endswith("\n"), "eval must append one record"
added = json.loads(after[len(before):])
assert added.keys() == {"kind", "step", "epoch", "loss", "top1", "top5", "images", "checkpoint", "split"}
assert added["split"] == "val" and added["checkpoint"].endswith(f"step-{best['step']:08}.h5")
# The run's batch norm statistics are one set (sync_bn), so the same checkpoint gives the same numbers.
assert all(added[k] == best[k] for k in ("step", "epoch", "top1", "top5", "images")) and math.isclose(added["loss"], best["loss"], rel_tol=1e-5), (added, best)
table = json.loads((whole / "evaluation.json").read_text())
assert sum(c["images"] for c in table["classes"]) == 50 and len(table["classes"]) == 10
right = sum(row[i] for i, row in enumerate(table["confusion"]))
assert right == round(50 * added["top1"]) and sum(map(sum, table["confusion"])) == 50, "confusion matrix and top-1 disagree"

# torchvision loads it, strictly, and gets the same top-1, top-5 and loss from the shards as h5py shows them.
import torch
import torchvision
weights = checkpoints(whole)[-1]
network = torchvision.models.resnet18(num_classes=10)
network.load_state_dict({name: torch.from_numpy(numpy.asarray(value)) for name, value in arrays(weights, "/model").items()}, strict=True)
stored = arrays(weights, "/model")
names = {name for name, _ in network.named_parameters()} | {name for name, _ in network.named_buffers() if not name.endswith("num_batches_tracked")}
assert {n for n in stored if not n.endswith("num_batches_tracked")} == names, stored.keys() ^ names
for name, value in stored.items():
    assert value == 4 if name.endswith("num_batches_tracked") else value.dtype == numpy.float32, f"{name}: {value.dtype}"
assert set(arrays(weights, "/optimizer")) == {f"momentum_buffer/{name}" for name, _ in network.named_parameters()}
with h5py.File(next(data.glob("val-*.h5"))) as shard:
    pixels, labels = torch.from_numpy(shard["images"][()]).float() / 255, torch.from_numpy(shard["labels"][()].astype(numpy.int64))
pixels = (pixels - torch.tensor(resolved["data"]["mean"])) / torch.tensor(resolved["data"]["std"])
network.eval()
torch.set_num_threads(1)
with torch.no_grad():
    logits = network(pixels.permute(0, 3, 1, 2))
loss = torch.nn.functional.cross_entropy(logits, labels).item()
ranked = logits.topk(5).indices == labels[:, None]
top1, top5 = ranked[:, 0].float().mean().item(), ranked.any(1).float().mean().item()
assert math.isclose(loss, evals[-1]["loss"], rel_tol=1e-4), (loss, evals[-1])
assert math.isclose(top1, evals[-1]["top1"], abs_tol=1e-6) and math.isclose(top5, evals[-1]["top5"], abs_tol=1e-6), (top1, top5, evals[-1])
text = run(["eval", toml, f"eval.checkpoint={weights}", "data.eval_split=train"])
require(text, "step-00000004.h5", "split train", "evaluated 80 images")
assert records(whole)[-1]["split"] == "train"
said("eval, and torchvision's resnet18 from our checkpoint")

# ---- inspect, bench --------------------------------------------------------------------------------------------------------------------
text = run(["inspect", weights, *sorted(data.glob("*.h5"))])
require(text, "checkpoint of resnet18", "10 outputs", "step 4", "80 of the split's 80", "50 of the split's 50", "triangle", "all images hold")
for words in (["bench", toml, "bench.steps=2", "bench.warmup=1", "model.name=lenet"], ["bench", toml, "bench.io=true", "bench.steps=4"]):
    text = run(words, ranks=2)
    assert len(re.findall(r"^\d+ img/s$", text, re.M)) == 1, text
require(run(["--version"]), "lockstep ", "oneDNN")
said("inspect, bench, --version")

# ---- growing, keeping, refusing --------------------------------------------------------------------------------------------------------
toml = config("grown", **{"checkpoint.every_steps": 1, "checkpoint.keep_last": 2, "checkpoint.keep_best": False, "schedule.kind": "constant"})
run(["train", toml])
assert steps_of("grown") == [3, 4], steps_of("grown")
text = run(["train", toml, "run.epochs=3", "checkpoint.keep_every_epochs=3"])
require(text, "resumed from", "step-00000004.h5", "finished: 6 steps")
assert steps_of("grown") == [5, 6] and [r["step"] for r in records(runs / "grown", "train")] == list(range(1, 7))
require((runs / "grown" / "log").read_text(), "finished: 4 steps", "finished: 6 steps")
require(run(["train", toml, "run.epochs=2"], expect=2), "run.epochs", "3", "2")
text = run(["train", toml, "run.epochs=3", "optimizer.momentum=0.8"], ranks=2, expect=2)
require(text, "optimizer.momentum", "0.9", "0.8", "config.toml")
assert text.count("optimizer.momentum was") == 1, f"said by more than one rank:\n{text}"
run(["train", toml, "run.epochs=3", "run.log_every=2", "checkpoint.keep_last=3"])           # these change no result
free = re.search(r"run\.name=([\w-]+)", run(["train", toml, "run.resume=never"], expect=2)).group(1)
assert not (runs / free).exists()
run(["train", toml, "run.resume=never", f"run.name={free}", "run.max_steps=1"])
run(["train", toml, "run.epochs=5", "checkpoint.keep_every_epochs=4"])
assert steps_of("grown") == [8, 9, 10], f"the checkpoint of epoch 4 is kept for good: {steps_of('grown')}"
toml = config("best", **{"checkpoint.keep_last": 1, "run.epochs": 6})
run(["train", toml])
best = max(records(runs / "best", "eval"), key=lambda r: (r["top1"], -r["step"]))["step"]
assert steps_of("best") == sorted({best, 12}), (best, steps_of("best"))
said("run.epochs grows, keep_last, keep_best, keep_every_epochs, changed keys, never")

# ---- a profile -------------------------------------------------------------------------------------------------------------------------
toml = config("profile", **{"run.epochs": 7})
text = run(["train", toml, "run.profile_from=4"], ranks=2)
require(text, "steps 4 to 13 made", "for GPUs", "without a checkpoint", "after step 12")
assert [r["step"] for r in records(runs / "profile", "train")] == list(range(1, 14)) and steps_of("profile")[-1] == 12
require(run(["train", toml, "run.profile_from=4"], ranks=2, expect=2), "goes on after step 12", "later step")
require(run(["check", toml, "run.profile_from=6"], expect=2), "ends after step 14", "Set it to 5 or less")
require(run(["train", toml], ranks=2), "finished: 14 steps")
run(["train", toml, "run.name=unprofiled"], ranks=2)
require_equal_bits(checkpoints(runs / "profile")[-1], checkpoints(runs / "unprofiled")[-1])
said("ten profiled steps, and the run after them")

# ---- images kept in memory -------------------------------------------------------------------------------------------------------------
toml = config("read", **{"augment.train": "pad_crop", "augment.flip": True, "data.micro_batches": 2, "data.eval_batch": 16})
run(["train", toml], ranks=2)
for place in ("none", "host", "device"):
    require(run(["train", toml, f"data.cache={place}", f"run.name={place}"], ranks=2), *([] if place == "none" else ["stay in each rank's memory: 0 MiB"]))
    require_equal_bits(checkpoints(runs / "read")[-1], checkpoints(runs / place)[-1])
    assert records(runs / "read", "eval") == records(runs / place, "eval")
    megabytes = 0 if place == "none" else 130 * 32 * 32 * 3 / 2**20
    require(run(["check", toml, f"data.cache={place}"]), f"image cache   {megabytes:10.1f} MiB")
    assert re.search(r"^\d+ img/s$", run(["bench", toml, "bench.io=true", f"data.cache={place}"]), re.M)
said("data.cache changes no bit")

# ---- memory ----------------------------------------------------------------------------------------------------------------------------
toml = config("memory", **{"model.name": "resnet20", "data.global_batch": 80, "run.epochs": 1, "run.max_steps": 1, "graph.recompute": "never"})


def planned(text):
    """Bytes by use, as check prints them."""
    return {name: float(value) for name, value in re.findall(r"^  (\w[\w ]*?) +([\d.]+) MiB", text, re.M)}


sums = planned(run(["check", toml, "run.ranks=2"]))
assert abs(sum(v for k, v in sums.items() if k != "in all") - sums["in all"]) < 0.5, sums
run(["train", toml], ranks=2)
taken = records(runs / "memory", "train")[-1]["memory_bytes"] / 2**20          # on a CPU: in pages of 2 MiB, and with 2 MiB of the host's staging
assert 0 <= taken - (sums["in all"] - sums["images"]) < 6, (taken, sums)
limit = 0.5 * sums["in all"] / 1024
for words, ranks in ((["check", "run.ranks=2"], 1), (["train", "run.name=refused"], 2)):
    text = run([words[0], toml, *words[1:], f"device.memory_gib={limit:.6f}"], ranks=ranks, expect=2)
    require(text, f"a batch of 40 images on each rank needs {sums['in all']} MiB", f"activations {sums['activations']} MiB", "images at once fit", 'Or set graph.recompute to "auto".')
    assert text.count("device.memory_gib") == 1, text
batch, parts = map(int, re.search(r"lower data.global_batch to (\d+), or raise data.micro_batches to (\d+)", text).groups())
assert 10 < batch // 2 < 20 and parts == math.ceil(40 / (batch // 2)), text
for name, keys, code in (("lower", [f"data.global_batch={batch}"], 0), ("parts", [f"data.micro_batches={parts}"], 0),
                         ("above", [f"data.global_batch={batch + 2}"], 2), ("fewer", [f"data.micro_batches={parts - 1}"], 2)):
    run(["train", toml, f"run.name={name}", f"device.memory_gib={limit:.6f}", *keys], ranks=2, expect=code)
require(run(["check", toml, "device.memory_gib=0.001"], expect=2), "Not even one image")
require(run(["bench", toml, f"device.memory_gib={limit:.6f}"], ranks=2, expect=2), "lower data.global_batch to")
require(run(["eval", toml, "data.eval_batch=50", "device.memory_gib=0.01"], expect=2), "set data.eval_batch to")

# Activations that are computed again change no bit, and are what "auto" does where the rest does not fit.
toml = config("kept", **{"model.name": "resnet20", "data.global_batch": 80, "model.sync_bn": True, "run.epochs": 2, "run.max_steps": 3, "graph.recompute": "never"})
run(["train", toml], ranks=2)
kept, again = planned(run(["check", toml, "run.ranks=2"])), planned(run(["check", toml, "run.ranks=2", "graph.recompute=always"]))
assert again["activations"] < 0.8 * kept["activations"], (kept, again)
limit = (kept["in all"] + again["in all"]) / 2 / 1024
require(run(["check", toml, "run.ranks=2", "graph.recompute=auto", f"device.memory_gib={limit:.6f}"]), f"activations     {again['activations']:8.1f} MiB   (normalized ones are computed again")
for name, keys in (("again", ["graph.recompute=always"]), ("auto", ["graph.recompute=auto", f"device.memory_gib={limit:.6f}"])):
    run(["train", toml, f"run.name={name}", *keys], ranks=2)
    require_equal_bits(checkpoints(runs / "kept")[-1], checkpoints(runs / name)[-1])
    assert records(runs / name, "train")[-1]["memory_bytes"] < 0.9 * records(runs / "kept", "train")[-1]["memory_bytes"]
run(["train", toml, "run.name=refused", f"device.memory_gib={limit:.6f}"], ranks=2, expect=2)
said("memory is planned as it is taken, and the largest batch that is named is the largest that fits")

# ---- a damaged newest checkpoint -------------------------------------------------------------------------------------------------------
toml = config("damaged", **{"checkpoint.every_steps": 1, "checkpoint.keep_last": 3, "checkpoint.keep_best": False, "run.max_steps": 4,
                             "run.epochs": 5, "run.evaluate_every_epochs": 0})
run(["train", toml])
four = checkpoints(runs / "damaged")[-1]
four.write_bytes(four.read_bytes()[:-100])
four.with_name("step-00000007.h5").write_bytes(os.urandom(5000))
four.with_name("step-00000008.h5").write_bytes(b"")
text = run(["train", toml, "run.max_steps=5"], ranks=2)
for name in ("step-00000008.h5", "step-00000007.h5", "step-00000004.h5"):
    assert re.search(rf"not resumed from \S*{name} \S", text), text
require(text, "resumed from " + str(four.with_name("step-00000003.h5")))
require(run(["eval", toml]), "not taken", "checkpoint " + str(four.with_name("step-00000005.h5")))
assert [r["step"] for r in records(runs / "damaged", "train")] == [1, 2, 3, 4, 5]
# What is damaged counts for nothing among the newest that are kept.
assert {3, 4, 5} <= set(steps_of("damaged")), steps_of("damaged")
for path in checkpoints(runs / "damaged"):
    path.write_bytes(b"nothing")
require(run(["train", toml], ranks=2, expect=2), "whole", "Move that folder away")
said("damaged checkpoints are passed over, and named")

# ---- a live job ------------------------------------------------------------------------------------------------------------------------
toml = config("live", **{"run.epochs": 100000, "checkpoint.every_steps": 5, "checkpoint.every_epochs": 0, "run.evaluate_every_epochs": 0})
job = start(["train", toml], ranks=2)
try:
    wait_until(lambda: len(steps_of("live")) > 1 or job.poll() is not None, 60, "checkpoints of a live run")
    text = run(["train", toml], ranks=2, expect=2)
    require(text, "another job", "host " + os.uname().nodename)
    assert int(re.search(r"pid (\d+)", text).group(1)) in rank_pids(job), text
    assert text.count("another job") == 1, text
    # Eval takes no lock; the newest checkpoint may go while it is opened, as keep_last says.
    run(["eval", toml, "checkpoint.keep_last=2"])
    assert job.poll() is None, output_of(job)
finally:
    for pid in rank_pids(job):              # mpirun gives each rank a process group of its own
        os.kill(pid, signal.SIGKILL)
    end(job)
wait_until(lambda: not rank_pids(job), 10, "the end of a killed job")
assert sum("checkpoint" in r for r in records(runs / "live", "eval")) == 1
last = steps_of("live")[-1]
text = run(["train", toml, f"run.max_steps={last + 1}"])
require(text, f"resumed from {runs / 'live'}/checkpoints/step-{last:08}.h5", "finished")
steps = [r["step"] for r in records(runs / "live", "train")]
assert steps == list(range(1, last + 2)), "records are missing or twice after a kill"
said("a live job's folder is refused by host and pid, and evaluated beside it")
