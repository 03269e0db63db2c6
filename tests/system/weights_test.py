#!/usr/bin/env python3
"""Weights go out and come in: export, import, eval of what was imported, and training that starts from a file, also with a frozen body."""
from harness import *

folder = scratch()
data = shapes(folder, train=64, val=40)
runs = folder / "runs"
toml = write_input(folder / "base.toml", **{"data.path": data, "data.global_batch": 32, "model.name": "resnet20", "optimizer.learning_rate": 0.02, "run.outputs": runs,
                                            "run.epochs": 2, "run.log_every": 1, "checkpoint.keep_last": 0, "checkpoint.every_steps": 1})
run(["train", toml, "run.name=first"])
first = checkpoints(runs / "first")[-1]


def evaluated(checkpoint):
    """What eval records of it, but for its path."""
    run(["eval", toml, f"eval.checkpoint={checkpoint}", "run.name=first"])
    record = records(runs / "first", "eval")[-1]
    return {key: record[key] for key in ("loss", "top1", "top5", "images")}


# Out and in again: the same bits, the same evaluation.
for end in ("safetensors", "pth", "pt"):
    run(["export", first, folder / f"out.{end}"])
    text = run(["import", folder / f"out.{end}", folder / f"{end}.h5"])
    assert "resnet20, 10 outputs" in text and "all of them" in text, text
    before, after = arrays(first, "/model"), arrays(folder / f"{end}.h5", "/model")
    assert before.keys() == after.keys() and all(before[name].tobytes() == after[name].tobytes() for name in before), end
    assert evaluated(folder / f"{end}.h5") == evaluated(first)
    assert "imported" in run(["inspect", folder / f"{end}.h5"])
assert not list(folder.glob("*.partial"))

# A run that starts from a file: the table stands in the log once, the frozen body keeps the file's bits, the head learns.
run(["export", first, folder / "five.safetensors"])
table = ["weights   ", "loaded   96 of 97", "fc.weight: left out"]
common = ["freeze.parameters=['*']", "freeze.except=['fc.*']", "model.weights_except=['fc.weight']", f"model.weights={folder / 'five.safetensors'}"]
print(run(["check", toml, *common]))
for ranks in (1, 2):
    text = run(["train", toml, f"run.name=frozen-{ranks}", *common], ranks=ranks)
    log = (runs / f"frozen-{ranks}" / "log").read_text()
    for part in table:
        assert text.count(part) == 1 and part in log, f"{part}: {text}"
    before, after = arrays(first, "/model"), arrays(checkpoints(runs / f"frozen-{ranks}")[-1], "/model")
    for name in before:
        if not name.endswith("num_batches_tracked"):
            assert (before[name].tobytes() == after[name].tobytes()) == (not name.startswith("fc.")), name
    assert not any(v.any() for k, v in arrays(checkpoints(runs / f"frozen-{ranks}")[-1], "/optimizer/momentum_buffer").items() if not k.startswith("fc.")), "a frozen weight has momentum"

# freeze.batch_norm = "batch": the frozen layers' statistics follow the data.
run(["train", toml, "run.name=tracked", "freeze.batch_norm=batch", *common])
after = arrays(checkpoints(runs / "tracked")[-1], "/model")
assert before["bn1.running_mean"].tobytes() != after["bn1.running_mean"].tobytes() and before["bn1.weight"].tobytes() == after["bn1.weight"].tobytes()

# A checkpoint is such a file too, and brings the normalization; a resume does not need it any more, and takes other rates for the head.
source = folder / "source.h5"
shutil.copy(first, source)
options = [f"model.weights={source}", "optimizer.rate_parameters=['fc.*']", "optimizer.rate_factors=[10]"]
run(["train", toml, "run.name=whole", *options])
run(["train", toml, "run.name=parts", "run.max_steps=2", *options])
source.unlink()
run(["train", toml, "run.name=parts", *options])
require_equal_bits(checkpoints(runs / "whole")[-1], checkpoints(runs / "parts")[-1])
run(["train", toml, "run.name=plain", f"model.weights={first}"])
whole, plain = (arrays(checkpoints(runs / name)[0], "/model") for name in ("whole", "plain"))
step = {name: numpy.linalg.norm(a["fc.weight"] - arrays(first, "/model")["fc.weight"]) for name, a in (("whole", whole), ("plain", plain))}
assert 9.9 < step["whole"] / step["plain"] < 10.1, step
assert whole["conv1.weight"].tobytes() == plain["conv1.weight"].tobytes()

# Only that much is needed of a file that is not lockstep's.
try:
    import torch
except ImportError:
    skip("no torch; all else holds")
state = torch.load(folder / "out.pth", weights_only=True)
torch.save({"state_dict": {"module." + k: v.half() if v.is_floating_point() else v for k, v in state.items()}, "epoch": 7, "arch": "resnet20"}, folder / "nested.pth",
           _use_new_zipfile_serialization=False)
text = run(["train", toml, "run.name=nested", "run.max_steps=1", f"model.weights={folder / 'nested.pth'}"], ranks=2)
assert 'below "state_dict"' in text and "beside the tensors: epoch, arch" in text and "data.mean is empty" in text, text
