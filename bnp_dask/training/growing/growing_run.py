"""A run directory opened to take in more data: its batches as one source, its state, its versions, and their commit.

New pieces are opened and compared with the run's here as well; none is taken in yet.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.analysis import Completion, complete_batch, score_of
from bnp_dask.core import Batch, Chosen, Columns, Location, Survey, frozen
from bnp_dask.data import (
    LEFT_OUT,
    CountedSource,
    Reader,
    Source,
    View,
    as_modelled,
    as_source,
    classes_of,
    columns_of,
    fingerprint_of,
    labels_of,
    links_of,
    responses_of,
    taking_lags,
    with_labels,
    with_links,
    with_responses,
)
from bnp_dask.errors import BnpDaskError, DataError, SettingError, StoreError
from bnp_dask.execute import Executor
from bnp_dask.inference import (
    EMBEDDED,
    ROOM,
    Memoized,
    Round,
    SavedState,
    State,
    Work,
    is_constant,
    renamed,
    require_sound,
    require_sums,
    settle,
    state_from_saved,
    state_to_arrays,
    state_to_json,
    survey_checked,
    trim,
)
from bnp_dask.inputs import POSTERIOR_NAME, place_in_file
from bnp_dask.model import Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import Labelled
from bnp_dask.store import (
    ROW,
    Checkpoint,
    DamagedError,
    GrowthLog,
    Listing,
    Manifest,
    MemoryStore,
    Prepared,
    RunStore,
    Versions,
    no_receipts,
    place_of,
    read_about,
)
from bnp_dask.structure import as_documents, response_of
from bnp_dask.training.callbacks import logger
from bnp_dask.training.growing.incoming import (
    Aside,
    Counts,
    Known,
    NewWords,
    Piece,
    Placed,
    SetAside,
    content_of,
    moment_of,
    n_words,
    naming,
    nothing_aside,
    place_in,
    placed_again,
    stamp_of,
    times_of,
    widens,
)
from bnp_dask.training.growing.versions import clusters_of, in_its_place
from bnp_dask.training.memory_plan import MemoryPlan
from bnp_dask.training.results import clear_for, load, save, save_again
from bnp_dask.training.run_settings import OPENED, Begun, moves_on_arrival, settings_of_run
from bnp_dask.training.survey_pass import GROWTH, PER_BATCH, OnceSource, Surveyed, each_batch, kept_in, summed, surveyed

# -- All batches of a run that grew, as one source: the batches of its first data, then of each later piece -------
# Data of a run are opened again from the record made when they came.


@dataclass(frozen=True)
class Gone:
    """A reader of a batch that cannot be opened again: DataError says why."""

    why: str

    def __call__(self) -> Any:
        raise DataError(self.why)


@dataclass(frozen=True, eq=False)
class Absent:
    """A source in place of data that cannot be opened again.

    Parameters
    ----------
    name
        Name of the data.
    n_batches, n_features, is_sparse
        As they were.
    why
        Why the data cannot be opened.
    """

    name: str
    n_batches: int
    n_features: int
    is_sparse: bool
    why: str
    n_atoms: int | None = None

    def reader(self, index: int) -> Reader:
        return Gone(f"{self.name} batch {index}: {self.why}")

    def describe(self) -> dict[str, Any]:
        return {"kind": "absent", "path": self.name, "n_batches": self.n_batches}


@dataclass(frozen=True, eq=False)
class GrownSource:
    """Some sources of the same features, one after the other.

    Parameters
    ----------
    name
        Name of the run.
    parts
        The sources; at least one.
    starts
        Number of the first batch of each, and of all batches, ``(P + 1,)``.
    """

    name: str
    parts: Sequence[Source]
    starts: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *(part.n_batches for part in self.parts)]))

    @property
    def n_batches(self) -> int:
        return int(self.starts[-1])

    @property
    def n_features(self) -> int:
        return self.parts[0].n_features

    @property
    def is_sparse(self) -> bool:
        return self.parts[0].is_sparse

    @property
    def n_atoms(self) -> int | None:
        return None

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.parts[0])

    @property
    def present(self) -> np.ndarray:
        """Which batches can be read, ``(B,)`` bool."""
        return np.repeat([not isinstance(part, Absent) for part in self.parts], np.diff(self.starts))

    def part_of(self, index: int) -> int:
        """Number of the source that a batch belongs to."""
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def reader(self, index: int) -> Reader:
        part = self.part_of(index)
        return self.parts[part].reader(index - int(self.starts[part]))

    def describe(self) -> dict[str, Any]:
        return {"kind": "grown", "path": self.name, "n_batches": self.n_batches}


def survey_of(first: Survey, rows: np.ndarray) -> Survey:
    """The survey of a run's first data with the batches of all later data; moments are of the first data alone.

    ``rows`` are the rows of a manifest, ``(N,)``.
    """
    per_batch: dict[str, Any] = {
        name: (*getattr(first, name), *rows[column].tolist()) for name, column in PER_BATCH.items()
    }
    return replace(
        first,
        n_atoms=first.n_atoms + int(rows["atoms"].sum()),
        total_weight=first.total_weight + float(rows["weight"].sum()),
        nbytes=first.nbytes + int(rows["nbytes"].sum()),
        n_groups=first.n_groups + int(rows["groups"].sum()),
        **per_batch,
    )


# -- data opened again ---------------------------------------------------------------------------------------------
def first_data(store: RunStore, begun: Begun, checkpoint: Checkpoint, base: Posterior) -> Surveyed:
    """Survey of the first data, and their batches; StoreError if the run has no list of these."""
    noted = checkpoint.state.get("manifest")
    try:
        if noted is None:
            raise DamagedError(f"{store.path} was begun by a version that kept no list of its batches")
        manifest = Manifest.of_key(store.manifests, noted["key"])
        summed(manifest)
    except DamagedError as error:
        raise StoreError(f"{error}; it cannot take in more data") from error
    n_batches, settings = len(manifest), store.settings
    is_sparse = bool(manifest.arrays["survey/is_sparse"])
    facts = (str(settings["data"].get("path", "data")), n_batches, len(manifest.arrays["survey/mean"]), is_sparse)
    opened = settings.get(OPENED)
    if opened is None:
        source: Source = Absent(*facts, why="it was given as data in memory")
    else:
        source = opened_again(opened, begun.columns(), *facts, base=base)
        kept = kept_in(manifest.arrays)
        source = source if kept is None or isinstance(source, Absent) else OnceSource(source, kept)
    return surveyed(manifest, source)


def place_again(opened: Mapping[str, Any]) -> str | Chosen:
    """Place of data that a run had; of a folder or pattern the files that it held then."""
    place = place_in_file(opened["place"], "data that the run had")
    return Chosen(place, tuple(opened["files"])) if opened.get("files") else place


def opened_again(
    opened: Mapping[str, Any],
    columns: Any,
    name: str,
    n_batches: int,
    n_features: int,
    is_sparse: bool,
    base: Posterior,
) -> Source:
    """Data opened again as the run ``opened`` them; a stand-in if they are gone, or cut otherwise."""
    try:
        source = as_source(
            place_again(opened),
            batch_size=opened["batch_size"],
            weights=weights_in_file(opened["weights"]),
            columns=columns,
        )
        source = with_labels_again(source, opened.get("labels"))
        source = with_links_again(source, opened.get("links"))
        source = with_responses_again(base, source, opened.get("responses"))
    except BnpDaskError as error:
        return Absent(name, n_batches, n_features, is_sparse, str(error))
    if source.n_batches != n_batches:
        why = f"it had {n_batches} batches, and has {source.n_batches} now"
        return Absent(name, n_batches, n_features, is_sparse, why)
    return source


def labels_as_opened(base: Posterior, labels: Any) -> dict[str, Any] | None:
    """Facts to open the labels of a piece again, JSON-able; None if there are none."""
    if labels is None:
        return None
    observation = base.model.observation
    place = Location.of(os.fspath(labels)).place if isinstance(labels, (str, os.PathLike)) else None
    return {"place": place, "names": list(observation.names) if isinstance(observation, Labelled) else None}


def responding_as(base: Posterior, source: Source, responses: Any) -> Source:
    """The source with responses ``(n,)`` of its documents; SettingError if the run was begun without."""
    if response_of(base.model.allocation) is None:
        raise SettingError("responses: the run was begun without; begin a new one with train(..., responses=y)")
    return with_responses(source, responses_as(base, responses))


def responses_as(base: Posterior, responses: Any) -> np.ndarray:
    """Responses ``(n,)`` as the run has them: numbers, or positions among its classes."""
    response = response_of(base.model.allocation)
    if response is None or not response.takes_classes:
        return responses_of(responses)
    return classes_of(responses, response.classes)[0]


def linked_as(base: Posterior, source: Source, links: Any) -> Source:
    """The source with groups ``(n,)`` of linked atoms, which are apart from the groups of all other data.

    SettingError if the run counts atoms alone.
    """
    if not base.model.linked:
        raise SettingError(
            "links: the run was begun without, and counts rows one by one; begin a new one with train(..., links=), or "
            "with Model(..., linked=True) if only later data have links"
        )
    return with_links(source, links_of(links))


def place_beside(given: Any) -> str | None:
    """Place of the responses or links of a piece; empty if they are in memory, None if there are none."""
    if given is None:
        return None
    return Location.of(os.fspath(given)).place if isinstance(given, (str, os.PathLike)) else ""


def with_links_again(source: Source, place: str | None) -> Source:
    """The source with the links that the data had; DataError if these were an array in memory."""
    if place is None:
        return source
    if not place:
        raise DataError("its links were given as an array in memory")
    return with_links(source, links_of(place_in_file(place, "links that the run had")))


def with_responses_again(base: Posterior, source: Source, place: str | None) -> Source:
    """The source with the responses that the data had; DataError if these were an array in memory."""
    if place is None:
        return source
    if not place:
        raise DataError("its responses were given as an array in memory")
    return with_responses(source, responses_as(base, place_in_file(place, "responses that the run had")))


def with_labels_again(source: Source, opened: Mapping[str, Any] | None) -> Source:
    """The source with the labels that the data had; DataError if these were given as an array, which no file keeps."""
    if opened is None:
        return source
    if opened["place"] is None:
        raise DataError("its labels were given as an array in memory")
    names = None if opened["names"] is None else tuple(opened["names"])
    return with_labels(source, labels_of(place_in_file(opened["place"], "labels that the run had"), names))


def weights_in_file(weights: Any) -> Any:
    """Weights in the form of a run directory: a column, or the place of a file if a file may name it."""
    is_file = isinstance(weights, str) and weights.endswith(".npy")
    return place_in_file(weights, "weights that the run had") if is_file else weights


# -- A run directory opened to take in more data: its state, batches and versions, and their commit ---------------


@dataclass
class GrowingRun:
    """A run that takes in data.

    Parameters
    ----------
    store
        Its directory, open for writing; or summaries in memory, which belong to the current update only.
    checkpoint
        Its newest checkpoint.
    base
        The posterior in force; its model has the priors that were set from the first data.
    first, first_source
        Survey of the first data, and their batches, if they can be opened again.
    schedule
        The run's schedule; updates use its window.
    log
        Pieces that came later.
    turn
        Record of which batches were visited when.
    version, newest
        Number of the version in force, and the largest number so far.
    names
        Ids by which readers know clusters, if they differ from the ids in the state.
    seconds
        Wall time of all steps so far.
    seed, moves
        Values with which the run began.
    times
        Newest time of the atoms of each batch, ``(B,)`` seconds; NaN if unknown.
    lays_away
        Whether clusters may have left the model with their atoms.
    besides
        Weight of atoms in the total that belong to no batch of the run, but to a posterior that it goes on from.
    widened
        ``base`` with the words that an update brings; None if there are none.
    """

    store: RunStore | MemoryStore
    checkpoint: Checkpoint
    base: Posterior
    first: Survey
    first_source: Source
    schedule: Memoized
    log: GrowthLog
    turn: Round
    version: int
    newest: int
    names: dict[int, int]
    seconds: float
    seed: int
    moves: tuple[Move, ...]
    times: np.ndarray
    lays_away: bool = False
    besides: float = 0.0
    widened: Posterior | None = None

    @staticmethod
    def open(store: RunStore) -> GrowingRun:
        """The run in a directory; StoreError if it cannot take in data."""
        checkpoint = store.load(fields=SavedState)
        begun = Begun(store.path, settings_of_run(store.path))
        schedule = begun.schedule(None)
        if checkpoint is None or not checkpoint.begun or checkpoint.state["lap"] < 1 or checkpoint.state["position"]:
            raise StoreError(
                f"{store.path}: its first data were not visited to the end of a lap; train(..., resume=True) goes on "
                "with that, then update() takes in more"
            )
        if not isinstance(schedule, Memoized):
            raise StoreError(
                f"{store.path} was trained by {type(schedule).__name__}(), which keeps no statistics of batches "
                "that update() could go on from; it needs a run of Memoized()"
            )
        growth = checkpoint.state.get(GROWTH)
        versions = Versions(store.path)
        if growth is not None:
            base = posterior_of(store, versions, growth["version"])
        elif place_of(place := store.path / POSTERIOR_NAME).exists(place):
            base = load(place)
        else:
            raise StoreError(f"{place} is missing; train(..., resume=True) writes it, then update() takes in more data")
        found = first_data(store, begun, checkpoint, base)
        if growth is None:
            turn = Round.begin(found.survey.n_batches, checkpoint.state["step"])
            log, seconds = GrowthLog.empty(store.manifests), float(checkpoint.history[-1]["seconds"])
            version, newest, names, lays_away = 0, 0, {}, False
            times = np.full(len(turn.last), np.nan)
        else:
            try:
                log = GrowthLog.open(store.manifests, growth)
            except DamagedError as error:
                raise StoreError(f"{error}; put the file back from a copy") from error
            seen, last, short, times = _arrays_of_growth(checkpoint, store)
            turn = Round(seen, last, short, growth["is_open"])
            version, newest, seconds = growth["version"], growth["newest"], growth["seconds"]
            names, lays_away = dict(growth["names"]), growth["lays_away"]
        return GrowingRun(
            store=store,
            checkpoint=checkpoint,
            base=base,
            first=found.survey,
            first_source=found.source,
            schedule=schedule,
            log=log,
            turn=turn,
            version=version,
            newest=newest,
            names=names,
            seconds=seconds,
            seed=begun.seed(),
            moves=begun.moves(),
            times=times,
            lays_away=lays_away,
        )

    @property
    def on_disk(self) -> RunStore:
        """The directory; only for runs on disk."""
        assert isinstance(self.store, RunStore)
        return self.store

    @property
    def name(self) -> str:
        """Name in messages."""
        return str(self.store.path) if isinstance(self.store, RunStore) else "data"

    @property
    def versions(self) -> Versions:
        """Versions of the run."""
        return Versions(self.on_disk.path)

    def state(self) -> State:
        """The state of the checkpoint; StoreError if its sums have changed."""
        saved = self.checkpoint
        place = f"checkpoint {saved.number} of {self.name}"
        try:
            state = state_from_saved(self.base.model, saved.state, saved.arrays, saved.listing, place)
            if isinstance(self.store, RunStore):
                require_sums(state, saved.state, place)
        except DamagedError as error:
            raise StoreError(f"{error}; rollback() goes back to an earlier version") from error
        return state

    def survey(self) -> Survey:
        """Survey of all batches."""
        return survey_of(self.first, self.log.rows)

    def source(self, new: Sequence[Source] = (), reads_old: bool = True, aside: Collection[str] = ()) -> GrownSource:
        """All batches of the run, the last pieces from ``new``; data at places set ``aside`` are not read."""
        old = self.log.pieces[: len(self.log.pieces) - len(new)]
        first = self._placed(self.first_source, self.first.n_features)
        if self._first_place in aside:
            facts = (first.name, first.n_batches, first.n_features, first.is_sparse)
            first = Absent(*facts, why="other data lie in its place now")
        model = self.base.model
        counted = model.structure.counted
        n_features = n_words(self.counting) if widens(model) else self.first.n_features
        reads = [reads_old and piece["place"] not in aside for piece in old]
        known = [first, *(self._reopened(*own, n_features) for own in zip(old, reads, strict=True))]
        read = (s if isinstance(s, Absent) else as_modelled(s, model.marginalises, model.lags) for s in known)
        known = [s if isinstance(s, Absent) else CountedSource(s, counted) for s in read]
        return GrownSource(self.name, [*known, *new])

    @property
    def has_place(self) -> np.ndarray:
        """Whether the data of a batch have a place from which they can be read again, ``(B,)`` bool."""
        places = [self._first_place is not None, *(piece["place"] is not None for piece in self.log.pieces)]
        return np.repeat(places, [self.first.n_batches, *(piece["n_batches"] for piece in self.log.pieces)])

    @property
    def _first_place(self) -> str | None:
        """Place of the first data; None for data in memory."""
        opened = self.store.settings.get(OPENED) if isinstance(self.store, RunStore) else None
        return None if opened is None else opened["place"]

    @property
    def counting(self) -> Posterior:
        """The posterior in force, with the words of an update."""
        return self.base if self.widened is None else self.widened

    def words_then(self) -> list[tuple[str | None, int]]:
        """Places of all data, None for data in memory, and the number of words that the run had with each."""
        if not widens(self.base.model):
            return []
        first = (self._first_place, self.first.n_features)
        return [first, *((piece["place"], self._words_then(piece)) for piece in self.log.pieces)]

    def _words_then(self, piece: Mapping[str, Any]) -> int:
        return int(piece["n_words"])

    def _placed(self, source: Source, words_then: int) -> Source:
        """Data of the run, opened again, with all words that it has now."""
        if isinstance(source, Absent) and widens(self.base.model):
            return replace(source, n_features=n_words(self.counting))
        return placed_again(self.counting, source, words_then)

    def times_of_first(self, time: Any) -> np.ndarray:
        """Times of the first data, ``(B,)``: of a column if they have it, else the date in the name of the file."""
        opened = self.store.settings.get(OPENED) if isinstance(self.store, RunStore) else None
        if opened is None:
            return self.times
        place, rows = opened["place"], self.first.batch_atoms
        if isinstance(time, str) and moment_of(time) is None:
            with contextlib.suppress(BnpDaskError):
                found = times_of(place_again(opened), place, rows, time)
                return np.concatenate([found, self.times[len(found) :]])
        found = times_of(place, place, rows, None)
        return np.concatenate([found, self.times[len(found) :]])

    def work(self, executor: Executor, source: Source | None = None, room: int = ROOM) -> Work:
        """Everything that does not change while the run is worked on; data read are compared with their checksums."""
        source = self.source(reads_old=False) if source is None else source
        return Work(
            self.counting.model,
            source,
            frozen(self.survey()),
            executor,
            self.store,
            self.seed,
            moves_on_arrival(self.moves),
            self.store.shared if isinstance(self.store, RunStore) else None,
            room=room,
        )

    def commit_again(self, state: State) -> None:
        """Commit the same state once more, so that no file of the previous checkpoint is kept."""
        prepared = _prepared(self, state, self.newest, [])
        self.on_disk.require_lock()
        self.on_disk.pin([])
        self.versions.write(self.version, {**self.versions.record(self.version), "checkpoint": prepared.number})
        self.on_disk.write(prepared)
        self.on_disk.pack(purges=True)

    def _reopened(self, piece: Mapping[str, Any], reads_old: bool, n_features: int) -> Source:
        """Data that came later: opened again, or their stand-in; ``n_features`` is the present number."""
        name, count, is_sparse = piece["name"], piece["n_batches"], self.first.is_sparse
        if piece["place"] is None or not reads_old:
            why = "it was given as data in memory" if piece["place"] is None else "other data lie in its place now"
            return Absent(name, count, n_features, is_sparse, why)
        n_then, columns = self._words_then(piece), self.counting.columns
        if columns is not None and widens(self.base.model):
            columns = columns.first(n_then)
        facts = (name, count, self.first.n_features, is_sparse)
        return self._placed(opened_again(piece, columns, *facts, base=self.base), n_then)

    def publish(self) -> None:
        """Put the version of the run's checkpoint in force, after a kill at any point."""
        growth = self.checkpoint.state.get(GROWTH)
        if growth is not None and self.versions.current != growth["version"]:
            self.on_disk.require_lock()
            self.versions.point_at(growth["version"])
            save_again(self.base, self.versions.posterior(growth["version"]), self.on_disk.path / POSTERIOR_NAME)
            self.versions.keep([number for number in self.versions.kept() if number <= growth["version"]])


