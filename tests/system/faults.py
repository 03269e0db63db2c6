"""faults: runs in which a rank dies, stops, hangs or slows down at a known call (faults.cpp), and what became of them."""
import itertools
import re

from harness import *

phases = {                              # the call that belongs to a phase of the run of small_input, from its N-th on
    "MPI's start": "MPI_Init_thread 1", "start": "MPI_Gather 5", "training": "MPI_Iallreduce 5", "evaluation": "MPI_Iallreduce 10", "checkpoint": "H5Dwrite 3", "teardown": "MPI_Finalize 1"}
deaths = {"kill": "", "segv": "", "throw": "", "bad_alloc": "", "exit 0": "exit(0)", "exit 75": "exit(75)"}      # and what exit says


def library(folder):
    """Compiled by the machine's own compiler; skips where there is none."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if not compiler:
        skip("no C++ compiler for tests/system/faults.cpp")
    made = folder / "faults.so"
    call([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-o", made, root / "tests/system/faults.cpp", "-ldl"])
    return made


def small_input(folder, data, runs):
    """16 steps with checkpoints in step 3, 6, 8, ...; evaluations of 48 images after 8 and 16: a rank's MPI_Iallreduce is called before each step and each evaluated batch."""
    return write_input(folder / "small.toml", **{
        "data.path": data, "data.global_batch": 12, "model.name": "lenet", "run.outputs": runs, "run.epochs": 2, "run.log_every": 1, "optimizer.learning_rate": 0.02,
        "checkpoint.every_steps": 3, "augment.train": "pad_crop", "run.stall_seconds": 60})


class Struck:
    """A started run.  faults: "RANK ACTION FUNCTION N [VALUE]; ..."."""

    def __init__(self, preload, mark, words, ranks, faults, launcher=None):
        self.mark, self.words = mark, f"{' '.join(map(str, words))} on {ranks} ranks, {faults}"
        self.process = start(words, ranks=ranks, launcher=launcher, variables={"LD_PRELOAD": str(preload), "LOCKSTEP_FAULT": faults, "LOCKSTEP_FAULT_FILE": str(mark)})

    def acted_at(self):
        """When the last of the faults acted, or None."""
        return float(self.mark.read_text().split("\n")[-2].split()[0]) if self.mark.exists() else None

    def ends(self, seconds):
        """Within so many seconds of its start; the exit code.  Nothing of it is left."""
        try:
            self.code = self.process.wait(timeout=seconds)
            self.ended_at = time.monotonic()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words}: not over after {seconds} s\n{output_of(self.process)}")
        finally:
            end(self.process)
        self.output = output_of(self.process)
        return self.code

    def seconds(self):
        """From the fault to the end of the whole job."""
        assert self.acted_at(), f"{self.words}: nothing happened\n{self.output}"
        return self.ended_at - self.acted_at()

    def require(self, holds, what):
        assert holds, f"{self.words}: {what}; exit code {self.code}\n{self.output}"


def faults_of(phase, death, victim):
    """For Struck: that death of that rank in that phase.  Rank 0 alone writes checkpoints: another rank dies while it does."""
    action, _, value = death.partition(" ")
    if phase == "checkpoint" and victim != 0:
        return f"0 slow H5Dwrite 1 0.1; {victim} {action} MPI_Iallreduce 5 {value}"
    return f"{victim} {action} {phases[phase]} {value}"


def require_dead(struck, phase, death, victim, limit=15):
    """The whole job is over within 10 s (on a loaded host a little later; the launchers alone would wait for a minute or for ever), with one message at most of lockstep's own, and a code that neither claims success nor asks for a requeue."""
    code = struck.ends(60)
    if phase == "checkpoint" and victim == 0 and death in ("throw", "bad_alloc"):      # a write that fails is no death: it is said, and the next one is tried
        struck.require(code == 0 and struck.output.count("warning: no checkpoint at step 3") == 1, "a failed write must not end the run")
        return 0
    struck.require(code not in (0, 75), "the code of a job that died")
    struck.require(struck.seconds() < limit, f"over {struck.seconds():.1f} s after the death")
    errors = re.findall(r"^lockstep(?:\[.*\])?: error: .*", struck.output, re.MULTILINE)
    struck.require(len(errors) <= 1, "more than one message")
    words = {"throw": "a fault of the test", "bad_alloc": "no memory left"}.get(death, deaths[death])
    if words and not (death in ("throw", "bad_alloc") and phase == "teardown"):        # thrown in a destructor: std::terminate
        struck.require(len(errors) == 1 and words in errors[0], f"no message of {words}")
    return struck.seconds()


def cases(is_whole):
    """(phase, death, ranks, victim): all, or each death in each phase once, on ranks and victims in turn."""
    if is_whole:
        return [(phase, death, ranks, victim) for phase, death in itertools.product(phases, deaths) for ranks in (1, 2, 4) for victim in sorted({0, ranks - 1})]
    picked = []
    for i, (phase, death) in enumerate(itertools.product(phases, deaths)):
        ranks = (2, 1, 4, 2, 4)[i % 5]
        picked.append((phase, death, ranks, (ranks - 1) * (i // 2 % 2)))
    return picked
