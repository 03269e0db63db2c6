"""misuse_things: the wrong files and folders that misuse_table.py speaks of, and the few right ones beside them.

things() makes them all, once, and gives {name: path}; what a name stands for is said where it is made.
"""
import pickle
import re
import struct

from harness import *
from PIL import Image

largest_input = 4 << 20                                      # src/base/config.cpp


def crc32c(data, crc=0):
    """CRC-32C as sealed_file.cpp takes it."""
    if not hasattr(crc32c, "table"):
        crc32c.table = []
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82f63b78 if byte & 1 else 0)
            crc32c.table.append(byte)
    crc ^= 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ crc32c.table[(crc ^ byte) & 255]
    return crc ^ 0xffffffff


def seal_again(path):
    """A changed file with a seal that is right for it: what another program might write, or a fault of lockstep's own."""
    whole = pathlib.Path(path).read_bytes()
    end = whole.rindex(b"LOCKSEAL")
    begin_left_out, end_left_out = struct.unpack_from("<qq", whole, end + 24)
    content, trailer = whole[:end], b"LOCKSEAL" + struct.pack("<IIqqqI", 1, 0, end, begin_left_out, end_left_out, 0)
    crc = crc32c(trailer, crc32c(content[end_left_out:], crc32c(content[:begin_left_out])))
    pathlib.Path(path).write_bytes(content + trailer + struct.pack("<I", crc))


