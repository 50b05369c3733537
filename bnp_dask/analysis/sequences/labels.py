"""Labels of the steps of sequences: their forms, the durations of their runs, and their distances to known labels.

Labels are one vector, one for each sequence, or as ``predict`` wrote them.  Durations are lengths of runs of one state,
counted in one pass.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence, Set, Sized
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bnp_dask.analysis.metrics import match_labels
from bnp_dask.core import Location, Table, pandas_for
from bnp_dask.data import GroupedSource, Source, check_offsets, open_file, parquet_files
from bnp_dask.data.sources.open import parquet_pieces
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import plain, shown, to_float

if TYPE_CHECKING:
    import pandas as pd


ROWS = 2**18
"""Number of rows of written labels in memory at a time."""

Piece = tuple[np.ndarray, np.ndarray]
"""Labels ``(n,)``, and whether a sequence starts at each, ``(n,)`` bool."""


def offsets_of(sequences: Any, n_steps: int) -> np.ndarray:
    """Offsets ``(G + 1,)`` of sequences that are given as offsets, as a list of arrays, or as their source.

    None: all steps are one sequence.
    """
    if sequences is None:
        return np.array([0, n_steps])
    if isinstance(sequences, GroupedSource):
        offsets = sequences.all_offsets()
    elif isinstance(sequences, Source):
        raise DataError(
            f"{sequences.name}: this source does not know where its sequences start; give their offsets (G + 1,)"
        )
    elif is_list_of_arrays(sequences):
        offsets = np.concatenate([[0], np.cumsum([len(x) for x in sequences])])
    else:
        offsets = sequences
    return check_offsets(offsets, n_steps, "sequences")


def is_list_of_arrays(value: Any) -> bool:
    """Whether this is a list of arrays, one for each sequence, and not a list of numbers."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(_has_length(x) for x in value)


def _has_length(value: Any) -> bool:
    return isinstance(value, Sized) and not isinstance(value, (str, bytes, Mapping, Set))


def split_sequences(labels: Any, sequences: Any) -> list[np.ndarray]:
    """Labels (or other values) of steps, one array for each sequence.

    Parameters
    ----------
    labels
        ``(n,)`` or ``(n, ...)``, in the order of the data, as :func:`bnp_dask.predict` gives them.
    sequences
        Offsets ``(G + 1,)``, the list of arrays that was predicted for, or its source.
    """
    values = plain(labels, "labels")
    offsets = offsets_of(sequences, len(values))
    return [values[a:b] for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


def as_list(labels: Any, sequences: Any = None) -> list[np.ndarray]:
    """Labels of each sequence, ``(n_g,)``, from one vector or a list of them."""
    if is_list_of_arrays(labels):
        found = [plain(x, "labels") for x in labels]
        if sequences is not None:
            offsets = offsets_of(sequences, sum(map(len, found)))
            if [len(x) for x in found] != np.diff(offsets).tolist():
                raise DataError("the labels are of sequences of other lengths than the given; leave sequences= out")
    else:
        found = split_sequences(labels, sequences)
    for g, x in enumerate(found):
        if x.ndim != 1:
            raise DataError(f"labels of sequence {g} have shape {x.shape}; needs one label for each step, (n,)")
    return found


def label_pieces(labels: Any, sequences: Any = None) -> Iterator[Piece]:
    """Labels piece by piece with the starts of sequences; a path of Parquet files is read a part at a time."""
    if isinstance(labels, (str, os.PathLike)):
        if sequences is not None:
            raise DataError(f"{os.fspath(labels)} says itself which sequence each step is of; leave sequences= out")
        yield from _written(Location.of(labels, argument="labels"))
        return
    if not _has_length(labels) or (isinstance(labels, np.ndarray) and labels.ndim == 0):
        raise DataError(f"labels={shown(labels)}: needs one label for each step, or a list of such vectors, or a path")
    for x in as_list(labels, sequences):
        starts = np.zeros(len(x), np.bool_)
        starts[:1] = True
        yield x, starts


def _written(location: Location) -> Iterator[Piece]:
    """Columns ``sequence`` and ``state`` of an output of :func:`bnp_dask.predict`."""
    location.require()
    with open_file(parquet_files(location)[0]) as file:
        known = file.schema_arrow.names
    if not {"sequence", "state"} <= set(known):
        raise DataError(
            f"{location.name} has columns {', '.join(known)}; needs sequence and state, as predict(..., "
            "out='labels.parquet') writes for a hidden Markov model"
        )
    last: pa.Array | None = None
    for piece in parquet_pieces(location, ["sequence", "state"], ROWS):
        ids = piece.column(0)
        if len(ids) == 0:
            continue
        starts = np.ones(len(ids), np.bool_)
        starts[1:] = np.asarray(pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False))
        if last is not None:
            starts[0] = last[0] != ids[0]
        last = ids[-1:]
        yield piece.column(1).to_numpy(zero_copy_only=False), starts


