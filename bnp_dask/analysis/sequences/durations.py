"""Durations of states: lengths of runs of one state, counted in one pass over labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.sequences.labels import label_pieces
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.settings import shown

LEVELS = (0.1, 0.5, 0.9)
"""Quantiles of lengths that a table shows."""


@dataclass(frozen=True, eq=False)
class RunCounts:
    """Number of runs of each state and length; additive.

    Parameters
    ----------
    state, length
        State and length of each kind of run, ``(m,)``, sorted.
    ended
        Whether runs of this kind touch neither end of their sequence, ``(m,)``: others may have lasted longer.
    count
        Number of runs of each kind, ``(m,)``.
    """

    state: np.ndarray
    length: np.ndarray
    ended: np.ndarray
    count: np.ndarray

    @staticmethod
    def of(state: np.ndarray, length: np.ndarray, ended: np.ndarray, count: np.ndarray | None = None) -> RunCounts:
        """Counts of runs that are listed one by one, or with their counts."""
        count = np.ones(len(state), np.int64) if count is None else count
        rank = np.lexsort((ended, length, state))
        state, length, ended, count = state[rank], length[rank], ended[rank], count[rank]
        new = np.ones(len(state), np.bool_)
        new[1:] = (np.diff(state) != 0) | (np.diff(length) != 0) | (ended[1:] != ended[:-1])
        sums = np.add.reduceat(count, np.flatnonzero(new)) if len(state) else count
        return RunCounts(state[new], length[new], ended[new], sums)

    def __add__(self, other: RunCounts) -> RunCounts:
        def join(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.concatenate([a, b])

        return RunCounts.of(
            join(self.state, other.state),
            join(self.length, other.length),
            join(self.ended, other.ended),
            join(self.count, other.count),
        )


@dataclass(eq=False)
class RunCounter:
    """Counts runs of labels that arrive piece by piece; a run may continue from one piece to the next."""

    _parts: list[RunCounts] = field(default_factory=list)
    _open: tuple[int, int, bool] | None = None
    """State and length so far of the current run, and whether it began inside its sequence."""

    def add(self, labels: np.ndarray, starts: np.ndarray) -> None:
        """Add steps ``(n,)``, and whether a sequence starts at each."""
        if len(labels) == 0:
            return
        fresh = np.array(starts, np.bool_)
        fresh[0] |= self._open is None
        new = np.array(fresh)
        new[1:] |= labels[1:] != labels[:-1]
        if self._open is not None:
            new[0] |= labels[0] != self._open[0]
        begin = np.flatnonzero(new)
        if len(begin) == 0:
            self._lengthen(len(labels))
            return
        if begin[0] > 0:
            self._lengthen(int(begin[0]))
        self._close(ended=not bool(fresh[begin[0]]))
        # the last run goes on
        state, inside = labels[begin[:-1]], ~fresh[begin]
        self._parts.append(RunCounts.of(state, np.diff(begin), inside[:-1] & inside[1:]))
        self._open = (int(labels[begin[-1]]), len(labels) - int(begin[-1]), bool(inside[-1]))
        if len(self._parts) > 64:
            self._parts = [reduce(RunCounts.__add__, self._parts)]

    def finish(self) -> RunCounts:
        """Return all runs; later steps are a new sequence."""
        self._close(ended=False)
        nothing = np.zeros(0, np.int64)
        empty = RunCounts(nothing, nothing, np.zeros(0, np.bool_), nothing)
        self._parts = [reduce(RunCounts.__add__, self._parts, empty)]
        return self._parts[0]

    def _lengthen(self, n: int) -> None:
        if self._open is not None:
            self._open = (self._open[0], self._open[1] + n, self._open[2])

    def _close(self, ended: bool) -> None:
        if self._open is not None:
            state, length, inside = self._open
            self._parts.append(RunCounts.of(np.array([state]), np.array([length]), np.array([inside and ended])))
            self._open = None


@dataclass(frozen=True, eq=False)
class Durations:
    """Durations of each state; prints as a table.

    Parameters
    ----------
    ids
        States, ``(K,)``.
    steps, runs
        Steps in each state and runs of them, ``(K,)``.
    ended
        Runs that touch neither end of their sequence, ``(K,)``; the others may have lasted longer, so many of them make
        means somewhat too small.
    mean
        Mean length of a run, steps, ``(K,)``; NaN for states without one.
    levels, quantiles
        Levels of the quantiles, ``(Q,)``, and lengths ``(K, Q)``: the shortest length that such a share of the runs
        does not exceed.
    counts
        Counts of each length.
    """

    ids: np.ndarray
    steps: np.ndarray
    runs: np.ndarray
    ended: np.ndarray
    mean: np.ndarray
    levels: tuple[float, ...]
    quantiles: np.ndarray
    counts: RunCounts

    @staticmethod
    def of(counts: RunCounts, ids: np.ndarray | None = None, levels: Sequence[float] = LEVELS) -> Durations:
        """From counts of runs; ``ids`` are the states to list, by default all states that occur."""
        shares = plain(levels, "levels")
        if shares.ndim != 1 or shares.dtype.kind not in "iuf" or not ((shares > 0) & (shares <= 1)).all():
            raise SettingError(f"levels={shown(levels)}: needs shares between 0 and 1, such as (0.1, 0.5, 0.9)")
        levels = tuple(shares.astype(np.float64).tolist())
        ids = np.unique(counts.state) if ids is None else _state_ids(ids)
        missing = np.setdiff1d(counts.state, ids)
        if len(missing):
            raise DataError(f"labels hold state {missing[0]}, which is none of the {len(ids)} states listed")
        quantiles = np.full((len(ids), len(levels)), np.nan)
        sums = np.zeros((3, len(ids)), np.int64)
        for k, state in enumerate(ids):
            own = slice(*np.searchsorted(counts.state, [state, state + 1]))
            length, count = counts.length[own], counts.count[own]
            sums[:, k] = length @ count, count.sum(), count[counts.ended[own]].sum()
            if len(length):
                share = np.cumsum(count) / count.sum()
                quantiles[k] = length[np.minimum(np.searchsorted(share, np.array(levels) - 1e-12), len(length) - 1)]
        steps, runs, ended = sums
        with np.errstate(invalid="ignore"):
            mean = np.where(runs > 0, steps / np.maximum(runs, 1), np.nan)
        return Durations(ids, steps, runs, ended, mean, levels, quantiles, counts)

    def lengths(self, state: int) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of the runs of a state and their counts, ``(m,)`` both."""
        own = self.counts.state == state
        length, index = np.unique(self.counts.length[own], return_inverse=True)
        return length, np.bincount(index, self.counts.count[own], len(length)).astype(np.int64)

    def table(self) -> pa.Table:
        """One row for each state: state, steps, runs, ended, mean, and a column for each quantile."""
        columns = {"state": self.ids, "steps": self.steps, "runs": self.runs, "ended": self.ended, "mean": self.mean}
        columns |= {f"q{100 * level:g}": self.quantiles[:, q] for q, level in enumerate(self.levels)}
        return pa.table(columns)

    def __str__(self) -> str:
        head = ("state", "steps", "runs", "mean", *[f"{100 * level:g}%" for level in self.levels])
        rows = [head]
        for k in np.argsort(-self.steps, kind="stable"):
            lengths = ["-" if np.isnan(v) else f"{v:g}" for v in self.quantiles[k]]
            mean = "-" if np.isnan(self.mean[k]) else f"{self.mean[k]:.1f}"
            rows.append((str(self.ids[k]), f"{self.steps[k]:,}", f"{self.runs[k]:,}", mean, *lengths))
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def _state_ids(ids: Any) -> np.ndarray:
    array = plain(ids, "ids")
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(np.unique(array)) < len(array):
        raise DataError(f"ids={shown(ids)}: needs ids of states, whole numbers, each once")
    return array.astype(np.int64)


def state_durations(
    labels: Any, sequences: Any = None, *, ids: np.ndarray | None = None, levels: Sequence[float] = LEVELS
) -> Durations:
    """Durations of states, from the labels of steps.

    Parameters
    ----------
    labels
        Labels from :func:`bnp_dask.predict`, ``(n,)``; or one vector for each sequence; or the path of its output
        with ``out="labels.parquet"``, which is read piece by piece.
    sequences
        Sequences of one vector: offsets ``(G + 1,)``, the list of arrays that was predicted for, or its source; None:
        one sequence.  A block of a sequence that was cut is a separate sequence here; in written labels blocks are
        joined again.
    ids
        States to list, such as ``posterior.ids``; default: all states that occur.
    levels
        Levels of the quantiles of lengths.

    Raises
    ------
    DataError
        Labels that are not whole numbers, or of states that are not listed.
    """
    counter = RunCounter()
    for x, starts in label_pieces(labels, sequences):
        if x.dtype.kind not in "iu":
            raise DataError(f"labels have dtype {x.dtype}; needs ids of states, whole numbers")
        counter.add(x.astype(np.int64, copy=False), starts)
    return Durations.of(counter.finish(), ids, levels)