def posterior_of(store: RunStore, versions: Versions, number: int) -> Posterior:
    """The posterior of a version; if it is damaged it is written again from its copy, or it is a StoreError."""
    place = versions.posterior(number)
    try:
        return load(place)
    except StoreError as error:
        base = in_its_place(versions, number, error)
    store.require_lock()
    clear_for("posterior", place, "update(...)")
    save(base, place)
    return base


def _arrays_of_growth(checkpoint: Checkpoint, store: RunStore) -> list[np.ndarray]:
    """Record of visits and times of each batch, ``(B,)`` each; StoreError for anything else."""
    found, n_batches = [], len(checkpoint.arrays.get("visits", ()))
    for name, kind in {"seen": "b", "last": "i", "short": "b", "times": "f"}.items():
        own = checkpoint.arrays.get(f"{GROWTH}/{name}", np.zeros(()))
        if own.dtype.kind != kind or own.shape != (n_batches,):
            raise StoreError(
                f"checkpoint {checkpoint.number} of {store.path} is damaged (the array {GROWTH}/{name} is {own.dtype} "
                f"{own.shape}; needs kind {kind!r}, one for each of {n_batches} batches); rollback() goes back to an "
                "earlier version"
            )
        found.append(np.array(own))
    return found


def extended(state: State, count: int, weights: np.ndarray | None = None) -> None:
    """Make room for more batches, never visited, of these weights ``(count,)``; None if all weigh one."""
    if state.weights is not None or weights is not None:
        old = np.ones(len(state.visits)) if state.weights is None else state.weights
        state.weights = np.concatenate([old, np.ones(count) if weights is None else weights])
    state.visits = np.concatenate([state.visits, np.full(count, -1, state.visits.dtype)])
    state.seen = np.concatenate([state.seen, np.full(count, len(state.edits), state.seen.dtype)])
    state.receipts = np.concatenate([state.receipts, no_receipts(count)])


