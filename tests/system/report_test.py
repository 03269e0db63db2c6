#!/usr/bin/env python3
"""report.html of whole runs: one file without any address outside it, whose curves are metrics.jsonl's numbers; resumes, worst mistakes over
ranks, what a run cannot lose its end for; several runs in one page; TensorBoard's reader sees the same scalars."""
import base64
import html.parser
import io
import math
import re

from PIL import Image

from harness import *

folder = scratch()
data = shapes(folder, train=200, val=61)
runs = folder / "runs"


class Page(html.parser.HTMLParser):
    """Every tag, checked to be closed; the points of each curve; all text."""
    void = {"meta", "img", "br", "link"}

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.open, self.curves, self.images, self.text, self.rows, self.tags = [], {}, [], "", 0, []
        self.source = pathlib.Path(path).read_text()
        self.feed(self.source)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        for name, value in attributes:
            assert name not in ("href", "srcset", "action", "xlink:href") and not name.startswith("on"), (tag, name)
            assert name != "src" or value.startswith("data:image/bmp;base64,"), (tag, value[:60])
        if tag == "polyline":
            points = [tuple(map(float, p.split(","))) for p in values["points"].split(" ")]
            self.curves.setdefault(values["data-name"], []).extend(points)
        if tag == "img":
            self.images.append(base64.b64decode(values["src"].split(",", 1)[1], validate=True))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, text):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += text
        assert "://" not in text and "url(" not in text and "@import" not in text, f"an address in the page: {text[:200]}"


def config(name, **keys):
    return write_input(folder / f"{name}.toml", **{
        "data.path": data, "data.global_batch": 40, "model.name": "lenet", "run.outputs": runs, "run.epochs": 3, "run.log_every": 2,
        "optimizer.learning_rate": 0.02, **keys})


def said(what):
    print("ok:", what, flush=True)


# ---- a run that was resumed, on other ranks --------------------------------------------------------------------------------------------
toml = config("whole")
run(["train", toml, "run.max_steps=7"], ranks=2)
half = Page(runs / "whole/report.html")
assert half.curves["train"][-1][0] == 7
run(["train", toml], ranks=3)
page = Page(runs / "whole/report.html")
train, evals = records(runs / "whole", "train"), records(runs / "whole", "eval")
for name, rows, key in (("train", train, "loss"), ("eval", evals, "loss"), ("train top-1", train, "top1"), ("eval top-1", evals, "top1"), ("eval top-5", evals, "top5"),
                        ("learning rate", train, "learning_rate"), ("images/s", train, "images_per_second"), ("data wait", train, "data_wait"),
                        ("gradient norm", train, "grad_norm")):
    assert page.curves[name] == [(r["step"], r[key]) for r in rows], name
assert page.source.count('class="resume"') == 6, "the resume is marked in each chart"
for part in ("lenet", "step-00000007.h5", "ranks 0-2", "data.global_batch", "optimizer.learning_rate", "wait for data", "Kokkos", os.uname().nodename, "over 2 starts"):
    assert part in page.text, part
phases = records(runs / "whole", "phases")
assert [r["step"] for r in phases] == [5, 7, 10, 15], phases
assert all(r[k] >= 0 for r in phases for k in ("start", "training", "data_wait", "evaluation", "checkpoint")) and phases[1]["start"] == 0 < min(phases[0]["start"], phases[2]["start"])
said("the curves are metrics.jsonl's numbers, the resume is marked")

# ---- worst mistakes: exact over ranks, and their pictures are the shards' --------------------------------------------------------------
found = []
for ranks, batch in ((1, 61), (3, 5), (4, 1)):
    run(["eval", toml, f"data.eval_batch={batch}"], ranks=ranks)
    evaluation = json.loads((runs / "whole/evaluation.json").read_text())
    found.append([(m["image"], m["label"], m["predicted"]) for m in sorted(evaluation["mistakes"], key=lambda m: m["image"])])
    losses = [m["loss"] for m in evaluation["mistakes"]]
    assert losses == sorted(losses, reverse=True) and all(m["label"] != m["predicted"] and 0.1 <= m["probability"] <= 1 for m in evaluation["mistakes"])
wrong = 61 - round(61 * evaluation["top1"])
assert len(found[0]) == min(24, wrong) and found[0] == found[1] == found[2], found
with h5py.File(next(data.glob("val-*.h5"))) as shard:
    pixels, labels = shard["images"][()], shard["labels"][()]
page = Page(runs / "whole/report.html")
assert len(page.images) == len(evaluation["mistakes"])
for mistake, image in zip(evaluation["mistakes"], page.images):
    assert labels[mistake["image"]] == mistake["label"]
    assert numpy.array_equal(numpy.asarray(Image.open(io.BytesIO(image))), pixels[mistake["image"]]), mistake
said("the worst mistakes do not depend on ranks, their pictures are the shards' images")

