#!/usr/bin/env python3
"""inputs/README.md's "From a PyTorch script's flags": each row is held by a run below or by the test that is named here, each key in it exists,
and every file of inputs/ trains on two ranks.  Images are generated, so each run says its own data and batch; what else had to be overridden
stands with the run."""
import itertools
import math
import re

import torch
import torchvision
from PIL import Image
from torch.optim import lr_scheduler

from harness import *

# Words of a row's first cell, and who holds what it says: a function below (it names the run), or another test.
HELD_BY = {
    "--data-path": "every_input_starts", "val_rate": "tests/convert/image_folder_test.cpp", "--arch": "every_input_starts", "--num_classes": "classes_of_the_data_or_more",
    "of one process": "rank_batch_and_its_rate", "of the job": "remainder_kept_or_dropped", "gradient accumulation": "tests/system/ranks_test.py",
    "--workers": "Loader.HandsOutEveryMicroBatchInOrderWhateverTheReadersAndSlots", "prefetcher": "Loader.ReadsAheadNoMoreThanItsSlots",
    "drop_last": "remainder_kept_or_dropped", "set_epoch": "Sampler.TheOrderFollowsFromSeedAndEpochAlone", "DistributedSampler": "tests/system/ranks_test.py",
    "Normalize": "Augment.EvaluationIsTorchvisionsResizeCenterCropToTensorNormalize", "RandomResizedCrop": "RandomResizedCrop.IsDistributedAsTorchvisionsInAreaAspectAndPlace",
    "RandomCrop": "PadCrop.TakesEveryPlaceOfThePaddedImageAlike", "CenterCrop": "CenterCrop.IsTorchvisionsResizeAndCenterCropForEverySize",
    "flip": "Flip.HalfOfAllDrawsIndependentOfTheCropAndOfTheOtherEpoch", "--epochs": "step_schedule", "--resume": "tests/system/misuse_test.py", "--start-epoch": "tests/system/resume_test.py",
    "--lr`": "rank_batch_and_its_rate", "--momentum": "tests/optim/optimizer_torch_test.cpp", "AdamW": "tests/optim/optimizer_torch_test.cpp",
    "CrossEntropyLoss": "CrossEntropy.LossAndGradientArePyTorchsWithAndWithoutSmoothing", "StepLR": "step_schedule", "MultiStepLR": "milestones_in_steps", "warm-up": "warm_up_and_milestones_in_epochs",
    "--lrf": "cosine_by_epoch", "OneCycleLR": "one_cycle", "ReduceLROnPlateau": "plateau_sees_the_mean_loss", "clip_grad_norm_": "tests/optim/optimizer_torch_test.cpp",
    "--sync_bn": "tests/system/ranks_test.py", "--opt-level O0": "every_input_starts", "--opt-level O1": "OptimizerSkip.AStepWithANonFiniteGradientOrLossLeavesNoTraceButTheScaleAndItsCounters", "--keep-batchnorm-fp32": "tests/layers/batch_norm_test.cpp",
    "--channels-last": "tests/train/torch_steps_test.cpp", "--freeze-layers": "frozen_body_and_partial_load", "--pretrained": "frozen_body_and_partial_load",
    "start weights": "equal_start_on_all_ranks", "rates of their own": "tests/system/weights_test.py", "--evaluate": "equal_start_on_all_ranks", "--print-freq": "print_freq",
    "AverageMeter": "tests/system/run_test.py", "isfinite": "not_finite_ends_before_the_update", "--deterministic": "tests/system/resume_test.py", "--prof N": "tests/system/run_test.py",
    "save_checkpoint": "every_epochs_weights", "best model": "tests/system/run_test.py", "TensorBoard": "tests/system/run_test.py", "--local_rank": "tests/system/slurm_test.py",
    "`DistributedDataParallel`": "batch_norm_of_each_rank", "equal versions": "Launch.ATextThatDiffersIsAnErrorOnAllRanksThatNamesTheLine", "CUDA_VISIBLE_DEVICES": "tests/comm/launch_test.cpp",
}
NOT_HERE = ["--opt-level O3", "--loss-scale"]               # rows about a GPU's loss scale

