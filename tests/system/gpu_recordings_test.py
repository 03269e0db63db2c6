#!/usr/bin/env python3
"""On a GPU, recorded steps and evaluations end with the bits of those enqueued layer by layer, wherever the images are kept: checkpoints, records and `lockstep eval`.
Two networks, smaller last batches of both kinds, in fp32 and fp16; equal runs of a larger one have equal bits, and so have runs beside others that keep the GPU busy.
Skipped where no GPU is."""
import contextlib

import harness
from harness import *

gpu = gpu_program()

folder = scratch()
data = shapes(folder, train=200, val=50)
harness.lockstep = gpu


def train(name, steps=[9, 18, 18], images=50, skips=0, **keys):
    """Nine steps an epoch, the last of 8 images; four batches an evaluation, the last of 2.  The checkpoint, and what evaluations said.  skips: of steps before the first record, at most."""
    toml = write_input(folder / f"{name}.toml", **{
        "data.path": data, "data.global_batch": 24, "data.eval_batch": 16, "run.outputs": folder / "runs", "run.epochs": 2, "run.log_every": 3,
        "optimizer.learning_rate": 0.02, "backends.deterministic": True, "augment.train": "pad_crop", "augment.flip": True, **keys})
    run(["train", toml], threads=2)
    run(["eval", toml, f"eval.checkpoint={checkpoints(folder / 'runs' / name)[-1]}"], threads=2)
    scales = [r["loss_scale"] for r in records(folder / "runs" / name, "train")]
    assert scales[0] in ([65536 / 2**k for k in range(skips + 1)] if keys["precision"] == "fp16" else [1]), scales      # 65536: torch.amp.GradScaler's first
    said = [{k: v for k, v in r.items() if k != "checkpoint"} for r in records(folder / "runs" / name, "eval")]
    assert [r["step"] for r in said] == steps and all(r["images"] == images for r in said), said
    return checkpoints(folder / "runs" / name)[-1], said


def require_same(one, other):
    require_equal_bits(one[0], other[0])
    assert one[1] == other[1], (one[1], other[1])


for model in ("lenet", "resnet20"):
    for precision in ("fp32", "fp16"):
        recorded = train(f"{model}-{precision}", **{"model.name": model, "precision": precision})
        eager = train(f"{model}-{precision}-eager", **{"model.name": model, "precision": precision, "device.record": False})
        others = [train(f"{model}-{precision}-{place}", **{"model.name": model, "precision": precision, "data.cache": place}) for place in ("none", "host", "device")]
        for other in (eager, *others):
            require_same(recorded, other)
        print(f"{model}, {precision}: recorded and eager steps and evaluations have equal bits, whatever data.cache is")

# Wide layers and a large batch: there libraries have kernels that add up in any order.
many = shapes(folder, train=512, val=60)
again = [train(f"again-{i}", steps=[2, 4, 4], images=60, **{"data.path": many, "data.global_batch": 256, "model.name": "resnet18", "model.stem": "cifar", "precision": "fp16"}) for i in range(3)]
for other in again[1:]:
    require_same(again[0], other)
print("resnet18, fp16, 256 images: equal runs have equal bits")


@contextlib.contextmanager
def busy_gpu(jobs=3):
    """Others compute on the same GPU meanwhile, so that kernels and copies take their time at other places than alone."""
    toml = write_input(folder / "busy.toml", **{"model.name": "resnet20", "data.global_batch": 512, "precision": "fp16", "run.outputs": folder / "busy"})
    others = [start(["bench", toml, "bench.steps=1000000"], threads=2) for _ in range(jobs)]
    try:
        time.sleep(10)                                                  # until they are at it
        assert all(other.poll() is None for other in others), [output_of(other) for other in others]
        yield
        assert all(other.poll() is None for other in others), "they ended before the run did"
    finally:
        for other in others:
            end(other)


# Deep and narrow: hundreds of short kernels a step, each set up while the one before runs.
deep = {"data.path": shapes(folder, train=4000, val=50), "data.global_batch": 128, "data.last_batch": "drop", "model.name": "resnet44", "precision": "fp16", "run.epochs": 40,
        "run.log_every": 31, "run.evaluate_every_epochs": 20}
alone = train("alone", steps=[620, 1240, 1240], skips=5, **deep)
with busy_gpu():
    beside = train("beside", steps=[620, 1240, 1240], skips=5, **deep)
require_same(alone, beside)
print("resnet44, fp16: a run beside three others on the GPU has the bits of one alone")
