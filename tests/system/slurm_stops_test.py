#!/usr/bin/env python3
"""What can befall a job under Slurm besides a timely notice: a second SIGTERM while it saves, a time limit or scancel before the save is done, a node that
dies, five requeues in a row.  Each ends with the bits of the run that nothing befell; what Slurm has ended for good goes on when it is submitted anew."""
from faults import *

sys.path.insert(0, str(root / "tests/slurm"))
import jobs
from jobs import Job, Training, say, slurm_says

slurm = jobs.begin(nodes=10)
here, runs = jobs.here, jobs.runs
preload = library(here)
data = Job("convert", "shapes", "data/40", "--train", 160, "--val", 40, "--seed", 1, options=["--cpus-per-task=2"])
data.ends("COMPLETED", 0)
common = {"data.path": "data/40", "data.global_batch": 16, "model.name": "resnet20", "run.log_every": 1, "optimizer.learning_rate": 0.02, "augment.train": "pad_crop", "augment.flip": True}
write_input(here / "train.toml", **common, **{"run.epochs": 4, "checkpoint.every_steps": 4})
write_input(here / "long.toml", **common, **{"run.epochs": 12, "checkpoint.every_epochs": 0})


class Struck(Training):
    """faults: see faults.cpp.  They strike the job's first start only."""

    def __init__(self, run, faults, nodes=2, **options):
        mark = here / f"acted-{run}"
        super().__init__(run, nodes, variables={"LD_PRELOAD": str(preload), "LOCKSTEP_FAULT": faults, "LOCKSTEP_FAULT_FILE": str(mark)}, **options)

    def wait_until_it_saves(self):
        """The file of step 8 is being written: slowly, so that what comes finds it so."""
        wait_until(lambda: list(runs.glob(f"{self.run}/checkpoints/step-*8.h5*.partial")) or self.has_ended(), 90, "a checkpoint under way")
        assert not self.has_ended(), self.show()


# The first checkpoint is written at once (248 writes), the second within twenty seconds and more; or, where it is to be ended by then, a minute.
second = Struck("second-term", "0 slow pwrite 260 0.05")
limited = Struck("limit", "0 slow pwrite 260 0.4")
cancelled = Struck("cancelled", "0 slow pwrite 260 0.4")
lost = Struck("lost-node", "1 pause MPI_Iallreduce 17 600", options=["--exclusive"]) if slurm.is_isolated else None
chain = Training("chain", 2, input="long.toml")

limited.wait_until_it_saves()
slurm_says("scontrol", "update", f"JobId={limited.id}", f"EndTime={time.strftime('%FT%T', time.localtime(time.time() + 10))}")
cancelled.wait_until_it_saves()
slurm_says("scancel", cancelled.id)
second.wait_until_it_saves()
for _ in range(2):
    slurm_says("scancel", "--signal=TERM", second.id)
    time.sleep(1)
assert list(runs.glob("second-term/checkpoints/*.partial")), second.show()
say("two SIGTERM while it saved, a time limit, a scancel")

if lost:
    wait_until(lambda: (here / "acted-lost-node").exists() or lost.has_ended(), 90, "a step after the first epoch")
    nodes = slurm_says("scontrol", "show", "hostnames", lost.facts()["NodeList"]).split()
    slurm.kill_node(nodes[-1])
    say(f"{nodes[-1]} has died")

whole = {name: Training(f"whole-{name}", 2, input=f"{name}.toml") for name in ("train", "long")}
for number in range(1, 6):
    chain.wait_for("first step", number)
    slurm_says("scancel", "--signal=USR1", chain.id)
    chain.wait_for("exit code 75", number)
    say(f"chain: stopped for the {number}. time")

cancelled.ends("CANCELLED")
limited.ends("TIMEOUT")
for job in (cancelled, limited):
    assert list(runs.glob(f"{job.run}/checkpoints/*.partial")) and len(checkpoints(runs / job.run)) == 1, f"the save was done before the end\n{job.show()}"
    Training(job.run, 2).has_bits_of(whole["train"], restarts=(0,), said=("resumed from",))
second.has_bits_of(whole["train"])
if lost:
    lost.has_bits_of(whole["train"], said=("resumed from",))
chain.has_bits_of(whole["long"], restarts=(5,))
slurm.stop()
say("done")
