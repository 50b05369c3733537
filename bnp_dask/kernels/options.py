"""Options of kernels: how they are compiled, and where compiled code is kept.

Numba keeps compiled code beside the sources if possible, and checks only the kernel's own file to see whether it is
still valid.  But compiled code includes the kernels of other files that it calls: after an upgrade that changes only
these, it would be outdated.  Here the folder is named after the content of all files that a kernel may call, and is in
the user's cache folder, so that it also outlives the environment that the package was installed in.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import get_host_cpu_name
from numba import config, types

INNER: dict[str, Any] = {"nogil": True, "cache": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options without wrappers for Python and for C: a call from Python fails.

A wrapper unpacks arguments, and for records of many arrays it takes longer to compile than the kernel itself.
Kernels that only kernels call need none.
"""

_KERNELS = Path(__file__).parent

_ONE_AT_A_TIME = threading.Lock()
"""Lock for Numba's cache folder, which is a setting of the whole process."""

_IMPORTED = re.compile(r"^from bnp_dask\.kernels\.([\w.]+) import ([\w ,]*)", re.MULTILINE)


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Numba's decorator; with ``cache`` compiled code is kept in :func:`cache_folder`.

    If no folder is writable, each process compiles its own kernels.  A kernel that others call with constants is
    compiled for the types of these, once, and not for each constant: the compiler still sees those of kernels that it
    puts into their callers.
    """

    def decorated(function: Callable[..., Any]) -> Any:
        kernel = compiled(function)
        if kernel is function:  # NUMBA_DISABLE_JIT: it runs as Python
            return kernel
        of_types = kernel.get_call_template

        def get_call_template(args: Sequence[Any], kws: dict[str, Any]) -> Any:
            plain = types.unliteral
            return of_types([plain(of) for of in args], {name: plain(of) for name, of in kws.items()})

        kernel.get_call_template = get_call_template
        return kernel

    def compiled(function: Callable[..., Any]) -> Any:
        if not cache:
            return numba.njit(**options)(function)
        with _ONE_AT_A_TIME:
            folder, before = cache_folder(), config.CACHE_DIR
            if folder is None:
                return numba.njit(**options)(function)
            config.CACHE_DIR = str(folder / sources_digest(Path(function.__code__.co_filename)))
            try:
                return numba.njit(cache=True, **options)(function)
            except RuntimeError:  # numba finds no folder that it may write to
                return numba.njit(**options)(function)
            finally:
                config.CACHE_DIR = before

    return decorated


@lru_cache
def cache_folder() -> Path | None:
    """Folder for compiled kernels, the first writable one of the following; None if there is none.

    Below ``NUMBA_CACHE_DIR`` if that is set, else below the user's folder for caches; or, if homes are read-only or
    missing, as in many containers, below the folder for temporary files, so that processes of a machine still share
    compiled code.  It may be removed at any time: missing kernels are compiled again.
    """
    home = Path(config.CACHE_DIR) if config.CACHE_DIR else _home()
    if home is not None and _is_writable(home / "bnp_dask"):
        return home / "bnp_dask"
    return _temporary()


def _home() -> Path | None:
    """The user's folder for caches."""
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA")
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(
            "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        )
    return Path(home) if home and os.path.isabs(home) else None


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which is created if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _temporary() -> Path | None:
    """Folder for temporary files that only this user may write to, since its code is run; else None."""
    user = os.getuid() if hasattr(os, "getuid") else None  # without: folders for temporary files are each user's own
    folder = Path(tempfile.gettempdir()) / ("bnp_dask" if user is None else f"bnp_dask-{user}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if user is not None and (others or found.st_uid != user or not stat.S_ISDIR(found.st_mode)):
        return None
    return folder if _is_writable(folder) else None


def n_kept(since: float) -> int:
    """Number of compiled kernels that were put in :func:`cache_folder` since a time of ``time.time()``."""
    folder, found = cache_folder(), 0
    if folder is None:
        return 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # someone tidies up
                found += name.endswith(".nbc") and os.stat(os.path.join(path, name)).st_mtime >= since
    return found


@lru_cache
def compiler_stamp() -> str:
    """Version of the compiler, the processor, and sizes and times of all kernels' sources, as one text."""
    sources = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in _KERNELS.rglob("*.py"))
    return f"{numba.__version__} {get_host_cpu_name()} {hashlib.sha256(repr(sources).encode()).hexdigest()}"


@lru_cache
def sources_digest(file: Path) -> str:
    """Digest of the sources of a file of kernels and of all files that it imports kernels from, directly or not."""
    todo, found = [file], dict[Path, bytes]()
    while todo:
        path = todo.pop()
        if path in found or not path.is_file():
            continue
        found[path] = path.read_bytes()
        for module, names in _IMPORTED.findall(found[path].decode()):
            place = _KERNELS.joinpath(*module.split("."))
            todo += [place.with_suffix(".py"), *(place / f"{name.strip()}.py" for name in names.split(","))]
    whole = hashlib.sha256()
    for path in sorted(found):
        whole.update(hashlib.sha256(found[path]).digest())
    return whole.hexdigest()[:16]


# -- copies between arrays inside of kernels ----------------------------------------------------------------------
# An assignment of arrays (``target[:n] = source``) makes numba compile the text of its error message, with Python's
# strings, in each process whose cache lacks the kernel: two to three CPU seconds.  A loop needs next to nothing.
@njit(nogil=True, cache=True)
def copy_into(target, source):
    """``target[: len(source)] = source`` for arrays of one axis; nothing is checked."""
    for i in range(len(source)):
        target[i] = source[i]