def without_missing(sequences: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Sequences without the rows that have missing values (NaN or infinite); a new part starts after such a row.

    Parameters
    ----------
    sequences
        One array ``(n_g, D)`` for each.

    Returns
    -------
    parts, places
        The runs of complete rows, and for each the number of its sequence and its first row there.  Sequences without a
        complete row have no part.
    """
    parts: list[np.ndarray] = []
    places: list[tuple[int, int]] = []
    if not is_list_of_arrays(sequences) and len(np.shape(sequences)) < 2:
        raise DataError(f"sequences={shown(sequences)}: needs a list of matrices, one for each sequence")
    for g, x in enumerate(sequences):
        rows = to_float(plain(x, f"sequences[{g}]"), f"sequences[{g}]")
        if rows.ndim != 2:
            raise DataError(f"sequences[{g}] has shape {rows.shape}; needs a matrix, one row for each step")
        edges = np.diff(np.concatenate([[0], np.isfinite(rows).all(axis=1).astype(np.int8), [0]]))
        for a, b in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            parts.append(rows[a:b])
            places.append((g, a))
    return parts, places


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


HEAD = ("sequence", "steps", "distance", "states", "labels", "segments", "of labels")


@dataclass(frozen=True)
class SequenceDistance:
    """Distance of one recording from its labels.

    Parameters
    ----------
    sequence
        Its name, or its number.
    n_steps
        Steps whose label counts.
    distance
        Share of these whose state stands for another label (Hamming distance), 0 to 1; NaN without such steps.
    n_states, n_labels
        Different states and labels of the recording.
    n_segments, n_label_segments
        Runs of one state, and of one label.
    """

    sequence: Any
    n_steps: int
    distance: float
    n_states: int
    n_labels: int
    n_segments: int
    n_label_segments: int

    def cells(self) -> tuple[str, ...]:
        """The row of a table."""
        share = "-" if math.isnan(self.distance) else f"{self.distance:.3f}"
        numbers = (self.n_states, self.n_labels, self.n_segments, self.n_label_segments)
        return str(self.sequence), f"{self.n_steps:,}", share, *(f"{n:,}" for n in numbers)


@dataclass(frozen=True)
class SequenceDistances(Sequence[SequenceDistance]):
    """Distances of recordings from their labels, in order; a sequence that prints as a table.

    Parameters
    ----------
    rows
        The recordings.
    whole
        All of them together.
    stands_for
        Label that each state stands for in all recordings, or None.
    """

    rows: tuple[SequenceDistance, ...]
    whole: SequenceDistance
    stands_for: Mapping[Any, Any]

    @property
    def distance(self) -> float:
        """Share of all steps whose state stands for another label than theirs."""
        return self.whole.distance

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return self.rows[index]

    def __iter__(self) -> Iterator[SequenceDistance]:
        return iter(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row per recording, its name as index."""
        pandas = pandas_for("to_pandas")
        return pandas.DataFrame([asdict(row) for row in self.rows]).set_index("sequence")

    def __str__(self) -> str:
        cells = [HEAD, *(row.cells() for row in (*self.rows, self.whole))]
        widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
        lines = []
        for name, *numbers in cells:
            aligned = [cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *aligned]))
        return "\n".join(lines)

    __repr__ = __str__

    def table(self, most: int) -> Table:
        """At most ``most`` recordings, and all together."""
        return Table(HEAD, [row.cells() for row in (*self.rows[:most], self.whole)], left=(0,))

    def _repr_html_(self) -> str:
        return self.table(len(self.rows))._repr_html_()


