"""``bnp-dask demo``: real data that every machine has, a real store, a real cluster, and a picture or page."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bnp_dask.cli.console import size
from bnp_dask.cli.demo.stage import Stage
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inputs import local_path, say

MARK = ".made-by-bnp-dask-demo"
"""Name of a file that marks a directory that the next demonstration may overwrite."""


def run_demo(
    name: str,
    folder: str | os.PathLike[str] = "bnp-dask-demo",
    patches: int | None = None,
    limit: int | None = None,
    laps: int | None = None,
    workers: int = 2,
    quiet: bool = False,
) -> Path:
    """Run a demonstration from data to a picture, or a page.

    Parameters
    ----------
    name
        ``"patches"``, ``"digits"`` or ``"topics"``.
    folder
        Directory to work in: new, or from earlier demonstrations.  Each has a folder of its name in it, which the next
        one of that name replaces; others are kept.  Git ignores the directory.
    patches
        Patches to cut, for ``"patches"``.
    limit
        Most docstrings to read, for ``"topics"``.
    laps
        Largest number of passes over the data.
    workers
        Processes to start.
    quiet
        Print results only.

    Returns
    -------
    Path
        The picture; for ``"topics"`` the page.

    Raises
    ------
    StoreError
        ``folder`` holds other files, or is not writable.
    SettingError
        An unknown name, or scikit-learn, pillow or matplotlib is not installed.
    """
    from bnp_dask.cli.demo import digits
    from bnp_dask.cli.demo import patches as photographs
    from bnp_dask.cli.demo import topics as documentation

    plays: dict[str, Callable[[Stage], Path]] = {
        "patches": lambda stage: photographs.play(stage, patches),
        "digits": digits.play,
        "topics": lambda stage: documentation.play(stage, limit),
    }
    if name not in plays:
        raise SettingError(f"there is no demonstration {name!r}; there are {', '.join(plays)}")
    if patches is not None and name != "patches":
        raise SettingError(f"the demonstration {name!r} cuts no patches; leave their number out")
    if limit is not None and name != "topics":
        raise SettingError(f"the demonstration {name!r} reads no docstrings; leave their limit out")
    started = time.perf_counter()
    with needs_extras():
        stage = Stage(own_folder(folder, name), workers, laps, quiet)
        made = plays[name](stage)
    kind = "page to browse" if made.suffix == ".html" else "picture"
    say(f"{kind}: {os.path.relpath(made)}   ({time.perf_counter() - started:.0f} s in all)")
    say("next:")
    for command in NEXT[name]:
        say(f"  bnp-dask {command.format(folder=shlex.quote(os.path.relpath(stage.folder)))}")
    return made


NEXT = {
    "patches": (
        "inspect {folder}/run",
        "report {folder}/run {folder}/run.html",
        "predict {folder}/run {folder}/patches.zarr {folder}/labels.csv",
    ),
    "digits": (
        "inspect {folder}/run",
        "report {folder}/run {folder}/run.html --images 8x8",
        "predict {folder}/run {folder}/digits.npy {folder}/labels.csv",
    ),
    "topics": (
        "inspect {folder}/run --limit 5",
        "score {folder}/run {folder}/heldout.zarr",
        "predict {folder}/run {folder}/heldout.zarr {folder}/shares.csv --soft",
    ),
}
"""Commands to try after each demonstration, with its folder; a test runs them."""


def own_folder(folder: str | os.PathLike[str], name: str) -> Path:
    """An empty directory for one demonstration in the directory of all; an earlier one of that name is removed."""
    path = local_path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise StoreError(f"{folder} is a file; the demonstration needs a directory: choose another one with --dir")
    try:
        if path.exists() and any(path.iterdir()) and not (path / MARK).is_file():
            raise StoreError(
                f"{path} exists and was not made by a demonstration; nothing in it was touched. Choose another "
                "directory with --dir"
            )
        path.mkdir(parents=True, exist_ok=True)
        (path / MARK).touch()
        (path / ".gitignore").write_text("*\n")
        path /= name
        _clear(path)
        path.mkdir(exist_ok=True)
        (path / MARK).touch()
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}; choose another directory with --dir") from error
    return path


def _clear(path: Path) -> None:
    """Remove files of an earlier demonstration; StoreError if there are other files."""
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / MARK).is_file():
        raise StoreError(
            f"{path} exists and was not made by a demonstration; nothing in it was touched. Choose another directory "
            "with --dir"
        )
    for child in path.iterdir():
        if child.name == MARK:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


@contextlib.contextmanager
def needs_extras(what: str = "the demonstration") -> Iterator[None]:
    """Turn a missing scikit-learn or pillow into an error that names the package to install."""
    try:
        yield
    except ImportError as error:
        raise SettingError(
            f'{what} needs scikit-learn, pillow and matplotlib ({error}): pip install "bnp-dask[all]"'
        ) from error


__all__ = ["Stage", "needs_extras", "own_folder", "run_demo", "size"]
