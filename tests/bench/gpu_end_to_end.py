#!/usr/bin/env python3
"""From process start to the last evaluation, with accuracy: an input file trained with several seeds on one GPU.
  gpu_end_to_end.py INPUT.toml --data SHARDS [--lockstep build/cuda/lockstep] [--seeds 1,2,3] [key=value ...]
The first run may time convolutions; the others take its choices.  Prints a line a run and the means."""
import argparse, json, pathlib, statistics, subprocess, tempfile, time

root = pathlib.Path(__file__).resolve().parents[2]
parser = argparse.ArgumentParser()
parser.add_argument("input")
parser.add_argument("--data", required=True)
parser.add_argument("--lockstep", default=str(root / "build/cuda/lockstep"))
parser.add_argument("--seeds", default="1,2,3")
arguments, overrides = parser.parse_known_args()

outputs = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
results = []
for seed in arguments.seeds.split(","):
    name = f"seed-{seed}"
    start = time.time()
    done = subprocess.run([arguments.lockstep, "train", arguments.input, f"data.path={arguments.data}", f"run.outputs={outputs}", f"run.name={name}", f"run.seed={seed}", *overrides],
                          capture_output=True, text=True)
    seconds = time.time() - start
    if done.returncode != 0:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    records = [json.loads(line) for line in (outputs / name / "metrics.jsonl").read_text().splitlines()]
    top1 = 100 * [r for r in records if r["kind"] == "eval"][-1]["top1"]
    rate = [r for r in records if r["kind"] == "train"][-1]["images_per_second_average"]
    results.append((top1, seconds, rate))
    print(f"seed {seed}: top-1 {top1:.2f} %, {seconds:.1f} s from process start to end, {rate:,.0f} img/s while training", flush=True)
for what, values in zip(("top-1 %", "seconds", "img/s"), zip(*results)):
    print(f"mean {what}: {statistics.mean(values):,.2f}")
