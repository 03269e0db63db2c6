#!/usr/bin/env python3
"""Training steps on this machine's GPUs, lockstep and PyTorch in turns in one run; ratios count.
  gpu_speed.py [--lockstep build/cuda/lockstep] [--peer torch_throughput.py] [--works resnet50-fp16 ...] [--modes eager default max-autotune] [--rounds 2]
--peer: a script that takes --arch --size --batch --classes --precision --optimizer --channels-last --compile MODE (and --syncbn under torchrun) and prints a
line of JSON with images_per_second; PyTorch's best mode counts.  Without it lockstep alone is timed.  PyTorch runs without this shell's LD_LIBRARY_PATH: it
brings its own cuDNN and NCCL.  Works of several GPUs want as many.  --outputs: where convolutions.txt is kept."""
import argparse, json, os, pathlib, re, statistics, subprocess, sys, tempfile

root = pathlib.Path(__file__).resolve().parents[2]
# name: (ranks, batch a rank, lockstep's keys, the peer's arguments; None: it has no such network)
r50 = "model.name=resnet50 model.classes=1000 bench.image_size=224 bench.steps=60".split()
works = {f"resnet50-{p}": (1, 256, [*r50, f"precision={p}"], ["--arch", "resnet50", "--precision", p]) for p in ("fp16", "bf16", "tf32", "fp32")}
for gpus in (2, 4):
    works[f"resnet50-fp16-{gpus}gpus"] = (gpus, 256, [*r50, "precision=fp16", "model.sync_bn=false"], ["--arch", "resnet50", "--precision", "fp16"])
    works[f"resnet50-fp16-{gpus}gpus-syncbn"] = (gpus, 256, [*r50, "precision=fp16", "model.sync_bn=true"], ["--arch", "resnet50", "--precision", "fp16", "--syncbn"])
for batch in (1024, 128):
    works[f"resnet18-cifar-{batch}"] = (1, batch, ["model.name=resnet18", "model.stem=cifar", "precision=fp16", "bench.steps=200"],
                                        ["--arch", "resnet18_cifar", "--size", "32", "--classes", "10", "--precision", "fp16"])
works["resnet20-128"] = (1, 128, ["model.name=resnet20", "precision=fp16", "bench.steps=300"], None)
works["alexnet-64"] = (1, 64, "model.name=alexnet model.classes=1000 bench.image_size=227 optimizer.kind=adamw precision=fp16 bench.steps=200".split(),
                       ["--arch", "alexnet", "--size", "227", "--optimizer", "adamw", "--precision", "fp16"])

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lockstep", default=str(root / "build/cuda/lockstep"))
parser.add_argument("--peer")
parser.add_argument("--works", nargs="+", default=list(works), choices=list(works))
parser.add_argument("--modes", nargs="+", default=["eager", "default"])
parser.add_argument("--rounds", type=int, default=2)
parser.add_argument("--sides", default="both", choices=["both", "lockstep", "torch"])
parser.add_argument("--outputs", default="")
parser.add_argument("--limit", type=int, default=180, help="seconds a run may take")
arguments = parser.parse_args()

folder = pathlib.Path(arguments.outputs or tempfile.mkdtemp(prefix="lockstep-bench-"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "empty.toml").touch()


def run(command, environment=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.limit, env=environment)
    except subprocess.TimeoutExpired:
        return f"took more than {arguments.limit} s"
    return done.stdout + ("" if done.returncode == 0 else f"\nexit {done.returncode}: {done.stderr[-500:]}")


def lockstep(ranks, batch, keys):
    launcher = [] if ranks == 1 else ["mpirun", "--bind-to", "none", "-n", str(ranks)]
    said = run([*launcher, arguments.lockstep, "bench", str(folder / "empty.toml"), f"run.outputs={folder}", f"data.global_batch={ranks * batch}", *keys])
    found = re.search(r"([\d.]+) img/s", said)
    return (float(found.group(1)), "") if found else (None, said.strip().splitlines()[-1:] or ["nothing printed"])


def peer(ranks, batch, words, mode):
    launcher = [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    said = run([*launcher, arguments.peer, *words, "--batch", str(batch), "--channels-last", *([] if mode == "eager" else ["--compile", mode])], environment)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    return (next(v for k, v in json.loads(lines[-1]).items() if k in ("images_per_second", "img_s", "images_per_s")), "") if lines else (None, said.strip()[-200:])


print("| work | lockstep img/s | PyTorch img/s, its best mode | ratio |\n|---|---|---|---|")
for name in arguments.works:
    ranks, batch, keys, words = works[name]
    ours, theirs, notes = [], {}, []
    for _ in range(arguments.rounds):
        if arguments.sides != "torch":
            rate, note = lockstep(ranks, batch, keys)
            ours.append(rate) if rate else notes.append(note)
        for mode in arguments.modes if arguments.peer and words and arguments.sides != "lockstep" else []:
            rate, note = peer(ranks, batch, words, mode)
            theirs.setdefault(mode, []).append(rate) if rate else notes.append(f"{mode}: {note}")
    mine = statistics.median(ours) if ours else None
    best = max(((statistics.median(rates), mode) for mode, rates in theirs.items()), default=None)
    print(f"| {name} | {mine:,.0f} |" if mine else f"| {name} | - |", f"{best[0]:,.0f} ({best[1]}) |" if best else "- |", f"{mine / best[0]:.2f} |" if mine and best else "- |", *notes, flush=True)
