#!/usr/bin/env python3
"""What a careless user gets wrong, row by row: the exit code, one line that names the thing, no work begun, and once only on two ranks."""
import pickle
import re

from harness import *
from PIL import Image

folder = scratch()
data = shapes(folder, train=40, val=20)
runs, outs = folder / "runs", folder / "converted"
train_shard, val_shard = (next(data.glob(f"{split}-*.h5")) for split in ("train", "val"))
toml = write_input(folder / "good.toml", **{"data.path": data, "data.global_batch": 20, "model.name": "lenet", "optimizer.learning_rate": 0.02,
                                            "run.outputs": runs, "run.epochs": 1, "run.log_every": 1})
tried, faults = 0, []


def require_line(text, program, parts):
    """One line of error, and it says all that."""
    lines = [line for line in text.splitlines() if re.match(rf"{program}(\[rank \d+ of \d+, [^\]]*\])?: error: ", line)]
    assert len(lines) == 1, f"{len(lines)} lines of error:\n{text}"
    for part in parts:
        assert part in lines[0], f"'{part}' is not in:\n{text}"


def attempt(check):
    """All rows are tried, whatever some of them do."""
    global tried
    tried += 1
    try:
        check()
    except (AssertionError, subprocess.TimeoutExpired) as fault:
        faults.append(str(fault))
        print(f"FAULT {len(faults)}: {fault}\n", flush=True)


def row(words, *parts, code=2, ranks=1):
    """A lockstep command that must fail so; nothing may have been trained by then unless it diverged."""
    def check():
        text = run(words, ranks=ranks, expect=code, timeout=60)
        require_line(text, "lockstep", parts)
        assert code == 3 or "step 1" not in text, f"trained before it failed:\n{text}"
    attempt(check)


def converts(words, *parts):
    def check():
        require_line(call([convert, *words], expect=2, timeout=60), "lockstep-convert", parts)
        assert not list(outs.rglob("*.h5")), "a failed conversion leaves shards"
    attempt(check)


def copy_of(shards, name):
    shutil.copytree(shards, folder / name)
    return folder / name


def picture(*path):
    path = folder.joinpath(*path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.full((40, 40, 3), len(str(path)) % 256, numpy.uint8)).save(path)


# ---- the command line and the input file -----------------------------------------------------------------------------------------------
row(["trian", toml], "trian", "train")
row([], "--help")
row(["train"], "INPUT.toml")
row(["train", "run.epochs=1"], "INPUT.toml")
row(["train", toml, "epochs", "run.epochs=1"], '"epochs"', "section.key=value")
row(["train", folder / "none.toml"], "none.toml", "No such file")
row(["train", folder], str(folder), "folder")
for override, *parts in (
        ("optimiser.kind=sgd", "[optimiser]", "[optimizer]"), ("optimizer.learning_rat=1", "learning_rat", "learning_rate"),
        ("run.epochs=two", "run.epochs", "two", "integer"), ("run.epochs=1.5", "run.epochs", "integer"), ("run.epochs=0", "run.epochs", "from 1"),
        ("run.epochs=99999999999999999999", "run.epochs"), ("run.epochs=", "run.epochs"), ("optimizer.momentum=1.5", "momentum", "0.9999"),
        ("optimizer.learning_rate=nan", "learning_rate", "finite"), ("data.shuffle=yes", "data.shuffle", "window"), ("model.sync_bn=1", "model.sync_bn", "true"),
        ("model.name=resnet19", "resnet19", "resnet18"), ("precision=fp64", "precision", "bf16"), ("data.mean=[0.5]", "data.mean", "data.std"),
        ("data.mean=0.5", "data.mean", "list"), ("run.name=a/b", "run.name", "a/b"), ("=3", "section.key=value")):
    row(["train", toml, override], *parts)
for text, *parts in (("[data\n", "bad.toml:1"), ("path = 'x'\n", "bad.toml:1", "[data]"), ("[run]\nepochs = '1'\n", "bad.toml:2", "run.epochs"),
                     ("[run]\nepochs = 1\nepochs = 2\n", "bad.toml:3"), ("run = 1\n", "run", "section"), ("[modle]\nname = 'lenet'\n", "bad.toml", "[model]"),
                     ("\xff\xfe", "bad.toml")):
    (folder / "bad.toml").write_text(text, encoding="latin-1")
    row(["train", folder / "bad.toml"], *parts)

