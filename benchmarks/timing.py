"""Medians, facts about the machine, and one JSON line per figure."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
from distributed import Client

from bnp_dask.execute import one_blas_thread
from bnp_dask.execute.local import local_client

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls its settings."""


def median(function: Callable[[], object], repeats: int, clock: Callable[[], float] = time.process_time) -> float:
    """Median seconds of some calls, after one that is not counted."""
    function()
    seconds = []
    for _ in range(repeats):
        start = clock()
        function()
        seconds.append(clock() - start)
    return float(np.median(seconds))


def dgemm_rate(repeats: int = 5, size: int = 2048) -> float:
    """Floating point operations per second of a large product on one thread, CPU time: this machine's limit."""
    a, b = np.random.default_rng(0).normal(size=(2, size, size))
    out = np.empty((size, size))
    return 2 * size**3 / median(lambda: np.matmul(a, b, out=out), repeats)


def emit(name: str, value: float, unit: str, repeats: int, **facts: object) -> None:
    """Print one figure."""
    machine = {"cpu": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    line = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "median_of": repeats, **facts}
    print(json.dumps({**line, "machine": machine}), flush=True)


def run_named(benchmarks: Mapping[str, Callable[[], None]], names: Sequence[str]) -> None:
    """Run some benchmarks, or all if none is named."""
    unknown = [name for name in names if name not in benchmarks]
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(benchmarks)}")
    warnings.simplefilter("ignore")
    with one_blas_thread():
        for name in names or benchmarks:
            benchmarks[name]()


def keep_memory() -> None:
    """Let this process keep what it frees, as workers do: mapping arrays anew would be a third of what is measured."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc alone has it
    for setting, value in ((M_TRIM_THRESHOLD, 2**27), (M_MMAP_THRESHOLD, 2**25)) if mallopt else ():
        mallopt(setting, value)


def workers(count: int) -> AbstractContextManager[Client]:
    """A client of so many processes of one thread, as ``bnp-dask train`` starts them."""
    return local_client(count, memory_limit=0, dashboard=None)
