#!/usr/bin/env python3
"""A random rank is killed with SIGKILL at random moments, in training, evaluation and checkpoints: every checkpoint that is left has the bits of the
run that nobody killed, as has the end, none is lost, and the job is over in seconds.   [LOCKSTEP_KILLS=N] kill_test.py [SEED]
GPUs: LOCKSTEP_BUILD=build/cuda LOCKSTEP_KILLS=30 kill_test.py, on as many ranks as there are GPUs."""
import collections
import random

from faults import *

kills = int(os.environ.get("LOCKSTEP_KILLS", 9))
seed = int(sys.argv[1]) if len(sys.argv) > 1 else int(time.time())
counts = [ranks for ranks in (1, 2, 4) if ranks <= most_ranks()]
if not counts:
    skip("no GPU on this machine")
print(f"{kills} kills, seed {seed}")
dice = random.Random(seed)
folder = scratch()
data = shapes(folder, train=160, val=160)
slow_writes = {"LD_PRELOAD": str(library(folder)), "LOCKSTEP_FAULT": "0 slow pwrite 1 0.0005"}     # so that a checkpoint takes about as long as its three steps


def words(name):
    return ["train", config, f"run.name={name}"]


def log_of(name):
    path = folder / "runs" / name / "log"
    return path.read_text() if path.exists() else ""


def wait_for_step(process, name, before):
    """Until this start has made its first step, or ended."""
    wait_until(lambda: log_of(name).count("first step") > before or process.poll() is not None, 120, "the first step")


def killed_once(name, ranks, longest):
    """Starts the run and kills one of its ranks after a random time: mostly after its first step.  False if it had finished before."""
    before = log_of(name).count("first step")
    process = start(words(name), ranks=ranks, variables=slow_writes)
    try:
        if dice.random() < 0.85:
            wait_for_step(process, name, before)
        deadline = time.monotonic() + dice.uniform(0, longest)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.002)
        pids = rank_pids(process)
        killed_at = time.monotonic()
        try:
            if pids:
                os.kill(dice.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            pass                                # it ended by itself since rank_pids
        code = process.wait(timeout=30 if pids else 120)
        assert code != 75, "a killed job must not ask for a requeue"
        if code == 0:                           # also where the rank had left MPI already: its caller compares what the run reached
            return False
        assert pids, f"exit code {code}, and nobody was killed:\n{output_of(process)}"
        spans.append(time.monotonic() - killed_at)
        assert spans[-1] < 10, f"over {spans[-1]:.1f} s after the kill"
        phases[phase_of(name, before)] += 1
        return True
    finally:
        end(process)


def phase_of(name, before):
    """What the run was at, by what it left."""
    if list((folder / "runs" / name / "checkpoints").glob("*.partial")):
        return "checkpoint"
    if log_of(name).count("first step") == before:
        return "start"
    last = records(folder / "runs" / name)[-1]
    return "evaluation" if last["kind"] == "train" and last["epoch"] == int(last["epoch"]) else "training"


spans, phases, done = [], collections.Counter(), 0
for ranks in counts:
    config = write_input(folder / f"kill-{ranks}.toml", **{
        "data.path": data, "data.global_batch": 12, "model.name": "resnet20", "run.outputs": folder / "runs", "run.epochs": 3, "run.log_every": 1,
        "optimizer.learning_rate": 0.02, "checkpoint.every_steps": 3, "augment.train": "pad_crop", "augment.flip": True})
    whole, parts = folder / "runs" / f"whole-{ranks}", folder / "runs" / f"parts-{ranks}"
    process = start([*words(whole.name), "checkpoint.keep_last=0"], ranks=ranks, variables=slow_writes)
    wait_for_step(process, whole.name, 0)
    began = time.monotonic()
    assert process.wait(timeout=600) == 0, output_of(process)
    length, steps = time.monotonic() - began, records(whole, "train")[-1]["step"]
    killed, newest = 0, 0
    while killed < -(-kills // len(counts)):
        if not killed_once(parts.name, ranks, length * (1 - newest / steps)):
            # What it reached is compared, and another one starts.
            require_equal_bits(checkpoints(whole)[-1], checkpoints(parts)[-1])
            shutil.rmtree(parts)
            newest = 0
            continue
        killed += 1
        left = checkpoints(parts) if parts.exists() else []
        reached = int(left[-1].stem.split("-")[1]) if left else 0
        assert reached >= newest, f"the checkpoint of step {newest} is gone: {left}"
        for path in left[-1:]:
            require_equal_bits(whole / "checkpoints" / path.name, path)
        newest = reached
    run(words(parts.name), ranks=ranks)
    require_equal_bits(checkpoints(whole)[-1], checkpoints(parts)[-1])
    train = [r["step"] for r in records(parts, "train")]
    assert train == list(range(1, steps + 1)), f"records twice, missing or out of order: {train}"
    done += killed
    print(f"{ranks} ranks: killed {killed} times, each checkpoint and the end with equal bits", flush=True)
print(f"{done} kills: {dict(phases)}; from kill to end of the job: {max(spans):.1f} s at most")
