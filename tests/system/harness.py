"""harness: runs the built programs as a user would, and reads what they wrote with h5py and json.

A test is a script of this folder: it prints what it does, ends with 0, or with 77 and a message where it cannot run.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import h5py
import numpy

root = pathlib.Path(__file__).resolve().parents[2]
build = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", root / "build/cpu"))
lockstep, convert = str(build / "lockstep"), str(build / "lockstep-convert")

test_data = pathlib.Path(os.environ.get("LOCKSTEP_TEST_DATA", root.parent / "shared/data"))     # real images, where they are


def most_ranks():
    """How many ranks a test may start: as many as there are GPUs, where the build is for those."""
    if "cuda" not in subprocess.run([lockstep, "--version"], capture_output=True, text=True).stdout.split("\n")[1]:
        return 64
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",")) if visible else len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def gpu_program():
    """The CUDA build's lockstep, for tests that need a GPU; skips where one of the two is missing."""
    gpu = root / "build/cuda/lockstep"
    if not gpu.exists():
        skip("no build/cuda/lockstep")
    if not list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        skip("no GPU on this machine")
    return str(gpu)


def scratch():
    """A folder that is gone when the test ends."""
    import atexit
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def shapes(folder, train=256, val=60, seed=1):
    """The generated data set, as shards."""
    path = pathlib.Path(folder) / f"shapes-{train}-{val}"
    if not path.exists():
        call([convert, "shapes", str(path), "--train", str(train), "--val", str(val), "--seed", str(seed)])
    return path


def command(words, ranks=1):
    """lockstep's command line on that many ranks."""
    if ranks == 1:
        return [lockstep, *map(str, words)]
    return ["mpirun", "--oversubscribe", "-n", str(ranks), lockstep, *map(str, words)]


def environment(threads=1):
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1"}


def call(words, expect=0, timeout=300, threads=1, cwd=None):
    """Runs to the end; the output of both streams.  A different exit code is a failure that shows the output."""
    done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, env=environment(threads), cwd=cwd)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{' '.join(map(str, words))}\nexit code {done.returncode}, expected {expect}:\n{done.stdout}")
    return done.stdout


def run(words, ranks=1, **options):
    return call(command(words, ranks), **options)


def start(words, ranks=1, threads=1, variables={}, launcher=None):
    """Starts in a process group of its own, so that it can be ended as a whole; output goes to .output (a file).  launcher: words in the place of mpirun's."""
    output = tempfile.TemporaryFile("w+")
    line = command(words, ranks) if launcher is None else [*launcher, lockstep, *map(str, words)]
    process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, env={**environment(threads), **variables}, start_new_session=True)
    process.output = output
    return process


def output_of(process):
    process.output.seek(0)
    return process.output.read()


def rank_pids(process):
    """Pids of the lockstep processes that a started command has made, in order of pid."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        group = int(stat.rsplit(")", 1)[1].split()[3])          # session id
        if group == process.pid and words and words[0].decode().endswith("/lockstep"):
            found.append(int(entry.name))
    return sorted(found)


def end(process):
    """Ends whatever is left of a started command; mpirun's ranks have process groups of their own."""
    for pid in rank_pids(process):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait_until(condition, seconds, what):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


def checkpoints(run_folder):
    return sorted((pathlib.Path(run_folder) / "checkpoints").glob("step-*.h5"))


def arrays(path, group="/"):
    """Every dataset below a group: {path: array}."""
    found = {}
    with h5py.File(path, "r") as file:
        file[group].visititems(lambda name, item: found.__setitem__(name, item[()]) if isinstance(item, h5py.Dataset) else None)
    return found


def require_equal_bits(a, b, but=()):
    """Two checkpoints hold the same numbers, to the bit, but for the arrays named."""
    left, right = ({name: value for name, value in arrays(path).items() if name not in but} for path in (a, b))
    assert left.keys() == right.keys(), f"{a} and {b} hold different arrays: {left.keys() ^ right.keys()}"
    for name in left:
        same = numpy.asarray(left[name]).tobytes() == numpy.asarray(right[name]).tobytes()
        assert same, f"{name} differs between {a} and {b}: by {numpy.max(numpy.abs(numpy.asarray(left[name], float) - numpy.asarray(right[name], float)))}"


def records(run_folder, kind=None):
    lines = [json.loads(line) for line in (pathlib.Path(run_folder) / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if kind is None or line["kind"] == kind]


def write_input(path, **keys):
    """A TOML input from {"data.path": ...}; sections in order of first use.  Equal runs give equal bits, on a GPU too."""
    sections = {}
    for key, value in {"backends.deterministic": True, **keys}.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append((name, value))
    text = ""
    for section, items in sorted(sections.items()):
        if section:
            text += f"[{section}]\n"
        for name, value in items:
            text += f"{name} = {json.dumps(value) if not isinstance(value, pathlib.Path) else json.dumps(str(value))}\n"
    pathlib.Path(path).write_text(text)
    return path


def write_safetensors(path, tensors, metadata=None):
    """{name: f32 array} in the form of https://github.com/huggingface/safetensors."""
    header, blocks, at = {"__metadata__": metadata or {"format": "pt"}}, [], 0
    for name, array in tensors.items():
        blocks.append(numpy.ascontiguousarray(array, numpy.float32).tobytes())
        header[name] = {"dtype": "F32", "shape": list(numpy.shape(array)), "data_offsets": [at, at + len(blocks[-1])]}
        at += len(blocks[-1])
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))
    return path
