"""Summaries: the additive statistics of a set of atoms, and the ONE place that knows about cluster axes.

A :class:`Field` is declared once by the model part that owns it, with its axes and with what happens to it when
two clusters become one.  A :class:`Summary` holds the values of all fields of a model for one set of atoms.
Clusters carry ids that never change; their positions may.  An :data:`Edit` is a recorded verb: a stored summary
is brought up to date by replaying the edits it has not seen (:func:`replay`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from bnp_dask.errors import SummaryError
from bnp_dask.kernels.compensated import two_sum_into

CLUSTER = "cluster"


@dataclass(frozen=True)
class Field:
    """How one statistic is laid out and how it behaves when clusters change.

    Parameters
    ----------
    dims
        Names of the axes.  ``"cluster"`` may stand first, or first and second, or nowhere.
    merge
        What happens when cluster A absorbs B.  ``"sum"``: values add along each cluster axis (eq. 4.2).
        ``"tracked"``: not linear in the responsibilities (the entropy, eq. 4.3): the value tracked for that pair
        is taken, and a pair that was not tracked is refused.
    """

    dims: tuple[str, ...] = ()
    merge: Literal["sum", "tracked"] = "sum"

    def __post_init__(self) -> None:
        if CLUSTER in self.dims[self.n_cluster_axes :]:
            raise SummaryError(f"cluster axes must come first, got dims {self.dims}")
        if self.merge == "tracked" and self.n_cluster_axes != 1:
            raise SummaryError(f"a tracked field needs exactly one cluster axis, got dims {self.dims}")

    @property
    def n_cluster_axes(self) -> int:
        """How many leading axes run over clusters (0, 1 or 2)."""
        count = 0
        for dim in self.dims[:2]:
            if dim != CLUSTER:
                break
            count += 1
        return count


def _no_pairs() -> np.ndarray:
    return np.zeros((0, 2), np.int64)


def _nothing() -> Mapping[str, np.ndarray]:
    return MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Summary:
    """Statistics of a set of atoms, additive over disjoint sets.

    Parameters
    ----------
    ids
        Cluster ids in their current order, ``(K,)`` int64.
    fields
        Declaration of every value.
    values
        One array per field; cluster axes have length K.
    pairs
        Pairs of cluster ids ``(A, B)`` whose union was tracked, ``(M, 2)`` int64.
    pair_values
        For each tracked field its value for the union of each pair, ``(M, ...)``.
    """

    ids: np.ndarray
    fields: Mapping[str, Field]
    values: Mapping[str, np.ndarray]
    pairs: np.ndarray = field(default_factory=_no_pairs)
    pair_values: Mapping[str, np.ndarray] = field(default_factory=_nothing)

    # -- looking --------------------------------------------------------------------------------------------
    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        return len(self.ids)

    @property
    def n_pairs(self) -> int:
        """Number of tracked pairs M."""
        return len(self.pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        arrays = [*self.values.values(), *self.pair_values.values()]
        return int(sum(np.asarray(a).nbytes for a in arrays))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}{tuple(np.shape(v))}" for n, v in self.values.items())
        return f"Summary(K={self.n_clusters}, M={self.n_pairs}, {shapes})"

    def position(self, cluster_id: int) -> int:
        """Position of a cluster id; SummaryError when there is none."""
        found = np.flatnonzero(self.ids == cluster_id)
        if len(found) == 0:
            raise SummaryError(f"no cluster {cluster_id}; clusters are {self.ids.tolist()}")
        return int(found[0])

    # -- verbs of a vector space ----------------------------------------------------------------------------
    def __add__(self, other: Summary) -> Summary:
        self._require_aligned(other)
        return self._mapped(lambda name, a, b: a + b, other)

    def __sub__(self, other: Summary) -> Summary:
        self._require_aligned(other)
        return self._mapped(lambda name, a, b: a - b, other)

    def scale(self, factor: float) -> Summary:
        """All values times ``factor`` (stochastic steps count a batch as N / N_b batches)."""
        return self._mapped(lambda name, a, _: a * factor, self)

    def zeros(self) -> Summary:
        """The summary of no atoms, with the same clusters and pairs."""
        return self._mapped(lambda name, a, _: np.zeros_like(a), self)

    # -- as plain arrays, for files --------------------------------------------------------------------------
    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the declarations, as named arrays."""
        values = {f"value.{n}": v for n, v in self.values.items()}
        pair_values = {f"pair.{n}": v for n, v in self.pair_values.items()}
        return {"ids": self.ids, "pairs": self.pairs, **values, **pair_values}

    @staticmethod
    def from_arrays(fields: Mapping[str, Field], arrays: Mapping[str, np.ndarray]) -> Summary:
        """Inverse of :meth:`to_arrays`."""
        values = {n: arrays[f"value.{n}"] for n in fields}
        pair_values = {n: arrays[f"pair.{n}"] for n in fields if f"pair.{n}" in arrays}
        return Summary(arrays["ids"], fields, values, arrays["pairs"], pair_values)

    def _mapped(self, function, other: Summary) -> Summary:
        values = {n: function(n, a, other.values[n]) for n, a in self.values.items()}
        pair_values = {n: function(n, a, other.pair_values[n]) for n, a in self.pair_values.items()}
        return replace(self, values=values, pair_values=pair_values)

    def _require_aligned(self, other: Summary) -> None:
        if not np.array_equal(self.ids, other.ids):
            raise SummaryError(
                f"summaries of different clusters: {self.ids.tolist()} and {other.ids.tolist()}; "
                "bring the older one up to date with replay() first"
            )
        if not np.array_equal(self.pairs, other.pairs):
            raise SummaryError("summaries track different pairs; drop them with without_pairs() first")
        if self.fields.keys() != other.fields.keys():
            raise SummaryError(f"summaries of different models: {sorted(self.fields)} and {sorted(other.fields)}")

    # -- verbs that change clusters -------------------------------------------------------------------------
    def without_pairs(self) -> Summary:
        """The same statistics with no tracked pairs."""
        return replace(self, pairs=_no_pairs(), pair_values=_nothing())

    def insert_empty(self, new_ids: Sequence[int]) -> Summary:
        """Append clusters that hold no atom.  Ids must be new."""
        new = np.asarray(new_ids, np.int64)
        if len(np.unique(np.concatenate([self.ids, new]))) < len(self.ids) + len(new):
            raise SummaryError(f"ids {new.tolist()} are not all new; clusters are {self.ids.tolist()}")
        values = {}
        for name, value in self.values.items():
            grow = self.fields[name].n_cluster_axes
            width = [(0, len(new))] * grow + [(0, 0)] * (value.ndim - grow)
            values[name] = np.pad(value, width)
        return replace(self, ids=np.concatenate([self.ids, new]), values=values)

    def take(self, ids: Sequence[int]) -> Summary:
        """Only the clusters ``ids``, in that order: reorders, and deletes those left out."""
        wanted = np.asarray(ids, np.int64)
        if len(np.unique(wanted)) < len(wanted):
            raise SummaryError(f"ids {wanted.tolist()} name a cluster twice")
        index = np.array([self.position(i) for i in wanted], np.int64)
        values = {}
        for name, value in self.values.items():
            for axis in range(self.fields[name].n_cluster_axes):
                value = np.take(value, index, axis=axis)
            values[name] = value
        kept = np.isin(self.pairs, wanted).all(axis=1)
        return replace(self, ids=wanted, values=values)._keep_pairs(kept)

    def merge(self, keep: int, drop: int) -> Summary:
        """Cluster ``keep`` absorbs ``drop`` (eqs. 4.1-4.3).

        Tracked fields take the value tracked for this pair.  Other tracked pairs that contain either cluster are
        forgotten: their value is no longer that of the clusters they name.
        """
        if keep == drop:
            raise SummaryError(f"cluster {keep} cannot absorb itself")
        a, b = self.position(keep), self.position(drop)
        tracked = {n for n, f in self.fields.items() if f.merge == "tracked"}
        m = self._pair_position(keep, drop) if tracked else -1
        values = {}
        for name, value in self.values.items():
            if name in tracked:
                value = np.delete(value, b, axis=0)
                value[a - (b < a)] = self.pair_values[name][m]
            else:
                value = _absorb(value, a, b, self.fields[name].n_cluster_axes)
            values[name] = value
        kept = ~np.isin(self.pairs, [keep, drop]).any(axis=1)
        return replace(self, ids=np.delete(self.ids, b), values=values)._keep_pairs(kept)

    def _keep_pairs(self, kept: np.ndarray) -> Summary:
        pair_values = {n: v[kept] for n, v in self.pair_values.items()}
        return replace(self, pairs=self.pairs[kept], pair_values=pair_values)

    def _pair_position(self, keep: int, drop: int) -> int:
        wanted = np.sort([keep, drop])
        found = np.flatnonzero((np.sort(self.pairs, axis=1) == wanted).all(axis=1))
        if len(found) == 0:
            raise SummaryError(
                f"pair ({keep}, {drop}) was not tracked, so the statistics of its union are unknown; "
                "pass it as a tracked pair to the local step"
            )
        return int(found[0])


