"""``load``: a saved posterior, or a version of a run."""

from __future__ import annotations

import os

from bnp_dask.core.location import Location
from bnp_dask.errors import StoreError
from bnp_dask.inputs.paths import POSTERIOR_NAME
from bnp_dask.inputs.settings import path_text
from bnp_dask.model import Posterior
from bnp_dask.store import Versions, version_named
from bnp_dask.training.results import load as load_saved

READ_TRIES = 10
"""Tries to read a posterior while other processes replace it."""


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that :func:`bnp_dask.save` wrote; needs no Dask and runs no code from the file.

    Parameters
    ----------
    path
        Path of a saved posterior; or a run directory, for the version in force; or ``"RUNDIR@3"``, for version 3 of a
        run that was updated.  Whole versions are read, also while another process publishes one.

    Raises
    ------
    StoreError
        There is no saved model at ``path``, it is of a newer format, or a part of it is missing or damaged; the
        error names the part.  Or the run keeps no such version.
    """
    named = version_named(path_text("path", path))
    if named is None:
        return _load_while_replaced(path)
    versions, number = named
    if number == 0 and versions.current is None:  # of a run that was never updated
        number = None
    if number is not None and number not in (kept := _in_force(versions)):
        raise StoreError(f"{versions.path} keeps no version {number}; it keeps {', '.join(map(str, kept)) or 'none'}")
    for _ in range(READ_TRIES):
        wanted = versions.current if number is None else number
        if wanted is None:
            return _load_while_replaced(versions.path / POSTERIOR_NAME)
        try:
            return load_saved(versions.posterior(wanted))
        except StoreError:  # another process published newer ones, and removed this one
            if number is not None or versions.current == wanted:
                raise
    raise StoreError(f"{versions.path}: its versions are replaced faster than they can be read; load() again")


def _in_force(versions: Versions) -> list[int]:
    """Numbers of the kept versions, without one that is still being written."""
    newest = versions.current
    return [] if newest is None else [number for number in versions.kept() if number <= newest]


def _load_while_replaced(path: str | os.PathLike[str]) -> Posterior:
    """A saved posterior that another process may replace meanwhile: one or the other, never half of each."""
    for _ in range(READ_TRIES):
        before = _root(path)
        try:
            return load_saved(path)
        except StoreError:
            if _root(path) == before:
                raise
    raise StoreError(f"{os.fspath(path)}: it is replaced faster than it can be read; load() again")


def _root(path: str | os.PathLike[str]) -> bytes | None:
    """Description of the saved posterior, which names its arrays; None if it cannot be read."""
    try:
        place = Location.of(path).child("zarr.json")
        with place.open() as file:
            return bytes(file.read())
    except Exception:  # reading the posterior reports the error
        return None
