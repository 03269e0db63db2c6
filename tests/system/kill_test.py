#!/usr/bin/env python3
"""A random rank is killed with SIGKILL at random moments, in training, evaluation and checkpoints: every resume ends with the bits of the
run that nobody killed, no checkpoint is lost, and the job is over in seconds.   kill_test.py [KILLS [SEED]]"""
import random

from harness import *

kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
print(f"{kills} kills, seed {seed}")
dice = random.Random(seed)
folder = scratch()
data = shapes(folder, train=160, val=160)


def words(name):
    return ["train", config, f"run.name={name}"]


def killed_once(name, ranks, longest):
    """Starts the run and kills one of its ranks after a random time.  False if it had finished before."""
    process = start(words(name), ranks=ranks)
    try:
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
        return True
    finally:
        end(process)


spans, done = [], 0
for ranks in (1, 2, 4):
    config = write_input(folder / f"kill-{ranks}.toml", **{
        "data.path": data, "data.global_batch": 12, "model.name": "resnet20", "run.outputs": folder / "runs", "run.epochs": 3, "run.log_every": 2,
        "optimizer.learning_rate": 0.02, "checkpoint.every_steps": 3, "checkpoint.keep_last": 3, "augment.train": "pad_crop", "augment.flip": True})
    whole, parts = folder / "runs" / f"whole-{ranks}", folder / "runs" / f"parts-{ranks}"
    began = time.monotonic()
    run(words(whole.name), ranks=ranks)
    length = time.monotonic() - began
    killed, newest = 0, -1
    while killed < -(-kills // 3):
        if not killed_once(parts.name, ranks, length):
            # What it reached is compared, and another one starts.
            require_equal_bits(checkpoints(whole)[-1], checkpoints(parts)[-1])
            shutil.rmtree(parts)
            newest = -1
            continue
        killed += 1
        steps = [int(p.stem.split("-")[1]) for p in checkpoints(parts)] if parts.exists() else []
        assert max(steps, default=-1) >= newest, f"the checkpoint of step {newest} is gone: {steps}"
        newest = max(steps, default=-1)
    run(words(parts.name), ranks=ranks)
    require_equal_bits(checkpoints(whole)[-1], checkpoints(parts)[-1])
    train = [r["step"] for r in records(parts, "train")]
    assert train == sorted(set(train)), f"records twice or out of order: {train}"
    done += killed
    print(f"{ranks} ranks: killed {killed} times, the last resume ends with equal bits")
print(f"{done} kills; from kill to end of the job: {max(spans):.1f} s at most")