def commit(
    run: GrowingRun, state: State, record: Mapping[str, Any], rows: list[dict[str, Any]], keep: int
) -> Posterior:
    """Commit a state as the next version, and put it in force.

    The posterior and the record are written first, then the checkpoint, which is the commit, then the pointer.
    ``keep`` versions are kept whole, including this one; in memory only this one.

    Raises
    ------
    StoreError
        The state does not match its batches, see :func:`require_sound`: nothing is written then.
    """
    number = run.newest + 1
    require_sound(state, run.survey(), f"version {number} of {run.name}", run.lays_away, run.besides)
    if isinstance(run.store, MemoryStore):
        return _held(run, state)
    store, versions = run.store, run.versions
    settle(state)
    store.require_lock()
    if run.checkpoint.state.get(GROWTH) is None:
        _note_first(run)
    posterior = published(run, state)
    save(posterior, versions.posterior(number))
    kept = sorted([*(n for n in versions.kept() if n < number and versions.has(n)), number])
    gone, kept = kept[:-keep], kept[-keep:]
    store.pin([_checkpoint(versions, n) for n in kept[:-1]], [_checkpoint(versions, n) for n in gone])
    prepared = _prepared(run, state, number, rows)
    store.require_lock()
    versions.write(
        number,
        {
            **record,
            "when": now_in_text(),
            "before": run.version,
            "checkpoint": prepared.number,
            **clusters_of(posterior),
        },
    )
    store.write(prepared)
    store.require_lock()
    versions.point_at(number)
    save_again(posterior, versions.posterior(number), store.path / POSTERIOR_NAME)
    versions.keep(kept)
    run.version = run.newest = number
    try:
        store.pack()
        versions.pack()
    except StoreError as error:  # the version is in force, and the next one tries again
        logger.warning("the files of %s are not packed: %s", store.path, error)
    return posterior


