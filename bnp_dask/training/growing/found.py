"""New pieces of data: opened, compared with the run's pieces, and looked at; none is taken in yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.data.base import Source, fingerprint_of
from bnp_dask.data.groups import taking_lags
from bnp_dask.data.view import LEFT_OUT
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.model import Posterior
from bnp_dask.store.manifest import ROW
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.incoming.aside import Aside, SetAside, nothing_aside, stamp_of
from bnp_dask.training.growing.incoming.holding import Room
from bnp_dask.training.growing.incoming.look import Looked, look_at
from bnp_dask.training.growing.incoming.pieces import Known, Piece, content_of, naming
from bnp_dask.training.growing.incoming.times import times_of
from bnp_dask.training.growing.incoming.words import Counts, NewWords, Placed, n_words, place_in, widens
from bnp_dask.training.memory_plan import MemoryPlan


@dataclass(frozen=True, eq=False)
class Given:
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
    """

    piece: Piece
    counts: Counts
    batch_size: int | None = None
    weights: str | None = None
    files: tuple[str, ...] | None = None
    placed: Placed | None = None
    labels: Mapping[str, Any] | None = None

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

    new: list[tuple[Given, Looked]]
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
            pieces.append({**facts, **{name: value for name, value in more.items() if value is not None}})
        return np.concatenate(rows), pieces


def look_for_new(
    run: GrowingRun,
    openings: Iterable[tuple[Piece, Callable[[Posterior], Given]]],
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
        self.new: list[tuple[Given, Looked]] = []
        self.base = run.base

    def look(self, opening: Callable[[Posterior], Given], is_same: Callable[[], bool] | None = None) -> None:
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

    def _looked_at(self, one: Given, words_then: int | None = None) -> tuple[Given, Looked]:
        return _looked_at(self._run, self.base, one, self._executor, self._room, self._new_words, words_then)


def _looked_at(
    run: GrowingRun,
    base: Posterior,
    one: Given,
    executor: Executor,
    room: Room,
    new_words: NewWords | None = None,
    words_then: int | None = None,
) -> tuple[Given, Looked]:
    """Put the columns of a piece in their places, and look at it; ``words_then`` as in :func:`place_in`."""
    widths = {n for _, n in run.words_then()}
    placed = replace(one, placed=place_in(base, one.counts, new_words, widths, words_then))
    assert placed.placed is not None
    return placed, look_at(placed.placed.base, placed.source, run.first, executor, room)


def contents_of(given: Given, looked: Looked) -> list[int]:
    """Checksums that identify a piece, the first of which is kept.

    Counts of texts change with the words of the run, and the texts do not.
    """
    own = content_of(looked.rows["checksum"])
    return [own] if given.counts.content is None else [given.counts.content, own]


def all_new(run: GrowingRun, source: Source, executor: Executor) -> Found:
    """Look at data that count as new, even if the run has the same."""
    counts = Counts(taking_lags(source, run.base.model.lags))
    given, looked = _looked_at(run, run.base, Given(Piece(source, None), counts), executor, Room.of(executor))
    assert given.placed is not None
    return Found([(given, looked)], (), given.placed.base)


def known_to(run: GrowingRun) -> Known:
    """Pieces that a run has."""
    checksums = np.array(run.first.checksums[: run.first.n_batches])
    return Known.of(run.on_disk.settings.get("opened"), checksums, run.log.pieces)
