#!/usr/bin/env python3
"""jobs/ under a real Slurm, each submitted as a user would: whatever stops a run early (time limit, preemption, a signal to mpirun's shell), it is
saved, requeued, and ends with the bits of the run that nothing stopped.  A cancelled, failed or stuck run is not requeued, and codes reach Slurm.
Each node stages its own copy of the shards."""
import re

from harness import *

sys.path.insert(0, str(root / "tests/slurm"))
import jobs
from jobs import Job, Training, say, slurm_says

slurm = jobs.begin(nodes=5)
here, runs = jobs.here, jobs.runs

# convert.sbatch makes the shards.
data = [Job("convert", "shapes", f"data/{val}", "--train", 160, "--val", val, "--seed", 1, options=["--cpus-per-task=2"]) for val in (40, 6000)]
for job in data:
    job.ends("COMPLETED", 0)
common = {"data.global_batch": 16, "model.name": "resnet20", "run.epochs": 4, "run.log_every": 1, "optimizer.learning_rate": 0.02,
          "checkpoint.every_epochs": 0, "augment.train": "pad_crop", "augment.flip": True}
write_input(here / "train.toml", **common, **{"data.path": "data/40"})
write_input(here / "slow_eval.toml", **common, **{"data.path": "data/6000"})
say("converted")

# Stopped in step 5: by the time limit on 2 and on 4 nodes, by preemption, by USR1 to the shell of mpirun.  Cancelled there: two more.
limited = [Training(f"limit-{n}", n) for n in (2, 4)]
for job in limited:
    job.hold_at(5)                                          # the controller looks at limits every 30 s
    until = time.strftime("%FT%T", time.localtime(time.time() + 150))
    slurm_says("scontrol", "update", f"JobId={job.id}", f"EndTime={until}")
say("limited: the time limit's signal is due")

mpirun = Training("mpirun-2", 2, script="train_mpirun")
mpirun.wait_for("step 5 ")
slurm_says("scancel", "--batch", "--signal=USR1", mpirun.id)
spot = Training("spot-2", 1, options=["--partition=spot", "--nodelist=n5", "--ntasks-per-node=2"])
spot.hold_at(5)
slurm_says("sbatch", "--nodelist=n5", "--exclusive", "--output=urgent.log", "--wrap=sleep 1")
say("spot: about to be preempted")

cancelled = [Training(f"cancelled-{script}", 2, script=script) for script in ("train", "train_mpirun")]
for job in cancelled:
    job.wait_for("step 5 ")
    slurm_says("scancel", job.id)
    job.ends("CANCELLED")
    say(f"{job.run}: checkpoints at {[p.stem for p in checkpoints(runs / job.run)]}")

# A rank is killed: the job fails within seconds.
for script in ("train", "train_mpirun"):
    job = Training(f"killed-{script}", 2, script=script)
    job.wait_for("step 5 ")
    killed_at = time.monotonic()
    os.kill(job.ranks()[-1], signal.SIGKILL)
    code = job.ends("FAILED", seconds=20)
    assert code not in (0, 75), job.show()
    say(f"{job.run}: failed with {code} after {time.monotonic() - killed_at:.1f} s")

# What cannot work is explained, with 2.
for name, script, keys, variables, message in (
        ("unknown", "train", ["optimizer.learnin_rate=1"], {}, "learning_rate"), ("unknown", "train_mpirun", ["optimizer.learnin_rate=1"], {}, "learning_rate"),
        ("alone", "train", [], {"SLURM_MPI_TYPE": "none"}, "--mpi=pmix")):
    job = Training(name, 2, script=script, keys=keys, variables=variables)
    job.ends("FAILED", 2)
    said = len(re.findall(r"^lockstep.*error: ", job.log(), re.MULTILINE))
    assert message in job.log() and (said == 1 or script == "train_mpirun"), job.show()   # mpirun can take seconds to end ranks on other nodes
    say(f"{name}, {script}: 2")

# Stopped in evaluation, then, resumed, again before any new step: 1, and nobody requeues.
stuck = Training("stuck", 2, input="slow_eval.toml")
stuck.wait_for("step 10 ")
slurm_says("scancel", "--signal=USR1", stuck.id)
say("stuck: stopped in its evaluation")

whole = {n: Training(f"whole-{n}", n) for n in (2, 4)}
mpirun.has_bits_of(whole[2])
spot.has_bits_of(whole[2])
stuck.wait_for("resumed from")
slurm_says("scancel", "--signal=USR1", stuck.id)
for job in limited:
    job.has_bits_of(whole[int(job.run[-1])])
stuck.ends("FAILED", 1, restarts=(1,))
assert "before any new step" in stuck.log(), stuck.show()
say("stuck: 1")

# The others of jobs/.
evaluation = Job("eval", "train.toml", "run.name=whole-2", options=["--ntasks=2"])
seeds = Job("seeds", "train.toml", "run.max_steps=3", options=["--array=1-2", "--ntasks=2", "--cpus-per-task=2"])
evaluation.ends("COMPLETED", 0)
assert records(runs / "whole-2", "eval")[-1]["images"] == 40
wait_until(lambda: not slurm_says("squeue", "-h", "-j", seeds.id), 60, "the end of both seeds")
one, two = (arrays(checkpoints(runs / f"train-seed{n}")[-1], "/model") for n in (1, 2))
assert not numpy.array_equal(one["fc.weight"], two["fc.weight"])
say("eval, seeds")

# Two nodes, each with a disk of its own: two ranks share a copy, the next job takes it again, and what is wrong on one node is said with its name.
if slurm.is_isolated:
    on_both = ["--nodelist=n3,n4", "--ntasks-per-node=2"]
    made = []                                               # after each job: the copies' times
    for run, copied in (("staged", 2), ("staged-again", 0)):  # train and val, told by rank 0
        job = Training(run, 2, keys=["data.stage=/dev/shm/stage"], options=on_both)
        job.has_bits_of(whole[4], restarts=(0,), said=["is ready on every node"])
        assert job.log().count("data.stage: copying") == copied, job.show()
        copies = [list(slurm.on_node(node, "/dev/shm/stage").glob("*-*-*/*.h5")) for node in ("n3", "n4")]
        assert all(len(of_node) == 2 for of_node in copies), copies
        assert all(path.read_bytes() == (here / "data/40" / path.name).read_bytes() for path in sum(copies, [])), copies
        made.append({path: path.stat().st_mtime_ns for path in sum(copies, [])})
    assert made[0] == made[1], "copied twice"
    slurm.on_node("n4", "/dev/shm/blocked").write_text("in the way")
    job = Training("blocked", 2, keys=["data.stage=/dev/shm/blocked"], options=on_both)
    job.ends("FAILED", 2)
    errors = re.findall(r"^lockstep.*error: .*", job.log(), re.MULTILINE)
    assert len(errors) == 1 and 'data.stage = "/dev/shm/blocked" on host n4' in errors[0], job.show()
    say("staged on two nodes, each its own copy; a fault on one is named")
else:
    say("not staged on two nodes: no namespaces here, so they have one disk")

for job in cancelled:
    job.ends("CANCELLED")                                   # still
slurm.stop()
say("done")
