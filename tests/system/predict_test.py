#!/usr/bin/env python3
"""Predicting the files of an evaluation set gives exactly the accuracy that eval printed on its shards, for each way that conversion has of
making them; text, CSV and JSON say the same, in the order of the arguments; what cannot be read is named, the rest done."""
import csv
import re
import tarfile

from PIL import Image

from harness import *

folder = scratch()
runs = folder / "runs"
archive = test_data / "flowers350.tar.gz"
has_codec = "libvips" in run(["--version"])


def said(what):
    print("ok:", what, flush=True)


def predict(*words, expect=0, ranks=1):
    """Standard output and standard error, apart."""
    done = subprocess.run(command(["predict", *words], ranks), capture_output=True, text=True, timeout=300, env=environment(2))
    assert done.returncode == expect, f"{words}\nexit code {done.returncode}, expected {expect}:\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


def as_json(*words):
    out, _ = predict(*words, "--format", "json")
    return json.loads(out)


def refused(*words, say, ranks=1):
    out, err = predict(*words, expect=2, ranks=ranks)
    lines = [line for line in err.splitlines() if "error: " in line]
    assert not out and len(lines) == 1 and all(part in lines[0] for part in say), err


def generated(path):
    """Pictures of awkward sizes, some turned by EXIF, gray or with alpha: two classes that differ in colour."""
    random = numpy.random.default_rng(3)
    for split, count in (("train", 24), ("val", 17)):
        for kind, tint in (("cold", (0, 9, 14)), ("warm", (14, 9, 0))):
            (path / split / kind / "deep").mkdir(parents=True)
            for i in range(count):
                height, width = random.integers(30, 140, 2)
                pixels = numpy.clip(random.integers(0, 130, (height, width, 3)) + numpy.array(tint), 0, 255).astype(numpy.uint8)
                picture, exif = Image.fromarray(pixels), Image.Exif()
                exif[0x0112] = 1 + i % 8
                name = path / split / kind / ("deep" if i % 5 == 0 else ".") / f"{i:02}"
                if i % 4 == 3:
                    picture.convert("L" if i % 8 == 3 else "RGBA").save(f"{name}.png")
                else:
                    picture.save(f"{name}.jpg", quality=90, exif=exif)
    return path


sets = [("generated", generated(folder / "generated"))]
if archive.exists():
    with tarfile.open(archive) as tar:
        tar.extractall(folder)
    sets.append(("flowers", folder / "flowers350/dataset"))
else:
    print(f"without photographs: no {archive}")

if not has_codec:                                           # LOCKSTEP_IMAGES=OFF
    data = shapes(folder, train=40, val=30)
    toml = write_input(folder / "shards.toml", **{"data.path": data, "data.global_batch": 20, "model.name": "lenet", "run.outputs": runs, "run.epochs": 1})
    run(["train", toml])
    refused(toml, sets[0][1] / "val", say=["LOCKSTEP_IMAGES=OFF", "shards"])
    assert as_json(toml, data)["accuracy"]["images"] == 30
    said("a build without libvips predicts shards only, and says so")
    sys.exit(0)

# ---- files = shards, for each fit ------------------------------------------------------------------------------------------------------
for name, images in sets:
    for fit, options in (("cover", ["--size", 40]), ("short", ["--size", 40]), ("pad", ["--size", 48, "--no-rotate"]), ("stretch", ["--size", 36])):
        case = f"{name}-{fit}"
        data = folder / f"{case}-shards"
        call([convert, "image-folder", images, data, "--fit", fit, "--shards", 2, *options])
        toml = write_input(folder / f"{case}.toml", **{
            "data.path": data, "data.global_batch": 16, "data.eval_batch": 13, "model.name": "lenet", "run.outputs": runs, "run.epochs": 12 if name == "generated" else 2, "optimizer.learning_rate": 0.05,
            "augment.train": "random_resized_crop", "augment.eval": "center_crop", "augment.eval_short": 36, "augment.size": 32, "augment.flip": True})
        run(["train", toml])
        run(["eval", toml])
        evaluated, record = json.loads((runs / case / "evaluation.json").read_text()), records(runs / case, "eval")[-1]
        files, shards = as_json(toml, images / "val", "--top", 2), as_json(runs / case, data, "--top", 2)
        for found in (files, shards):
            assert found["accuracy"] == {"images": record["images"], "top1": record["top1"], "top5": record["top5"]}, (case, found["accuracy"], record)
            assert found["checkpoint"] == record["checkpoint"] and not found["unread"]
        assert len(files["images"]) == record["images"] == len(shards["images"])
        for m in evaluated["mistakes"]:                     # what the evaluation itself kept of single images
            row, classes = shards["images"][m["image"]], [c["name"] for c in evaluated["classes"]]
            assert row["label"] == classes[m["label"]] and row["predictions"][0]["class"] == classes[m["predicted"]]
            assert abs(row["predictions"][0]["probability"] - m["probability"]) < 1e-5
        of_shards = {row["file"]: row for row in shards["images"]}
        for row in files["images"]:
            twin = of_shards[os.path.relpath(row["file"], images)]
            assert row["label"] == twin["label"] and row["predictions"][0]["class"] == twin["predictions"][0]["class"]
            assert all(abs(a["probability"] - b["probability"]) < 1e-6 for a, b in zip(row["predictions"], twin["predictions"])), (row, twin)
        said(f"{case}: {record['images']} files and their shards: top-1 {record['top1']:.4f}, as eval")

