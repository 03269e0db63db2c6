#!/usr/bin/env python3
"""The five recipes on one GPU, each with several seeds, lockstep beside its PyTorch twin on the same images: accuracy, time, rate.
  recipes.py --shards CIFAR_SHARDS --tar CIFAR_TAR --peers FOLDER [--flowers SHARDS --flower-files FOLDER --weights RESNET34.pth] [--works 1 5-fp16 ...] [--seeds 1,2,3] [--gpus 0 1] [--jobs 4]
CIFAR_TAR: train/CLASS/*.jpg and test/CLASS/*.jpg; CIFAR_SHARDS: the same images converted.  FOLDER holds the twins: torch_seeds.py and torch_cifar.py, which print a line of JSON with
top1_top5 or final_acc, seconds and img_s; recipe 3's twin is torch_flowers.py beside this file.  The first seed of each has its GPU alone and gives time and rate; the others share
it, --jobs at a time, and give accuracy alone; --together: all share.  --epochs: so many of each instead of the recipe's, for the rate alone.  Each of --gpus works through what is left; 0+1 is one place of two GPUs, a rank on each (0+0: two ranks of PyTorch's on one, by gloo).  PyTorch runs without this shell's
LD_LIBRARY_PATH: it brings its own libraries."""
import argparse, json, os, pathlib, queue, statistics, subprocess, sys, tempfile, threading, time

root = pathlib.Path(__file__).resolve().parents[2]
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name in ("--shards", "--tar", "--peers", "--flowers", "--flower-files", "--weights"):
    parser.add_argument(name, default="")
parser.add_argument("--lockstep", default=str(root / "build/cuda/lockstep"))
parser.add_argument("--works", nargs="+")
parser.add_argument("--sides", default="both", choices=["both", "lockstep", "torch"])
parser.add_argument("--seeds", default="1,2,3")
parser.add_argument("--gpus", nargs="+", default=["0"])
parser.add_argument("--jobs", type=int, default=1)
parser.add_argument("--together", action="store_true")
parser.add_argument("--epochs", type=int, default=0)
parser.add_argument("--limit", type=int, default=900, help="seconds a run may take")
parser.add_argument("--outputs", default="")
a = parser.parse_args()
folder = pathlib.Path(a.outputs or tempfile.mkdtemp(prefix="lockstep-recipes-"))
folder.mkdir(parents=True, exist_ok=True)

cifar, flowers = [f"data.path={a.shards}"], [f"data.path={a.flowers}", f"model.weights={a.weights}", "precision=tf32"]
seeds_py, cifar_py = [f"{a.peers}/torch_seeds.py", a.tar], [f"{a.peers}/torch_cifar.py", a.tar]
flowers_py = [str(root / "tests/bench/torch_flowers.py"), "train", "--weights", a.weights]
# name: (input, None where there is none; overrides; the twin's words)
works = {
    "1": ("cifar10_resnet18_ddp", [*cifar, "precision=fp16", "run.evaluate_every_epochs=30"], [*seeds_py, "ddp_resnet18", "--dtype", "fp16", "--eval-every", "30"]),
    "3": ("flowers_resnet34", flowers, [*flowers_py, "--shards", a.flowers]),
    "3-frozen": ("flowers_resnet34_frozen", flowers, [*flowers_py, "--shards", a.flowers, "--freeze"]),
    "3-files": (None, [], [*flowers_py, "--files", a.flower_files]),
    "4": ("cifar10_lenet", [*cifar, "run.epochs=20", "run.evaluate_every_epochs=10", "checkpoint.every_epochs=10"], [*seeds_py, "toy_lenet", "--epochs", "20"]),
    "5-fp32": ("cifar10_alexnet", [*cifar, "precision=tf32", "run.evaluate_every_epochs=10"], [*seeds_py, "amp_alexnet"]),
    "5-autocast": ("cifar10_alexnet", [*cifar, "precision=fp16", "optimizer.loss_scale=1", "run.evaluate_every_epochs=10"], [*seeds_py, "amp_alexnet", "--dtype", "autocast"]),
    "5-fp16": ("cifar10_alexnet", [*cifar, "precision=fp16", "run.evaluate_every_epochs=10"], [*seeds_py, "amp_alexnet", "--dtype", "fp16"]),
}
for depth in (20, 32, 44, 56, 110):
    works[f"he{depth}"] = (f"cifar10_resnet{depth}", [*cifar, "precision=fp16", "run.evaluate_every_epochs=40"],
                           [*cifar_py, "--arch", f"resnet{depth}", "--recipe", "onecycle" if a.epochs else "he", "--graph", "--eval-every", "1000"])
