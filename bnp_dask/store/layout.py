"""The names in a run directory, and whether a directory may become one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict

from bnp_dask.errors import StoreError
from bnp_dask.inputs import POSTERIOR_NAME, local_path
from bnp_dask.store.checkpoint import checkpoint_numbers
from bnp_dask.store.files import unseal
from bnp_dask.store.place import TEMPORARY, DamagedError, Key, cannot, place_of, require_known
from bnp_dask.store.reach import DRAFTS_NAME, POSTED_NAME, SESSION_NAME

RUN_FORMAT = "bnp-dask run"
CHECKPOINT_FORMAT = "bnp-dask checkpoint"
VERSION = 3


class RunContent(TypedDict):
    """Fields of the description of a run."""

    software: str
    created: str
    settings: dict[str, Any]


RUN_NAME = "RUN.json"
MANIFEST_NAME = "manifest"
JOB_NAME = "job.yaml"
"""The job file of a run, if it has one."""

_OWN = ("LOCK", "lock", SESSION_NAME, "checkpoints", MANIFEST_NAME, DRAFTS_NAME, POSTED_NAME, JOB_NAME)
"""Names that may be in a run directory before it is a run."""


def may_hold_runs(path: str | os.PathLike[str]) -> bool:
    """Whether a run may lie at a path or URL; data and posteriors may lie at others."""
    try:
        run_folder(path)
    except StoreError:
        return False
    return True


def is_run(folder: Path | Key) -> bool:
    """Whether a directory holds a run."""
    return place_of(folder).exists(folder / RUN_NAME)


def holds_run(path: str | os.PathLike[str]) -> bool:
    """Whether a run is seen at a path or URL; False also without permission to look, as beside a public posterior."""
    try:
        return is_run(run_folder(path))
    except StoreError:
        return False


def has_begun(folder: Path | Key) -> bool:
    """Whether a directory holds a run with a checkpoint beyond its start, or with one that cannot be read."""
    if not is_run(folder):
        return False
    for number in checkpoint_numbers(folder):
        try:
            head = unseal(checkpoint_base(folder, number).with_suffix(".json"), CHECKPOINT_FORMAT, VERSION)
        except (DamagedError, StoreError):
            return True
        if head.get("begun", True):
            return True
    return False


def checkpoint_base(folder: Path | Key, number: int) -> Path | Key:
    """Files of a checkpoint, without suffix."""
    return folder / "checkpoints" / f"{number:08d}"


def run_folder(path: str | os.PathLike[str]) -> Path | Key:
    """A run directory as a path, or as a key of an object store; StoreError for URLs that cannot hold runs."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        protocol, _, rest = text.partition("://")
        key = Key(f"{protocol}://{rest.rstrip('/')}")
        require_known(key)
        return key
    return local_path(text)


def posterior_place(path: str | os.PathLike[str]) -> str:
    """Place of the posterior of a run directory; any other path is returned unchanged."""
    text = os.fspath(path)
    if "://" in text and not holds_run(text):
        return text
    inside = run_folder(text) / POSTERIOR_NAME
    return str(inside) if place_of(inside).exists(inside) else text


def read_note(path: str | os.PathLike[str], name: str) -> bytes | None:
    """Content of a file that is kept beside a run; None if there is no file, or no run."""
    return note_in(run_folder(path), name) if holds_run(path) else None


def note_in(folder: Path | Key, name: str) -> bytes | None:
    """Content of a file that is kept in a run directory; None if there is none."""
    file = folder / name
    return place_of(file).read(file) if place_of(file).exists(file) else None


def require_new(folder: Path | Key) -> None:
    """StoreError unless a run may be started in a directory."""
    try:
        found = sorted(place_of(folder).names(folder))
    except NotADirectoryError as error:
        raise StoreError(f"{folder} is a file; a run directory must be new or an empty directory") from error
    except OSError as error:
        raise cannot("read", folder, error) from error
    if RUN_NAME in found:
        if not has_begun(folder):
            return
        raise StoreError(
            f"{folder} already holds a run; pass resume=True to go on with it, or choose another directory"
        )
    # A creation that was killed leaves no more than these.
    foreign = [n for n in found if n not in _OWN and not n.startswith(TEMPORARY)]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise StoreError(f"{folder} is not empty ({shown}); choose a new directory for the run")


def read_settings(folder: Path | Key) -> dict[str, Any]:
    """The settings that a run was started with; StoreError if there are none, or they are damaged."""
    found: dict[str, Any] = read_about(folder)["settings"]
    return found


def read_about(folder: Path | Key) -> dict[str, Any]:
    """Description of the run in a run directory: ``settings``, ``created``, ``software``.

    Raises
    ------
    StoreError
        There is no run, or its description is damaged.
    """
    path = folder / RUN_NAME
    if not is_run(folder):
        raise StoreError(f"{folder} holds no run; start one with train(..., store={str(folder)!r}), without resume")
    try:
        return unseal(path, RUN_FORMAT, VERSION, RunContent)
    except DamagedError as error:
        raise StoreError(f"{error}; put it back from a copy, or start the run again in another directory") from error
