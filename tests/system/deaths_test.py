#!/usr/bin/env python3
"""A rank that dies, in any phase and by any death (SIGKILL, a segmentation fault, an exception, no memory, exit() in a library), ends the whole job
within 10 s: said once, with an exit code that neither claims success nor asks for a requeue.   LOCKSTEP_DEATHS=all: each on 1, 2 and 4 ranks, first and last rank"""
import concurrent.futures

from faults import *

folder = scratch()
preload = library(folder)
config = small_input(folder, shapes(folder, train=96, val=48), folder / "runs")
seen = {}


def die(number, case):
    phase, death, ranks, victim = case
    struck = Struck(preload, folder / f"acted-{number}", ["train", config, f"run.name=dead-{number}"], ranks, faults_of(phase, death, victim))
    seen[case] = require_dead(struck, phase, death, victim)


chosen = cases(os.environ.get("LOCKSTEP_DEATHS") == "all")
with concurrent.futures.ThreadPoolExecutor(3) as pool:           # a launcher waits most of the time
    started = [pool.submit(die, number, case) for number, case in enumerate(chosen)]
faults = [str(one.exception()) for one in started if one.exception()]
assert not faults, "\n\n".join([f"{len(faults)} of {len(chosen)}", *faults])
worst = max(seen, key=seen.get)
print(f"{len(seen)} deaths; from death to end of the job {seen[worst]:.1f} s at most, {worst}")

# The launcher dies: its ranks do not live on.
process = start(["train", config, "run.name=orphans", "run.epochs=100000"], ranks=2)
try:
    log = folder / "runs/orphans/log"
    wait_until(lambda: log.exists() and "step 4 " in log.read_text(), 60, "step 4")
    ranks = rank_pids(process)
    assert len(ranks) == 2, ranks
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not rank_pids(process), 10, "the end of a dead launcher's ranks")
finally:
    end(process)
print("a dead launcher leaves no rank behind")