def _absorb(value: np.ndarray, a: int, b: int, n_axes: int) -> np.ndarray:
    """Add position ``b`` to ``a`` along each of the leading ``n_axes``, then remove ``b``."""
    value = value.copy()
    for axis in range(n_axes):
        moved = np.moveaxis(value, axis, 0)
        moved[a] += moved[b]
    for axis in range(n_axes):
        value = np.delete(value, b, axis=axis)
    return value


# -- edits: verbs as data -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class InsertEmpty:
    """Recorded :meth:`Summary.insert_empty`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary) -> Summary:
        return summary.insert_empty(self.ids)


@dataclass(frozen=True)
class Take:
    """Recorded :meth:`Summary.take`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary) -> Summary:
        return summary.take(self.ids)


@dataclass(frozen=True)
class Merge:
    """Recorded :meth:`Summary.merge`."""

    keep: int
    drop: int

    def apply(self, summary: Summary) -> Summary:
        return summary.merge(self.keep, self.drop)


Edit = InsertEmpty | Take | Merge


def replay(summary: Summary, edits: Iterable[Edit]) -> Summary:
    """Apply recorded edits in order: brings a stored summary up to date."""
    for edit in edits:
        summary = edit.apply(summary)
    return summary


class RunningTotal:
    """A sum of summaries that batches enter and leave for hundreds of laps without drifting.

    Every value is held as an unevaluated sum ``high + low`` of two doubles and updated by Knuth's error-free
    TwoSum, so the rounding error of one visit is about 1e-32 of the total instead of 1e-16.  All verbs of the
    summary algebra are linear or a selection, so they apply to both parts.
    """

    def __init__(self, high: Summary, low: Summary | None = None) -> None:
        self.high = high
        self.low = high.zeros() if low is None else low

    def value(self) -> Summary:
        """The total as a summary."""
        return self.high + self.low

    def add(self, summary: Summary) -> None:
        """Include the statistics of more atoms."""
        self._accumulate(summary, 1.0)

    def subtract(self, summary: Summary) -> None:
        """Exclude statistics that were added before."""
        self._accumulate(summary, -1.0)

    def apply(self, edits: Iterable[Edit]) -> None:
        """Change clusters in the total."""
        edits = list(edits)
        self.high, self.low = replay(self.high, edits), replay(self.low, edits)

    def copy(self) -> RunningTotal:
        """An independent total of the same value."""
        return RunningTotal(self.high.scale(1.0), self.low.scale(1.0))

    def _accumulate(self, summary: Summary, sign: float) -> None:
        self.high._require_aligned(summary)
        for mine, rest, new in (
            (self.high.values, self.low.values, summary.values),
            (self.high.pair_values, self.low.pair_values, summary.pair_values),
        ):
            for name, total in mine.items():
                two_sum_into(total, rest[name], np.ascontiguousarray(new[name], np.float64), sign)
