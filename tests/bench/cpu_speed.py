#!/usr/bin/env python3
"""A training step on the CPU, beside PyTorch's on the same machine in the same run, the two in turns; ratios count, img/s are for reference.

  cpu_speed.py [--rounds 3] [--threads 2] [--compile] [--work resnet20|resnet18|ranks|io|all] [--shards FOLDER]
resnet20: CIFAR ResNet-20, 32 x 32, batch 128, SGD with momentum.  resnet18: torchvision's, 224 x 224, batch 16.  PyTorch in NCHW and channels_last,
with --compile also compiled.  ranks: 2 ranks x 1 thread against 1 rank x 2 threads.  io: reading shards against training on them.
Needs build/cpu/lockstep, and torch with torchvision in the python that runs it."""
import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]

PEER = r"""
import json, resource, sys, time
import torch, torch.nn as nn, torch.nn.functional as F, torchvision
arch, layout, compiled, threads, steps = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(threads); torch.manual_seed(0)
class Block(nn.Module):
    def __init__(s, i, o, st):
        super().__init__()
        s.c1, s.b1, s.c2, s.b2, s.st, s.grow = nn.Conv2d(i, o, 3, st, 1, bias=False), nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), st, o - i
    def forward(s, x):
        y = s.b2(s.c2(F.relu(s.b1(s.c1(x)))))
        if s.st != 1: x = F.pad(x[:, :, ::s.st, ::s.st], (0, 0, 0, 0, s.grow // 2, s.grow - s.grow // 2))
        return F.relu(x + y)
class ResNet20(nn.Module):
    def __init__(s):
        super().__init__(); w, layers = 16, [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        for o, st in ((16, 1), (32, 2), (64, 2)):
            for k in range(3): layers.append(Block(w, o, st if k == 0 else 1)); w = o
        s.body, s.fc = nn.Sequential(*layers), nn.Linear(64, 10)
    def forward(s, x): return s.fc(s.body(x).mean((2, 3)))
model, batch, size, classes = (ResNet20(), 128, 32, 10) if arch == "resnet20" else (torchvision.models.resnet18(), 16, 224, 1000)
fmt = torch.channels_last if layout == "channels_last" else torch.contiguous_format
model = model.to(memory_format=fmt); x = torch.randn(batch, 3, size, size).to(memory_format=fmt); y = torch.randint(classes, (batch,))
opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4); net = torch.compile(model) if compiled else model
def step():
    opt.zero_grad(set_to_none=True); F.cross_entropy(net(x), y).backward(); opt.step()
for _ in range(3): step()
times = []
for _ in range(steps):
    t = time.perf_counter(); step(); times.append(time.perf_counter() - t)
print(json.dumps(dict(img_s=batch * len(times) / sum(times), torch=torch.__version__, peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)))
"""

WORK = {"resnet20": (["model.name=resnet20", "data.global_batch=128", "bench.image_size=32"], 12),
        "resnet18": (["model.name=resnet18", "data.global_batch=16", "bench.image_size=224", "model.classes=1000"], 6)}


def ours(words, threads=2, ranks=1):
    """img/s and peak MiB (of all ranks together)."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        command = [str(root / "build/cpu/lockstep"), "bench", config.name, *words]
        if ranks > 1:
            command = ["mpirun", "--oversubscribe", "--bind-to", "core", "-n", str(ranks), *command]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env.pop("PYTHONPATH", None)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        out = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return float(re.search(r"^(\d+) img/s", out, re.M)[1]), (peak / 1024 if peak > before else None)


def theirs(arch, layout, compiled, threads, steps):
    out = subprocess.run([sys.executable, "-c", PEER, arch, layout, str(int(compiled)), str(threads), str(steps)], capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])


def show(name, values, ours=None):
    """The median; the ratio is the median of the rounds' own, since neighbours on a shared machine come and go."""
    middle = statistics.median(values)
    ratio = f"   {statistics.median(a / b for a, b in zip(ours, values)):.2f}x" if ours else ""
    print(f"  {name:34s} {middle:9.1f} img/s  ({min(values):.1f} to {max(values):.1f}){ratio}", flush=True)
    return middle


def steps_beside_torch(work, a):
    words, steps = WORK[work]
    peers = [("NCHW", False), ("channels_last", False)] + ([("channels_last", True)] if a.compile else [])
    rates, own, memory, version = {p: [] for p in peers}, [], {"ours": 0}, ""
    for _ in range(a.rounds):
        rate, peak = ours([*words, f"bench.steps={steps}"], a.threads)
        own.append(rate)
        memory["ours"] = max(memory["ours"], peak or 0)
        for peer in peers:
            result = theirs(work, *peer, a.threads, steps)
            rates[peer].append(result["img_s"])
            version = result["torch"]
            memory[peer] = max(memory.get(peer, 0), result["peak_mib"])
    print(f"{work}, {a.threads} threads, fp32, PyTorch {version}; the last column is lockstep's rate over that row's")
    show("lockstep", own)
    for (layout, compiled), values in rates.items():
        show(f"PyTorch {layout}{', compiled' if compiled else ''}", values, own)
    print("  peak memory, MiB: " + ", ".join(f"{'lockstep' if k == 'ours' else k[0] + (' compiled' if k[1] else '')} {v:.0f}" for k, v in memory.items()))


p = argparse.ArgumentParser()
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--compile", action="store_true")
p.add_argument("--work", default="all")
p.add_argument("--shards", default="")
a = p.parse_args()
for work in WORK:
    if a.work in (work, "all"):
        steps_beside_torch(work, a)
if a.work in ("ranks", "all"):
    words = [*WORK["resnet20"][0], "bench.steps=12"]
    print("resnet20, one rank with two threads against two ranks with one")
    one, two = [], []
    for _ in range(a.rounds):
        one.append(ours(words, 2)[0])
        two.append(ours(words, 1, 2)[0])
    base = show("1 rank x 2 threads", one)
    print(f"  two ranks reach {100 * show('2 ranks x 1 thread', two) / base:.0f} %")
if a.work in ("io", "all") and a.shards:
    words = [f"data.path={a.shards}", "data.global_batch=128", "augment.train=pad_crop", "augment.flip=true"]
    print("reading shards against a training step, ResNet-20")
    reads = [ours([*words, "bench.io=true", "bench.steps=300", "bench.warmup=5"])[0] for _ in range(a.rounds)]
    base = show("training", [ours([*WORK["resnet20"][0], "bench.steps=12"])[0] for _ in range(a.rounds)])
    print(f"  reading is {show('reading', reads) / base:.0f} times as fast")
