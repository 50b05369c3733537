"""``versions`` of a run, ``runs`` of a folder; ``load``: a saved posterior, or a version of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bnp_dask.core.location import Location
from bnp_dask.errors import StoreError
from bnp_dask.inputs.paths import POSTERIOR_NAME
from bnp_dask.inputs.settings import path_text
from bnp_dask.model import Posterior
from bnp_dask.store import Key, Versions, holds_run, place_of, read_history, run_folder, version_named
from bnp_dask.store.layout import read_about
from bnp_dask.training.results import load as load_saved

DEEP = 3
"""Levels of folders in which runs are looked for."""

HIDDEN = (".", "_")
"""First characters of names of folders that are not looked into."""


@dataclass(frozen=True)
class Version:
    """A version of a run.

    Parameters
    ----------
    number
        Its number; 0 is the result of :func:`bnp_dask.train`.
    in_force
        Whether readers of the run get it.
    is_kept
        Whether its posterior is kept: ``load("RUN@NUMBER")`` and ``rollback`` need it.
    before
        Number of the version that it was made from; None for version 0.
    when
        Time at which it was made, UTC, as text in ISO 8601; None in runs of older releases.
    n_clusters
        K.
    n_atoms
        Atoms of the data (for topics: tokens), weighted and aged as the run says.
    n_batches
        Batches of the data; None in runs of older releases.
    objective
        Objective, nats; None in runs of older releases.
    data
        Places of the data that it took in; empty for version 0.
    """

    number: int
    in_force: bool
    is_kept: bool
    before: int | None
    when: str | None
    n_clusters: int
    n_atoms: float
    n_batches: int | None
    objective: float | None
    data: tuple[str, ...]


@dataclass(frozen=True)
class RunFacts:
    """A run in a list of runs.

    Parameters
    ----------
    path
        Its directory or URL.
    model
        Allocation and likelihood.
    state
        ``"begun"``: no lap was saved; ``"unfinished"``: it can be resumed, or is still going on; ``"done"``: it has a
        posterior; ``"damaged"``: it cannot be read.
    created
        Time of its begin, UTC, as text in ISO 8601.
    laps
        Laps done; None if the run cannot be read.
    n_clusters
        K after the last lap; None before the first.
    objective
        The last objective of its history, nats; None before the first lap.
    version
        Number of the version in force; None for a run that was never updated.
    """

    path: str
    model: str
    state: str
    created: str | None
    laps: int | None
    n_clusters: int | None
    objective: float | None
    version: int | None


def versions(store: str | os.PathLike[str]) -> tuple[Version, ...]:
    """Versions of a run, by number.

    Parameters
    ----------
    store
        Run directory, or URL of a run.  A run that was never updated has version 0 only.

    Raises
    ------
    StoreError
        There is no run, or it has no posterior yet, or a record is damaged.
    """
    path = path_text("store", store)
    folder = run_folder(path)
    read_about(folder)
    known = Versions(folder)
    now = known.current
    if now is None:
        return (_only(path, folder),)
    kept = set(known.kept())
    records = ((number, known.record(number)) for number in known.numbers() if number <= now or number in kept)
    return tuple(_version(number, record, now, kept) for number, record in records)


def _version(number: int, record: Mapping[str, Any], now: int, kept: set[int]) -> Version:
    return Version(
        number=number,
        in_force=number == now,
        is_kept=number in kept,
        before=record["before"],
        when=record.get("when"),
        n_clusters=len(record["ids"]),
        n_atoms=float(sum(record["counts"])),
        n_batches=record.get("n_batches"),
        objective=record.get("elbo"),
        data=tuple(record["pieces"]),
    )


def objective_of_version(what: Any) -> float | None:
    """Objective of a version that a path such as ``"RUN@3"`` names; None for anything else."""
    named = version_named(os.fspath(what)) if isinstance(what, (str, os.PathLike)) else None
    if named is None or named[1] is None:
        return None
    if named[1] == 0 and named[0].current is None:
        return _last(str(named[0].path)).get("elbo")
    if not named[0].has(named[1]):
        return None
    objective: float | None = named[0].record(named[1]).get("elbo")
    return objective


def _only(path: str, folder: Any) -> Version:
    """The version of a run that was never updated."""
    posterior = load(path)
    assert posterior.summary is not None
    last = _last(path)
    return Version(
        number=0,
        in_force=True,
        is_kept=True,
        before=None,
        when=read_about(folder)["created"],
        n_clusters=posterior.n_clusters,
        n_atoms=float(posterior.summary["N"].sum()),
        n_batches=None,
        objective=last.get("elbo"),
        data=(),
    )


def runs(folder: str | os.PathLike[str] = ".") -> tuple[RunFacts, ...]:
    """Runs in a folder and its subfolders, three levels deep, by path.

    Parameters
    ----------
    folder
        Folder, or URL of an object store; a run directory gives that run.

    Raises
    ------
    StoreError
        There is no such folder, or the object store does not answer.
    """
    path = path_text("folder", folder)
    place = run_folder(path)
    if not place_of(place).exists(place):
        raise StoreError(f"{path}: there is no such folder")
    return tuple(_facts(found) for found in _found(path, DEEP))


def _found(path: str, deep: int) -> Iterator[str]:
    """Paths of runs at a path and below it."""
    if holds_run(path):
        yield path
        return
    place = run_folder(path)
    if deep == 0 or not (isinstance(place, Key) or os.path.isdir(place)):
        return
    try:
        names = sorted(place_of(place).names(place))
    except OSError:  # a folder of other users
        return
    for name in names:
        if not name.startswith(HIDDEN) and not name.endswith(".zarr"):
            yield from _found(name if path == "." else f"{path.rstrip('/')}/{name}", deep - 1)


def _facts(path: str) -> RunFacts:
    folder = run_folder(path)
    created = model = None
    try:
        about = read_about(folder)
        created, model = about["created"], _model_of(about["settings"])
        last, has_posterior = _last(path), place_of(folder).exists(folder / POSTERIOR_NAME)
        version = Versions(folder).current
    except StoreError:
        return RunFacts(path, model or "", "damaged", created, None, None, None, None)
    state = "done" if has_posterior else "unfinished" if last else "begun"
    return RunFacts(
        path=path,
        model=model,
        state=state,
        created=created,
        laps=last.get("lap", 0),
        n_clusters=last.get("n_clusters"),
        objective=last.get("elbo"),
        version=version,
    )


def _last(path: str) -> Mapping[str, Any]:
    """Last row of a history; empty before the first."""
    rows = read_history(path)
    return rows[-1] if rows else {}


def _model_of(settings: Mapping[str, Any]) -> str:
    """Allocation and likelihood of the settings of a run, whose classes need not be installed here."""
    try:
        fields = settings["model"][0]["fields"]
        names = [str(fields[part]["$class"]).rpartition(".")[2] for part in ("allocation", "observation")]
    except (KeyError, TypeError, IndexError):
        return ""
    return " of ".join(names)


# -- loading -------------------------------------------------------------------------------------------------------
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
