"""Resident memory of this process, and of the workers of a cluster, from the kernel's own high-water mark."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

MB = 2**20
STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def can_measure() -> bool:
    """Whether the kernel tells the high-water mark and lets it be set back."""
    try:
        CLEAR.write_text("5")
        return "VmHWM" in STATUS.read_text()
    except OSError:
        return False


def resident(line: str = "VmRSS") -> int:
    """Bytes that this process holds now, or held at most (``"VmHWM"``)."""
    for row in STATUS.read_text().splitlines():
        if row.startswith(line):
            return int(row.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {line}")


def start() -> int:
    """Give freed memory back, set the high-water mark to what is held now, and return that: the baseline."""
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")
    return resident()


def highest() -> int:
    """Most bytes held since :func:`start`."""
    return resident("VmHWM")


def model_bytes(posterior) -> int:
    """Bytes of the parameters and the summary of a posterior."""
    assert posterior.summary is not None
    parts = [*vars(posterior.observation).values(), *vars(posterior.allocation).values()]
    return posterior.summary.nbytes + sum(a.nbytes for a in parts if isinstance(a, np.ndarray))
