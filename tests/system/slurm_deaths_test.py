#!/usr/bin/env python3
"""As deaths_test.py, under srun --kill-on-bad-exit=1, as jobs/ start it, with Slurm's default KillWait of 30 s: the ranks that a dead one leaves behind end
by themselves in 10 s.   LOCKSTEP_DEATHS=all: every phase and death on 1, 2 and 4 nodes, first and last rank"""
import concurrent.futures
import queue

from faults import *

sys.path.insert(0, str(root / "tests/slurm"))
import cluster

if why := cluster.reason_not_to_run():
    skip(why)
cluster.isolate()

folder = scratch()
folder.chmod(0o711)
preload = library(folder)
config = small_input(folder, shapes(folder, train=96, val=48), folder / "runs")
slurm = cluster.Cluster(folder / "cluster", nodes=4, kill_wait=30)
os.environ["SLURM_PMIX_FENCE"] = "tree"
is_whole = os.environ.get("LOCKSTEP_DEATHS") == "all"
seen = {}


# Three allocations of all nodes, each for one run at a time, as a batch script's.
allocations = queue.Queue()
for _ in range(3):
    granted = subprocess.run(["salloc", "--no-shell", "--nodes=4", "--ntasks=4"], capture_output=True, text=True, timeout=60)
    allocations.put(re.search(r"Granted job allocation (\d+)", granted.stderr).group(1))


def die(number, case):
    phase, death, ranks, victim = case
    job = allocations.get()
    launcher = ["srun", f"--jobid={job}", "--kill-on-bad-exit=1", f"--nodes={ranks}", f"--ntasks={ranks}"]
    struck = Struck(preload, folder / f"acted-{number}", ["train", config, f"run.name=dead-{number}"], ranks, faults_of(phase, death, victim), launcher)
    try:
        seen[case] = require_dead(struck, phase, death, victim)
    finally:
        allocations.put(job)
    print(f"{case}: {seen[case]:.1f} s, {struck.code}", flush=True)


chosen = cases(is_whole) if is_whole else [(phase, death, ranks, (ranks - 1) * (i % 2)) for i, (phase, ranks) in enumerate(zip(phases, (4, 2, 4, 2, 4, 2)))
                                           for death in ("kill", "segv", "exit 0")]
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    started = [pool.submit(die, number, case) for number, case in enumerate(chosen)]
faults = [str(one.exception()) for one in started if one.exception()]
assert not faults, "\n\n".join([f"{len(faults)} of {len(chosen)}", *faults])
worst = max(seen, key=seen.get)
print(f"{len(seen)} deaths; from death to end of the job {seen[worst]:.1f} s at most, {worst}")
slurm.stop()
