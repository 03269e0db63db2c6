#!/usr/bin/env python3
"""A rank that is stopped, or goes on no more, in any phase of train, eval and bench ends the job soon after run.stall_seconds, and is named with its host,
step, phase and seconds, as are all others that the job waits for.  What is slow and makes progress is left alone, as is a paused job."""
import concurrent.futures

from faults import *

if most_ranks() < 64:
    skip("the calls are those of a CPU build; gpu_hangs_test.py is for GPUs")
folder = scratch()
preload = library(folder)
stall = 4
config = small_input(folder, shapes(folder, train=96, val=48), folder / "runs")
host = os.uname().nodename.split(".")[0]
silent, idle = r"no message comes any more from", r"no progress:"
longest = {}


def struck(name, ranks, faults, command=("train",), keys=()):
    return Struck(preload, folder / f"acted-{name.replace(' ', '-')}", [command[0], config, f"run.name={name.replace(' ', '-')}", f"run.stall_seconds={stall}", *command[1:], *keys],
                  ranks, faults)


def hangs(name, ranks, faults, words, blamed, phase, step, *more):
    """The job ends; the message names exactly those ranks, with all that is asked for.  What a stopped rank was at is what it told last: it has time to."""
    faults = re.sub(r"(\d+) stop (\S+ \d+)", r"\1 pause \2 1.5; \1 stop \2", faults)
    run = struck(name, ranks, faults, *more)
    code = run.ends(60)
    errors = re.findall(r"^lockstep\[.*\]: error: (.*)", run.output, re.MULTILINE)
    run.require(code == 1 and len(errors) == 1 and re.match(words, errors[0]), f"{name}: no message, or no {words}")
    named = re.findall(r"rank (\d+) on (\S+) \(step (\d+), ([a-z-]+), (\d+) s ", errors[0])
    run.require([int(n[0]) for n in named] == blamed, f"named are {named}")
    for _, where, at, doing, seconds in named:
        run.require(where == host and step in (None, int(at)) and re.fullmatch(phase, doing) and stall <= int(seconds) < stall + 8, f"named are {named}")
    run.require(run.seconds() < stall + 10, f"{run.seconds():.1f} s")
    longest[name] = run.seconds()


def goes_on(name, ranks, faults, least, *more):
    """The run ends well, though it took longer than the limit."""
    began = time.monotonic()
    run = struck(name, ranks, faults, *more)
    run.require(run.ends(120) == 0 and run.acted_at() and time.monotonic() - began > least, f"{name}: left alone it would have ended well, after {least} s at least")


def paused(name, who, keys):
    """Ranks that a debugger, or Slurm, holds for longer than the limit; equal bits afterwards."""
    process = start(["train", config, f"run.name={name}", *keys], ranks=2)
    log = folder / "runs" / name / "log"
    try:
        wait_until(lambda: log.exists() and "step 4 " in log.read_text(), 60, "step 4")
        held = [rank_pids(process)[i] for i in who]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in held:
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(2 * stall)
        assert process.wait(timeout=60) == 0, output_of(process)
    finally:
        end(process)
    require_equal_bits(checkpoints(folder / "runs/whole")[-1], checkpoints(folder / "runs" / name)[-1])


run(["train", config, "run.name=whole"], ranks=2)
shutil.copytree(folder / "runs/whole", folder / "runs/eval-stopped")
steady = ["model.name=resnet20", "run.log_every=1"]                       # slow enough to be held in a step
tries = [
    (hangs, "stopped in training", 2, "1 stop MPI_Iallreduce 5", silent, [1], "training", 4),
    (hangs, "first rank stopped", 2, "0 stop MPI_Iallreduce 5", silent, [0], "training", 4),
    (hangs, "two stopped", 4, "1 stop MPI_Iallreduce 5; 3 stop MPI_Iallreduce 5", silent, [1, 3], "training", 4),
    (hangs, "stopped in evaluation", 2, "1 stop MPI_Iallreduce 10", silent, [1], "evaluation", 8),
    (hangs, "stopped in a checkpoint", 2, "0 stop H5Dwrite 3; 0 pause MPI_Iallreduce 5 30", silent, [0], "training|checkpoint", 4),
    (hangs, "stopped in the start", 2, "1 stop MPI_Gather 5", silent, [1], "starting", 0),
    (hangs, "eval stopped", 2, "1 stop MPI_Gather 9", silent, [1], "evaluation", 0, ("eval",)),
    (hangs, "bench stopped", 2, "1 stop MPI_Barrier 1", silent, [1], "training", 5, ("bench", "bench.steps=5", "bench.warmup=5")),
    (hangs, "a reader that hangs", 2, "1 hang pread 120", idle, [1], "training|evaluation", None, ("train",), ["data.readers=1", "data.slots=2"]),
    (hangs, "a write that hangs", 2, "0 hang H5Dwrite 3", idle, [0], "checkpoint", 6),
    (hangs, "a start that hangs", 2, "1 hang pread 2", idle, [1], "starting", 0, ("train",), [f"run.start_seconds={stall}"]),
    (goes_on, "slow write", 2, "0 slow pwrite 1 0.1", 2 * stall, ("train",), ["run.max_steps=4"]),
    (goes_on, "slow reader", 2, "1 slow pread 20 0.25", 2 * stall, ("train",), ["run.max_steps=8", "data.readers=1"]),
    (goes_on, "slow start", 2, f"1 pause MPI_Gather 5 {1.5 * stall}", 1.5 * stall, ("train",)),
    (paused, "debugger", [1], ["run.stall_seconds=0"]),
    (paused, "suspended", [0, 1], [f"run.stall_seconds={stall}"]),
]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    started = [pool.submit(check, *words) for check, *words in tries]
faults = [str(one.exception()) for one in started if one.exception()]
assert not faults, "\n\n".join([f"{len(faults)} of {len(tries)}", *faults])
worst = max(longest, key=longest.get)
print(f"{len(longest)} ranks that hung were named; over {longest[worst]:.1f} s at most after the fault ({worst}), with a limit of {stall} s; {len(tries) - len(longest)} slow or paused runs went on")
