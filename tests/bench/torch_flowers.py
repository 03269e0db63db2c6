#!/usr/bin/env python3
"""PyTorch's twin of recipe 3 (inputs/flowers_resnet34.toml, flowers_resnet34_frozen.toml) on one GPU, or under torchrun on several, and the weights that both start from.
  torch_flowers.py pretrain TAR WEIGHTS.pth [--epochs 10]      ResNet-34 on CIFAR's images at 64 x 64; TAR: train/CLASS/*.jpg
  torch_flowers.py train --weights WEIGHTS.pth (--files FOLDER | --shards FOLDER) [--freeze] [--seed 0] [--epochs 30]
--files: the photographs as they were, train/CLASS/ and val/CLASS/; --shards: the same as lockstep-convert stored them.  Prints a line of JSON."""
import argparse, io, json, math, os, pathlib, tarfile, time
import numpy as np, torch, torch.nn.functional as F, torchvision
from PIL import Image
from torchvision import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class Images(torch.utils.data.Dataset):
    def __init__(self, images, labels, transform):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(self.images[i]), self.labels[i]


def from_files(folder, split):
    files = [(path, label) for label, kind in enumerate(sorted(p for p in (pathlib.Path(folder) / split).iterdir() if p.is_dir())) for path in sorted(kind.iterdir())]
    return [Image.open(path).convert("RGB") for path, _ in files], [label for _, label in files]


def from_shards(folder, split):
    import h5py
    images, labels = [], []
    for path in sorted(pathlib.Path(folder).glob(f"{split}-*.h5")):
        with h5py.File(path) as f:
            labels += f["labels"][:].tolist()
            if "images" in f:
                images += [Image.fromarray(x) for x in f["images"][:]]
                continue
            pixels, offsets = f["pixels"][:], f["offsets"][:]
            for i, (h, w) in enumerate(zip(f["heights"][:], f["widths"][:])):
                images.append(Image.fromarray(pixels[offsets[i]:offsets[i] + 3 * int(h) * int(w)].reshape(h, w, 3)))
    return images, labels


def train(a):
    ranks, rank, device = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0)), DEVICE
    if ranks > 1:
        gpus = torch.cuda.device_count()
        device = f"cuda:{int(os.environ['LOCAL_RANK']) % gpus}"
        torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl" if gpus >= ranks else "gloo")    # NCCL has no two ranks on one GPU
    torch.manual_seed(a.seed)
    read = (lambda split: from_files(a.files, split)) if a.files else (lambda split: from_shards(a.shards, split))
    finish = [T.ToTensor(), T.Normalize(MEAN, STD)]
    sets = {"train": Images(*read("train"), T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *finish])),
            "val": Images(*read("val"), T.Compose([T.Resize(256), T.CenterCrop(224), *finish]))}
    sampler = torch.utils.data.DistributedSampler(sets["train"], seed=a.seed) if ranks > 1 else None
    workers = {"num_workers": 8, "persistent_workers": True, "pin_memory": True}
    loader = {"train": torch.utils.data.DataLoader(sets["train"], 16, shuffle=not sampler, sampler=sampler, drop_last=True, **workers),
              "val": torch.utils.data.DataLoader(sets["val"], 16, **workers)}
    model = torchvision.models.resnet34(num_classes=max(sets["train"].labels) + 1)
    weights = {k: v for k, v in torch.load(a.weights, map_location="cpu").items() if k in model.state_dict() and v.shape == model.state_dict()[k].shape}
    model.load_state_dict(weights, strict=False)
    for name, p in model.named_parameters():
        p.requires_grad_(not a.freeze or name.startswith("fc"))
    model.to(device).to(memory_format=torch.channels_last)
    if ranks > 1:
        model = model if a.freeze else torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
        torch.manual_seed(1000 * a.seed + rank)          # crops of its own
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.001 * ranks, momentum=0.9, weight_decay=0.005)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: (1 + math.cos(math.pi * e / a.epochs)) / 2 * 0.9 + 0.1)
    start, images = time.time(), 0
    for epoch in range(a.epochs):
        model.train()
        if sampler:
            sampler.set_epoch(epoch)
        for x, y in loader["train"]:
            loss = F.cross_entropy(model(x.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)), y.to(device, non_blocking=True))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            images += ranks * len(y)
        schedule.step()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    seconds = time.time() - start
    model.eval()
    with torch.no_grad():
        right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in loader["val"])
    if rank == 0:
        print(json.dumps({"peer": "torch " + torch.__version__, "final_acc": right / len(sets["val"]), "loss": loss.item(), "seconds": round(seconds, 1), "img_s": round(images / seconds)}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def pretrain(a):
    torch.manual_seed(0)
    images, names = [], []
    with tarfile.open(a.tar) as tar:
        for member in tar:
            if member.isfile() and "/train/" in "/" + member.name:
                images.append(np.asarray(Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")))
                names.append(member.name.split("/")[-2])
    kinds = sorted(set(names))
    x, y = torch.from_numpy(np.stack(images)).to(DEVICE).permute(0, 3, 1, 2), torch.tensor([kinds.index(n) for n in names]).to(DEVICE)
    mean, std = (torch.tensor(v).to(DEVICE).view(3, 1, 1) for v in (MEAN, STD))
    model = torchvision.models.resnet34(num_classes=len(kinds)).to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = a.epochs * (len(y) // 256)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    for _ in range(a.epochs):
        for ids in torch.randperm(len(y), device=DEVICE).split(256)[:len(y) // 256]:
            batch = (F.interpolate(x[ids].float() / 255, size=64, mode="bilinear", align_corners=False) - mean) / std
            if torch.rand(()) < 0.5:
                batch = batch.flip(3)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(batch.contiguous(memory_format=torch.channels_last)), y[ids])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    torch.save({k: v.cpu() for k, v in model.state_dict().items()}, a.weights)
    print(json.dumps({"loss": loss.item()}))


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
commands = parser.add_subparsers(required=True)
one = commands.add_parser("pretrain")
one.add_argument("tar")
one.add_argument("weights")
one.set_defaults(run=pretrain)
two = commands.add_parser("train")
two.set_defaults(run=train)
for name in ("--weights", "--files", "--shards"):
    two.add_argument(name, default="")
two.add_argument("--freeze", action="store_true")
two.add_argument("--seed", type=int, default=0)
for command, epochs in ((one, 10), (two, 30)):
    command.add_argument("--epochs", type=int, default=epochs)
arguments = parser.parse_args()
arguments.run(arguments)
