"""cluster: a real Slurm on this machine, for one test.  Needs root, slurmctld, slurmd, munged; no systemd, cgroups or database.

Where namespaces are allowed (isolate), the test and the cluster live in network, process, host name and mount namespaces of their own: no
port is taken, and all of it is gone with the test.  Each node has its own host name and /dev/shm.  Elsewhere nodes are plain processes, ended by pid.
"""
import atexit
import os
import pathlib
import shutil
import signal
import socket
import string
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve().parent
mark = "LOCKSTEP_SLURM_NAMESPACE"
# Slurm looks for a broadcast address besides 127.0.0.1.
network = "ip link set lo up && ip address add 10.255.0.1/32 dev lo && hostname ctl"
namespaces = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def reason_not_to_run():
    """Empty where a cluster can be started."""
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun") if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
    if missing:
        return f"no {', '.join(missing)} here; env/install.sh --tests installs Slurm"
    return "" if os.getuid() == 0 else "slurmd runs as root only"


def isolate():
    """Starts this script again inside namespaces, in this one's place; returns inside, or where namespaces are not allowed."""
    if mark in os.environ or subprocess.run([*namespaces, "sh", "-c", network], capture_output=True).returncode != 0:
        return
    # bash is the first process in there: it reaps what daemons leave behind.
    command = [*namespaces, "bash", "-c", network + ' || exit; "$@" & wait $!', "bash", sys.executable, *sys.argv]
    os.execvpe(command[0], command, {**os.environ, mark: "1"})


def free_ports(count):
    """The first of that many ports in a row that nobody listens on."""
    for first in range(17000, 30000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise RuntimeError("no free ports")


class Cluster:
    """nodes: how many.  kill_wait: seconds from SIGTERM to SIGKILL (Slurm's default is 30).  folder: a new one for state and logs, below folders that anyone may enter (munged insists).  Started by the constructor, stopped at the end of the process."""

    def __init__(self, folder, nodes, kill_wait=5):
        self.folder, self.nodes, self.kill_wait, self.daemons = pathlib.Path(folder).resolve(), nodes, kill_wait, {}
        self.is_isolated = mark in os.environ
        os.environ["PATH"] += ":/usr/sbin"
        self._configure()
        os.environ.update({"SLURM_CONF": str(self.folder / "slurm.conf"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                           "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo", "OMPI_MCA_mpi_yield_when_idle": "1"})
        if not self.is_isolated:
            os.environ["OMPI_MCA_btl"] = "self,tcp"          # nodes of one host name would share the files of shared memory
        atexit.register(self.stop)
        self._start()

    def _configure(self):
        f = self.folder
        for name in ("munge", "state", "log", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in self._names())):
            (f / name).mkdir(parents=True)
        f.chmod(0o755)
        (f / "munge").chmod(0o711)                           # munged checks it
        (f / "munge/key").touch(0o600)
        (f / "munge/key").write_bytes(os.urandom(128))
        port = free_ports(self.nodes + 1)
        template = string.Template((here / "slurm.conf").read_text())
        (f / "slurm.conf").write_text(template.substitute(host=socket.gethostname(), folder=f, port=port, nodes=self.nodes, first_port=port + 1, last_port=port + self.nodes, kill_wait=self.kill_wait))
        (f / "hosts").write_text(f"127.0.0.1 localhost ctl {' '.join(self._names())}\n")

    def _names(self):
        return [f"n{i + 1}" for i in range(self.nodes)]

    def _start(self):
        m = self.folder / "munge"
        self._daemon("munged", ["munged", "--foreground", f"--key-file={m}/key", f"--socket={m}/socket", f"--pid-file={m}/pid", f"--log-file={m}/log", f"--seed-file={m}/seed"])
        if self.is_isolated:
            subprocess.run(["mount", "--bind", self.folder / "hosts", "/etc/hosts"], check=True)
        self._daemon("slurmctld", ["slurmctld", "-D", "-i"])
        for node in self._names():
            own = f"hostname {node} && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec slurmd -D -N {node}"
            self._daemon(node, ["unshare", "--uts", "--mount", "sh", "-c", own] if self.is_isolated else ["slurmd", "-D", "-N", node])
        until = time.monotonic() + 30
        while len(said(["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]).split()) < self.nodes:
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if ended or time.monotonic() > until:
                logs = "\n".join(f"{name}: {(self.folder / 'log' / (name + '.out')).read_text()[-1000:]}" for name in ended or ["slurmctld"])
                raise RuntimeError(f"the cluster did not start:\n{logs}")
            time.sleep(0.1)

    def _daemon(self, name, words):
        with open(self.folder / "log" / (name + ".out"), "w") as output:
            self.daemons[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                                  cwd=self.folder)

    def on_node(self, name, path):
        """An absolute path of a node's own mounts, as it is reached from here.  Only where nodes are isolated."""
        return pathlib.Path("/proc", str(self.daemons[name].pid), "root", path.lstrip("/"))

    def kill_node(self, name):
        """As a node that loses its power: SIGKILL to its slurmd and to all that runs there.  Only where nodes are isolated.  Slurm is told (it would notice after half a minute)."""
        own = os.stat(f"/proc/{self.daemons[name].pid}/ns/uts").st_ino
        for _ in range(3):                                   # what was started meanwhile, too
            for entry in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if (entry / "ns/uts").stat().st_ino == own:
                        os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    continue
        self.daemons.pop(name).wait()
        subprocess.run(["scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=killed"], check=True)

    def stop(self):
        """Cancels all jobs, then ends the daemons by pid, the controller and munged last."""
        if self.daemons.get("slurmctld") and self.daemons["slurmctld"].poll() is None:
            subprocess.run(["scancel", "--user=root"], capture_output=True)
            until = time.monotonic() + self.kill_wait + 7
            while said(["squeue", "-h"]).strip() and time.monotonic() < until:
                time.sleep(0.1)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(timeout=5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.daemons = {}


def said(words):
    """What a command prints; errors count as silence (the controller may still be starting)."""
    return subprocess.run(words, capture_output=True, text=True).stdout
