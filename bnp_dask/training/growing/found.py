"""New pieces of data: opened, compared with what a run has, and looked at; nothing is taken yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.data.base import Source
from bnp_dask.data.grouped.lagged import taking_lags
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.data.placed import LEFT_OUT
from bnp_dask.errors import DataError
from bnp_dask.execute.base import Executor
from bnp_dask.model import Posterior
from bnp_dask.store.manifest import ROW
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.incoming.holding import Room
from bnp_dask.training.growing.incoming.look import Looked, look_at
from bnp_dask.training.growing.incoming.pieces import Known, Piece, content_of, naming
from bnp_dask.training.growing.incoming.times import times_of
from bnp_dask.training.growing.incoming.words import Counts, NewWords, Placed, n_words, place_in, widens
from bnp_dask.training.memory_plan import MemoryPlan


@dataclass(frozen=True, eq=False)
class Given:
    """A piece of data as it is opened.

    Parameters
    ----------
    piece
        The piece.
    counts
        Its batches, with the columns that they have.
    batch_size, weights
        How it was opened, so that it can be opened again: atoms per batch, and place of the weights.
    files
        Names of the files of a folder that is one piece; None for others.
    """

    piece: Piece
    counts: Counts
    batch_size: int | None = None
    weights: str | None = None
    files: tuple[str, ...] | None = None
    placed: Placed | None = None

    @property
    def source(self) -> Source:
        """Its batches; with the words of the run where they have their places."""
        return self.counts.source if self.placed is None else self.placed.source()

    @property
    def leaves_out(self) -> bool:
        """Whether the run does not count some of its columns."""
        place = None if self.placed is None else self.placed.place
        return place is not None and bool((place == LEFT_OUT).any())


@dataclass(frozen=True, eq=False)
class Found:
    """Pieces that are new and what was seen of them, names of those that are known, and batches that give way.

    Each new piece has its own batches in ``out`` that give way to it; none where that is empty.  ``base`` is the
    posterior in force, with the words that are new.
    """

    new: list[tuple[Given, Looked]]
    known: tuple[str, ...]
    base: Posterior
    out: tuple[tuple[int, ...], ...] = ()

    @property
    def n_new(self) -> int:
        """Batches of all new pieces."""
        return sum(len(looked.rows) for _, looked in self.new)

    @property
    def gives_way(self) -> list[int]:
        """All batches that give way, in their order."""
        return sorted({batch for batches in self.out for batch in batches})

    def as_before(self, values: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        """Of each new batch the largest of the ``values (B,)`` that give way to its piece, or else ``(n,)`` others."""
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
    def held(self) -> np.ndarray:
        """Which of the new batches this process holds as they were looked at, ``(n,)`` bool."""
        of_piece = [looked.source.held for _, looked in self.new]
        held = np.concatenate(of_piece) if of_piece else np.zeros(0, np.bool_)
        return np.zeros_like(held) if widens(self.base.model) else held

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the new pieces."""
        return tuple(given.piece.name for given, _ in self.new)

    @property
    def scores(self) -> np.ndarray:
        """Log predictive of each new batch and how many atoms or tokens it is of, ``(n, 2)``."""
        return np.concatenate([looked.scores for _, looked in self.new])

    def times(self, time: Any) -> np.ndarray:
        """Newest time in each new batch, ``(n,)``; NaN where nothing tells."""
        pieces = [(given.piece, looked.rows["atoms"].tolist()) for given, looked in self.new]
        return np.concatenate([times_of(piece.data, piece.place, rows, time) for piece, rows in pieces])

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
            more: dict[str, Any] = {"files": given.files, "item": given.piece.item}
            pieces.append({**facts, **{name: value for name, value in more.items() if value is not None}})
        return np.concatenate(rows), pieces


def look_for_new(
    run: GrowingRun,
    openings: Iterable[Callable[[Posterior], Given]],
    executor: Executor,
    replaced: Collection[str] = (),
    forgotten: Collection[str] = (),
    new_words: NewWords | None = None,
) -> Found:
    """Look at all pieces that a run does not have, each opened with the words of those before it.

    A piece from a place that is ``replaced`` may have another content than the run has from there; one from a place
    that is ``forgotten`` is new whatever it holds.
    """
    known, room = known_to(run).without(forgotten), Room.of(executor)
    had, new, taken, base = [], [], set(), run.base
    places = [(place, n) for place, n in run.words_then() if place is not None]
    for opening in openings:
        one = opening(base)
        piece, source = one.piece, one.source
        if piece.place is not None and known.has_place(piece, fingerprint_of(source)):
            had.append(piece.name)
            continue
        MemoryPlan(executor.memory_limit).require_batches(source)
        words_then = None if piece.place is None or piece.place in forgotten else dict(places).get(piece.place)
        with naming(piece):
            one, looked = _looked_at(run, base, one, executor, room, new_words, words_then)
            contents = contents_of(one, looked)
            key = (piece.place, piece.item, contents[0])
            if any(known.has_content(piece, c, piece.place in replaced) for c in contents) or key in taken:
                had.append(piece.name)
                looked.source.drop()
                continue
            if words_then is not None and one.leaves_out:  # another content in its place may bring other words
                looked.source.drop()
                one, looked = _looked_at(run, base, one, executor, room, new_words)
        taken.add(key)
        new.append((one, looked))
        assert one.placed is not None
        base = one.placed.base
    if new and not sum(int(looked.rows["atoms"].sum()) for _, looked in new):
        raise DataError(f"{new[0][0].piece.name}: the new data have no atoms; nothing was taken")
    return Found(new, tuple(had), base)


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
    """Checksums by which a piece is known, the first of which is kept.

    Counts of texts change with the words of the run, and the texts do not.
    """
    own = content_of(looked.rows["checksum"])
    return [own] if given.counts.content is None else [given.counts.content, own]


def all_new(run: GrowingRun, source: Source, executor: Executor) -> Found:
    """Look at data that count as new, whether or not the run has such."""
    counts = Counts(taking_lags(source, run.base.model.lags))
    given, looked = _looked_at(run, run.base, Given(Piece(source, None), counts), executor, Room.of(executor))
    assert given.placed is not None
    return Found([(given, looked)], (), given.placed.base)


def known_to(run: GrowingRun) -> Known:
    """Pieces that a run has."""
    checksums = np.array(run.first.checksums[: run.first.n_batches])
    return Known.of(run.on_disk.settings.get("opened"), checksums, run.log.pieces)