# ---- data and batches ------------------------------------------------------------------------------------------------------------------
(folder / "empty").mkdir()
row(["train", toml, "data.path="], "data.path")
row(["train", toml, "data.path=/nowhere"], "/nowhere", "lockstep-convert", ranks=2)
row(["train", toml, f"data.path={folder / 'empty'}"], str(folder / "empty"), "shards")
row(["train", toml, "data.rank_batch=4"], "data.global_batch", "data.rank_batch")
row(["train", toml, "data.global_batch=0"], "data.global_batch", "data.rank_batch")
row(["train", toml, "data.global_batch=1"], "data.global_batch", "2 ranks", ranks=2)
row(["check", toml, "run.ranks=21"], "data.global_batch", "21 ranks")
row(["train", toml, "data.train_split=test"], '"test"', "train, val")
row(["train", toml, "data.last_batch=drop", "data.global_batch=41"], "data.last_batch", "40 images", "41")

missing = folder / "missing"
call([convert, "shapes", missing, "--train", 40, "--val", 20, "--shards", 2])
lost = sorted(missing.glob("train-*.h5"))[1]
lost.unlink()
row(["train", toml, f"data.path={missing}"], "train-00001-of-00002.h5")
cut = copy_of(data, "cut")
(cut / train_shard.name).write_bytes(train_shard.read_bytes()[:20000])
row(["train", toml, f"data.path={cut}"], train_shard.name)
row(["inspect", cut / train_shard.name], train_shard.name)

# One byte of one image: the image's position in its shard is known from h5py, and must be named.
spoilt = copy_of(data, "spoilt")
with h5py.File(train_shard) as shard:
    images = shard["images"]
    at = images.id.get_offset() if images.chunks is None else None
    image = 17
    if at is None:
        pattern = images[image].tobytes()
        at = train_shard.read_bytes().find(pattern) - image * len(pattern)
    offset = at + image * int(numpy.prod(images.shape[1:])) + 100
with open(spoilt / train_shard.name, "r+b") as file:
    file.seek(offset)
    byte = file.read(1)[0]
    file.seek(offset)
    file.write(bytes([byte ^ 1]))
row(["train", toml, f"data.path={spoilt}", "run.name=spoilt", "data.global_batch=40"], train_shard.name, f"image {image}", ranks=2)
row(["inspect", spoilt / train_shard.name], train_shard.name)

# ---- models ----------------------------------------------------------------------------------------------------------------------------
row(["train", toml, "model.sync_bn=true", "model.sync_bn_group=2", "run.name=group"], "model.sync_bn_group = 2", "1 rank")
row(["train", toml, 'freeze.parameters=["layer9.*"]', "run.name=freeze"], "freeze.parameters", "layer9.*")
row(["train", toml, "model.name=alexnet", "run.name=small"], "alexnet", "32 x 32", "63 x 63", ranks=2)
row(["train", toml, "model.classes=9", "run.name=fewer"], "model.classes = 9", "10 classes")
row(["train", toml, "backends.conv=nope", "run.name=nope"], "backends.conv", "nope", "onednn")
row(["bench", toml, "model.name=alexnet"], "alexnet")
text = run(["train", toml, "model.classes=12", "run.name=larger"])
assert re.search(r"model\.classes = 12\b.*10", text), text
assert arrays(checkpoints(runs / "larger")[-1], "/model")["fc3.weight"].shape == (12, 84)
# A start that failed has not used the name.
run(["train", toml, "run.name=small", "run.resume=never"])

# ---- runs and checkpoints --------------------------------------------------------------------------------------------------------------
larger = checkpoints(runs / "larger")[-1]
row(["eval", toml, "run.name=nothing"], "nothing", "checkpoint")
assert not (runs / "nothing").exists(), "eval has made a folder"
row(["eval", toml, "run.name=larger", "data.eval_split=test"], '"test"', "train, val")
row(["eval", toml, f"eval.checkpoint={larger}", "model.name=resnet20"], "lenet", "resnet20", larger.name, ranks=2)
row(["eval", toml, f"eval.checkpoint={larger}", "model.classes=10"], "12", "10")
row(["eval", toml, f"eval.checkpoint={folder / 'no.h5'}"], "eval.checkpoint", "no.h5")
row(["eval", toml, f"eval.checkpoint={val_shard}"], val_shard.name, "checkpoint")
row(["eval", toml, f"eval.checkpoint={toml}"], "good.toml")
row(["train", toml, "run.name=from", f"run.resume={folder / 'no.h5'}"], "run.resume", "no.h5")
row(["train", toml, "run.name=from", f"run.resume={larger}", "model.name=resnet20"], "lenet", "resnet20")
row(["train", toml, f"run.outputs={toml}"], "good.toml", "run.outputs")
(folder / "blocked").mkdir()
(folder / "blocked" / "good").write_text("in the way")
row(["train", toml, f"run.outputs={folder / 'blocked'}"], "blocked", ranks=2)
row(["inspect", folder / "no.h5"], "no.h5")

