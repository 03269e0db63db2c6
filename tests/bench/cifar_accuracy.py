#!/usr/bin/env python3
"""ResNet-20's accuracy after a few epochs of CIFAR-10 beside PyTorch's: the same images, augmentation and schedule, both on this machine's CPU.

  cifar_accuracy.py IMAGES SHARDS [--epochs 5] [--ranks 2] [--seeds 1]
IMAGES: a folder with train/ and test/ of class folders (32 x 32); SHARDS: where lockstep-convert put it.
SGD with Nesterov momentum, batch 128, one epoch of warm-up to 0.1, cosine to 0; crops of the image with 4 pixels of mean colour around it, flips.
Needs build/cpu/lockstep, and torch with PIL in the python that runs it."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "tests/support"))
from torch_models import make  # noqa: E402

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
BATCH, RATE = 128, 0.1


def images(folder):
    """u8 [n, 3, 32, 32] and labels, classes in order of their names."""
    classes = sorted(p.name for p in folder.iterdir() if p.is_dir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path, _ in files])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.tensor([label for _, label in files])


def theirs(folder, epochs, seed):
    torch.manual_seed(seed)
    (train, labels), (test, test_labels) = images(folder / "train"), images(folder / "test")
    mean, std = torch.tensor(MEAN).view(1, 3, 1, 1) * 255, torch.tensor(STD).view(1, 3, 1, 1) * 255
    net = make("resnet20", 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    each = len(labels) // BATCH
    warm, total = each, each * epochs
    scale = lambda s: (s + 1) / warm if s < warm else 0.5 * (1 + np.cos(np.pi * (s - warm) / (total - warm)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    for _ in range(epochs):
        net.train()
        order = torch.randperm(len(labels))
        for k in range(each):
            ids = order[k * BATCH:(k + 1) * BATCH]
            x = F.pad((train[ids].float() - mean) / std, (4, 4, 4, 4))
            rows, columns = torch.randint(0, 9, (BATCH, 1)) + torch.arange(32), torch.randint(0, 9, (BATCH, 1)) + torch.arange(32)
            columns = torch.where(torch.rand(BATCH, 1) < 0.5, columns.flip(1), columns)
            x = x[torch.arange(BATCH)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
            optimizer.zero_grad()
            F.cross_entropy(net(x), labels[ids]).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        right = sum((net((x.float() - mean) / std).argmax(1) == y).sum().item() for x, y in zip(test.split(500), test_labels.split(500)))
    return right / len(test_labels)


def ours(shards, epochs, seed, ranks):
    with tempfile.TemporaryDirectory() as folder:
        words = [f"data.path={shards}", f"data.global_batch={BATCH}", "data.last_batch=drop", f"data.mean={MEAN}", f"data.std={STD}",
                 "augment.train=pad_crop", "augment.pad_fill=mean", "augment.flip=true", "model.name=resnet20", "model.sync_bn=true",
                 f"optimizer.learning_rate={RATE}", "optimizer.momentum=0.9", "optimizer.nesterov=true", "optimizer.weight_decay=5e-4",
                 "schedule.kind=cosine", "schedule.warmup_epochs=1", f"run.epochs={epochs}", f"run.seed={seed}", f"run.outputs={folder}", "run.name=twin"]
        empty = pathlib.Path(folder) / "input.toml"
        empty.touch()
        env = {**os.environ, "OMP_NUM_THREADS": str(max(1, os.cpu_count() // ranks)), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env.pop("PYTHONPATH", None)
        command = ["mpirun", "--oversubscribe", "-n", str(ranks), str(root / "build/cpu/lockstep"), "train", str(empty), *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = (pathlib.Path(folder) / "twin" / "metrics.jsonl").read_text().splitlines()
        return [record["top1"] for record in map(json.loads, lines) if record["kind"] == "eval"][-1]


p = argparse.ArgumentParser()
p.add_argument("images", type=pathlib.Path)
p.add_argument("shards")
p.add_argument("--epochs", type=int, default=5)
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--seeds", type=int, default=1)
a = p.parse_args()
print(f"ResNet-20, {a.epochs} epochs, PyTorch {torch.__version__}; top-1 of the test images")
for seed in range(a.seeds):
    began = time.monotonic()
    mine = ours(a.shards, a.epochs, seed, a.ranks)
    middle = time.monotonic()
    print(f"  seed {seed}: lockstep, {a.ranks} ranks {mine:.4f} in {middle - began:.0f} s", end="", flush=True)
    peer = theirs(a.images, a.epochs, seed)
    print(f"   PyTorch {peer:.4f} in {time.monotonic() - middle:.0f} s   difference {100 * (mine - peer):+.2f} points", flush=True)
