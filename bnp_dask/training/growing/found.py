"""New pieces of data: opened, compared with what a run has, and looked at; nothing is taken yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.data.base import Source
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.errors import DataError
from bnp_dask.execute.base import Executor
from bnp_dask.store.manifest import ROW
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.incoming.look import Looked, look_at
from bnp_dask.training.growing.incoming.pieces import Known, Piece, content_of, naming
from bnp_dask.training.growing.incoming.times import times_of
from bnp_dask.training.memory_plan import MemoryPlan


@dataclass(frozen=True, eq=False)
class Given:
    """A piece of data as it is opened.

    Parameters
    ----------
    piece
        The piece.
    source
        Its batches.
    batch_size, weights
        How it was opened, so that it can be opened again: atoms per batch, and place of the weights.
    files
        Names of the files of a folder that is one piece; None for others.
    """

    piece: Piece
    source: Source
    batch_size: int | None = None
    weights: str | None = None
    files: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """Pieces that are new and what was seen of them, names of those that are known, and batches that give way.

    Each new piece has its own batches in ``out`` that give way to it; none where that is empty.
    """

    new: list[tuple[Given, Looked]]
    known: tuple[str, ...]
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
        """Sources of the new pieces."""
        return [given.source for given, _ in self.new]

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
            facts = {"place": given.piece.place, "name": name, "n_batches": len(own)}
            facts |= {"fingerprint": fingerprint_of(given.source), "content": content_of(looked.rows["checksum"])}
            facts |= {"batch_size": given.batch_size, "weights": given.weights}
            more = {"files": given.files, "item": given.piece.item}
            pieces.append({**facts, **{name: value for name, value in more.items() if value is not None}})
        return np.concatenate(rows), pieces


def look_for_new(
    run: GrowingRun,
    given: Iterable[Given],
    executor: Executor,
    replaced: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> Found:
    """Look at all pieces that a run does not have.

    A piece from a place that is ``replaced`` may have another content than the run has from there; one from a place
    that is ``forgotten`` is new whatever it holds.
    """
    known = known_to(run).without(forgotten)
    had, new, contents = [], [], set()
    for one in given:
        piece, source = one.piece, one.source
        if piece.place is not None and known.has_place(piece, fingerprint_of(source)):
            had.append(piece.name)
            continue
        MemoryPlan(executor.memory_limit).require_batches(source)
        with naming(piece):
            looked = look_at(run.base, source, run.first, executor)
        content = content_of(looked.rows["checksum"])
        key = (piece.place, piece.item, content)
        if known.has_content(piece, content, piece.place in replaced) or key in contents:
            had.append(piece.name)
            continue
        contents.add(key)
        new.append((one, looked))
    if new and not sum(int(looked.rows["atoms"].sum()) for _, looked in new):
        raise DataError(f"{new[0][0].piece.name}: the new data have no atoms; nothing was taken")
    return Found(new, tuple(had))


def all_new(run: GrowingRun, source: Source, executor: Executor) -> Found:
    """Look at data that count as new, whether or not the run has such."""
    return Found([(Given(Piece(source, None), source), look_at(run.base, source, run.first, executor))], ())


def known_to(run: GrowingRun) -> Known:
    """Pieces that a run has."""
    checksums = np.array(run.first.checksums[: run.first.n_batches])
    return Known.of(run.on_disk.settings.get("opened"), checksums, run.log.pieces)