# ---- weights ---------------------------------------------------------------------------------------------------------------------------
class Evil:
    def __reduce__(self):
        return os.system, (f"touch {folder / 'ran'}",)


lenet = {name: value for name, value in arrays(larger, "/model").items()}
good = write_safetensors(folder / "good.safetensors", lenet)
with_nan = write_safetensors(folder / "nan.safetensors", {**lenet, "fc2.bias": numpy.full(84, numpy.nan)})
foreign = write_safetensors(folder / "vit.safetensors", {"patch_embed.proj.weight": numpy.zeros((4, 3, 2, 2)), "head.weight": numpy.zeros((3, 4))})
truncated, hostile = folder / "short.safetensors", folder / "evil.pth"
truncated.write_bytes(good.read_bytes()[:40])
hostile.write_bytes(pickle.dumps({"state_dict": Evil()}, 2))
run(["import", write_safetensors(folder / "nine.safetensors", {**lenet, "fc3.weight": lenet["fc3.weight"][:9], "fc3.bias": lenet["fc3.bias"][:9]}), folder / "nine.h5"])
for kind in ["a thing", *"bcdefghij"]:
    for image in ("train/1", "train/2", "val/1"):
        split, number = image.split("/")
        picture("renamed", split, kind, f"{number}.png")
renamed = folder / "renamed-shards"
call([convert, "image-folder", folder / "renamed", renamed, "--size", 32])
for path, *parts in ((folder / "no.pth", "no.pth", "cannot be opened"), (truncated, "short.safetensors", "header is cut off"), (hostile, "evil.pth", "posix.system", "runs no code"),
                     (with_nan, "nan.safetensors", "fc2.bias", "finite"), (foreign, "vit.safetensors", "patch_embed.proj.weight", "another architecture"), (train_shard, train_shard.name, "checkpoint")):
    row(["train", toml, "run.name=weights", f"model.weights={path}"], *parts, ranks=2)
    row(["import", path, folder / "made.h5"], *parts)
row(["train", toml, "run.name=weights", "model.name=resnet20", f"model.weights={good}"], "good.safetensors", "weights of lenet", "model.name is resnet20")
row(["train", toml, "run.name=weights", f"model.weights={good}", 'model.weights_except=["head.*"]'], "model.weights_except", "head.*")
row(["train", toml, "run.name=weights", f"run.resume={larger}", "model.classes=12", f"data.path={renamed}"], larger.name, "class 0", '"a thing"')
row(["train", toml, "run.name=weights", f"model.weights={larger}", "model.classes=12", f"data.path={renamed}"], larger.name, "class 0", '"a thing"', "model.weights_except")
row(["eval", toml, f"eval.checkpoint={larger}", f"data.path={renamed}"], larger.name, "class 0", '"a thing"')
row(["import", good, folder / "made.h5", "model.name=resnet18"], "weights of lenet", "resnet18")
row(["import", folder / "made.h5", good], "good.safetensors", ".h5")
row(["import", good], "WEIGHTS CHECKPOINT")
row(["export", larger, folder / "made.bin"], "made.bin", ".safetensors")
row(["export", val_shard, folder / "made.pth"], val_shard.name, "checkpoint")
row(["export", larger, folder / "none" / "made.pth"], "made.pth", "written")
run(["import", good, folder / "made.h5"])
row(["check", toml, f"model.weights={truncated}"], "short.safetensors", "header is cut off")
row(["train", toml, "run.name=made", "model.classes=12", f"run.resume={folder / 'made.h5'}"], "made.h5", "lockstep import", "model.weights")
row(["eval", toml, f"eval.checkpoint={folder / 'nine.h5'}"], "model.classes = 9", "10 classes")
row(["train", toml, "optimizer.rate_parameters=['fc3.*']"], "optimizer.rate_parameters", "rate_factors")
row(["train", toml, "run.name=weights", "optimizer.rate_parameters=['head.*']", "optimizer.rate_factors=[10]"], "optimizer.rate_parameters", "head.*")
for name, content, *parts in (("empty.pth", b"", "cut off"), ("empty.safetensors", b"", "cut off"), ("text.bin", b"hello", "neither safetensors"), ("half.pth", None, "cut off")):
    if content is None:
        run(["export", larger, folder / "whole.pth"])
        content = (folder / "whole.pth").read_bytes()[:3000]
    (folder / name).write_bytes(content)
    row(["train", toml, "run.name=weights", f"model.weights={folder / name}"], name, *parts)
