#!/usr/bin/env python3
"""What users get wrong (misuse_table.py): exit code 2 within seconds, one line that names the culprit and the remedy, no work begun, said once
for the job.  What is odd but right (misuse_odd.py): it works.  And the README's "Troubleshooting" quotes what is really said.
An argument, a regular expression, chooses rows."""
import concurrent.futures
import fcntl
import itertools
import re
import shlex
import threading

from misuse_odd import ODD, begin
from misuse_table import WRONG, both
from misuse_things import *

limit_seconds = 15                                           # on a loaded host; alone on one all rows end within five, which is printed
folder = scratch()
folder.chmod(0o755)
made = things(folder)
names = {name: str(thing) for name, thing in made.items() if name not in ("keys", "out")}
faults, said, outcomes, longest, lock = [], [], [], (0, ""), threading.Lock()


row_numbers = itertools.count()


def complain(fault):
    with lock:
        faults.append(str(fault))
        print(f"FAULT {len(faults)}: {fault}\n", flush=True)


def parse(command, own):
    """One rank's part: (its words, its environment, its folder)."""
    variables, words = {}, [word.format(**names, **own) for word in shlex.split(command)]
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    program = variables.pop("program", lockstep)
    if words[:1] == ["convert"]:
        program, words = convert, words[1:]
    if words[:1] == ["train"] and len(words) > 1 and not any(word.startswith("run.name=") for word in words):
        words.append(f"run.name={own['free']}")
    where = variables.pop("cd", None)
    before = nobody() if variables.pop("nobody", None) is not None else []
    return [*before, program, *words], variables, where


