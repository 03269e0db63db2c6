#!/usr/bin/env python3
"""On a GPU, once a run has chosen its convolutions, `lockstep check` without a GPU prints the memory that the run takes; before, no less.
Skipped where no GPU is."""
import re

import harness
from harness import *

gpu = gpu_program()

folder = scratch()
data = shapes(folder, train=512, val=60)
harness.lockstep = gpu


def check(toml):
    """MiB in all of a process that sees no GPU, and whether it says that these are the most that there can be."""
    text = call(["env", "CUDA_VISIBLE_DEVICES=", *command(["check", toml, "data.cache=none"])])
    return float(re.search(r"in all +([\d.]+) MiB", text).group(1)), "in all" in text and " at most\n" in text


for precision in ("fp32", "fp16"):
    toml = write_input(folder / f"{precision}.toml", **{
        "data.path": data, "data.global_batch": 256, "model.name": "resnet18", "model.stem": "cifar", "precision": precision, "run.outputs": folder / precision,
        "run.epochs": 1, "data.cache": "none"})
    before, is_most = check(toml)
    assert is_most, "nothing is known before the first start"
    run(["train", toml])
    taken = records(folder / precision / precision, "train")[-1]["memory_bytes"] / 2**20
    after, is_most = check(toml)
    assert not is_most and abs(after - taken) < 0.005 * taken + 1, (before, taken, after)
    assert before >= after, (before, after)
    text = run(["train", toml, "run.name=refused", f"device.memory_gib={taken / 2048}"], expect=2)
    assert "images at once fit: lower data.global_batch to" in text, text
    print(f"{precision}: {before} MiB at most, {after} as planned, {taken:.1f} taken")
