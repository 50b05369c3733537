"""Medians, facts about the machine, and one JSON line per figure."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable

import numpy as np


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