folder = scratch()
runs, inputs = folder / "runs", root / "inputs"
shapes_data = shapes(folder, train=100, val=21)
started = set()


def said(what):
    print("ok:", what, flush=True)


def photos(path, classes=5, images=9):
    """Photographs of own sizes in class folders, as ImageNet and flower_photos are."""
    random = numpy.random.default_rng(1)
    for kind in range(classes):
        (path / f"kind{kind}").mkdir(parents=True)
        for i in range(images):
            height, width = random.integers(40, 80, 2)
            pixels = random.integers(0, 120, (height, width, 3)) + numpy.array([20 * kind, 100 - 20 * kind, 30])
            Image.fromarray(pixels.astype(numpy.uint8)).save(path / f"kind{kind}/{i}.png")
    call([convert, "image-folder", path, f"{path}-shards", "--val-fraction", "0.2", "--fit", "short", "--size", 40, "--no-rotate"])
    return pathlib.Path(f"{path}-shards")


photo_data = photos(folder / "photos")
with h5py.File(next(photo_data.glob("train-*.h5"))) as shard:
    photo_images = len(shard["labels"])


def train(file, *overrides, name=None, ranks=2, **options):
    """An input file, with every step recorded unless an override says else.  What it printed."""
    started.add(file)
    name, given = name or file, {o.split("=")[0] for o in overrides}
    usual = {"run.outputs": runs, "run.name": name, "run.log_every": 1, "data.path": photo_data if file.startswith(("imagenet", "flowers")) else shapes_data}
    return run(["train", inputs / f"{file}.toml", *(f"{k}={v}" for k, v in usual.items() if k not in given), *overrides], ranks=ranks, **options)


def steps_of(name):
    return records(runs / name, "train")


def images_of(name):
    return [round(r["images_per_second"] * r["step_seconds"]) for r in steps_of(name)]


def last(name):
    return checkpoints(runs / name)[-1]


def require_rates(name, want):
    """The learning rate of each recorded step, but for f32's rounding."""
    found = [r["learning_rate"] for r in steps_of(name)]
    assert len(found) == len(want) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(found, want)), f"{name}: rates {found}, wanted {want}"


