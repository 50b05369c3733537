"""One node of Slurm on loopback, in a folder of its own; needs Debian's slurm-wlm and munge, and root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.parts import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")

CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=64000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def search_path() -> str:
    """Folders of programs as they are now, and that of daemons, which not every user's path has."""
    return f"{os.environ['PATH']}:/usr/sbin"


def why_no_slurm() -> str:
    """Programs or rights that are missing for a node; empty where one can run."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "needs root"


@dataclass(frozen=True)
class Node:
    """A node that runs.

    Parameters
    ----------
    env
        Environment in which its commands find it.
    """

    env: Mapping[str, str]

    def command(self, *words: str, **more: object) -> str:
        """Output of one of Slurm's commands; fails with its errors."""
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Facts of a job, by Slurm's names: ``JobState``, ``Restarts``, ``ExitCode``, ..."""
        words = self.command("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number: str, *states: str, bound: float = 600) -> dict[str, str]:
        """Wait until a job is in one of these states."""
        return until(lambda: (job := self.job(number))["JobState"] in states and job, f"{states}", bound)


@contextmanager
def slurm(folder: Path) -> Iterator[Node]:
    """Start a node, and stop it and its jobs at the end."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=[_free_port(), _free_port()]))
    node = Node({**os.environ, "PATH": search_path(), "SLURM_CONF": str(folder / "slurm.conf")})
    munged = ["munged", "--foreground", "--force", "--key-file", str(key)]
    for option, name in (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed")):
        munged += [f"--{option}", f"{folder}/munge.{name}"]
    with ExitStack() as stack:
        stack.enter_context(_daemon(munged, folder, node.env))
        until((folder / "munge.socket").exists, "munged")
        for name in ("slurmctld", "slurmd"):
            stack.enter_context(_daemon([name, "-D"], folder, node.env))
        until(lambda: _state(node) == "idle", "the node to be idle", 60)
        try:
            yield node
        finally:
            subprocess.run(["scancel", "--user=root"], env=node.env, timeout=60)
            until(lambda: not node.command("squeue", "-h"), "the jobs to end", 60)


def _state(node: Node) -> str:
    return subprocess.run(["sinfo", "-h", "-o", "%t"], env=node.env, capture_output=True, text=True).stdout.strip()


@contextmanager
def _daemon(command: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    with open(folder / f"{command[0]}.out", "w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
