#!/usr/bin/env python3
"""On a GPU, the loss of each epoch in fp16 and bf16 lies where PyTorch's own seeds put it in the same precision (autocast; fp16 with GradScaler), on the same shards.
ResNet-20 without augmentation, so that both train on the same images.  Skipped where no GPU or no torch is.
  gpu_curves_test.py [FOLDER OF SHARDS [PRECISION...]]      LOCKSTEP_PYTHON names a python with torch"""
import concurrent.futures
import statistics

import harness
from harness import *

BATCH, RATE, EPOCHS, SEEDS = 128, 0.05, 6, 5

TWIN = """
import json, pathlib, sys
import h5py, numpy, torch, torch.nn.functional as F
sys.path.insert(0, sys.argv[1])
from torch_models import make
shards, precision, seed, batch, rate, epochs = sys.argv[2], sys.argv[3], *map(int, sys.argv[4:6]), float(sys.argv[6]), int(sys.argv[7])
torch.manual_seed(seed)
files = [h5py.File(p) for p in sorted(pathlib.Path(shards).glob("train-*.h5"))]
x = torch.from_numpy(numpy.concatenate([f["images"][:] for f in files])).cuda().permute(0, 3, 1, 2).float() / 255
y = torch.from_numpy(numpy.concatenate([f["labels"][:] for f in files]).astype("int64")).cuda()
x = (x - 0.5) / 0.25
net = make("resnet20", int(y.max()) + 1).cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
curve = []
for _ in range(epochs):
    losses = torch.zeros((), device="cuda")
    order = torch.randperm(len(y), device="cuda")
    for ids in order[:len(y) // batch * batch].split(batch):
        with torch.autocast("cuda", dtype=torch.float16 if precision == "fp16" else torch.bfloat16):
            loss = F.cross_entropy(net(x[ids].contiguous(memory_format=torch.channels_last)), y[ids])
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses += loss.detach()
    curve.append(losses.item() / (len(y) // batch))
print(json.dumps(curve))
"""

gpu = gpu_program()
python = os.environ.get("LOCKSTEP_PYTHON", sys.executable)
if subprocess.run([python, "-c", "import torch, torchvision, h5py"], capture_output=True).returncode:
    skip(f"no torch, torchvision and h5py in {python}")
folder = scratch()
data = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else shapes(folder, train=12800, val=60)
harness.lockstep = gpu


def theirs(precision, seed):
    variables = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}       # torch brings its own libraries
    words = [python, "-c", TWIN, root / "tests/support", data, precision, seed, BATCH, RATE, EPOCHS]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, env=variables, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def ours(precision, seed):
    """The mean loss of each epoch, of a record a step."""
    name = f"{precision}-{seed}"
    toml = write_input(folder / f"{name}.toml", **{
        "precision": precision, "data.path": data, "data.global_batch": BATCH, "data.last_batch": "drop", "data.mean": [0.5, 0.5, 0.5], "data.std": [0.25, 0.25, 0.25],
        "augment.train": "none", "model.name": "resnet20", "run.outputs": folder / "runs", "run.name": name, "run.seed": seed, "run.epochs": EPOCHS, "run.log_every": 1,
        "run.evaluate_every_epochs": 0, "schedule.kind": "constant", "optimizer.learning_rate": RATE, "optimizer.momentum": 0.9, "optimizer.weight_decay": 1e-4})
    run(["train", toml], threads=2)
    losses = [r["loss"] for r in records(folder / "runs" / name, "train")]
    each = len(losses) // EPOCHS
    return [statistics.mean(losses[e * each:(e + 1) * each]) for e in range(EPOCHS)]


for precision in sys.argv[2:] or ("fp16", "bf16"):
    with concurrent.futures.ThreadPoolExecutor(SEEDS) as pool:
        peers = list(pool.map(lambda seed: theirs(precision, seed), range(1, SEEDS + 1)))
    mine = [ours(precision, seed) for seed in range(1, SEEDS + 1)]
    for epoch, (m, p) in enumerate(zip(zip(*mine), zip(*peers))):
        error = (statistics.variance(m) / SEEDS + statistics.variance(p) / SEEDS) ** 0.5
        apart = statistics.mean(m) - statistics.mean(p)
        print(f"{precision}, epoch {epoch + 1}: loss {statistics.mean(m):.4f}, of {SEEDS} seeds of PyTorch {min(p):.4f} to {max(p):.4f}: {apart / error:+.1f} standard errors apart", flush=True)
        assert abs(apart) < 3.5 * error + 0.01 * statistics.mean(p), (m, p)           # 12 comparisons: 3.5 happen by chance once in 100 tests
