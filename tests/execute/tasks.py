"""Tasks for the executors' tests; in a module of their own, so that workers import them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info


def gemm_task(seed: int, n: int) -> np.ndarray:
    """Products whose last bits would show another number of threads."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n, n)), rng.standard_normal((n, n))
    return np.linalg.solve(a @ b + n * np.eye(n), a.T @ a)


def blas_threads() -> int:
    """Most threads of any BLAS in this process."""
    return max(i["num_threads"] for i in threadpool_info() if i["user_api"] == "blas")


class NamedError(OSError):
    """An error of the tests' own, which may pass."""


def fails_on(folder: str, task: int, failing_calls: tuple[int, ...], kind: type[Exception] = NamedError) -> int:
    """Fail on those calls (counted over all processes by files in ``folder``), else give the task's number."""
    call = count_call(folder, task)
    if call in failing_calls:
        raise kind(f"task {task} call {call}")
    return task


def count_call(folder: str, task: int) -> int:
    """Number of this call of ``task``, from 0."""
    call = 0
    while True:
        try:
            os.close(os.open(Path(folder) / f"{task}-{call}", os.O_CREAT | os.O_EXCL))
            return call
        except FileExistsError:
            call += 1


def pid_then_go(folder: str, task: int, waits: bool) -> tuple[int, int]:
    """Leave a file named by this process and task, wait for the file ``go`` if told to, and give both."""
    (Path(folder) / f"pid-{os.getpid()}-{task}").touch()
    deadline = time.monotonic() + 60
    while waits and not (Path(folder) / "go").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return os.getpid(), task


def sleep_then_touch(folder: str, task: int) -> None:
    """Take some time, then leave a file."""
    time.sleep(0.1)
    (Path(folder) / str(task)).touch()


def where_and_when_after(seconds: float) -> tuple[int, int]:
    """Take some time; the process, and the time."""
    time.sleep(seconds)
    return os.getpid(), time.monotonic_ns()


def kill_own_process() -> None:
    """What the out-of-memory killer does."""
    os.kill(os.getpid(), 9)


def add(*values: float) -> float:
    """Sum in the order given."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def type_names(*values: object) -> tuple[str, ...]:
    """How the arguments arrived."""
    return tuple(type(v).__name__ for v in values)


MEETINGS: dict[int, threading.Barrier] = {}
"""Barriers of tasks in this process, by number."""


def meet(meeting: int, value: int, more: int) -> int:
    """A sum, once all tasks of a meeting have begun."""
    MEETINGS[meeting].wait(timeout=20)
    return value + more