def started(command, ranks, place):
    parts = [parse(part, place) for part in re.split(r" : ", command)]
    own = {name: value for _, variables, _ in parts for name, value in variables.items()}
    if ranks == 1:
        (words, _, where), = parts
        return words, own, where
    words = []
    for rank, (program, _, where) in enumerate(parts):
        words += [*([":"] if rank else []), "-n", str(ranks // len(parts)), *(["--wdir", where] if where else []), *program]
    exported = [word for name in own for word in ("-x", name)]
    return ["mpirun", "--oversubscribe", *exported, *words], own, None


def finished(words, own={}, where=None):
    """(exit code, standard output, standard error); what hangs is ended with all its ranks."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env={**environment(), **own}, cwd=where, start_new_session=True)
    try:
        out, err = process.communicate(timeout=4 * limit_seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        end(process)
        raise


def attempt(row, ranks):
    global longest
    what, command, parts, _, _ = row
    title = f"{what} ({ranks} rank{'s' * (ranks > 1)}): {command}"
    try:
        number = next(row_numbers)                           # rows run side by side
        place = {"free": f"row{number}", "out": f"{made['out']}/{number}"}
        words, own, where = started(command, ranks, place)
        start = time.monotonic()
        code, out, err = finished(words, own, where)
        seconds = time.monotonic() - start
        lines = [line for line in err.splitlines() if re.match(r"lockstep(-convert)?(\[rank \d+ of \d+, [^\]]*\])?: error: ", line)]
        text = f"{title}\nexit code {code} after {seconds:.1f} s\n{out[-800:]}\n{err[-1500:]}"
        assert code == 2, f"expected exit code 2:\n{text}"
        assert len(lines) == 1, f"{len(lines)} lines of error:\n{text}"
        for part in parts:
            assert part.format(**names, **place) in lines[0], f"'{part.format(**names, **place)}' is not said:\n{text}"
        others = [line for line in err.splitlines() if line.strip() and line not in lines and not re.match(r"lockstep(-convert)?: (not read|left out): |libgomp: ", line)]
        assert ranks > 1 or not others, f"more is said than the error:\n{text}"   # mpirun has words of its own
        assert "step 1 " not in out, f"trained before it failed:\n{text}"
        assert seconds < limit_seconds, f"took {seconds:.1f} s:\n{text}"
        with lock:
            said.append(lines[0])
            longest = max(longest, (seconds, title))
    except (AssertionError, subprocess.TimeoutExpired) as fault:
        complain(fault)


def numbers():
    """What keys may hold at most and at least is tried, with all else as it is: it works, or is refused in one line.  (What they may not hold: tests/base/key_limits_test.cpp.)"""
    endless = {"bench.steps", "bench.warmup"}                # as many as that take hours, rightly
    tried = []
    for key in run(["keys"]).splitlines():
        legal = re.match(r"(\S+) = .*  \((?:an integer|a number|(a list of (?:integers|numbers), each)) from (\S+) to (\S+)\)$", key)
        if not legal:
            continue
        name, is_list, low, high = legal.groups()
        for end, value in (("least", low), ("most", high)):
            if end == "most" and name in endless:
                continue
            words = {"bench": ["bench", made["toml"], "bench.steps=1"], "run.ranks": ["check", made["toml"]]}.get(name if name == "run.ranks" else name.split(".")[0], ["train", made["toml"], "run.max_steps=1"])
            # Less memory than a test may take, and an end: they come first, so that the key itself counts.
            tried.append([*words, f"run.name={name}-{end}", "device.memory_gib=1", f"{name}={f'[{value}]' if is_list else value}"])
    assert len(tried) > 100, "lockstep keys is not understood"
    return tried


def attempt_number(words):
    title = " ".join(map(str, words[2:]))
    try:
        code, _, err = finished([lockstep, *map(str, words)])
        lines = [line for line in err.splitlines() if ": error: " in line]
        assert (code, len(lines)) in ((0, 0), (2, 1)), f"{title}: exit code {code}, {len(lines)} lines of error:\n{err[-800:]}"
        with lock:
            outcomes.append(code)
    except (AssertionError, subprocess.TimeoutExpired) as fault:
        complain(fault)


def attempt_odd(what, does):
    start = time.monotonic()
    try:
        skipped = does()
        print(f"{what}: {f'not tried, {skipped}' if skipped else 'right'}, {time.monotonic() - start:.1f} s", flush=True)
    except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError, LookupError) as fault:
        complain(f"{what}: {type(fault).__name__}: {fault}")


def divergence():
    """Code 3 names the step, and no checkpoint holds what is not finite."""
    text = run(["train", made["toml"], "optimizer.learning_rate=10000", "schedule.kind=constant", "run.epochs=20", "checkpoint.every_steps=1", "checkpoint.keep_last=0", "run.name=diverged",
                "run.log_every=7"], ranks=min(2, most_ranks()), expect=3)
    line, = [line for line in text.splitlines() if ": error: " in line]
    assert "not finite at step" in line and "diverged" in line and "optimizer.learning_rate" in line, text
    for path in checkpoints(made["runs"] / "diverged"):
        for name, value in arrays(path).items():
            assert numpy.all(numpy.isfinite(value)) or name.startswith("progress/plateau"), f"{path.name}: {name} is not finite"
    assert not list((made["runs"] / "diverged").rglob("*.partial"))
    assert all(r["loss"] is not None for r in records(made["runs"] / "diverged", "train"))


def troubleshooting():
    """Each message that the README's table quotes is said by a row; ... stands for any text."""
    text = (root / "README.md").read_text().split("## Troubleshooting\n")[1].split("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]*)` \|", text, re.MULTILINE)
    assert len(quoted) >= 12, f"{len(quoted)} messages in README.md"
    assert f"misuse_table.py` has {len(WRONG)}," in text, f"there are {len(WRONG)} rows, and README.md says another number"
    for message in quoted:
        pattern = ".*".join(re.escape(part) for part in message.split("..."))
        assert any(re.search(pattern, line) for line in said), f"README.md quotes what no row says: {message}"


wanted = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
held = made["runs"] / "held/lock"                            # as a job does that works there
held.parent.mkdir()
with open(held, "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    file.write("host node7, Slurm job 17\n")
    file.flush()
    of_cpus = most_ranks() == 64                             # what only a CPU build says
    rows = [(row, ranks) for row in WRONG for ranks in ((1, 2) if row[3] == both else (row[3],))
            if wanted.search(f"{row[0]}: {row[1]}") and ranks <= most_ranks() and (of_cpus or not {"this host's memory", "cudnn"} & set(row[2]))]
    limits = [words for words in numbers() if wanted.search(f"numbers {words[-1]}")]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:   # most of a row is waiting
        for result in [*(pool.submit(attempt, *row) for row in rows), *(pool.submit(attempt_number, words) for words in limits)]:
            result.result()
assert not list(made["out"].rglob("*.h5")), "a failed conversion leaves shards"
assert not (folder / "ran").exists(), "a pickle was run"
assert not (made["runs"] / "nothing").exists(), "evaluation has made a folder"
begin(made)
odd = [(what, does) for what, does, _ in ODD if wanted.search(f"odd {what}")]
for what, does in odd:
    attempt_odd(what, does)
attempt_odd("a run that diverges", divergence)
if not wanted.pattern and of_cpus:
    attempt_odd("README.md's Troubleshooting", troubleshooting)
print(f"{len({row[1] for row, _ in rows})} wrong ways, {len(rows)} times with those on two ranks, the longest {longest[0]:.1f} s ({longest[1]}); {len(limits)} limits of keys, "
      f"{outcomes.count(0)} of which work; {len(odd)} odd ways; {len(faults)} faults")
sys.exit(1 if faults else 0)
