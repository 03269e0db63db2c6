"""misuse_odd: what is odd but right, a row each: it must work, and give what the plain run gives, to the bit.

ODD       what is odd | a function that does it and requires the right result | what a naive program does
"""
import csv
import html

from misuse_things import *

world = {}                                                   # things(), and "plain": the checkpoint of the plain run on one rank and on two


def begin(made):
    world.update(made)
    world["plain"] = {}
    for ranks in (1, 2):
        run(["train", made["toml"], f"run.name=plain{ranks}"], ranks=min(ranks, most_ranks()))
        world["plain"][ranks] = checkpoints(made["runs"] / f"plain{ranks}")[-1]


def ended(words, env=None, cwd=None, expect=0, before=(), without=()):
    """The output of a command with some variables more or less."""
    variables = {name: value for name, value in {**environment(), **(env or {})}.items() if name not in without}
    done = subprocess.run([*before, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120, env=variables, cwd=cwd)
    assert done.returncode == expect, f"exit code {done.returncode}, expected {expect}: {' '.join(map(str, words))}\n{done.stdout}"
    return done.stdout


def trains(name, words=(), toml=None, ranks=1, outputs=None, **how):
    """Trains, and requires the plain run's bits.  The output."""
    words = ["train", toml or world["toml"], *words, f"run.name={name}"]
    output = ended(command(words, min(ranks, most_ranks())), **how)
    require_equal_bits(checkpoints((outputs or world["runs"]) / name)[-1], world["plain"][ranks])
    return output


def rewritten(name, change):
    path = world["folder"] / name
    path.write_bytes(change(world["toml"].read_bytes()))
    return path


def crlf_input(): trains("crlf", toml=rewritten("crlf.toml", lambda text: text.replace(b"\n", b"\r\n")))
def bom_input(): trains("bom", toml=rewritten("bom.toml", lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n")))
def cut_input(): trains("cut", toml=rewritten("no-newline.toml", lambda text: text.rstrip(b"\n")))
def equals_input(): trains("equals", toml=rewritten("a=b.toml", lambda text: text))


def spaces():
    place = world["folder"] / "Daten für den Lauf № 1"
    place.mkdir()
    data = copy_of(world["data"], place / "die Größe")
    toml = place / "erster Lauf ä.toml"
    shutil.copy(world["toml"], toml)
    trains("Lauf ä 1", [f"data.path={data}", f"run.outputs={place / 'aus gabe'}"], toml=toml, outputs=place / "aus gabe", ranks=2)
    assert (place / "aus gabe/Lauf ä 1/report.html").exists()
    text = ended([lockstep, "predict", place / "aus gabe/Lauf ä 1", data, "--format", "json", "--output", place / "eine Liste.json"])
    assert len(json.loads((place / "eine Liste.json").read_text())["images"]) == 20, text


def longest():
    """Names of 255 bytes, the most that Linux' file systems have."""
    def named(end):
        return "l" * (255 - len(end)) + end
    place = world["folder"] / named("folder")
    place.mkdir()
    data, toml = copy_of(world["data"], place / named("data")), place / named(".toml")
    shutil.copy(world["toml"], toml)
    run(["train", toml, f"data.path={data}", f"run.outputs={place}"])
    made = checkpoints(place / toml.stem)[-1]
    require_equal_bits(made, world["plain"][1])
    run(["export", made, place / named(".safetensors")])
    run(["export", made, place / named(".pth")])
    run(["import", place / named(".safetensors"), place / named(".h5")])
    run(["predict", place / toml.stem, data, "--output", place / named(".csv"), "--format", "csv"])
    run(["report", place / toml.stem, world["runs"] / "larger", "--output", place / named(".html")])
    for end in (".safetensors", ".pth", ".h5", ".csv", ".html"):
        assert (place / named(end)).stat().st_size > 0, end
    assert not list(place.rglob("*.partial"))


def odd_names():
    """Classes and images with names that CSV, JSON and HTML must quote, and one that is no UTF-8."""
    classes = ['a "quoted", <b>one', "Größe №1", "c" * 255]
    images = ["ä, ö.png", "two  blanks.png", 'say "cheese" & <i>.png', "n" * 251 + ".png"]
    source, shards = world["folder"] / "odd names", world["folder"] / "odd shards"
    for split in ("train", "val"):
        for k, kind in enumerate(classes):
            for i, image in enumerate(images):
                picture(source / split / kind / image, (40 + i, 44 + k))
    with open(os.fsencode(source / "val" / classes[1]) + b"/latin-\xe4.png", "wb") as file:
        file.write((source / "val" / classes[1] / images[0]).read_bytes())
    call([convert, "image-folder", source, shards, "--size", 32])
    with h5py.File(next(shards.glob("val-*.h5"))) as file:
        assert sorted(file.attrs["classes"]) == sorted(classes)
        written = {name for name in file["names"][:]}
        assert {f"val/{kind}/{image}".encode() for kind in classes for image in images} < written and len(written) == len(classes) * len(images) + 1
    run(["train", world["toml"], "run.name=odd", f"data.path={shards}"])
    folder = world["runs"] / "odd"
    assert {line["name"] for line in json.loads((folder / "evaluation.json").read_text())["classes"]} == set(classes)
    page = (folder / "report.html").read_text()
    assert html.escape(classes[0]) in page and classes[0] not in page, "a class's name is not quoted in report.html"
    listed = source.parent / "odd.csv"
    for images_of in (source / "val", shards):
        run(["predict", folder, images_of, "--format", "csv", "--output", listed])
        with open(listed, newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(classes) * len(images) + 1 and {row["label"] for row in rows} == set(classes) and all(row["class_1"] in classes for row in rows)
        found = json.loads(ended([lockstep, "predict", folder, images_of, "--format", "json", "--output", listed]) and listed.read_text(encoding="utf-8"))
        assert {row["label"] for row in found["images"]} == set(classes)


def windows_labels():
    """A label file of Windows, beside flat images."""
    flat = world["folder"] / "windows"
    for i in range(1, 5):
        picture(flat / f"{i}.png")
    labels = world["folder"] / "windows.txt"
    labels.write_bytes(b"\xef\xbb\xbfcat\r\ndog\r\ncat\r\ndog\r\n")
    call([convert, "image-folder", flat, world["folder"] / "windows-shards", "--val-labels", labels, "--size", 32])
    with h5py.File(next((world["folder"] / "windows-shards").glob("val-*.h5"))) as file:
        assert list(file.attrs["classes"]) == ["cat", "dog"] and list(file["labels"][:]) == [0, 1, 0, 1], list(file.attrs["classes"])


def decimal_commas():
    """German numbers: by the environment, and by a library of the process that has called setlocale."""
    locales = world["folder"] / "locales"
    locales.mkdir()
    made = shutil.which("localedef") and subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", locales / "de_DE.UTF-8"], capture_output=True).returncode == 0
    if not made:
        return "no localedef, or no sources of locales"
    german = {"LOCPATH": str(locales), "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"}
    if world["strange"]:
        german |= {"LD_PRELOAD": str(world["strange"]), "STRANGE_LOCALE": "de_DE.UTF-8"}
        assert ended(["printf", "%.1f", "1,5"], env={**german, "STRANGE_LOCALE": "C"}) == "1,5", "this locale has no decimal comma"
    output = trains("german", ["optimizer.learning_rate=0.02", "optimizer.momentum=0.9"], env=german)
    assert not re.search(r"\d,\d", output.split("first step")[1]), output
    lines = (world["runs"] / "german/metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in lines) and records(world["runs"] / "german", "train")[0]["learning_rate"] == records(world["runs"] / "plain1", "train")[0]["learning_rate"] > 0.01
    assert "learning_rate = 0.02\n" in (world["runs"] / "german/config.toml").read_text()
    plain = {}
    for name, env in (("plain", {}), ("german", german)):
        listed = world["folder"] / f"{name}.list"
        page = world["folder"] / f"{name}.html"
        plain[name] = [ended([lockstep, "check", world["toml"], "schedule.warmup_epochs=0.5"], env=env), ended([lockstep, "keys"], env=env), ended([lockstep, "inspect", world["larger"]], env=env)]
        for form in ("csv", "json", "text"):
            ended([lockstep, "predict", world["runs"] / "plain1", world["data"], "--format", form, "--output", listed], env=env)
            plain[name].append(listed.read_text())
        ended([lockstep, "report", world["runs"] / "plain1", world["runs"] / "plain2", "--output", page], env=env)
        plain[name].append(page.read_text())
        ended([lockstep, "report", world["runs"] / "plain1"], env=env)
        plain[name].append((world["runs"] / "plain1/report.html").read_text())
        ended([convert, "image-folder", world["folder"] / "images", world["folder"] / f"{name}-shards", "--size", "32", "--max-aspect", "2.5"], env=env)
        plain[name].append((world["folder"] / f"{name}-shards/convert-report.txt").read_text())
    for left, right in zip(plain["plain"], plain["german"]):
        assert left == right, "a decimal comma changes what is written:\n" + "\n".join(f"{a}\n{b}" for a, b in zip(left.splitlines(), right.splitlines()) if a != b)[:600]


def no_home():
    for number, how in enumerate(({"without": ["HOME", "USER", "LOGNAME"]}, {"without": [name for name in os.environ if name not in ("PATH", "LD_LIBRARY_PATH") and not name.startswith("OMP")]},             # OMPI_*, and OMP_NUM_THREADS: other threads, other sums
                                  {"env": {"HOME": "/nowhere", "TMPDIR": "/nowhere", "LC_ALL": "xx_YY.UTF-8"}})):
        for ranks in (1, 2):
            trains(f"homeless{number}-{ranks}", ranks=ranks, **how)


def nameless_user():
    """A user without an entry in passwd and without HOME, as in containers and under `srun --uid`.  mpirun itself needs a HOME then; ranks do not."""
    if os.geteuid() != 0:
        return "only root can become another user"
    place = world["folder"] / "nameless"
    for path in (place, place / "lib"):
        path.mkdir()
        path.chmod(0o777)
    for library in re.findall(r"=> (/\S+)", subprocess.run(["ldd", lockstep], capture_output=True, text=True).stdout):
        if not library.startswith(("/lib", "/usr")):         # a home that others may not enter
            shutil.copy(library, place / "lib")
    how = {"before": ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"], "without": ["HOME", "USER", "LOGNAME"], "cwd": place,
           "env": {"LD_LIBRARY_PATH": f"{place / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"}}
    if subprocess.run([*how["before"], lockstep, "--version"], env={**environment(), **how["env"]}, capture_output=True).returncode != 0:
        return "another user cannot start the program where it was built"
    ended([convert, "shapes", "shards", "--train", 40, "--val", 20, "--seed", 1], **how)
    shutil.copy(world["toml"], place / "good.toml")
    for ranks in (1, min(2, most_ranks())):
        start = [lockstep] if ranks == 1 else ["env", "HOME=/nowhere", "mpirun", "--oversubscribe", "-n", ranks, "env", "-u", "HOME", lockstep]
        own = ["good.toml", "data.path=shards", "run.outputs=outputs", f"run.name=on{ranks}"]
        ended([*start, "train", *own], **how)
        require_equal_bits(checkpoints(place / f"outputs/on{ranks}")[-1], world["plain"][ranks])
        assert "resumed from outputs/" in ended([*start, "train", *own, "run.epochs=2"], **how)
        assert "evaluated 20 images at step" in ended([*start, "eval", *own], **how)
    assert len(checkpoints(place / "outputs/on1")) > 0 and checkpoints(place / "outputs/on1")[-1].stat().st_uid == 54321
    ended([lockstep, "predict", "outputs/on1", "shards", "--output", "list.csv", "--format", "csv"], **how)
    ended([lockstep, "report", "outputs/on1"], **how)


def few_files():
    many = world["folder"] / "many"
    call([convert, "shapes", many, "--train", 40, "--val", 20, "--shards", 20, "--seed", 1])
    for ranks in (1, 2):
        trains(f"few{ranks}", [f"data.path={many}"], ranks=ranks, before=["bash", "-c", 'ulimit -n 64; exec "$@"', "bash"])


def small_shm():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        return "not allowed to mount"
    for name, mount in (("small", "mount -t tmpfs -o size=64m small /dev/shm"), ("none", "mount -t tmpfs -o ro none /dev/shm")):
        trains(f"shm-{name}", ranks=2, before=["unshare", "-m", "bash", "-c", f'{mount} && exec "$@"', "bash"])


def no_locks():
    if not world["strange"]:
        return "no C compiler"
    host = {"LD_PRELOAD": str(world["strange"]), "STRANGE_LOCKS": "no"}
    for number, wish in enumerate(({}, {"HDF5_USE_FILE_LOCKING": "TRUE"}, {"HDF5_USE_FILE_LOCKING": "FALSE"}, {"HDF5_USE_FILE_LOCKING": "BEST_EFFORT"})):
        output = trains(f"lockless{number}", env={**host, **wish})
        assert "lockless" in output and "/lock cannot be locked: No locks available. " in output and "second job" in output, output
        for words in (["inspect", world["larger"], world["train_shard"]], ["eval", world["toml"], "run.name=larger"], ["export", world["larger"], world["folder"] / "lockless.pth"],
                      ["import", world["weights"], world["folder"] / f"lockless{number}.h5"]):
            ended([lockstep, *words], env={**host, **wish})
        ended([convert, "shapes", world["folder"] / f"lockless{number}", "--train", "20", "--val", "10"], env={**host, **wish})


def closed_streams():
    """Where a launcher has closed standard output, the next file that is opened would be it."""
    for name, closed in (("all", "<&- >&- 2>&-"), ("output", ">&-")):
        trains(f"closed-{name}", before=["bash", "-c", f'exec "$@" {closed}', "bash"])
        folder = world["runs"] / f"closed-{name}"
        assert [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [json.loads(line)["kind"] for line in (world["runs"] / "plain1/metrics.jsonl").read_text().splitlines()]
        assert (folder / "log").read_text().count("evaluated 20 images") == 1
        ended([convert, "shapes", folder / "shards", "--train", "20", "--val", "10"], before=["bash", "-c", f'exec "$@" {closed}', "bash"])
        run(["inspect", *(folder / "shards").glob("*.h5")])


def wrong_clocks():
    """Ranks whose wall clocks are hours apart, in the past and the future, and run backwards: nothing that ranks decide together depends on one."""
    if not world["strange"]:
        return "no C compiler"
    for seconds in ("86400", "-40000"):
        env = {"LD_PRELOAD": str(world["strange"]), "STRANGE_CLOCK": seconds}
        words = ["checkpoint.every_minutes=0.0001", "checkpoint.keep_last=0", "run.stall_seconds=3"]
        trains(f"clock{seconds}", words, ranks=2, env=env)
        # A run that goes on takes the checkpoint of the highest step, whatever the files' times say.
        folder = world["runs"] / f"clock{seconds}"
        os.utime(checkpoints(folder)[-1], (0, 0))
        output = ended(command(["train", world["toml"], *words, f"run.name=clock{seconds}", "run.epochs=2"], min(2, most_ranks())), env=env)
        assert f"resumed from {checkpoints(folder)[0].parent}/step-00000002.h5" in output, output


def own_disk():
    """Two nodes, each with an outputs/ of its own."""
    if most_ranks() < 2:
        return "one GPU"
    home, away = world["folder"] / "node-a", world["folder"] / "node-b"
    home.mkdir(), away.mkdir()
    part = [lockstep, "train", world["toml"], "run.outputs=outputs", "run.name=own"]
    output = ended(["mpirun", "--oversubscribe", "-n", "1", "--wdir", home, *part, ":", "-n", "1", "--wdir", away, *part])
    assert re.search(r"warning: rank 1 on \S+ does not see outputs/own as rank 0 on \S+ does: .* Set run\.outputs to a folder that all nodes share\.", output), output
    require_equal_bits(checkpoints(home / "outputs/own")[-1], world["plain"][2])
    assert "does not see" not in trains("shared", ranks=2)


def roundabout_paths():
    (world["folder"] / "link").symlink_to(world["data"])
    trains("slash", [f"data.path={world['data']}/", f"run.outputs={world['runs']}/"])
    trains("link", [f"data.path={world['folder']}/./empty/../link"])
    trains("relative", [f"data.path={world['data'].name}", "run.outputs=runs"], toml="good.toml", cwd=world["folder"])


def read_only_data():
    data = copy_of(world["data"], world["folder"] / "read-only")
    for path in (*data.iterdir(), data):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        trains("read-only", [f"data.path={data}"], before=nobody())
    finally:
        data.chmod(0o755)


def threads_in_a_list():
    for number, threads in enumerate(("1,1", " 1 ")):
        trains(f"list{number}", ranks=2, env={"OMP_NUM_THREADS": threads})
    ended([lockstep, "train", world["toml"], "run.name=all-cpus"], env={"OMP_NUM_THREADS": ""})   # as many threads as CPUs: other bits


def a_failed_start():
    run(["train", world["toml"], "run.name=again", f"run.resume={world['larger']}", "model.name=resnet20", "model.classes=12"], expect=2)
    run(["train", world["toml"], "run.name=again", f"run.resume={world['larger']}", "model.classes=12", "run.epochs=2"])
    run(["train", world["toml"], "run.name=small", "model.name=alexnet"], expect=2)
    trains("small", ["run.resume=never"])


def more_outputs_than_classes():
    output = run(["train", world["toml"], "model.classes=12", "run.name=wider"])
    assert re.search(r"model\.classes = 12\b.*10", output), output
    assert arrays(checkpoints(world["runs"] / "wider")[-1], "/model")["fc3.weight"].shape == (12, 84)



def imported_classes():
    """An imported checkpoint knows no names of classes: model.classes says that its outputs are meant as they are."""
    for words in (["eval", world["toml"]], ["predict", world["toml"], world["data"]]):
        text = run([*words, f"eval.checkpoint={world['imported']}", "model.classes=12"])
        assert text.count(f"imported.h5 has no names of classes: its outputs are taken for the classes of {world['data']}") == 1, text
        assert "no names of classes" not in run([*words, f"eval.checkpoint={world['larger']}"])


ODD = [
  ("an input file of Windows (CRLF)", crlf_input, "a run called 'x\\r', values that end in \\r"),
  ("an input file with a byte order mark", bom_input, "the first section is unknown"),
  ("an input file without a last line end", cut_input, "loses the last key"),
  ("an = in the input file's name", equals_input, "takes it for an override"),
  ("blanks and umlauts in all paths", spaces, "cuts them at the blank"),
  ("names of 255 bytes", longest, "NAME.partial is too long: nothing is written"),
  ("names that must be quoted, and one that is no UTF-8", odd_names, "broken CSV, JSON that no one reads, a page that runs what a class is called"),
  ("a label file of Windows", windows_labels, "a class called '\\ufeffcat\\r'"),
  ("a locale with decimal commas", decimal_commas, "reads 0.02 as 0; JSON, CSV and SVG with commas"),
  ("no HOME, no environment, no TMPDIR, no such locale", no_home, "crashes on a null pointer"),
  ("a user without a name and without HOME", nameless_user, "getpwuid gives a null pointer: PMIx crashes in MPI_Init"),
  ("ulimit -n 64 and 40 shards", few_files, "too many open files"),
  ("/dev/shm of 64 MB, or none", small_shm, "a bus error"),
  ("a file system without locks", no_locks, "errno 37 from libhdf5"),
  ("closed standard streams", closed_streams, "prints into a checkpoint"),
  ("clocks that differ and run backwards", wrong_clocks, "a watchdog that ends the job, ranks that save at different steps"),
  ("a run folder on rank 0's own disk", own_disk, "starts anew when the next job's rank 0 is elsewhere, and nobody knows why"),
  ("links, relative paths and slashes at the end", roundabout_paths, "run names that end in a slash"),
  ("data that may only be read", read_only_data, "opens them for writing"),
  ("OMP_NUM_THREADS as a list, or empty", threads_in_a_list, "atoi makes it 0"),
  ("a name that a failed start has used", a_failed_start, "refuses the mended input"),
  ("more outputs than classes", more_outputs_than_classes, "refuses them"),
  ("a checkpoint without names of classes", imported_classes, "refuses it, or takes outputs for whatever there is"),
]