def sequence_distances(
    labels: Any,
    reference: Any,
    sequences: Any = None,
    *,
    rule: Literal["one-to-one", "many-to-one"] = "one-to-one",
    ignore: Any = (),
    names: Sequence[Any] | None = None,
) -> SequenceDistances:
    """Distance of the states of each recording from known labels.

    States are matched to labels once, over all recordings, so that one state stands for one label everywhere.

    Parameters
    ----------
    labels
        States of all steps, ``(n,)``, as :func:`bnp_dask.predict` gives them; a list with one vector for each
        recording; or the path of a Parquet output of ``predict``.
    reference
        The known label of each step, numbers or text, in one of these forms.
    sequences
        Where recordings start: offsets ``(G + 1,)``, the list of arrays that was predicted for, or its source.  None:
        by the list that ``labels`` or ``reference`` is; if both are vectors, all steps are one recording.
    rule, ignore
        As in :func:`bnp_dask.analysis.metrics.match_labels`: how states are matched, and labels to ignore, such as
        background.
    names
        Names of the recordings, ``(G,)``; default: their numbers.

    Raises
    ------
    DataError
        Labels and reference differ in length, or no step counts.

    References
    ----------
    Thesis 6.6.1 (one-to-one) and 6.6.3 (many-to-one).
    """
    is_told = is_list_of_arrays(labels) or isinstance(labels, (str, os.PathLike))
    if sequences is None and not is_told and is_list_of_arrays(reference):
        sequences = reference
    own, places = _held(labels, sequences)
    if is_list_of_arrays(reference):
        known, edges = _held(reference, None)
        if len(known) == len(own) and not np.array_equal(edges, places):
            raise DataError("the reference has recordings of other lengths than the labels; give both in one form")
    else:
        is_file = isinstance(reference, (str, os.PathLike))
        known = _held(reference, None)[0] if is_file else plain(reference, "reference")
    if known.shape != own.shape:
        raise DataError(f"there are {len(own)} labels, but {known.shape} in the reference; needs one for each step")
    if names is not None and len(names) != len(places) - 1:
        raise DataError(f"{len(names)} names for {len(places) - 1} recordings")
    stands_for = match_labels(known, own, rule, ignore=ignore)
    states, code = np.unique(own, return_inverse=True)
    kinds, truth = np.unique(known, return_inverse=True)
    place = {kind: i for i, kind in enumerate(kinds.tolist())}
    meant = np.array([place.get(stands_for[state], -1) for state in states.tolist()])
    counts = ~np.isin(known, np.asarray(ignore)) if np.size(ignore) else np.ones(len(own), np.bool_)
    starts = np.zeros(len(own), np.bool_)
    starts[places[:-1][np.diff(places) > 0]] = True
    steps = _Steps(code, truth, meant[code] != truth, counts, starts)
    rows = [
        steps.row(g if names is None else names[g], int(a), int(b))
        for g, (a, b) in enumerate(zip(places[:-1], places[1:], strict=True))
    ]
    return SequenceDistances(tuple(rows), steps.row("all", 0, len(own)), stands_for)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Steps of all recordings: states, labels, whether the state is wrong, whether the label counts, and starts."""

    states: np.ndarray
    truth: np.ndarray
    wrong: np.ndarray
    counts: np.ndarray
    starts: np.ndarray

    def row(self, name: Any, first: int, last: int) -> SequenceDistance:
        """The steps from first to before last."""
        at = slice(first, last)
        n_steps = int(self.counts[at].sum())
        n_wrong = int((self.wrong & self.counts)[at].sum())
        return SequenceDistance(
            name, n_steps, n_wrong / n_steps if n_steps else math.nan, len(np.unique(self.states[at])),
            len(np.unique(self.truth[at])), self._segments(self.states, at), self._segments(self.truth, at),
        )  # fmt: skip

    def _segments(self, values: np.ndarray, at: slice) -> int:
        here = values[at]
        return int((self.starts[at][1:] | (here[1:] != here[:-1])).sum()) + min(1, len(here))


def _held(labels: Any, sequences: Any) -> tuple[np.ndarray, np.ndarray]:
    """All labels, and the offsets of recordings, ``(G + 1,)``."""
    pieces = list(label_pieces(labels, sequences))
    if not pieces:
        raise DataError("there are no labels to compare")
    values = np.concatenate([values for values, _ in pieces])
    if isinstance(labels, (str, os.PathLike)):  # pieces of a file are not recordings
        return values, np.append(np.flatnonzero(np.concatenate([starts for _, starts in pieces])), len(values))
    return values, np.cumsum([0, *(len(values) for values, _ in pieces)])