row(["train", toml, "run.name=weights", f"model.weights={folder}"], str(folder), "no regular file")
row(["train", toml, "run.name=weights", f"model.weights={good}", "model.classes=12", 'model.weights_except=["*"]'], "model.weights_except", "every tensor of lenet")
row(["train", toml, "run.name=weights", "freeze.parameters=['*']"], "freeze.parameters", "nothing to train")
row(["train", toml, "run.name=weights", "freeze.parameters=['*']", "freeze.except=['fc.*']"], "freeze.except", '"fc.*"', "fc3.bias")
# An imported checkpoint knows no names of classes: its outputs are the shards' classes where they are as many, or where model.classes says so.
for words in (["eval", toml], ["predict", toml, data]):
    row([*words, f"eval.checkpoint={folder / 'made.h5'}"], "made.h5", "12 outputs", "10 classes", "model.classes = 12")
    text = run([*words, f"eval.checkpoint={folder / 'made.h5'}", "model.classes=12"])
    assert text.count(f"made.h5 has no names of classes: its outputs are taken for the classes of {data}") == 1, text
    assert "no names of classes" not in run([*words, f"eval.checkpoint={larger}"])
assert not (folder / "ran").exists(), "a pickle was run"

# ---- divergence: code 3 names the step, and no checkpoint holds what is not finite ------------------------------------------------------
row(["train", toml, "optimizer.learning_rate=10000", "schedule.kind=constant", "run.epochs=20", "checkpoint.every_steps=1", "checkpoint.keep_last=0",
     "run.name=diverged", "run.log_every=7"], "not finite at step", "diverged", "optimizer.learning_rate", code=3, ranks=2)
for path in checkpoints(runs / "diverged"):
    for name, value in arrays(path).items():
        assert numpy.all(numpy.isfinite(value)) or name.startswith("progress/plateau"), f"{path.name}: {name} is not finite"
assert not list((runs / "diverged").rglob("*.partial"))
assert all(r["loss"] is not None for r in records(runs / "diverged", "train"))

# ---- lockstep-convert ------------------------------------------------------------------------------------------------------------------
for kind in "ab":
    for i in range(3):
        picture("two/train", kind, f"{i}.png")
        picture("more/train", kind, f"{i}.png")
picture("one/train/a/1.png")
picture("more/val/a/1.png")
picture("more/val/zebra/1.png")
(folder / "broken").mkdir()
shutil.copytree(folder / "two/train", folder / "broken/train")
(folder / "broken/train/a/0.png").write_bytes(b"\x89PNG nothing")
converts(["shpes", outs / "0"], "shpes")
converts(["image-folder", folder / "none", outs / "1"], "none", "exist")
converts(["image-folder", folder / "one", outs / "2"], "one", "two classes")
picture("flat/1.png"), picture("flat/2.png")
(folder / "flat-labels.txt").write_text("a\na\n")
converts(["image-folder", folder / "one/train", outs / "10", "--val-fraction", "0"], "one", "two classes")
converts(["image-folder", folder / "flat", outs / "11", "--val-labels", folder / "flat-labels.txt"], "flat-labels.txt", "two classes")
converts(["image-folder", folder / "more", outs / "3"], "zebra")
converts(["image-folder", folder / "empty", outs / "4"], "empty")
converts(["image-folder", folder / "broken", outs / "5", "--strict", "--val-fraction", "0"], "0.png")
converts(["image-folder", folder / "two", outs / "6", "--fit", "round"], "round", "cover")
converts(["image-folder", folder / "two", outs / "7", "--size", "0"], "size")
converts(["cifar10", folder / "two", outs / "8"], "two", "data_batch_1.bin")
converts(["shapes", outs / "9", "--train", "0"], "train")
converts(["shapes", toml], "good.toml")
converts(["shapes", data, "--train", "41"], "40", "--overwrite")
print(f"{tried} rows, {len(faults)} faults")
sys.exit(1 if faults else 0)