# ---- formats ---------------------------------------------------------------------------------------------------------------------------
name, images = sets[0]
toml, case = folder / f"{name}-short.toml", runs / f"{name}-short"
files = as_json(toml, images / "val")
assert [row["file"] for row in files["images"]] == sorted((row["file"] for row in files["images"]), key=lambda f: (f.split("/")[-2] == "deep" and f.split("/")[-3] or f.split("/")[-2], "/deep/" in f, f))
for row in files["images"]:
    assert len(row["predictions"]) == 2 and abs(sum(p["probability"] for p in row["predictions"]) - 1) < 1e-12
    assert row["predictions"][0]["probability"] >= row["predictions"][1]["probability"]
text, err = predict(toml, images / "val", "--top", "1")
assert re.search(rf"accuracy over {len(files['images'])} images of known class: top-1 {100 * files['accuracy']['top1']:.2f} %  top-5 100.00 %", err), err
assert text.splitlines() == [f"{r['file']}  {r['predictions'][0]['class']} {100 * r['predictions'][0]['probability']:.2f} %" for r in files["images"]]
odd = folder / 'odd, "quoted"\n' / "a=b.jpg"
odd.parent.mkdir()
shutil.copy(files["images"][0]["file"], odd)
predict(toml, odd, files["images"][5]["file"], files["images"][3]["file"], "--format", "csv", "--output", folder / "p.csv")
with open(folder / "p.csv", newline="") as file:
    rows = list(csv.DictReader(file))
assert [r["file"] for r in rows] == [str(odd), files["images"][5]["file"], files["images"][3]["file"]]
assert [r["label"] for r in rows] == ["", files["images"][5]["label"], files["images"][3]["label"]]
for row, twin in zip(rows, (files["images"][i] for i in (0, 5, 3))):
    for k, guess in enumerate(twin["predictions"], 1):       # in batches of 3 and 13: equal but for rounding
        assert abs(float(row[f"probability_{k}"]) - guess["probability"]) < 1e-5 and row[f"class_{k}"] == guess["class"]
assert list(rows[0]) == ["file", "label", "class_1", "probability_1", "class_2", "probability_2"]
flat = as_json(toml, odd)
assert flat["accuracy"] is None and flat["images"][0]["label"] is None
said("text, CSV and JSON say the same, in the order of the arguments")

# ---- what cannot be read ---------------------------------------------------------------------------------------------------------------
mixed = folder / "mixed"
shutil.copytree(images / "val", mixed)
(mixed / "warm/00broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
(mixed / "cold/empty.png").write_bytes(b"")
(mixed / "cold/text.txt").write_text("no image")
out, err = predict(toml, mixed, mixed / "warm/00broken.jpg", "--format", "json")
found = json.loads(out)
assert found["accuracy"] == files["accuracy"] and len(found["images"]) == len(files["images"])
assert [pathlib.Path(f["file"]).name for f in found["unread"]] == ["empty.png", "00broken.jpg", "00broken.jpg"]
assert err.count("not read: ") == 3 and str(mixed / "warm/00broken.jpg") in err and "3 not read" in err
refused(toml, mixed / "cold/empty.png", say=["none of 1 image", "empty.png"])
said("what cannot be read is named, the rest is done")

# ---- refused ---------------------------------------------------------------------------------------------------------------------------
shard = next((folder / f"{name}-short-shards").glob("val-00000*"))
part, whole = as_json(toml, shard), as_json(toml, shard.parent)
assert 0 < part["accuracy"]["images"] < whole["accuracy"]["images"] and [r["file"] for r in part["images"]] == [r["file"] for r in whole["images"]][:len(part["images"])]
other = shapes(folder, train=40, val=20)
refused(toml, next(other.glob("val-*")), say=[str(other), "classes"])
refused(toml, images / "none.h5", say=["none.h5", "no such file"])
assert not list(folder.glob("*.partial"))
said("shards that do not belong to the run are refused in one line")   # other bad arguments: misuse_table.py
