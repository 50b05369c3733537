"""Distances between the states of recordings and known labels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask.analysis.metrics import match_labels
from bnp_dask.analysis.sequences.labels import is_list_of_arrays, label_pieces
from bnp_dask.core.table import Table, pandas_for
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain

if TYPE_CHECKING:
    import pandas as pd

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
