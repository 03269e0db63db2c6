"""jobs: a place from which jobs/ are submitted to cluster.py's Slurm, as a user would, and what became of each."""
from harness import *

import cluster

began = time.monotonic()
here = runs = None                      # where the user is, and outputs/ there: all paths of jobs are relative to it


def begin(nodes):
    """Starts the cluster, or skips the test where none can be."""
    global here, runs
    if why := cluster.reason_not_to_run():
        skip(why)
    cluster.isolate()
    folder = scratch()
    folder.chmod(0o711)
    slurm = cluster.Cluster(folder / "cluster", nodes)
    os.environ.update(environment(), LOCKSTEP="build/cpu/lockstep", LOCKSTEP_CONVERT="build/cpu/lockstep-convert",
                      OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
    here = folder / "here"
    (here / "build").mkdir(parents=True)
    (here / "build/cpu").symlink_to(build)
    (here / "jobs").symlink_to(root / "jobs")
    runs = here / "outputs"
    return slurm


def say(*words):
    print(f"{time.monotonic() - began:5.1f} s ", *words, flush=True)


def slurm_says(*words):
    done = subprocess.run(words, capture_output=True, text=True, cwd=here, timeout=30)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


class Job:
    """A submitted script.  options: sbatch's; variables: added to its environment."""

    def __init__(self, script, *words, options=(), variables={}):
        os.environ.update(variables)
        self.id = slurm_says("sbatch", "--parsable", *options, f"jobs/{script}.sbatch", *map(str, words))
        for name in variables:
            del os.environ[name]
        self.words = list(map(str, words))

    def facts(self):
        return dict(word.partition("=")[::2] for word in slurm_says("scontrol", "show", "job", "-o", self.id).split())

    def log(self):
        return "".join(path.read_text() for path in here.glob(f"*-{self.id}.log"))

    def show(self):
        return f"job {self.id} {self.words}: {self.facts()}\n{self.log()}"

    def wait_for(self, text, count=1, seconds=90):
        """Until the log has that text so many times."""
        try:
            wait_until(lambda: self.log().count(text) >= count or self.has_ended(), seconds, text)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.show()}")
        assert self.log().count(text) >= count, f"ended without {text!r}\n{self.show()}"

    def has_ended(self):
        return self.facts()["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

    def ends(self, state, code=None, restarts=(0,), seconds=120):
        """Until it has ended, as expected."""
        try:
            wait_until(self.has_ended, seconds, f"the end of job {self.id}")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.show()}")
        facts = self.facts()
        got = facts["JobState"], int(facts["ExitCode"].split(":")[0]), int(facts["Restarts"])
        assert got[0] == state and code in (None, got[1]) and got[2] in restarts, f"{got}, expected {(state, code, restarts)}\n{self.show()}"
        return got[1]

    def ranks(self):
        """Pids of its lockstep processes on all nodes."""
        mine = f"run.name={self.run}".encode()
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/lockstep") and mine in words:
                found.append(int(entry.name))
        return sorted(found)


class Training(Job):
    def __init__(self, run, nodes, script="train", keys=(), options=(), input="train.toml", variables={}):
        self.run = run
        super().__init__(script, input, f"run.name={run}", *keys, options=[f"--nodes={nodes}", "--ntasks-per-node=1", *options], variables=variables)

    def hold_at(self, step):
        """Stands still from that step on, until Slurm wakes it to signal it."""
        self.wait_for(f"step {step} ")
        for pid in self.ranks():
            os.kill(pid, signal.SIGSTOP)

    def has_bits_of(self, other, restarts=(1, 2, 3), said=("exit code 75", "resumed from")):             # a job with a short limit left may be stopped again
        self.ends("COMPLETED", 0, restarts)
        other.ends("COMPLETED", 0)
        require_equal_bits(checkpoints(runs / other.run)[-1], checkpoints(runs / self.run)[-1])
        train = [r["step"] for r in records(runs / self.run, "train")]
        assert train == list(range(1, train[-1] + 1)), f"records twice or missing: {train}"
        log = self.log()
        assert log.count("first step") > min(restarts) and all(words in log for words in (*said, "finished")), log
        say(f"{self.run}: restarted {self.facts()['Restarts']} times, finished with equal bits")
