#!/usr/bin/env python3
"""SIGTERM or SIGUSR1 to any rank stops all ranks at a step boundary, in training and in evaluation; the state is saved, the job's code is 75, and
the resumed run ends with the bits of the uninterrupted one.  Stopped again before any new step it ends with 1, so that nobody requeues for ever."""
from harness import *

folder = scratch()
data = shapes(folder, train=160, val=3000)
config = write_input(folder / "signals.toml", **{
    "data.path": data, "data.global_batch": 12, "model.name": "resnet20", "run.outputs": folder / "runs", "run.epochs": 3, "run.log_every": 1,
    "optimizer.learning_rate": 0.02, "checkpoint.every_epochs": 0, "augment.train": "pad_crop"})


def log(name):
    path = folder / "runs" / name / "log"
    return path.read_text() if path.exists() else ""


def stopped(name, ranks, number, who, moment, times=1):
    """Sends the signal to one rank (or the launcher) once the log shows the moment."""
    before = len(log(name))
    process = start(["train", config, f"run.name={name}"], ranks=ranks)
    try:
        wait_until(lambda: moment in log(name)[before:] or process.poll() is not None, 60, f"{moment} in the log")
        for _ in range(times):
            os.kill(process.pid if who == "launcher" else rank_pids(process)[who], number)
            time.sleep(0.05)
        return process.wait(timeout=60), output_of(process)
    finally:
        end(process)


for ranks in (1, 2, 4):
    run(["train", config, f"run.name=whole-{ranks}"], ranks=ranks)
    name = f"parts-{ranks}"
    for number, who, moment, times in ((signal.SIGTERM, 0, "step 3 ", 1), (signal.SIGUSR1, ranks - 1, "step 9 ", 2),
                                       (signal.SIGUSR1, "launcher" if ranks > 1 else 0, "step 14 ", 1)):   # step 14 ends an epoch: evaluation follows
        code, output = stopped(name, ranks, number, who, moment, times)
        assert code == 75, f"{ranks} ranks, {number.name} to {who}: exit code {code}\n{output}"
        assert "stopped by a signal" in output, output
    stop_step = int(checkpoints(folder / "runs" / name)[-1].stem.split("-")[1])
    assert not any(r["step"] == 14 for r in records(folder / "runs" / name, "eval")) or stop_step > 14
    run(["train", config, f"run.name={name}"], ranks=ranks)
    require_equal_bits(checkpoints(folder / "runs" / f"whole-{ranks}")[-1], checkpoints(folder / "runs" / name)[-1])
    print(f"{ranks} ranks: stopped three times (75), equal bits")

# Stopped at the very start of a resumed run: no progress, so no 75.
stopped("again", 1, signal.SIGTERM, 0, "step 2 ")
process = start(["train", config, "run.name=again"])
wait_until(lambda: "resumed from" in log("again"), 60, "the resume")
process.send_signal(signal.SIGTERM)
code = process.wait(timeout=60)
steps = [int(p.stem.split("-")[1]) for p in checkpoints(folder / "runs" / "again")]
assert (code, len(steps)) == (1, 1) or (code == 75 and len(steps) == 2), (code, steps, output_of(process))
print("stopped again: exit code", code, "with checkpoints at", steps)