def _held(run: GrowingRun, state: State) -> Posterior:
    """Keep a state in memory as the next version; no summary of a batch is kept, since none is visited again."""
    run.base, run.widened = (posterior := published(run, state)), None
    run.version = run.newest = run.newest + 1
    run.store = MemoryStore()
    state.seen[:] = len(state.edits)
    trim(state)
    numbers = {**state_to_json(state), GROWTH: _growth(run, run.version)}
    arrays = {name: np.array(array) for name, array in state_to_arrays(state).items()}
    listing = Listing.of_latest(state.visits, state.receipts)
    run.checkpoint = replace(run.checkpoint, state=json.loads(json.dumps(numbers)), arrays=arrays, listing=listing)
    return posterior


def _growth(run: GrowingRun, number: int) -> dict[str, Any]:
    """Facts of the run in a version's checkpoint, beside its state."""
    numbers = {"version": number, "newest": number, "is_open": run.turn.is_open, "seconds": run.seconds}
    return {**run.log.to_json(), **numbers, "names": sorted(run.names.items()), "lays_away": run.lays_away}


def _prepared(run: GrowingRun, state: State, number: int, rows: list[dict[str, Any]]) -> Prepared:
    """The checkpoint of a version."""
    if state.gathered.held > EMBEDDED:
        state.gathered.write(run.on_disk.part_files())
    numbers = {
        **state_to_json(state),
        "manifest": run.checkpoint.state["manifest"],
        GROWTH: _growth(run, number),
    }
    own = {"seen": run.turn.seen, "last": run.turn.last, "short": run.turn.short, "times": run.times}
    arrays = {**state_to_arrays(state), **{f"{GROWTH}/{name}": array for name, array in own.items()}}
    listing = Listing.of_latest(state.visits, state.receipts)
    return run.on_disk.prepare(numbers, arrays, rows, listing, state.gathered.parts(), is_constant)