def torch_rates(make, base, epochs, per_epoch, by_epoch=True):
    """What a PyTorch script's optimizer has at each step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], base)
    scheduler, rates = make(optimizer), []
    for _, step in itertools.product(range(epochs), range(per_epoch)):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if not by_epoch or step + 1 == per_epoch:
            scheduler.step()
    return rates


# ---- the He recipe: batches of the job, dropped remainders, milestones in steps ---------------------------------------------------------
def remainder_kept_or_dropped():
    """100 images: 8 steps of 12, the last 4 left out (ResNet-20); 2 steps of 40 and one of 20 (recipe 1)."""
    assert [r["epoch"] for r in steps_of("cifar10_resnet20")][-1] == 5 / 8 and images_of("cifar10_resnet20") == [12] * 5
    assert images_of("cifar10_resnet18_ddp") == [40, 40, 20] * 3


def milestones_in_steps():
    scheduler = lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4])
    want = torch_rates(scheduler, 0.1, 1, 5, by_epoch=False)
    for depth in (20, 32, 44, 56):
        require_rates(f"cifar10_resnet{depth}", want)
    require_rates("cifar10_resnet110", [rate * (s + 1) / 8 for s, rate in enumerate(want)])   # 1.026 epochs of 8 steps: 8 steps


for depth in (20, 32, 44, 56, 110):
    train(f"cifar10_resnet{depth}", "data.global_batch=12", "run.max_steps=5", "schedule.milestones_steps=[2,4]")
milestones_in_steps()
said("cifar10_resnet20 to 110: milestones_in_steps")


# ---- recipe 1 --------------------------------------------------------------------------------------------------------------------------
def step_schedule():
    """Three epochs, a tenth after each."""
    require_rates("cifar10_resnet18_ddp", torch_rates(lambda o: lr_scheduler.StepLR(o, 1), 0.1, 3, 3))


def batch_norm_of_each_rank():
    """Each rank has statistics of its own; rank 0's are the run's."""
    kept = arrays(last("cifar10_resnet18_ddp"))
    groups = [v for k, v in kept.items() if k.startswith("progress/batch_norm") and k.endswith("bn1.running_mean")]
    groups = groups or [v for k, v in kept.items() if k.startswith("progress/batch_norm")]
    assert groups and all(len(g) == 2 and not numpy.array_equal(g[0], g[1]) for g in groups), {k: v.shape for k, v in kept.items() if "batch_norm" in k}


train("cifar10_resnet18_ddp", "data.global_batch=40", "run.epochs=3", "schedule.step_epochs=1", "checkpoint.every_epochs=0")
step_schedule()
batch_norm_of_each_rank()
remainder_kept_or_dropped()
said("cifar10_resnet18_ddp: step_schedule, batch_norm_of_each_rank, remainder_kept_or_dropped")


def one_cycle():
    """A line up over 3 steps, then a line to 0 at the end of all 10."""
    require_rates("cifar10_resnet18", [0.4 * (s + 1) / 3 if s < 3 else 0.4 * (10 - s) / 7 for s in range(10)])


train("cifar10_resnet18", "precision=fp32", f"data.path={shapes(folder, train=20, val=21)}", "data.global_batch=2", "run.epochs=1", "schedule.warmup_epochs=0.3")   # a CPU has no fp16
one_cycle()
said("cifar10_resnet18: one_cycle")

train("quickstart", "data.global_batch=40")
require_rates("quickstart", [0.1 * (s + 1) / 3 if s < 3 else 0.1 * (1 + math.cos(math.pi * (s - 3) / 6)) / 2 for s in range(9)])
said("quickstart: warm-up, then a cosine by step")


# ---- recipe 4 --------------------------------------------------------------------------------------------------------------------------
def rank_batch_and_its_rate():
    """16 images a rank: the batch is 16 times the ranks, the rate 0.001 times."""
    for ranks in (1, 2, 3):
        batch = 16 * ranks
        full, rest = divmod(100, batch)
        assert images_of(f"lenet-{ranks}") == 2 * ([batch] * full + [rest] * (rest > 0)), images_of(f"lenet-{ranks}")
        require_rates(f"lenet-{ranks}", [0.001 * ranks] * len(steps_of(f"lenet-{ranks}")))


def equal_start_on_all_ranks():
    """What three ranks evaluated with weights of their own, which all updates were added to, is what one process makes of rank 0's: they began alike."""
    trained = records(runs / "lenet-3", "eval")[-1]
    run(["eval", inputs / "cifar10_lenet.toml", f"data.path={shapes_data}", f"run.outputs={runs}", "run.name=lenet-3", f"eval.checkpoint={last('lenet-3')}"])
    alone = records(runs / "lenet-3", "eval")[-1]
    assert alone["checkpoint"] and all(alone[k] == trained[k] for k in ("step", "images", "top1", "top5")) and math.isclose(alone["loss"], trained["loss"], rel_tol=1e-5), (trained, alone)


def print_freq():
    """Every third step, and each epoch's last."""
    train("cifar10_lenet", "run.epochs=2", "run.log_every=3", name="lenet-log")
    assert [r["step"] for r in steps_of("lenet-log")] == [3, 4, 6, 8]


