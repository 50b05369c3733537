"""New pieces of data: opened, compared with the run's pieces, and looked at; none is taken in yet.

One reading of a batch gives its content and its score under the posterior in force.  A predictive density of every atom
would take as long as a visit of the batch, so a sample of each batch is scored.  Batches are held in memory until their
visit if it happens in this process, so they are read once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.analysis.score import score_of
from bnp_dask.analysis.topics.completion import Completion, complete_batch
from bnp_dask.core import Batch, Survey
from bnp_dask.data import LEFT_OUT, CountedSource, Reader, Source, View, fingerprint_of, taking_lags
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inference.bad_batches import survey_checked
from bnp_dask.model import Posterior
from bnp_dask.store.manifest import ROW
from bnp_dask.structure import as_documents
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.incoming.aside import Aside, SetAside, nothing_aside, stamp_of
from bnp_dask.training.growing.incoming.pieces import Known, Piece, content_of, naming, times_of
from bnp_dask.training.growing.incoming.words import Counts, NewWords, Placed, n_words, place_in, widens
from bnp_dask.training.memory_plan import MemoryPlan
from bnp_dask.training.survey_pass import PER_BATCH, each_batch


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
    new_words: NewWords | None = None,
    time: Any = None,
    aside: Aside | None = None,
) -> Found:
    """Look at all pieces that a run does not have, each opened with the words of the pieces before it.

    A piece from a ``replaced`` place may have another content than the run's piece from there.  A piece from a
    ``forgotten`` place is new with any content.  ``time`` gives the times of rows.  Unusable pieces go to
    ``aside``; if it is None, they raise.
    """
    aside = nothing_aside() if aside is None else aside
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
