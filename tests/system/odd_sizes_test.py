#!/usr/bin/env python3
"""Whole runs of odd sizes against PyTorch in float64: numbers of images, of images a step, ranks and micro-batches that divide nothing.  Every loss, the
weights at the end, the evaluation and all counts are PyTorch's; what leaves a rank without images in every step, or no step, ends with exit code 2.
A sample: tests/train/odd_sizes_mpi_test.cpp goes through all of them, with batch norm too."""
import torch
import torch.nn.functional as F

from harness import *

folder = scratch()
torch.set_num_threads(1)
rate, momentum, decay = 0.05, 0.9, 1e-3


def split_of(data, split):
    """Images as LeNet sees them, and labels, in stored order."""
    with h5py.File(next(data.glob(f"{split}-*.h5"))) as shard:
        return torch.from_numpy(shard["images"][()]).double().permute(0, 3, 1, 2).div(255).sub(0.5).div(0.25), torch.from_numpy(shard["labels"][()].astype(numpy.int64))


class LeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(3, 6, 5), torch.nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(400, 120), torch.nn.Linear(120, 84), torch.nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.max_pool2d(F.relu(self.conv1(x)), 2))), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


def batches(images, batch, last_batch):
    """Stored order, epoch after epoch: the numbers of the images of each step of an epoch."""
    steps = images // batch if last_batch == "drop" else -(-images // batch)
    return [[i % images for i in range(s * batch, (s + 1) * batch) if last_batch == "pad" or i < images] for s in range(steps)]


def row(ranks, images, batch, last_batch="keep", micro_batches=1, code=0):
    name, data = f"{ranks}-{images}-{batch}-{last_batch}-{micro_batches}", shapes(folder, train=images, val=images)
    toml = write_input(folder / f"{name}.toml", **{
        "data.path": data, "data.global_batch": batch, "data.last_batch": last_batch, "data.micro_batches": micro_batches, "data.shuffle": "none", "data.mean": [0.5], "data.std": [0.25],
        "model.name": "lenet", "optimizer.learning_rate": rate, "optimizer.momentum": momentum, "optimizer.weight_decay": decay, "schedule.kind": "constant",
        "run.outputs": folder / "runs", "run.epochs": 2, "run.log_every": 1, "checkpoint.every_epochs": 0})
    text = run(["train", toml], ranks=ranks, expect=code, timeout=120)
    if code:
        assert text.count("error: ") == 1 and not list((folder / "runs" / name / "checkpoints").glob("*")), text
        print(f"{name}: refused")
        return
    run(["train", toml, "run.name=start", "run.resume=never", "optimizer.learning_rate=0", "run.max_steps=1"])
    network = LeNet().double()
    network.load_state_dict({k: torch.from_numpy(v).double() for k, v in arrays(checkpoints(folder / "runs/start")[-1], "/model").items()})
    shutil.rmtree(folder / "runs/start")
    optimizer = torch.optim.SGD(network.parameters(), rate, momentum=momentum, weight_decay=decay)
    pixels, labels = split_of(data, "train")
    found, worst = records(folder / "runs" / name, "train"), 0.0
    wanted = 2 * batches(images, batch, last_batch)
    assert [round(r["images_per_second"] * r["step_seconds"]) for r in found] == [len(ids) for ids in wanted], found
    for r, ids in zip(found, wanted):
        loss = F.cross_entropy(network(pixels[ids]), labels[ids])
        worst = max(worst, abs(r["loss"] - loss.item()) / loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        pixels, labels = split_of(data, "val")
        evaluated = records(folder / "runs" / name, "eval")[-1]
        worst = max(worst, abs(evaluated["loss"] / F.cross_entropy(network(pixels), labels).item() - 1))
        right = (network(pixels).argmax(1) == labels).sum().item()
    assert evaluated["images"] == images and evaluated["top1"] == right / images, (evaluated, right)
    kept = arrays(checkpoints(folder / "runs" / name)[-1], "/model")
    apart = max(float(numpy.max(numpy.abs(kept[k] - v.numpy())) / numpy.max(numpy.abs(v.numpy()))) for k, v in network.state_dict().items())
    assert worst < 2e-6 and apart < 2e-5, (name, worst, apart)
    print(f"{name}: {len(wanted)} steps, losses within {worst:.1e}, weights within {apart:.1e}", flush=True)


row(1, 1, 1)
row(1, 7, 5, "pad", 3)
row(2, 2, 5, "pad", 2)
row(2, 7, 2, micro_batches=2)
row(3, 50, 5, micro_batches=3)
row(3, 1, 64)                                               # two ranks have no image, ever
row(3, 65, 64, "drop", 2)
row(4, 65, 64, micro_batches=3)                             # an epoch's last step has one image
row(4, 127, 5, "pad", 2)
row(4, 50, 64, "pad")
row(3, 7, 2, code=2)
row(2, 50, 1, code=2)
row(2, 50, 64, "drop", code=2)
row(1, 1, 2, "drop", code=2)