def not_finite_ends_before_the_update():
    """At a rate of 10000: the message names the step, the loss scale and the last checkpoint, which holds the finite weights of the step before."""
    text = train("cifar10_lenet", "optimizer.learning_rate=10000", "checkpoint.every_steps=1", "checkpoint.keep_last=0", "run.epochs=20", name="lenet-nan", expect=3)
    lines = [line for line in text.splitlines() if "error: " in line]
    step, scale, path = re.search(r"not finite at step (\d+) \(loss scale ([\d.]+)\).*The last good checkpoint is (\S+\.h5)\.", lines[0]).groups()
    assert len(lines) == 1 and float(scale) == 1 and pathlib.Path(path) == last("lenet-nan"), text
    kept = arrays(path, "/model")
    assert path.endswith(f"step-{int(step):08}.h5") and all(numpy.isfinite(v).all() for v in kept.values()), (step, path)
    assert [r["step"] for r in steps_of("lenet-nan")] == list(range(1, int(step) + 1)), "steps before it are recorded, it is not"


for ranks in (1, 2, 3):
    train("cifar10_lenet", "run.epochs=2", name=f"lenet-{ranks}", ranks=ranks)
for check in (rank_batch_and_its_rate, equal_start_on_all_ranks, print_freq, not_finite_ends_before_the_update):
    check()
    said(f"cifar10_lenet: {check.__name__}")


# ---- recipe 5 --------------------------------------------------------------------------------------------------------------------------
def plateau_sees_the_mean_loss():
    """Each epoch's record has its mean training loss; PyTorch's scheduler, fed these, has the next epoch's rate."""
    found = steps_of("cifar10_alexnet")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1e-4)
    scheduler, want = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.1, threshold=0.3, eps=0), []
    for r in found:
        want.append(optimizer.param_groups[0]["lr"])
        scheduler.step(r["loss"])
    assert [r["step"] for r in found] == [2, 4, 6, 8, 10, 12] and len(set(want)) > 1, (want, [r["loss"] for r in found])
    require_rates("cifar10_alexnet", want)


# 64 pixels instead of 227, which a CPU takes a minute for; the input's own log_every, so that a record is an epoch; rates fall within six epochs.
train("cifar10_alexnet", "data.global_batch=50", "augment.size=64", "run.epochs=6", "run.log_every=100", "schedule.patience=1", "schedule.threshold=0.3",
      "checkpoint.every_epochs=0", "checkpoint.keep_best=false", "run.evaluate_every_epochs=0")
plateau_sees_the_mean_loss()
said("cifar10_alexnet: plateau_sees_the_mean_loss")