def changed(path, change):
    """h5py changes the file, and it is sealed again: HDF5 alone would leave the old trailer behind its end."""
    trailer = path.read_bytes()[-48:]
    with h5py.File(path, "r+") as file:
        change(file)
    length = path.stat().st_size
    if path.read_bytes()[-48:] != trailer:
        path.write_bytes(path.read_bytes() + trailer)
    assert length > 0
    seal_again(path)
    return path


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def picture(path, size=(40, 40)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(numpy.full((size[1], size[0], 3), len(str(path)) % 256, numpy.uint8)).save(path)
    return path


def compiled(source, library):
    """A shared library of a C file beside the tests; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler:
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library if compiler else None


def nobody():
    """Before a command: root without the right to read and write what others may not, or nothing for a user."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def copy_of(shards, path):
    shutil.copytree(shards, path)
    return path


def attribute(name, value):
    def change(file):
        del file.attrs[name]
        file.attrs.create(name, value)
    return change


def shard_things(folder, data, made):
    """Shards that no lockstep-convert would leave so, each in a folder of its own."""
    train = next(data.glob("train-*.h5"))

    def with_train(name, write):
        path = copy_of(data, folder / name) / train.name
        write(path)
        made[name] = path.parent

    with_train("cut", lambda path: path.write_bytes(train.read_bytes()[:20000]))
    with_train("hollow", lambda path: path.write_bytes(b""))
    with_train("fake", lambda path: path.write_text("not a shard\n" * 9))
    with_train("folders", lambda path: (path.unlink(), path.mkdir()))
    with_train("private", lambda path: path.chmod(0))
    for name, change in (("images2g", attribute("images", 2**31 + 5)), ("images63", attribute("images", 2**63 - 1)), ("height2g", attribute("height", 2**31)), ("width_below", attribute("width", -32)),
                         ("split2g", attribute("split_images", 2**31)), ("mean_nan", attribute("mean", numpy.array([0.5, numpy.nan, 0.5]))), ("std0", attribute("std", numpy.array([0.0, 0.2, 0.2]))),
                         ("version2", attribute("version", 2)), ("unlabelled", lambda file: file.__delitem__("labels")),
                         ("label", lambda file: file["labels"].__setitem__(7, 10)), ("label_below", lambda file: file["labels"].__setitem__(7, -1))):
        with_train(name, lambda path: changed(path, change))

    with h5py.File(train) as shard:                          # one byte of image 17
        offset = shard["images"].id.get_offset() + 17 * int(numpy.prod(shard["images"].shape[1:])) + 100
    spoilt = bytearray(train.read_bytes())
    spoilt[offset] ^= 1
    with_train("spoilt", lambda path: path.write_bytes(spoilt))

    parts = {seed: folder / f"parts{seed}" for seed in (1, 2)}
    for seed, path in parts.items():
        call([convert, "shapes", path, "--train", 40, "--val", 20, "--shards", 2, "--seed", seed])
    second = sorted(parts[1].glob("train-*.h5"))[1].name
    made["missing"], made["mixed"], made["renamed_shard"], made["crowd"], made["partial"] = (copy_of(parts[1], folder / name) for name in ("missing", "mixed", "renamed-shard", "crowd", "partial"))
    (made["missing"] / second).unlink()
    shutil.copy(parts[2] / second, made["mixed"])
    shutil.copy(parts[1] / "train-00000-of-00002.h5", made["renamed_shard"] / second)
    shutil.copy(train, made["crowd"])
    for path in made["partial"].glob("train-*.h5"):
        path.rename(f"{path}.partial")
    made["mixed_classes"] = copy_of(parts[1], folder / "mixed-classes")
    changed(made["mixed_classes"] / second, attribute("classes", numpy.array([f"kind {i}" for i in range(10)], dtype=h5py.string_dtype())))
    made["unknown"] = copy_of(data, folder / "unknown")
    (made["unknown"] / "convert-report.txt").unlink()

    # What two nodes may have under one path: other images, the same in another order, another input.
    for node, seed in ((0, 1), (1, 2)):
        path = made[f"node{node}"] = folder / f"node{node}"
        path.mkdir()
        copy_of(data if seed == 1 else shapes(folder / "other", train=40, val=20, seed=2), path / "shards")
    images = folder / "order"
    for kind in "ab":
        for i in range(5):
            picture(images / kind / f"{i}.png", (40 + i, 40))
    for node in (0, 1):
        call([convert, "image-folder", images, made[f"node{node}"] / "order", "--size", 32, "--val-fraction", 0, "--seed", node])


def image_things(folder, made):
    for kind in "ab":
        for i in range(3):
            picture(folder / "two/train" / kind / f"{i}.png")
            picture(folder / "more/train" / kind / f"{i}.png")
    picture(folder / "one/train/a/1.png")
    picture(folder / "more/val/a/1.png")
    picture(folder / "more/val/zebra/1.png")
    for name in ("broken", "all-broken"):
        copy_of(folder / "two", folder / name)
    for path in [folder / "broken/train/a/0.png", *(folder / "all-broken").rglob("*.png")]:
        path.write_bytes(b"\x89PNG nothing")
    picture(folder / "flat/1.png"), picture(folder / "flat/2.png")
    (folder / "flat-labels.txt").write_text("a\na\n")
    (folder / "strange-labels.txt").write_text("1.png a\n3.png b\n")
    for kind in "ab":
        (folder / "hollow-classes" / kind).mkdir(parents=True)
    for kind in ["a thing", *"bcdefghij"]:
        for image in ("train/1", "train/2", "val/1"):
            split, number = image.split("/")
            picture(folder / "images" / split / kind / f"{number}.png")
    made["renamed"] = folder / "renamed"
    call([convert, "image-folder", folder / "images", made["renamed"], "--size", 32])
    made["secret_image"], made["secret_images"] = picture(folder / "secret.png"), copy_of(folder / "two", folder / "secret-images")
    made["secret_image"].chmod(0), (made["secret_images"] / "train/a").chmod(0)
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    for kind, files in (("cut", names), ("python", [name.removesuffix(".bin") for name in names])):
        (folder / f"cifar-{kind}").mkdir()
        for name in files:
            (folder / f"cifar-{kind}" / name).write_bytes(bytes(3073 * 2 - 5))
    made |= {"two": folder / "two", "more": folder / "more", "one": folder / "one", "broken": folder / "broken", "all_broken": folder / "all-broken", "flat": folder / "flat",
             "strange_labels": folder / "strange-labels.txt", "hollow_classes": folder / "hollow-classes", "cifar_cut": folder / "cifar-cut", "cifar_python": folder / "cifar-python"}


def input_things(folder, data, made):
    for number, text in enumerate(("[data\n", "path = 'x'\n", "[run]\nepochs = '1'\n", "[run]\nepochs = 1\nepochs = 2\n", "run = 1\n", "[modle]\nname = 'lenet'\n", "[model]\nname = lenet\n"), 1):
        made[f"bad{number}"] = folder / f"bad{number}.toml"
        made[f"bad{number}"].write_text(text)
    made["yaml"], made["utf16"], made["huge"], made["secret"], made["near"] = (folder / name for name in ("recipe.yaml", "utf16.toml", "huge.toml", "secret.toml", "near.toml"))
    made["yaml"].write_text("run:\n  epochs: 10\n")
    made["utf16"].write_text("[run]\nepochs = 1\n", encoding="utf-16")
    made["huge"].write_text("# much ado\n" * (5 << 20 >> 3))
    shutil.copy(made["toml"], made["secret"])
    made["secret"].chmod(0)
    write_input(made["near"], **{**made["keys"], "data.path": "shards"})
    for node, epochs in ((0, 1), (1, 3)):
        write_input(made[f"node{node}"] / "input.toml", **{**made["keys"], "run.epochs": epochs})


def weight_things(folder, made):
    lenet = arrays(made["larger"], "/model")
    made["weights"] = write_safetensors(folder / "good.safetensors", lenet)
    made["with_nan"] = write_safetensors(folder / "nan.safetensors", {**lenet, "fc2.bias": numpy.full(84, numpy.nan)})
    made["foreign"] = write_safetensors(folder / "vit.safetensors", {"patch_embed.proj.weight": numpy.zeros((4, 3, 2, 2)), "head.weight": numpy.zeros((3, 4))})
    made["cut_weights"], made["evil"], made["nine"], made["imported"] = (folder / name for name in ("short.safetensors", "evil.pth", "nine.h5", "imported.h5"))
    made["cut_weights"].write_bytes(made["weights"].read_bytes()[:40])
    made["empty_pth"], made["empty_weights"], made["half_pth"] = (folder / name for name in ("hollow.pth", "hollow.safetensors", "half.pth"))
    made["empty_pth"].write_bytes(b""), made["empty_weights"].write_bytes(b"")
    run(["export", made["larger"], folder / "whole.pth"])
    made["half_pth"].write_bytes((folder / "whole.pth").read_bytes()[:3000])
    made["evil"].write_bytes(pickle.dumps({"state_dict": Evil(folder / "ran")}, 2))
    run(["import", made["weights"], made["imported"]])       # 12 outputs, no names of classes
    run(["import", write_safetensors(folder / "nine.safetensors", {**lenet, "fc3.weight": lenet["fc3.weight"][:9], "fc3.bias": lenet["fc3.bias"][:9]}), made["nine"]])
    run(["train", made["toml"], "run.name=cifar", "model.name=resnet20", "run.max_steps=1"])
    made["resnet20"] = folder / "resnet20.safetensors"
    run(["export", checkpoints(made["runs"] / "cifar")[-1], made["resnet20"]])


def run_things(folder, made):
    runs = made["runs"]
    run(["train", made["toml"], "model.classes=12", "run.name=larger"])
    made["larger"] = checkpoints(runs / "larger")[-1]
    run(["train", made["toml"], "run.epochs=2", "run.name=longer"])
    for name in ("ruined", "garbled"):
        copy_of(runs / "longer", runs / name)
    for path in checkpoints(runs / "ruined"):
        path.write_bytes(path.read_bytes()[:30000])
    (runs / "garbled/config.toml").write_text("run.epochs 1\n")
    made["cut_checkpoint"] = folder / "cut.h5"
    made["cut_checkpoint"].write_bytes(made["larger"].read_bytes()[:30000])


def other_build(folder):
    """The program with another commit's hash in it, as a rank would run that was started from another folder; and both hashes."""
    program = pathlib.Path(lockstep).read_bytes()
    mine = re.search(rb"\((\S+)\)", subprocess.run([lockstep, "--version"], capture_output=True).stdout).group(1)
    other = bytes(mine[:1].translate(bytes.maketrans(b"0123456789abcdefu", b"fedcba98765432100"))) + mine[1:]
    path = folder / "another" / "lockstep"
    path.parent.mkdir()
    path.write_bytes(program.replace(mine + b"\0", other + b"\0"))
    path.chmod(0o755)
    return {"other_build": path, "build": mine.decode(), "other": other.decode()}


def things(folder):
    """All of them, and the right ones that rows begin with: {toml} trains lenet on {data} for an epoch of two steps."""
    data = shapes(folder, train=40, val=20)
    made = {"folder": folder, "data": data, "runs": folder / "runs", "out": folder / "converted", "toml": folder / "good.toml", "none": folder / "none", "made": folder / "made", "long": "n" * 300}
    made["keys"] = {"data.path": data, "data.global_batch": 20, "model.name": "lenet", "optimizer.learning_rate": 0.02, "run.outputs": made["runs"], "run.epochs": 1, "run.log_every": 1}
    write_input(made["toml"], **made["keys"])
    made["train_shard"], made["val_shard"] = (next(data.glob(f"{split}-*.h5")) for split in ("train", "val"))
    for name in ("empty", "locked", "open", "blocked"):
        made[name] = folder / name
        made[name].mkdir()
    made["locked"].chmod(0o555), made["open"].chmod(0o777)
    (made["blocked"] / "good").write_text("in the way")
    made["text"], made["zero"] = folder / "text.jpg", folder / "empty.toml"
    made["pth_folder"] = folder / "misnamed/made.pth"
    (made["pth_folder"] / "made.h5").mkdir(parents=True)
    made["text"].write_text("this is no image\n")
    made["zero"].write_text("")
    made["strange"] = compiled(root / "tests/system/strange_host.c", folder / "strange_host.so")
    shard_things(folder, data, made)
    input_things(folder, data, made)
    image_things(folder, made)
    run_things(folder, made)
    weight_things(folder, made)
    made["disguised"] = copy_of(data, folder / "disguised")
    shutil.copy(made["larger"], made["disguised"] / made["train_shard"].name)
    return made | other_build(folder)
