"""A run directory opened to take in more data: its state, batches and versions, and their commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from bnp_dask.core import Survey
from bnp_dask.core.frozen import frozen
from bnp_dask.data import CountedSource, Source, as_modelled
from bnp_dask.errors import BnpDaskError, StoreError
from bnp_dask.execute.base import Executor
from bnp_dask.inference import (
    Memoized,
    SavedState,
    State,
    Work,
    is_constant,
    state_from_saved,
    state_to_arrays,
    state_to_json,
)
from bnp_dask.inference.checkpoint import require_sums
from bnp_dask.inference.gathered import EMBEDDED, ROOM
from bnp_dask.inference.lap import trim
from bnp_dask.inference.sound import require_sound
from bnp_dask.inference.variational.arrivals import Round
from bnp_dask.inference.variational.growing import settle
from bnp_dask.inference.variational.lineage import renamed
from bnp_dask.inputs import POSTERIOR_NAME
from bnp_dask.model import Posterior
from bnp_dask.moves import Move
from bnp_dask.store import (
    Checkpoint,
    DamagedError,
    GrowthLog,
    Listing,
    MemoryStore,
    RunStore,
    Versions,
    no_receipts,
    place_of,
)
from bnp_dask.store.checkpoint import Prepared
from bnp_dask.store.run import read_about
from bnp_dask.training.callbacks import logger
from bnp_dask.training.defaults import moves_on_arrival
from bnp_dask.training.growing.grown import Absent, GrownSource, first_data, opened_again, place_again, survey_of
from bnp_dask.training.growing.incoming.pieces import moment_of, times_of
from bnp_dask.training.growing.incoming.words import n_words, placed_again, widens
from bnp_dask.training.growing.versions import clusters_of, in_its_place
from bnp_dask.training.results import clear_for, load, save, save_again
from bnp_dask.training.run_settings import OPENED, Begun, settings_of_run
from bnp_dask.training.survey_pass import GROWTH


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
        facts = (version, newest, names, seconds, begun.seed(), begun.moves(), times, lays_away)
        return GrowingRun(store, checkpoint, base, found.survey, found.source, schedule, log, turn, *facts)

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
        return self._placed(
            opened_again(
                piece,
                columns,
                *facts,
                base=self.base,
                labels=piece.get("labels"),
                responses=piece.get("responses"),
                links=piece.get("links"),
            ),
            n_then,
        )

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
    """What a version's checkpoint keeps of the run beside its state."""
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