# ---- rebuilt ---------------------------------------------------------------------------------------------------------------------------
before = (runs / "whole/report.html").read_bytes()
(runs / "whole/report.html").unlink()
assert "report.html" in run(["report", runs / "whole/"])
assert (runs / "whole/report.html").read_bytes() == before, "a rebuilt page differs"
run(["report", toml])
data.rename(folder / "moved")
run(["report", runs / "whole"])
page = Page(runs / "whole/report.html")
assert not page.images and "Without pictures" in page.text and "Confusion" in page.text
(folder / "moved").rename(data)
assert "error: " in run(["report", folder], expect=2)
assert "--output" in run(["report", runs / "whole", "--output", folder / "x.html"], expect=2)
said("rebuilt byte by byte; without the shards, without pictures")

# ---- runs that lack something, or lose their report ------------------------------------------------------------------------------------
run(["train", config("blind", **{"data.eval_split": "none", "run.max_steps": 3})])
page = Page(runs / "blind/report.html")
assert "no split none" in page.text and page.curves["train"] == [(r["step"], r["loss"]) for r in records(runs / "blind", "train")] and "Confusion" not in page.text
run(["train", config("diverged", **{"optimizer.learning_rate": 1e4, "run.log_every": 1, "run.epochs": 20, "run.evaluate_every_epochs": 0})], expect=3)
assert "not finite" not in Page(runs / "diverged/report.html").text, "the log comes after the page"
run(["report", runs / "diverged"])
Page(runs / "diverged/report.html")
lines = (runs / "whole/metrics.jsonl").read_text().splitlines()
broken = runs / "broken"
shutil.copytree(runs / "whole", broken)
(broken / "metrics.jsonl").write_text("\n".join(re.sub(r'"loss":[^,]*', '"loss":null', line) if i % 3 == 0 else line for i, line in enumerate(lines)) + '\n{"kind": "tra')
run(["report", broken])
assert all(math.isfinite(y) for curve in Page(broken / "report.html").curves.values() for _, y in curve)
toml = config("unwritable")
(runs / "unwritable/report.html").mkdir(parents=True)
text = run(["train", toml], ranks=2)
assert text.count("warning: no report") == 1 and "finished: 15 steps" in text, text
assert not list(runs.rglob("*.partial"))
said("no evaluation, diverged, not finite, a report that cannot be written: a run does not end for it")

# ---- names that are no text for a page -------------------------------------------------------------------------------------------------
evil = '<script>&"'
for split, count in (("train", 8), ("val", 4)):
    for kind in (evil, "b"):
        (folder / "evil" / split / kind).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(numpy.random.default_rng(i).integers(0, 256, (40, 50, 3), dtype=numpy.uint8)).save(folder / "evil" / split / kind / f"<b>{i}&.png")
call([convert, "image-folder", folder / "evil", folder / "evil-shards", "--size", 32])
run(["train", config("evil", **{"data.path": folder / "evil-shards", "data.global_batch": 8, "run.epochs": 1})])
page = Page(runs / "evil/report.html")
assert evil in page.text and page.tags.count("script") == 1 and page.images
said("a class called <script>&\" is text")

# ---- several runs ----------------------------------------------------------------------------------------------------------------------
for seed in (1, 2):
    for rate in (0.01, 0.05):
        run(["train", config(f"seed{seed}-{rate}", **{"run.seed": seed, "optimizer.learning_rate": rate})])
names = sorted(p for p in runs.iterdir() if p.name.startswith("seed"))
text = run(["report", *names])
page = Page(runs / "comparison.html")
assert "4 runs in 2 groups" in page.text and "optimizer.learning_rate = 0.05" in page.text
for name in names:
    rates = [(r["epoch"], r["images_per_second"]) for r in records(name, "train")]
    assert name.name in page.text and page.curves[name.name][-len(rates):] == rates, name
top1 = [records(n, "eval")[-1]["top1"] for n in names if "0.05" in n.name]
assert f"{100 * numpy.mean(top1):.2f} % ± {100 * numpy.std(top1, ddof=1):.3g}" in page.text, (top1, page.text[:1500])
run(["report", *names, "--output", folder / "page.html"])
assert (folder / "page.html").read_bytes() == (runs / "comparison.html").read_bytes()
said("four runs are two groups with mean and deviation")

# ---- TensorBoard -----------------------------------------------------------------------------------------------------------------------
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
seen, texts = {}, []
for path in sorted((runs / names[0]).glob("events.out.tfevents.*")):
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == "config":
                texts.append(value.tensor.string_val[0].decode())
            else:
                seen.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value))
assert len(texts) == 1 and (names[0] / "config.toml").read_text().strip() in texts[0]
for kind, prefix in (("train", "train/"), ("eval", "eval/"), ("phases", "seconds/")):
    rows = records(names[0], kind)
    for key in rows[0].keys() - {"kind", "step", "epoch", "images", "images_per_second_average"}:
        want = [(r["step"], r[key]) for r in rows]
        got = seen.get(prefix + key)
        assert got and [s for s, _ in got] == [s for s, _ in want] and numpy.allclose([v for _, v in got], [v for _, v in want], rtol=1e-6, atol=0), (key, got, want)
said("TensorBoard's reader sees every scalar of metrics.jsonl, and the config as text")
