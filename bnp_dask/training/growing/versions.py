"""``versions`` of a run, and ``changes`` of clusters between two of them by id; ``runs`` of a folder.

``load`` reads a saved posterior, or a version of a run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bnp_dask.core import Location
from bnp_dask.errors import SettingError, StoreError, answering
from bnp_dask.inputs import POSTERIOR_NAME, number_from, path_text, whole_number
from bnp_dask.model import Posterior
from bnp_dask.store import (
    Key,
    Versions,
    holds_run,
    place_of,
    read_about,
    read_history,
    read_settings,
    run_folder,
    version_named,
)
from bnp_dask.training.callbacks import logger
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


@answering
def versions(store: str | os.PathLike[str]) -> tuple[Version, ...]:
    """Versions of a run, by number.

    Parameters
    ----------
    store
        Run directory, or URL of a run.  A run that was never updated has version 0 only.

    Returns
    -------
    tuple of Version
        Number, date, clusters, atoms, objective (nats) and data of each version; oldest first.

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


@answering
def runs(folder: str | os.PathLike[str] = ".") -> tuple[RunFacts, ...]:
    """Runs in a folder and its subfolders, three levels deep, by path.

    Parameters
    ----------
    folder
        Folder, or URL of an object store; a run directory gives that run.

    Returns
    -------
    tuple of RunFacts
        Path, model, state, date, clusters and objective (nats) of each run.

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


@answering
def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that :func:`bnp_dask.save` wrote; needs no Dask and runs no code from the file.

    Parameters
    ----------
    path
        Path of a saved posterior; or a run directory, for the version in force; or ``"RUNDIR@3"``, for version 3 of a
        run that was updated.  Whole versions are read, also while another process publishes one.

    Returns
    -------
    Posterior
        The clusters, with their model and statistics.

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
        except StoreError as error:  # perhaps another process published newer ones, and removed this one
            if versions.current == wanted:
                return in_its_place(versions, wanted, error)
            if number is not None:
                raise
    raise StoreError(f"{versions.path}: its versions are replaced faster than they can be read; load() again")


def in_its_place(versions: Versions, number: int, error: StoreError) -> Posterior:
    """The copy, beside the run, of the posterior in force, whose own file has an ``error``.

    Raises
    ------
    StoreError
        The copy is damaged too, or of another version.
    """
    with contextlib.suppress(StoreError):
        record, copy = versions.record(number), load_saved(versions.path / POSTERIOR_NAME)
        if clusters_of(copy) == {name: record[name] for name in ("ids", "counts")}:
            logger.warning("%s is damaged; its copy %s serves in its place", versions.posterior(number), POSTERIOR_NAME)
            return copy
    others = [other for other in versions.kept() if other < number]
    way = "begin a new run"
    if others:
        way = f"go back to version {others[-1]}, rollback({str(versions.path)!r}, {others[-1]}), and update() again"
    raise StoreError(
        f"{error}; {POSTERIOR_NAME} in {versions.path} does not serve in its place. Put it back from a copy, or {way}"
    ) from error


def clusters_of(posterior: Posterior) -> dict[str, Any]:
    """Ids and counts of clusters, for a record; StoreError for a posterior without statistics, which no run writes."""
    if posterior.summary is None:
        raise StoreError("a posterior without the statistics of its clusters; the posterior of a run holds them")
    return {"ids": posterior.ids.tolist(), "counts": posterior.summary["N"].tolist()}


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


KINDS = ("born", "returned", "split", "merged", "deleted", "dormant", "larger share", "smaller share")


@dataclass(frozen=True)
class Change:
    """A change of one cluster.

    Parameters
    ----------
    kind
        ``"born"``; ``"returned"`` under the id that it had before it was laid away; ``"dormant"``: it faded and was
        laid away; ``"split"`` into others, ``"merged"`` into another, ``"deleted"``, its atoms given to others: the id
        is gone; ``"larger share"`` or ``"smaller share"`` of all atoms: a cluster may have more atoms than before and a
        smaller share, if others gained more.
    cluster
        Its id.
    others
        Ids of the clusters that it came from, or that took its atoms over.
    before, after
        Its atoms (for topics: tokens) at the earlier and at the later version.
    share_before, share_after
        The same as shares of all atoms, 0 to 1.
    """

    kind: str
    cluster: int
    others: tuple[int, ...]
    before: float
    after: float
    share_before: float = 0.0
    share_after: float = 0.0


@answering
def changes(store: str | os.PathLike[str], since: int | None = None, *, share: float = 0.1) -> tuple[Change, ...]:
    """Changes of clusters since a version of a run, up to the version in force.

    Parameters
    ----------
    store
        Run directory.
    since
        Number of the earlier version; None for the version before the one in force.
    share
        Relative change of a cluster's share in all atoms from which on it is listed.

    Returns
    -------
    tuple of Change
        Births first, then clusters that are gone, then clusters whose share changed, each by id.

    Raises
    ------
    SettingError
        The version in force does not come from version ``since``, or ``share`` is negative.
    StoreError
        There is no run, or it was never updated.
    """
    folder = run_folder(path_text("store", store))
    read_settings(folder)
    versions = Versions(folder)
    now = versions.current
    if now is None:
        raise StoreError(f"{folder} was never updated, so that there are no versions; update() makes them")
    number_from("share", share, 0.0)
    first = versions.record(now)
    if since is None:
        since = now if first["before"] is None else first["before"]
    records, number = [], now
    while number != whole_number("since", since):
        records.append(record := versions.record(number))
        if record["before"] is None:
            raise SettingError(f"since={since}: version {now} does not come from it; it comes from 0 to {now}")
        number = record["before"]
    events = [move for record in reversed(records) for move in record["moves"]]
    return changes_between(versions.record(number), first, events, share)


def changes_between(
    earlier: Mapping[str, Any], later: Mapping[str, Any], events: Iterable[Mapping[str, Any]], share: float
) -> tuple[Change, ...]:
    """Changes between two records of versions, ``events`` being the accepted moves in between, in order."""
    old = dict(zip(earlier["ids"], earlier["counts"], strict=True))
    new = dict(zip(later["ids"], later["counts"], strict=True))
    events = list(events)
    origin, fate = _by_cluster(events)
    back = {i for event in events if event["kind"] == "return" for i in event["targets"]}
    whole = [max(sum(counts.values()), 1e-300) for counts in (old, new)]
    born = [
        Change("returned" if i in back else "born", i, origin.get(i, ()), 0.0, new[i], 0.0, new[i] / whole[1])
        for i in sorted(new.keys() - old.keys())
    ]
    gone = [
        Change(kind, i, others, old[i], 0.0, old[i] / whole[0], 0.0)
        for i in sorted(old.keys() - new.keys())
        for kind, others in [fate.get(i, ("deleted", ()))]
    ]
    sizes = []
    for i in sorted(old.keys() & new.keys()):
        a, b = old[i] / whole[0], new[i] / whole[1]
        if abs(b - a) > share * max(a, 1e-300):
            sizes.append(Change("larger share" if b > a else "smaller share", i, (), old[i], new[i], a, b))
    return (*born, *gone, *sizes)


def _by_cluster(
    events: Iterable[Mapping[str, Any]],
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[str, tuple[int, ...]]]]:
    """Origin of each new cluster, and fate of each that may be gone."""
    origin: dict[int, tuple[int, ...]] = {}
    fate: dict[int, tuple[str, tuple[int, ...]]] = {}
    for event in events:
        targets, others = tuple(event["targets"]), tuple(event["others"])
        if event["kind"] == "merge":
            fate[targets[1]] = ("merged", targets[:1])
        elif event["kind"] == "delete":
            fate |= dict.fromkeys(targets, ("deleted", others))
        elif event["kind"] == "dormant":
            fate |= dict.fromkeys(targets, ("dormant", ()))
        elif event["kind"] == "birth":
            origin |= dict.fromkeys(others, targets)
            fate |= dict.fromkeys(targets, ("split", others))
    return origin, fate