if a.epochs:
    works = {name: (recipe, [*overrides, f"run.epochs={a.epochs}"], [*words, "--epochs", str(a.epochs)]) for name, (recipe, overrides, words) in works.items()}
if unknown := set(a.works or []) - set(works):
    parser.error(f"no work {', '.join(unknown)}; there are {', '.join(works)}")


def run(command, gpus, without=()):
    environment = {k: v for k, v in os.environ.items() if k not in without} | {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus.split("+")))}
    start = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=a.limit, env=environment)
    except subprocess.TimeoutExpired:
        return "", f"took more than {a.limit} s", a.limit
    return done.stdout, "" if done.returncode == 0 else (done.stdout + done.stderr)[-400:], time.time() - start


def ours(name, seed, gpus):
    """(top-1 in %, seconds from process start to end, img/s while training), or what went wrong."""
    recipe, overrides, _ = works[name]
    ranks = gpus.count("+") + 1
    launcher = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
    run_name = f"{name}-{ranks}x-{seed}"
    _, fault, seconds = run([*launcher, a.lockstep, "train", str(root / f"inputs/{recipe}.toml"), *overrides, f"run.outputs={folder}", f"run.name={run_name}", f"run.seed={seed}"], gpus)
    if fault:
        return fault
    records = [json.loads(line) for line in (folder / run_name / "metrics.jsonl").read_text().splitlines()]
    return (100 * [r for r in records if r["kind"] == "eval"][-1]["top1"], seconds, [r for r in records if r["kind"] == "train"][-1]["images_per_second_average"])


def twin(name, seed, gpus):
    ranks = gpus.count("+") + 1
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    said, fault, seconds = run([sys.executable, *launcher, *works[name][2], "--seed", str(seed)], gpus, without=["LD_LIBRARY_PATH"])
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if fault or not lines:
        return fault or "nothing printed"
    last = json.loads(lines[-1])
    return (100 * (last["final_acc"] if "final_acc" in last else last["top1_top5"][0]), seconds, last["img_s"])


results = {}                                        # (side, work, seed): what it gave
alone, shared = queue.SimpleQueue(), queue.SimpleQueue()
for name in a.works or works:
    for side, present in ((twin, a.sides != "lockstep"), (ours, a.sides != "torch" and works[name][0])):
        for i, seed in enumerate(a.seeds.split(",") if present else []):
            (shared if i or a.together else alone).put((side, name, int(seed)))


def work_through(tasks, gpus):
    while True:
        try:
            side, name, seed = tasks.get_nowait()
        except queue.Empty:
            return
        results[side, name, seed] = result = side(name, seed, gpus)
        print(side.__name__, name, seed, result, file=sys.stderr, flush=True)


def serve(gpus):
    work_through(alone, gpus)
    sharers = [threading.Thread(target=work_through, args=(shared, gpus)) for _ in range(a.jobs)]
    for thread in sharers:
        thread.start()
    for thread in sharers:
        thread.join()


servers = [threading.Thread(target=serve, args=(gpus,)) for gpus in a.gpus]
for thread in servers:
    thread.start()
for thread in servers:
    thread.join()


def text(results):
    """Accuracy of all, time and rate of the one that ran alone."""
    good = [r for r in results if not isinstance(r, str)]
    if not good:
        return "-", "-", "-"
    values = [r[0] for r in good]
    spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    first = results[0]
    return (f"{statistics.mean(values):.2f}{spread} ({len(values)})", *(("-", "-") if isinstance(first, str) or a.together else (f"{first[1]:.1f}", f"{first[2]:,.0f}")))


print("| recipe | lockstep top-1 % | s | img/s | PyTorch top-1 % | s | img/s | difference | allowed |\n|---|---|---|---|---|---|---|---|---|", flush=True)
for name in a.works or works:
    mine, theirs = ([results[key] for key in ((side, name, int(seed)) for seed in a.seeds.split(",")) if key in results] for side in (ours, twin))
    accuracies = [[r[0] for r in side if not isinstance(r, str)] for side in (mine, theirs)]
    difference = allowed = "-"
    if all(accuracies):
        error = sum(statistics.variance(v) / len(v) for v in accuracies if len(v) > 1) ** 0.5
        difference, allowed = f"{statistics.mean(accuracies[0]) - statistics.mean(accuracies[1]):+.2f}", f"{max(0.5, 2 * error):.2f}"
    print(f"| {name} | {' | '.join(text(mine))} | {' | '.join(text(theirs))} | {difference} | {allowed} |", flush=True)
    for fault in [r for r in mine + theirs if isinstance(r, str)]:
        print("  fault:", fault.replace("\n", " / "), flush=True)
