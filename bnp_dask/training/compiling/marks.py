"""Marks beside the compiled kernels: for which kinds of run they are all there.

A mark is a hint.  Where one is missing something is compiled, or only looked for, once more; where one is there and
kernels are not, whoever needs them compiles them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from bnp_dask._version import __version__
from bnp_dask.core.encoding import to_spec
from bnp_dask.errors import StoreError
from bnp_dask.kernels.options import cache_folder, compiler_stamp
from bnp_dask.model import Model

WAIT_SECONDS = 120.0
"""Longest time that a process waits for another that compiles: then it compiles too."""

LOOK_SECONDS = 0.05
"""Between two looks at whether the other is done."""


def kind_of(purpose: str, model: Model, *facts: Any) -> str | None:
    """Kind of a run: digest of what tells which kernels it needs, of package, compiler and processor.

    Numbers of the model are left out, since kernels take them as arguments.  None for models that cannot be described.
    """
    try:
        described = _without_numbers(to_spec(model)[0])
    except StoreError:
        return None
    parts = [purpose, __version__, compiler_stamp(), described, *facts]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _without_numbers(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _without_numbers(value) for name, value in spec.items()}
    if isinstance(spec, list):
        return [_without_numbers(value) for value in spec]
    return type(spec).__name__ if isinstance(spec, int | float) and not isinstance(spec, bool) else spec


def place_of(kind: str | None) -> Path | None:
    """File that says that the kernels of a kind are there; None where no cache is kept."""
    folder = cache_folder()
    return None if kind is None or folder is None else folder / "kinds" / kind


def is_marked(mark: Path | None) -> bool:
    """Whether kernels are known to be there."""
    with suppress(OSError):
        return mark is not None and mark.exists()
    return False


def set_mark(mark: Path | None) -> None:
    """Note that the kernels are there; nothing where that cannot be written."""
    with suppress(OSError):
        if mark is not None and not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


@contextmanager
def compiling_once(kind: str | None) -> Iterator[None]:
    """Inside, kernels of a kind are compiled or loaded: by one of the processes that share a cache before all others.

    The first compiles, those that come meanwhile wait, and then all load at the same time.
    """
    mark = place_of(kind)
    with ExitStack() as held:
        if mark is not None and not is_marked(mark):
            held.enter_context(_held(mark.with_suffix(".lock")))
            if is_marked(mark):
                held.close()
        yield
        set_mark(mark)


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Inside, the lock is ours; or the system knows no locks, or the wait was too long."""
    with ExitStack() as opened:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            _wait_for(opened.enter_context(place.open("a")))
        yield


def _wait_for(file: TextIO) -> None:
    """Lock a file, which its end releases, also that of its process."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)
        else:
            return