def published(run: GrowingRun, state: State) -> Posterior:
    """The posterior with the ids that readers know."""
    assert state.posterior.summary is not None
    summary = renamed(state.posterior.summary, run.names)
    return replace(
        state.posterior, ids=summary.ids, summary=summary, words=run.counting.words, columns=run.counting.columns
    )


def _note_first(run: GrowingRun) -> None:
    """Write down the result of ``train`` as version 0."""
    save(run.base, run.versions.posterior(0))
    facts: dict[str, Any] = {
        "before": None,
        "checkpoint": run.checkpoint.number,
        "pieces": [],
        "moves": [],
        "fresh": None,
        "n_batches": len(run.checkpoint.arrays["visits"]),
        "elbo": sum(run.checkpoint.state["terms"].values()),
        "when": read_about(run.on_disk.path)["created"],
    }
    run.versions.write(0, {**facts, **clusters_of(run.base)})


def now_in_text() -> str:
    """The time, UTC, for the record of a version."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _checkpoint(versions: Versions, number: int) -> int:
    return int(versions.record(number)["checkpoint"])


# -- New pieces of data: opened, compared with the run's pieces, and looked at; none is taken in yet --------------
# One reading of a batch gives its content and its score under the posterior in force.  A predictive density of every
# atom would take as long as a visit of the batch, so a sample of each batch is scored.  Batches are held in memory
# until their visit if it happens in this process, so they are read once.


@dataclass(frozen=True, eq=False)
class OpenedPiece:
    """An opened piece of data.

    Parameters
    ----------
    piece
        The piece.
    counts
        Its batches, with their columns.
    batch_size, weights
        Arguments to open it again: atoms per batch, and place of the weights.
    files
        Names of the files if a folder is one piece, or the file if it is a recording; None for other pieces.
    labels
        How to open its known labels again, JSON-able; None if there are none.
    responses
        Place of its responses; None if there are none, and empty if they were in memory.
    links
        Place of its links, likewise.
    """

    piece: Piece
    counts: Counts
    batch_size: int | None = None
    weights: str | None = None
    files: tuple[str, ...] | None = None
    placed: Placed | None = None
    labels: Mapping[str, Any] | None = None
    responses: str | None = None
    links: str | None = None

    @property
    def source(self) -> Source:
        """Its batches; with the words of the run if its columns were placed."""
        return self.counts.source if self.placed is None else self.placed.source()

    @property
    def leaves_out(self) -> bool:
        """Whether the run does not count some of its columns."""
        place = None if self.placed is None else self.placed.place
        return place is not None and bool((place == LEFT_OUT).any())


@dataclass(frozen=True, eq=False)
class Found:
    """New pieces and their surveys, names of known pieces, and batches that give way.

    ``out`` lists, for each new piece, the batches that give way to it; empty if there are none.  ``base`` is the
    posterior in force, with new words; ``aside`` are pieces set aside.
    """

    new: list[tuple[OpenedPiece, Looked]]
    known: tuple[str, ...]
    base: Posterior
    out: tuple[tuple[int, ...], ...] = ()
    aside: Aside = field(default_factory=nothing_aside)

    @property
    def n_new(self) -> int:
        """Batches of all new pieces."""
        return sum(len(looked.rows) for _, looked in self.new)

    @property
    def gives_way(self) -> list[int]:
        """All batches that give way, in their order."""
        return sorted({batch for batches in self.out for batch in batches})

    def as_before(self, values: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """Per new batch, the largest ``values (B,)`` of batches that give way to its piece, or ``otherwise (n,)``."""
        out, start = np.array(otherwise), 0
        for batches, (_, looked) in zip(self.out, self.new, strict=False):
            if batches:
                out[start : start + len(looked.rows)] = values[list(batches)].max()
            start += len(looked.rows)
        return out

    @property
    def sources(self) -> list[Source]:
        """Sources of the new pieces, all with the words that the run has after them."""
        if not widens(self.base.model):
            return [looked.source for _, looked in self.new]
        placed = [given.placed for given, _ in self.new]
        return [own.source(n_words(self.base)) for own in placed if own is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the new pieces."""
        return tuple(given.piece.name for given, _ in self.new)

    @property
    def scores(self) -> np.ndarray:
        """Log predictive of each new batch and its number of atoms or tokens, ``(n, 2)``."""
        return np.concatenate([looked.scores for _, looked in self.new])

    @property
    def times(self) -> np.ndarray:
        """Newest time in each new batch, ``(n,)``; NaN if unknown."""
        return np.concatenate([looked.times for _, looked in self.new])

    @property
    def set_aside(self) -> tuple[SetAside, ...]:
        """Pieces that were set aside by this look."""
        return self.aside.found

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Names of pieces that wait for the next look."""
        return tuple(self.aside.unfinished)

    def log(self, run: GrowingRun) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """Rows of all new batches, and a mapping of each new piece."""
        rows, pieces, number = [np.zeros(0, ROW)], [], len(run.log.pieces)
        for given, looked in self.new:
            number += 1
            own = looked.rows.copy()
            own["source"] = number
            rows.append(own)
            name = given.source.name if given.piece.item is None else given.piece.name
            facts: dict[str, Any] = {"place": given.piece.place, "name": name, "n_batches": len(own)}
            facts |= {"fingerprint": fingerprint_of(given.source), "content": contents_of(given, looked)[0]}
            facts |= {"batch_size": given.batch_size, "weights": given.weights}
            facts["n_words"] = run.first.n_features
            if given.placed is not None and widens(self.base.model):
                facts["n_words"] = n_words(given.placed.base)
            more: dict[str, Any] = {"files": given.files, "item": given.piece.item, "labels": given.labels}
            more |= {"responses": given.responses, "links": given.links}
            pieces.append({**facts, **{name: value for name, value in more.items() if value is not None}})
        return np.concatenate(rows), pieces


def look_for_new(
    run: GrowingRun,
    openings: Iterable[tuple[Piece, Callable[[Posterior], OpenedPiece]]],
    executor: Executor,
    replaced: Collection[str] = (),
    forgotten: Collection[str] = (),
    *,
    new_words: NewWords | None,
    time: Any,
    aside: Aside,
) -> Found:
    """Look at all pieces that a run does not have, each opened with the words of the pieces before it.

    A piece from a ``replaced`` place may have another content than the run's piece from there.  A piece from a
    ``forgotten`` place is new with any content.  ``time`` gives the times of rows.  Unusable pieces go to
    ``aside``.
    """
    looking = _Looking(run, executor, known_to(run).without(forgotten), replaced, forgotten, new_words, time, aside)
    for piece, opening in openings:
        if aside.raises:
            looking.look(opening)
        elif not aside.passes_over(piece):
            before = stamp_of(piece)
            try:
                looking.look(opening, partial(_is_same, piece, before))
            except Exception as error:
                aside.put(piece, error, before)
    new = looking.new
    if new and not sum(int(looked.rows["atoms"].sum()) for _, looked in new):
        raise DataError(f"{new[0][0].piece.name}: the new data have no atoms; nothing was taken")
    return Found(new, tuple(looking.had), looking.base, aside=aside)


def _is_same(piece: Piece, before: Any) -> bool:
    """Whether the files of a piece are unchanged."""
    return bool(stamp_of(piece) == before)


class _Looking:
    """A look at pieces, one after the other."""

    def __init__(
        self,
        run: GrowingRun,
        executor: Executor,
        known: Known,
        replaced: Collection[str],
        forgotten: Collection[str],
        new_words: NewWords | None,
        time: Any,
        aside: Aside,
    ) -> None:
        self._run, self._executor, self._known, self._room = run, executor, known, Room.of(executor)
        self._replaced, self._forgotten, self._new_words, self._time = replaced, forgotten, new_words, time
        self._aside = aside
        self._places = {place: n for place, n in run.words_then() if place is not None}
        self._taken: set[tuple[Any, ...]] = set()
        self.had: list[str] = []
        self.new: list[tuple[OpenedPiece, Looked]] = []
        self.base = run.base

    def look(self, opening: Callable[[Posterior], OpenedPiece], is_same: Callable[[], bool] | None = None) -> None:
        """Look at one; it is not taken if ``is_same`` says that its files have changed."""
        one = opening(self.base)
        piece, source = one.piece, one.source
        if piece.place is not None and self._known.has_place(piece, fingerprint_of(source)):
            self.had.append(piece.name)
            return
        self._require_fitting(source)
        words_then = self._places.get(piece.place or "") if piece.place not in self._forgotten else None
        with naming(piece):
            one, looked = self._looked_at(one, words_then)
            contents = contents_of(one, looked)
            key = (piece.place, piece.item, contents[0])
            is_replaced = piece.place in self._replaced
            if any(self._known.has_content(piece, c, is_replaced) for c in contents) or key in self._taken:
                self.had.append(piece.name)
                looked.source.drop()
                return
            if words_then is not None and one.leaves_out:  # another content in its place may bring other words
                looked.source.drop()
                one, looked = self._looked_at(one)
            if not self._aside.raises and not looked.rows["atoms"].sum():
                raise DataError(f"{piece.name}: the new data have no atoms")
            times = times_of(piece.data, piece.place, looked.rows["atoms"].tolist(), self._time)
        if is_same is not None and not is_same():
            looked.source.drop()
            self._aside.wait(piece)
            return
        self._taken.add(key)
        self.new.append((one, replace(looked, times=times)))
        assert one.placed is not None
        self.base = one.placed.base

    def _require_fitting(self, source: Source) -> None:
        """SettingError, or DataError if pieces may be set aside, for batches that no worker has room for."""
        try:
            MemoryPlan(self._executor.memory_limit).require_batches(source)
        except SettingError as error:
            raise error if self._aside.raises else DataError(str(error)) from error

    def _looked_at(self, one: OpenedPiece, words_then: int | None = None) -> tuple[OpenedPiece, Looked]:
        return _looked_at(self._run, self.base, one, self._executor, self._room, self._new_words, words_then)


def _looked_at(
    run: GrowingRun,
    base: Posterior,
    one: OpenedPiece,
    executor: Executor,
    room: Room,
    new_words: NewWords | None = None,
    words_then: int | None = None,
) -> tuple[OpenedPiece, Looked]:
    """Put the columns of a piece in their places, and look at it; ``words_then`` as in :func:`place_in`."""
    widths = {n for _, n in run.words_then()}
    placed = replace(one, placed=place_in(base, one.counts, new_words, widths, words_then))
    assert placed.placed is not None
    return placed, look_at(placed.placed.base, placed.source, run.first, executor, room)


def contents_of(given: OpenedPiece, looked: Looked) -> list[int]:
    """Checksums that identify a piece, the first of which is kept.

    Counts of texts change with the words of the run, and the texts do not.
    """
    own = content_of(looked.rows["checksum"])
    return [own] if given.counts.content is None else [given.counts.content, own]


def all_new(run: GrowingRun, source: Source, executor: Executor) -> Found:
    """Look at data that count as new, even if the run has the same."""
    counts = Counts(taking_lags(source, run.base.model.lags))
    given, looked = _looked_at(run, run.base, OpenedPiece(Piece(source, None), counts), executor, Room.of(executor))
    assert given.placed is not None
    return Found([(given, looked)], (), given.placed.base)


def known_to(run: GrowingRun) -> Known:
    """Pieces that a run has."""
    checksums = np.array(run.first.checksums[: run.first.n_batches])
    return Known.of(run.on_disk.settings.get("opened"), checksums, run.log.pieces)


# -- the first look ------------------------------------------------------------------------------------------------
ATOMS = 1024
"""Atoms of a batch that are scored at least: the standard error of their mean is 1/32 of the spread of atoms."""

GROUPS = 256
"""Documents, groups or sequences of a batch that are scored at least."""

SHARE = 1 / 32
"""Share of a batch that is scored at least: of Gaussians in 16 dimensions it takes 3 % of the time of a visit."""


@dataclass(frozen=True, eq=False)
class Look:
    """Look at a batch before it is folded.

    Parameters
    ----------
    survey
        Survey of the batch.
    value, weight
        Log predictive of its atoms (of documents: held-out tokens) under the posterior in force, nats, and the number
        of these; both from a sample, scaled by atoms of the batch per scored atom.
    """

    survey: Survey
    value: float
    weight: float


def look(posterior: Posterior, reader: Reader) -> Look:
    """Task: read a batch, check it, survey it, score it."""
    batch = reader()
    survey = survey_checked(posterior.model, batch, for_priors=False)
    model = posterior.model
    score = _completion if model.structure.has_shares else score_of
    some, times = scored_part(as_documents(model, batch), survey.checksums[0])
    value, weight = score(posterior, some)
    return Look(survey, times * value, times * weight)


def scored_part(batch: Batch, checksum: int) -> tuple[Batch, float]:
    """The part of a batch that is scored, drawn by its checksum, and the number of atoms that each of it stands for.

    Documents, groups and sequences stay whole.  Small batches are scored whole.
    """
    in_groups = batch.is_sparse or batch.groups is not None
    whole, least = (batch.n_groups, GROUPS) if in_groups else (batch.n_atoms, ATOMS)
    size = max(least, math.ceil(SHARE * whole))
    if whole <= size:
        return batch, 1.0
    chosen = np.sort(np.random.default_rng(checksum).choice(whole, size, replace=False))
    return (batch.take_groups(chosen) if in_groups else batch.take(chosen)), whole / size


def _completion(posterior: Posterior, batch: Batch) -> tuple[float, float]:
    found = complete_batch(posterior, batch, Completion())
    used = found.tokens * found.times > 0
    value = math.fsum(found.value[used] * found.times[used])
    return value, math.fsum(found.tokens[used] * found.times[used])


@dataclass(frozen=True, eq=False)
class Looked:
    """A piece of data after the look at it.

    Parameters
    ----------
    rows
        Its batches, ``(n,)`` of :data:`~bnp_dask.store.manifest.ROW`, their source not yet numbered.
    scores
        Log predictive of each and its number of atoms or tokens, ``(n, 2)``.
    source
        Its batches, of which this process may hold some.
    times
        Newest time of each, ``(n,)`` seconds; NaN if unknown.
    """

    rows: np.ndarray
    scores: np.ndarray
    source: HoldingSource
    times: np.ndarray


def _all_or_none(source: HoldingSource, looks: Iterator[Look]) -> Iterator[Look]:
    """Looks at batches of a source; if one of them fails, no batch is held."""
    try:
        yield from looks
    except BaseException:
        source.drop()
        raise


def look_at(posterior: Posterior, whole: Source, first: Survey, executor: Executor, room: Room) -> Looked:
    """Look at all batches of a piece; DataError if they are unlike the run's ``first`` data, or cannot be read."""
    source = HoldingSource(CountedSource(whole, posterior.model.structure.counted), room)
    needed = n_words(posterior) if widens(posterior.model) else first.n_features
    if source.n_features != needed or source.is_sparse != first.is_sparse:
        kinds = {True: "words of sparse counts", False: "columns of dense rows"}
        raise DataError(
            f"{source.name}: has {source.n_features} {kinds[source.is_sparse]}, and the run {needed} "
            f"{kinds[first.is_sparse]}; nothing was taken"
        )
    shared = executor.share("posterior", posterior.light())
    rows, scores = np.zeros(source.n_batches, ROW), np.zeros((source.n_batches, 2))
    for index, found in enumerate(_all_or_none(source, each_batch(look, shared, source, executor, 0))):
        survey = found.survey
        if (survey.n_groups > 0) != (first.n_groups > 0) and survey.n_atoms:
            raise DataError(f"{source.name}: either its rows or the run's are in groups, not both; nothing was taken")
        rows["index"][index], rows["groups"][index] = index, survey.n_groups
        for name, column in PER_BATCH.items():
            rows[column][index] = getattr(survey, name)[0]
        scores[index] = found.value, found.weight
    return Looked(rows, scores, source, np.full(len(rows), np.nan))


