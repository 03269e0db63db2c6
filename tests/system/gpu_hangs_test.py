#!/usr/bin/env python3
"""GPUs: a kernel that writes to an illegal address on one rank ends the job within 10 s with CUDA's words, on one rank and on two; on two, a rank that is stopped
while its step is replayed, so that the other one's GPU waits inside the recording, ends the job soon after run.stall_seconds and is named."""
import harness
from faults import *

harness.lockstep = gpu_program()
ranks_at_hand = min(2, most_ranks())
folder = scratch()
preload = library(folder)
config = write_input(folder / "gpu.toml", **{
    "data.path": shapes(folder, train=640, val=64), "data.global_batch": 64, "model.name": "resnet20", "run.outputs": folder / "runs", "run.epochs": 400, "run.log_every": 5,
    "run.evaluate_every_epochs": 0, "optimizer.learning_rate": 0.01, "checkpoint.every_epochs": 0, "run.stall_seconds": 8})


def struck(name, ranks, fault):
    run = Struck(preload, folder / f"acted-{name}", ["train", config, f"run.name={name}"], ranks, fault)
    code = run.ends(400)                                    # a first start times convolutions
    run.require(code == 1 and len(re.findall(r"^lockstep\[.*error: ", run.output, re.MULTILINE)) == 1, "one message and code 1")
    return run


for ranks, victim in ((1, 0), (2, 0), (2, 1))[:1 if ranks_at_hand < 2 else 3]:
    run = struck(f"illegal-{ranks}-{victim}", ranks, f"{victim} gpu MPI_Iallreduce 40")
    run.require(re.search(rf"^lockstep\[rank {victim} of {ranks}.*error: .*illegal", run.output, re.MULTILINE), "CUDA's words")
    run.require(run.seconds() < 10, f"{run.seconds():.1f} s")
    print(f"rank {victim} of {ranks} wrote to an illegal address: over after {run.seconds():.1f} s")
for victim in (0, 1) if ranks_at_hand == 2 else ():
    run = struck(f"stopped-{victim}", 2, f"{victim} stop MPI_Iallreduce 40")
    run.require(re.search(rf"no message comes any more from rank {victim} on \S+ \(step \d+, training, \d+ s silent\)", run.output), "the stopped rank is named")
    run.require(run.seconds() < 8 + 12, f"{run.seconds():.1f} s")
    print(f"rank {victim} stopped in a replayed step: named, the job over after {run.seconds():.1f} s with a limit of 8 s")
