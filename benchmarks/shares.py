"""So much of a core for each process: what a run would do if every process had a machine of its own, slower ones.

On a machine with as many cores as workers the coordinator takes from them what it needs.  Where each process has a
share of its own, and the shares fit the machine, it does not.  Needs Linux with the cpu controller of control groups
(version 1), and to be root.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROLLER = Path("/sys/fs/cgroup/cpu")

PERIOD = 10_000
"""Microseconds in which a process may use its share."""


@contextmanager
def share_of_a_core(share: float, others: Iterable[int]) -> Iterator[None]:
    """Give this process and each of the ``others`` a share of a core, until the end of the block."""
    if not os.access(CONTROLLER / "cgroup.procs", os.W_OK):
        raise SystemExit(f"--share needs control groups below {CONTROLLER}, and to be root")
    made = [CONTROLLER / f"bnp-dask-{pid}" for pid in (os.getpid(), *others)]
    try:
        for folder in made:
            folder.mkdir()
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD)))
            (folder / "cgroup.procs").write_text(folder.name.rpartition("-")[2])
        yield
    finally:
        for folder in filter(Path.exists, made):
            for pid in (folder / "cgroup.procs").read_text().split():
                (CONTROLLER / "cgroup.procs").write_text(pid)
            folder.rmdir()