# ---- recipe 2 --------------------------------------------------------------------------------------------------------------------------
def warm_up_and_milestones_in_epochs():
    """The rate for 12 of 256 images; two thirds of an epoch of warm-up, one step after another; a tenth from epoch 1 and again from 2."""
    per_epoch = math.ceil(photo_images / 12)
    warm_up = round(0.67 * per_epoch)
    require_rates("imagenet_resnet50", [0.1 * 12 / 256 * min(1, (s + 1) / warm_up) * 0.1 ** (s // per_epoch) for s in range(3 * per_epoch)])
    assert sum(images_of("imagenet_resnet50")) == 3 * photo_images and images_of("imagenet_resnet50")[0] == 12 and warm_up > 1


# 64 pixels instead of 224, for a CPU.
train("imagenet_resnet50", "data.rank_batch=6", "augment.size=64", "augment.eval_short=72", "run.epochs=3", "schedule.milestones_epochs=[1,2]", "schedule.warmup_epochs=0.67",
      "checkpoint.every_epochs=0", "checkpoint.keep_best=false", "run.evaluate_every_epochs=0")
warm_up_and_milestones_in_epochs()
said("imagenet_resnet50: warm_up_and_milestones_in_epochs")
train("imagenet_alexnet", "data.global_batch=12", "augment.size=64", "augment.eval_short=72", "run.max_steps=2", "checkpoint.keep_best=false")
require_rates("imagenet_alexnet", [0.01, 0.01])
said("imagenet_alexnet")


# ---- recipe 3 --------------------------------------------------------------------------------------------------------------------------
def cosine_by_epoch():
    """From 0.001 times the ranks, to a tenth of it at the end: the script's formula."""
    want = torch_rates(lambda o: lr_scheduler.LambdaLR(o, lambda e: ((1 + math.cos(e * math.pi / 3)) / 2) * (1 - 0.1) + 0.1), 0.002, 3, photo_images // 8)
    require_rates("flowers_resnet34", want)
    assert set(images_of("flowers_resnet34")) == {8}, "the remainder is dropped"


def every_epochs_weights():
    per_epoch = photo_images // 8
    assert [path.name for path in checkpoints(runs / "flowers_resnet34")] == [f"step-{e * per_epoch:08}.h5" for e in (1, 2, 3)]


def classes_of_the_data_or_more():
    """flowers' five, of its folders; recipe 1's thousand, of which ten occur."""
    assert arrays(last("flowers_resnet34"), "/model")["fc.weight"].shape == (5, 512) and arrays(last("cifar10_resnet18_ddp"), "/model")["fc.weight"].shape == (1000, 512)


def frozen_body_and_partial_load():
    """PyTorch's file but for its last layer, which starts anew and is trained; the body's weights keep their bits, its statistics follow the batches."""
    kept = arrays(last("flowers_resnet34_frozen"), "/model")
    for name, before in pretrained.items():
        before, after = before.numpy(), kept[name]
        if name.startswith("fc."):
            assert after.shape[0] == 5 and after.any()
        elif "running_" in name or name.endswith("num_batches_tracked"):
            assert before.tobytes() != after.tobytes(), f"{name} has not moved"
        else:
            assert before.tobytes() == after.tobytes(), f"{name} has moved"
    start, end = (arrays(path, "/model")["fc.weight"] for path in checkpoints(runs / "flowers_resnet34_frozen"))
    assert not numpy.array_equal(start, end)


torch.manual_seed(1)
network = torchvision.models.resnet34()
torch.save(network.state_dict(), folder / "resnet34.pth")
pretrained = network.state_dict()
small = [f"model.weights={folder / 'resnet34.pth'}", "data.rank_batch=4", "optimizer.reference_batch=4", "augment.size=32", "augment.eval_short=36"]   # 32 pixels instead of 224
for name, epochs in (("flowers_resnet34", 3), ("flowers_resnet34_frozen", 2)):
    text = train(name, *small, f"run.epochs={epochs}")
    assert re.search(r"loaded   180 of 182 tensors", text) and "fc.weight: [1000, 512] in the file, [5, 512] here; starts anew" in text, text
for check in (cosine_by_epoch, every_epochs_weights, classes_of_the_data_or_more, frozen_body_and_partial_load):
    check()
    said(f"flowers: {check.__name__}")


# ---- the table itself ------------------------------------------------------------------------------------------------------------------
def every_input_starts():
    assert started == {path.stem for path in inputs.glob("*.toml")}, started ^ {path.stem for path in inputs.glob("*.toml")}


every_input_starts()
text = (inputs / "README.md").read_text().split("## From a PyTorch script's flags")[1]
rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line.startswith("| ") and not line.startswith("| flag")]
for flags, ours in rows:
    assert any(word in flags for word in (*HELD_BY, *NOT_HERE)), f"nothing holds the row {flags}"
for word, holder in HELD_BY.items():
    assert any(word in flags for flags, _ in rows), f"README has no row of {word}"
    suite, _, test = holder.partition(".")
    is_held = holder in globals() if "/" not in holder and not test else (root / holder).exists() if "/" in holder else any(
        f"TEST({suite}, {test})" in path.read_text() for path in root.glob("tests/*/*_test.cpp"))
    assert is_held, f"{word}: there is no {holder}"
keys = set(re.findall(r"^([a-z_]+\.[a-z0-9_]+|precision) = ", re.sub(r" +=", " =", run(["keys"])), re.M))
named = {key for _, ours in rows for key in re.findall(r"\b((?:data|augment|model|freeze|loss|optimizer|schedule|checkpoint|run|eval|backends)\.[a-z0-9_]+)\b", ours)}
assert named <= keys and len(named) > 40, named - keys
said(f"{len(rows)} rows, {len(named)} keys, {len(started)} inputs")
