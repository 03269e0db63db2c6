#!/usr/bin/env python3
"""On a GPU every training step does what the CPU does: from each state of a CPU run the GPU makes one step, and weights, momentum and running
statistics agree as well as two convolution libraries on the CPU agree with each other.  LeNet and ResNet-20, 20 steps each, with lockstep's own
convolution.  Skipped where no GPU is.   gpu_steps_test.py [FOLDER OF SHARDS]"""
import statistics

import numpy

import harness
from harness import *

gpu = gpu_program()

folder = scratch()
data = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else shapes(folder, train=640, val=40)
cpu, steps = harness.lockstep, 20


def train(program, name, model, until, start="", conv="kokkos"):
    harness.lockstep = str(program)
    keys = {"data.path": data, "data.global_batch": 64, "model.name": model, "run.outputs": folder / "runs", "run.name": name, "run.epochs": 9,
            "run.max_steps": until, "run.evaluate_every_epochs": 0, "optimizer.learning_rate": 0.02 if model == "resnet20" else 0.01, "backends.conv": conv,
            "augment.train": "pad_crop", "augment.flip": True, "checkpoint.every_steps": 1, "checkpoint.keep_last": 0, "schedule.warmup_epochs": 1}
    if start:
        keys["run.resume"] = start
    run(["train", write_input(folder / f"{name}.toml", **keys)], threads=2)
    return checkpoints(folder / "runs" / name)


def apart(before, one, other):
    """How far two updates are apart, as a fraction of the update: the worst of the arrays that moved."""
    worst = 0
    for name in one:
        if name.startswith("progress/") or one[name].dtype.kind != "f":
            continue
        moved = numpy.linalg.norm(one[name] - before[name]) if name in before else numpy.linalg.norm(one[name])
        scale = moved + 1e-6 * numpy.linalg.norm(one[name])
        if scale > 0:
            worst = max(worst, float(numpy.linalg.norm(one[name] - other[name]) / scale))
    return worst


for model in ("lenet", "resnet20"):
    states = train(cpu, f"cpu-{model}", model, steps)
    assert len(states) == steps, states
    apart_gpu, apart_cpu = [], []
    for step in range(1, steps):
        before, after = arrays(states[step - 1]), arrays(states[step])
        apart_gpu.append(apart(before, after, arrays(train(gpu, f"gpu-{model}-{step}", model, step + 1, states[step - 1])[-1])))
        apart_cpu.append(apart(before, after, arrays(train(cpu, f"other-{model}-{step}", model, step + 1, states[step - 1], conv="onednn")[-1])))
    train(gpu, f"gpu-{model}", model, steps)
    losses = [[r["loss"] for r in records(folder / "runs" / f"{kind}-{model}", "train")][-1] for kind in ("cpu", "gpu")]
    print(f"{model}: updates of {len(apart_gpu)} steps, GPU against CPU: {statistics.median(apart_gpu):.1e} apart (median), {max(apart_gpu):.1e} (most); "
          f"CPU with oneDNN against CPU: {statistics.median(apart_cpu):.1e}, {max(apart_cpu):.1e}; loss after {steps} free steps {losses[0]:.5f} and {losses[1]:.5f}")
    # Sums in another order: 1e-6 of an update; where a relu falls to the other side of zero, 1e-3 to 1e-2 of some array's.
    assert statistics.median(apart_gpu) < 5 * statistics.median(apart_cpu) and max(apart_gpu) < 5 * max(apart_cpu), (apart_gpu, apart_cpu)
