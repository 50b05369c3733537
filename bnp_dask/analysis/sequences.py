"""Reading hidden Markov models: states of steps, their durations, and their transitions."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.base import WINDOW, for_batches, open_for, require_chains, require_posterior, runner_for
from bnp_dask.analysis.metrics import as_labels, match_labels
from bnp_dask.core import Batch, Location, Table, pandas_for
from bnp_dask.data import (
    Compute,
    DaskFrameSource,
    GroupedSource,
    Layout,
    Outputs,
    Reader,
    Source,
    batch_reader,
    check_offsets,
    lagged,
    open_file,
    parquet_files,
    parquet_pieces,
)
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.execute import Executor, Load, in_order, load_of
from bnp_dask.inputs import plain, shown, to_float, whole_number
from bnp_dask.kernels import lagged_rows, matmul, spread
from bnp_dask.model import Posterior, brief
from bnp_dask.structure import chances_of, path_densities, sequence_offsets

if TYPE_CHECKING:
    import pandas as pd
    import xarray
    from distributed import Client


__all__ = [
    "Durations",
    "RunCounter",
    "RunCounts",
    "SequenceDistance",
    "SequenceDistances",
    "SequenceSurvey",
    "ShownSequence",
    "Transitions",
    "independent_share",
    "sequence_distances",
    "split_sequences",
    "state_durations",
    "state_path",
    "survey_sequences",
    "transitions",
    "without_missing",
]


# -- The states of the steps of a batch, and the columns in which they are written with the names of their sequences
# A model whose rows also hold the steps before each step gives its results for sequences as recorded.


Namer = Callable[[], tuple[pa.Array, np.ndarray]]
"""Gives the id of each sequence of a batch, and its first step there (for blocks of a longer one)."""


def state_path(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Most likely states of the sequences of a batch, each as a whole (Viterbi), positions ``(n,)``."""
    parts = [place for _, place in posterior.model.structure.labels(posterior.model, posterior, batch)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def state_ids(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Ids of the most likely states of all sequences of a batch, ``(n,)``; sequences are looked at tile by tile."""
    return decoded(posterior, lambda: batch)[0]


def decoded(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: ids of the most likely states of all sequences of a batch ``(n,)``, and the log density of each path.

    The densities ``(G,)``, nats, are joint ones of a path and the data that it leads through; see
    :func:`~bnp_dask.structure.answers.path_densities`.
    """
    values = np.zeros(0)

    def found(posterior: Posterior, rows: Batch) -> Outputs:
        nonlocal values
        posterior.model.observation.check(rows)
        path = state_path(posterior, rows)
        values = path_densities(posterior.model, posterior, rows, path)
        return {"label": posterior.ids[path]}

    labels = np.asarray(for_recorded(posterior, reader(), found)["label"])
    return labels, values


# -- names of sequences ------------------------------------------------------------------------------------------
def namer_of(source: Source, index: int) -> Namer | None:
    """Function that names the sequences of a batch; None where the source has no names."""
    if isinstance(source, GroupedSource) or (isinstance(source, DaskFrameSource) and source.keys):
        return source.batch_names(index)
    return None


def names_of(batch: Batch, namer: Namer | None, index: int) -> tuple[pa.Array, np.ndarray]:
    """Ids ``(G,)`` and first steps ``(G,)`` of the sequences of a batch; without names, ``"batch 3, 0"``."""
    if namer is not None:
        return namer()
    ids = pa.array([f"batch {index}, {g}" for g in range(batch.n_groups)], pa.string())
    return ids, np.zeros(batch.n_groups, np.int64)


@dataclass(frozen=True, eq=False)
class StepReader:
    """A batch and the names of its sequences."""

    reader: Reader
    namer: Namer | None
    index: int

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, if it may be called ahead of the task."""
        return load_of(self.reader)

    def __call__(self) -> Batch:
        return self.reader()


def _named(compute: Compute, shared: Any, reader: Any) -> Outputs:
    """Task: the result of another task, with the sequence and the step of each row."""
    batch = reader()
    found = compute(shared, lambda: batch)
    ids, begin = names_of(batch, reader.namer, reader.index)
    offsets = batch.group_offsets
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    columns: dict[str, Any] = {"sequence": ids.take(pa.array(owner))}
    columns["step"] = np.arange(batch.n_atoms) - (offsets[:-1] - begin)[owner]
    return {**columns, **{"state" if name == "label" else name: value for name, value in found.items()}}


def name_steps(
    source: Source, layouts: Sequence[Layout], compute: Compute
) -> tuple[tuple[Layout, ...], Compute, list[Reader]]:
    """Layouts, task and readers to write ``sequence``, ``step`` and ``state`` (in place of ``label``) of each step."""
    named = [replace(x, name="state") if x.name == "label" else x for x in layouts]
    readers: list[Reader] = [
        StepReader(batch_reader(source, i), namer_of(source, i), i) for i in range(source.n_batches)
    ]
    # ids have the type that they have in the data
    return (Layout("sequence", "", None), Layout("step", "<i8", None), *named), partial(_named, compute), readers


def for_recorded(posterior: Posterior, batch: Batch, compute: Callable[[Posterior, Batch], Outputs]) -> Outputs:
    """Columns of a batch as recorded, from columns of the model's rows.

    The first steps of each sequence, on which the others are conditioned, have the values of the step after them.
    Steps of a sequence that has no other get the model's expectation of a start: its states by their probability, the
    most probable as their label.
    """
    lags = posterior.model.lags
    if lags == 0:
        return compute(posterior, batch)
    rows = lagged(batch, lags)
    offsets = batch.group_offsets
    start = _start(posterior)
    rank = np.argsort(-start, kind="stable")
    found = {}
    for name, values in compute(posterior, rows).items():
        width = values.shape[1] if values.ndim == 2 else 1
        if name == "label":
            alone = posterior.ids[rank[:width]] if values.ndim == 2 else posterior.ids[rank[0]]
        else:
            alone = start if width == len(start) else start[rank[:width]]
        found[name] = spread(values, offsets, lags, np.asarray(alone))
    return found


def density_of_recorded(
    posterior: Posterior, batch: Batch, density: Callable[[Posterior, Batch], np.ndarray]
) -> np.ndarray:
    """Densities of the steps of a batch as recorded, ``(n,)``; NaN for steps on which the others are conditioned."""
    lags = posterior.model.lags
    if lags == 0:
        return density(posterior, batch)
    out = np.full(batch.n_atoms, np.nan)
    rows = lagged(batch, lags)
    out[lagged_rows(batch.group_offsets, lags)[0]] = density(posterior, rows)
    return out


def _start(posterior: Posterior) -> np.ndarray:
    """Prior probability of each cluster at a step without data, ``(K,)``."""
    shares = posterior.model.structure.shares(posterior)
    return shares / shares.sum()


# -- Expected transition probabilities with the names of the states -----------------------------------------------


@dataclass(frozen=True, eq=False)
class Transitions:
    """Expected probabilities of starts and transitions; prints as a table.

    Parameters
    ----------
    ids
        States, ``(K,)``.
    matrix
        E[pi_kl], from row to column, ``(K, K)``.
    start
        E[pi_0k], ``(K,)``.
    unused
        Probability in each row for states never met, ``(K,)``; zero in a finite model.  A row of ``matrix`` and
        its number here sum to one.
    counts
        Expected number of transitions in the training data, ``(K, K)``; None if the posterior does not have it.
    """

    ids: np.ndarray
    matrix: np.ndarray
    start: np.ndarray
    unused: np.ndarray
    counts: np.ndarray | None = None

    def __repr__(self) -> str:
        return brief(self)

    @property
    def stay(self) -> np.ndarray:
        """Probability of staying, ``(K,)``."""
        return np.diagonal(self.matrix)

    @property
    def duration(self) -> np.ndarray:
        """Expected length of a run if each step stays with the expected probability, ``1 / (1 - stay)``, ``(K,)``."""
        return 1.0 / (1.0 - self.stay)

    def sorted(self, order: np.ndarray) -> Transitions:
        """Transitions among the states at the positions ``order``, in that order."""
        counts = None if self.counts is None else self.counts[np.ix_(order, order)]
        matrix = self.matrix[np.ix_(order, order)]
        return Transitions(self.ids[order], matrix, self.start[order], self.unused[order], counts)

    def to_pandas(self) -> pd.DataFrame:
        """The matrix as a DataFrame, from-states as index and to-states as columns."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SettingError("a DataFrame needs pandas: pip install 'bnp-dask[dataframe]'") from error
        index, columns = pd.Index(self.ids, name="before"), pd.Index(self.ids, name="after")
        return pd.DataFrame(self.matrix, index=index, columns=columns)

    def to_xarray(self) -> xarray.Dataset:
        """Matrix, start and probability of unused states, with the ids of states as coordinates."""
        try:
            import xarray as xr
        except ImportError as error:
            raise SettingError("labelled arrays need xarray: pip install 'bnp-dask[xarray]'") from error
        variables: dict[str, Any] = {
            "transition": (("before", "after"), self.matrix),
            "start": (("after",), self.start),
            "unused": (("before",), self.unused),
        }
        return xr.Dataset(variables, coords={"before": self.ids, "after": self.ids})

    def __str__(self) -> str:
        head = ["", *[str(i) for i in self.ids]]
        rows = [head, *[[str(i), *[f"{p:.3f}" for p in row]] for i, row in zip(self.ids, self.matrix, strict=True)]]
        width = max(len(cell) for row in rows for cell in row)
        return "\n".join("  ".join(cell.rjust(width) for cell in row) for row in rows)


@answering
def transitions(posterior: Posterior) -> Transitions:
    """Expected transition probabilities of a hidden Markov model (thesis 6.40).

    Parameters
    ----------
    posterior
        Posterior of a hidden Markov model.

    Returns
    -------
    Transitions
        Probabilities ``(K, K)`` from each state (rows) to each (columns), of the first step ``(K,)``, and of
        unseen states.

    Raises
    ------
    SettingError
        The posterior is of another kind of model.
    """
    require_chains(require_posterior(posterior).model, "a transition matrix")
    found = chances_of(posterior)
    counts = None if posterior.summary is None else np.array(posterior.summary["M"])
    return Transitions(posterior.ids, found.matrix, found.start, found.unused, counts)


# -- Labels of the steps of sequences: their forms, the durations of their runs, and their distances to known labels
# Labels are one vector, one for each sequence, or as ``predict`` wrote them.  Durations are lengths of runs of one
# state, counted in one pass.


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
    if not values.ndim:
        raise DataError(f"labels: a {type(labels).__name__}; needs an array with a value for each step, (n,)")
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
    import pyarrow.compute as pc

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


@answering
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

    Raises
    ------
    DataError
        Not a list of matrices.
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

    def __repr__(self) -> str:
        return brief(self)

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

    @answering
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


@answering
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

    Returns
    -------
    Durations
        Numbers, means and quantiles of the lengths of runs of each state, in steps; prints as a table.

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


@answering
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

    Returns
    -------
    SequenceDistances
        A distance from 0 to 1 for each recording and for all steps together; prints as a table.

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
    stands_for = match_labels(as_labels(known, "reference"), own, rule, ignore=ignore)
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


# -- One pass over sequences: their most likely states, their durations, and some example sequences ---------------


@dataclass(frozen=True, eq=False)
class ShownSequence:
    """An example sequence: its id, the step at which it starts, and the states of its first steps, ``(n,)``."""

    id: Any
    begin: int
    states: np.ndarray
    n_steps: int


@dataclass(frozen=True, eq=False)
class SequenceSurvey:
    """Use of the states by sequences, from a pass over them.

    Parameters
    ----------
    n_sequences, n_steps
        Sequences with at least one step (blocks of a sequence that was cut counted each), and their steps.
    n_cuts
        Number of cuts in sequences: transitions that are not counted.
    durations
        Durations of the posterior's states.
    shown
        The first sequences.
    """

    n_sequences: int
    n_steps: int
    n_cuts: int
    durations: Durations
    shown: tuple[ShownSequence, ...]

    def __repr__(self) -> str:
        return brief(self)


@answering
def survey_sequences(
    posterior: Posterior,
    data: Any,
    *,
    show: int = 6,
    steps: int = 2000,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> SequenceSurvey:
    """Survey the most likely states of sequences, in one pass; labels are not kept.

    Parameters
    ----------
    posterior
        Posterior of a hidden Markov model.
    data
        Sequences, as for :func:`bnp_dask.predict`.
    show, steps
        Number of sequences to keep, and largest number of steps of each.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    SequenceSurvey
        Durations of all states, and the labels of the sequences that are kept.

    Raises
    ------
    SettingError
        The posterior is of another kind of model.
    DataError
        As for :func:`bnp_dask.predict`.
    """
    require_chains(require_posterior(posterior).model, "a survey of sequences")
    whole_number("show", show)
    whole_number("steps", steps, 1)
    source = open_for(posterior, data, batch_size)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        # every batch has a sequence with steps, so the first ones hold all that will be shown
        tasks = (
            (
                f"sequences-batch{i}",
                _look,
                (shared, batch_reader(source, i), namer_of(source, i), i, show if i < show else 0, steps),
            )
            for i in range(source.n_batches)
        )
        parts = list(in_order(runner, tasks, WINDOW))
    runs = reduce(RunCounts.__add__, [p.runs for p in parts])
    shown = [s for p in parts for s in p.shown][:show]
    return SequenceSurvey(
        sum(p.n_sequences for p in parts),
        sum(p.n_steps for p in parts),
        source.n_cuts if isinstance(source, GroupedSource) else 0,
        Durations.of(runs, posterior.ids),
        tuple(shown),
    )


@dataclass(frozen=True, eq=False)
class _Part:
    n_sequences: int
    n_steps: int
    runs: RunCounts
    shown: tuple[ShownSequence, ...]


def _look(posterior: Posterior, reader: Reader, namer: Namer | None, index: int, show: int, steps: int) -> _Part:
    """Task: runs of states in one batch, and its first sequences."""
    batch = reader()
    states = state_ids(posterior, batch)
    offsets = batch.group_offsets
    with_steps = np.flatnonzero(np.diff(offsets) > 0)
    starts = np.zeros(batch.n_atoms, np.bool_)
    starts[offsets[with_steps]] = True
    counter = RunCounter()
    counter.add(states, starts)
    shown = []
    if show:
        ids, begin = names_of(batch, namer, index)
        for g in with_steps[:show]:
            first, last = int(offsets[g]), int(offsets[g + 1])
            part = np.array(states[first : min(last, first + steps)])
            shown.append(ShownSequence(ids[int(g)].as_py(), int(begin[g]), part, last - first))
    return _Part(len(with_steps), batch.n_atoms, counter.finish(), tuple(shown))


# -- Share of the steps of sequences that are independent evidence of their states, from residuals ----------------


LONGEST = 500
"""Most steps between two residuals whose correlation is looked at."""

FEW = 50
"""Least pairs of steps from which a correlation is estimated."""

NOTHING = 0.05
"""Correlation below which residuals count as uncorrelated; the sum ends there, since later ones are noise."""


@answering
def independent_share(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | str | None = None
) -> float:
    """Share of the steps of sequences that are independent evidence of their states, above 0 and at most 1.

    A hidden Markov model takes the rows of a state as independent draws.  Frames of a recording are not: neighbours are
    nearly the same row, so each row counts as if it were many, and the objective rises with states that are moments of
    one movement.  With ``weights`` of this share for all rows, the rows of a state count as many times as they are
    independent, like the effective sample size of a Markov chain.

    Parameters
    ----------
    posterior
        A hidden Markov model trained on the data, with more states than are expected: states that stand for several
        have residuals that last as long as those.  Thirty states without moves do.
    data
        Sequences of dense rows, as for :func:`bnp_dask.train`.
    batch_size
        Rows per batch.
    client
        Where to compute, as for :func:`bnp_dask.score`.

    Returns
    -------
    share
        ``n / (n + 2 sum_l n_l rho_l)``, with rho_l the correlation of residuals ``l`` steps apart on the most likely
        path, within one stay in a state, averaged over columns, which are divided by their deviation in the state, and
        n_l the pairs of steps so far apart in one stay, ``n = n_0``.  It is the variance that sums over stays would
        have if their steps were independent, as a share of the one they have.  Stays of L equal rows have ``1 / L``.
        The sum ends at the first correlation below 0.05.

    Raises
    ------
    SettingError
        The model has no sequences, or its rows follow from rows before (autoregressive likelihoods say themselves how
        steps depend on one another).

    Notes
    -----
    Drawn chains of independent rows have 1.  Of recordings (30 states, no moves): five of six of mocap6 .17, five of
    six dances of bees .24, gestures .03.  Pairs that a stay is too short for do not exist, and count nothing: with
    ``n_l = n`` these were .13, .18 and .02.

    References
    ----------
    Geyer 1992, "Practical Markov chain Monte Carlo", 3.3: effective sample sizes.
    """
    require_posterior(posterior)
    model = posterior.model
    if not model.structure.is_ordered or model.lags:
        raise SettingError(
            f"independent_share(): {type(model.allocation).__name__} of {type(model.observation).__name__} has no "
            "states whose rows are taken as independent; it needs a hidden Markov model of plain rows, such as HDPHMM()"
        )
    source = open_for(posterior, data, batch_size)
    count, first, second = map(sum, zip(*for_batches(posterior, source, client, _moments, "moments"), strict=True))
    count = np.maximum(count, 1.0)
    mean = first / count
    scale = np.sqrt(np.maximum(second / count - mean**2, 0.0))
    products = sum(for_batches(posterior, source, client, partial(_products, mean, scale), "residuals"))
    return _share(*products)


def _share(products: np.ndarray, pairs: np.ndarray) -> float:
    """The share from sums of products of residuals, and numbers of pairs, at distances 0, 1, ... ``(L,)``."""
    if not products[0] > 0.0:
        return 1.0
    level, total = products[0] / pairs[0], 1.0
    for product, number in zip(products[1:], pairs[1:], strict=True):
        correlation = product / max(number, 1.0) / level
        if number < FEW or correlation < NOTHING:
            break
        total += 2.0 * correlation * number / pairs[0]
    return 1.0 / total


def _path(posterior: Posterior, read: Reader) -> tuple[np.ndarray, np.ndarray, Batch]:
    """Rows and most likely states of a batch; missing entries are NaN."""
    batch = read()
    posterior.model.check(batch)
    path = [labels for _, labels in posterior.model.labels(posterior, batch)]
    if batch.is_sparse:
        raise DataError(f"{batch.name}: sparse counts have no residuals; independent_share() needs dense rows")
    return batch.x, np.concatenate([np.zeros(0, np.int64), *path]), batch


def _moments(posterior: Posterior, read: Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observed entries of each state, and sums of them and of their squares, ``(K, D)`` each."""
    x, path, _ = _path(posterior, read)
    resp = np.zeros((len(path), posterior.n_clusters))
    resp[np.arange(len(path)), path] = 1.0
    known = np.isfinite(x)
    x = np.where(known, x, 0.0)
    return matmul(resp.T, known.astype(np.float64)), matmul(resp.T, x), matmul(resp.T, x**2)


def _products(mean: np.ndarray, scale: np.ndarray, posterior: Posterior, read: Reader) -> np.ndarray:
    """Sums of products of residuals, about means and in units of deviations ``(K, D)``, and numbers of pairs.

    By distance, ``(2, L)``.
    """
    x, path, batch = _path(posterior, read)
    scale = scale[path]
    residual = np.where(np.isfinite(x) & (scale > 0.0), (x - mean[path]) / np.where(scale > 0.0, scale, 1), 0)
    begins = np.zeros(len(path), np.bool_)
    begins[1:] = path[1:] != path[:-1]
    starts = sequence_offsets(batch)[:-1]
    begins[starts[starts < len(path)]] = True
    stay = np.cumsum(begins)
    out = np.zeros((2, LONGEST + 1))
    for lag in range(min(LONGEST + 1, len(path))):
        same = stay[lag:] == stay[: len(stay) - lag]
        if not same.any():
            break
        both = residual[lag:][same] * residual[: len(residual) - lag][same]
        out[:, lag] = both.mean(axis=1).sum(), same.sum()
    return out
