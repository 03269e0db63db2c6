#!/usr/bin/env python3
"""A run that was stopped anywhere and resumed ends with the bits of the run that was not; on other ranks it goes on at the same image."""
import numpy

from harness import *

folder = scratch()
data = shapes(folder, train=200, val=40)


def train(name, ranks, steps, model="resnet20", **keys):
    config = write_input(folder / f"{name}.toml", **{
        "data.path": data, "data.global_batch": 24, "model.name": model, "run.outputs": folder / "runs", "run.epochs": 4, "run.log_every": 3,
        "optimizer.learning_rate": 0.02, "schedule.warmup_epochs": 1, "augment.train": "pad_crop", "augment.flip": True, "checkpoint.keep_last": 0, **keys})
    run(["train", config, f"run.max_steps={steps}", f"run.name={name}"], ranks=ranks)
    return folder / "runs" / name


def last(name):
    return checkpoints(folder / "runs" / name)[-1]


def resumed_equals_uninterrupted(ranks, stops, steps, **keys):
    name = f"{keys.pop('case')}-{ranks}"
    train(f"{name}-whole", ranks, steps, **keys)
    for stop in [*stops, steps]:
        train(f"{name}-parts", ranks, stop, **keys)
    # A run that ends is evaluated: the stops have had chances to be the best that the whole run did not have.
    require_equal_bits(last(f"{name}-whole"), last(f"{name}-parts"), but=("progress/best_step", "progress/best_top1"))
    kinds = [(r["kind"], r["step"]) for r in records(folder / "runs" / f"{name}-parts") if r["kind"] != "start"]
    assert len(kinds) == len(set(kinds)), f"records twice: {kinds}"
    print(f"{name}: stopped at {stops}, equal bits at step {steps}")


# 200 images in batches of 24: an epoch has 9 steps, the last of 8 images.
resumed_equals_uninterrupted(1, [4, 13], 20, case="one rank")
resumed_equals_uninterrupted(2, [9, 11], 20, case="synchronized", **{"model.sync_bn": True})
resumed_equals_uninterrupted(4, [5], 20, case="local batch norm")
resumed_equals_uninterrupted(2, [7], 20, case="micro-batches, adamw", **{"data.micro_batches": 2, "optimizer.kind": "adamw", "optimizer.learning_rate": 1e-3})
resumed_equals_uninterrupted(1, [10, 19], 28, case="plateau", **{"schedule.kind": "plateau", "schedule.patience": 0, "model.name": "lenet"})
resumed_equals_uninterrupted(2, [10], 20, case="dropout", **{"model.name": "alexnet", "augment.train": "resize", "augment.eval": "resize", "augment.size": 64, "data.global_batch": 8})

# Two ranks stop, one and four go on: equal up to rounding to one rank throughout, as the same images follow.
train("ranks-whole", 1, 16, model="lenet")
for ranks, steps in ((2, 5), (1, 9), (4, 16)):
    train("ranks-parts", ranks, steps, model="lenet")
a, b = (arrays(last(name), "/model") for name in ("ranks-whole", "ranks-parts"))
worst = max(float(numpy.max(numpy.abs(a[k] - b[k]))) for k in a)
assert worst < 1e-5, f"weights differ by {worst} after a change of ranks"
print("changed ranks twice: weights differ by", worst)