# -- batches held until their visit --------------------------------------------------------------------------------
HELD = 2**27
"""Bytes of batches that an update holds at most; the others are read twice.  A guess, which no data chose."""

PART = 8
"""Fraction of a limited process memory that they may take: one part in so many."""


@dataclass(eq=False)
class Room:
    """Bytes that are left for batches of an update; several threads may take of them."""

    left: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def of(executor: Executor) -> Room:
        """Room in a process of an executor, beside its work."""
        limit = executor.memory_limit
        return Room(HELD if not limit else min(HELD, limit // PART))

    def take(self, nbytes: int) -> bool:
        """Take so many bytes; return whether they were left."""
        with self._lock:
            fits = nbytes <= self.left
            self.left -= nbytes if fits else 0
        return fits

    def give(self, nbytes: int) -> None:
        """Return so many bytes that were taken."""
        with self._lock:
            self.left += nbytes


class HoldingReader:
    """Reads a batch once, if there is room to hold it; another process gets only the reader, and holds nothing."""

    def __init__(self, reader: Reader, room: Room) -> None:
        self._reader, self._room = reader, room
        self.batch: Batch | None = None

    def __call__(self) -> Batch:
        if self.batch is not None:
            return self.batch
        batch = self._reader()
        if self._room.take(batch.nbytes):
            self.batch = batch
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _alone, (self._reader,)


def _alone(reader: Reader) -> Reader:
    return reader


@dataclass(frozen=True, eq=False)
class HoldingSource(View):
    """A source whose batches are held once they were read.

    Parameters
    ----------
    whole
        The source.
    room
        Bytes that are left to hold them.
    """

    room: Room
    _readers: dict[int, HoldingReader] = field(default_factory=dict)

    def reader(self, index: int) -> Reader:
        if index not in self._readers:
            self._readers[index] = HoldingReader(self.whole.reader(index), self.room)
        return self._readers[index]

    def drop(self) -> None:
        """Release all batches: these data are not taken in."""
        for reader in self._readers.values():
            if reader.batch is not None:
                self.room.give(reader.batch.nbytes)
                reader.batch = None
