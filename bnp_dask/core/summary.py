"""Summaries: the additive statistics of a set of atoms, and the ONE place that knows about cluster axes.

A :class:`Field` is declared once by the model part that owns it, with its axes and its behaviour when two clusters are
merged.  A :class:`Summary` holds the values of all fields of a model for one set of atoms.  Clusters carry ids that
never change; their positions may.  Verbs that change clusters are recorded as edits (:mod:`bnp_dask.core.edits`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.core.fields import CLUSTER, UNITS, Field, Links, absorb, combine_links, grow, interplay, joined, select
from bnp_dask.core.registry import register
from bnp_dask.errors import SummaryError

__all__ = ["CLUSTER", "Field", "Links", "Summary"]


def _no_pairs() -> np.ndarray:
    return np.zeros((0, 2), np.int64)


def _nothing() -> Mapping[str, np.ndarray]:
    return {}


@register
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
        For each tracked field its value for the union of each pair, ``(M, ...)``; for a floor field its loss by the
        merge, ``(M,)``.
    links
        For statistics of a trial: counts, in fields with two cluster axes, between its clusters and all others.
    """

    ids: np.ndarray
    fields: Mapping[str, Field]
    values: Mapping[str, np.ndarray]
    pairs: np.ndarray = field(default_factory=_no_pairs)
    pair_values: Mapping[str, np.ndarray] = field(default_factory=_nothing)
    links: Links | None = None

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

    @property
    def units(self) -> np.ndarray:
        """Number of units in each cluster, ``(K,)``: of independent draws of a cluster, which entropies are sums over.

        These are atoms, unless some are linked.
        """
        return self.values.get(UNITS, self.values["N"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def __reduce__(self) -> tuple[Any, ...]:
        # read-only mappings cannot be pickled; as plain dicts a summary travels without cloudpickle
        links = self.links and replace(self.links, values=dict(self.links.values))
        parts = (self.ids, dict(self.fields), dict(self.values), self.pairs, dict(self.pair_values), links)
        return Summary, parts

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}{tuple(np.shape(v))}" for n, v in self.values.items())
        return f"Summary(K={self.n_clusters}, M={self.n_pairs}, {shapes})"

    def position(self, cluster_id: int) -> int:
        """Position of a cluster id; SummaryError when there is none."""
        found = np.flatnonzero(self.ids == cluster_id)
        if not len(found):
            raise self._unknown(cluster_id)
        return int(found[0])

    def positions(self, wanted: np.ndarray) -> np.ndarray:
        """Positions of cluster ids; SummaryError when one is unknown."""
        order = np.argsort(self.ids)
        place = np.searchsorted(self.ids, wanted, sorter=order)
        found = np.append(order, 0)[place]
        known = (place < len(order)) & (np.append(self.ids, 0)[found] == wanted)
        if not known.all():
            raise self._unknown(wanted[~known][0])
        return found

    def _unknown(self, cluster_id: int) -> SummaryError:
        return SummaryError(f"no cluster {cluster_id}; clusters are {self.ids.tolist()}")

    # -- verbs of a vector space ----------------------------------------------------------------------------
    def __add__(self, other: Summary) -> Summary:
        self._require_aligned(other)
        total = self._mapped(lambda name, a, b: a + b, other)
        return replace(total, links=combine_links(self.links, other.links, 1.0))

    def __sub__(self, other: Summary) -> Summary:
        self._require_aligned(other)
        rest = self._mapped(lambda name, a, b: a - b, other)
        return replace(rest, links=combine_links(self.links, other.links, -1.0))

    def scale(self, factor: float) -> Summary:
        """All values times ``factor`` (stochastic steps count a batch as N / N_b batches)."""
        links = self.links and self.links.mapped(lambda a, _: a * factor, None)
        return replace(self._mapped(lambda name, a, _: a * factor, self), links=links)

    def absolute(self) -> Summary:
        """The absolute values; their sum is the size of the terms of a sum."""
        return replace(self._mapped(lambda name, a, _: np.abs(a), self), links=None)

    def zeros(self) -> Summary:
        """The summary of no atoms, with the same clusters and pairs."""
        return replace(self._mapped(lambda name, a, _: np.zeros_like(a), self), links=None)

    # -- as plain arrays, for files --------------------------------------------------------------------------
    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything but the declarations, as named arrays."""
        values = {f"value.{n}": v for n, v in self.values.items()}
        pair_values = {f"pair.{n}": v for n, v in self.pair_values.items()}
        links = {} if self.links is None else self.links.to_arrays()
        return {"ids": self.ids, "pairs": self.pairs, **values, **pair_values, **links}

    @staticmethod
    def from_arrays(fields: Mapping[str, Field], arrays: Mapping[str, np.ndarray]) -> Summary:
        """Inverse of :meth:`to_arrays`; SummaryError when the arrays do not match these fields."""
        needed = ["ids", "pairs", *(f"value.{n}" for n in fields)]
        if len(arrays.get("pairs", _no_pairs())):
            needed += [f"pair.{n}" for n, f in fields.items() if f.has_pairs]
        missing = [name for name in needed if name not in arrays]
        if missing:
            raise SummaryError(f"arrays {missing} are missing; found {sorted(arrays)}")
        values = {n: arrays[f"value.{n}"] for n in fields}
        n_clusters = len(arrays["ids"])
        for name, declared in fields.items():
            shape = np.shape(values[name])
            axes = declared.n_cluster_axes
            if len(shape) != len(declared.dims) or shape[:axes] != (n_clusters,) * axes:
                raise SummaryError(f"value.{name} has shape {shape}; needs {declared.dims} with {n_clusters} clusters")
        pair_values = {n: arrays[f"pair.{n}"] for n in fields if f"pair.{n}" in arrays}
        return Summary(arrays["ids"], fields, values, arrays["pairs"], pair_values, Links.from_arrays(arrays))

    def _mapped(self, function: Callable[[str, Any, Any], Any], other: Summary) -> Summary:
        # asarray, because numpy turns an expression of 0-d arrays into a scalar
        values = {n: np.asarray(function(n, a, other.values[n])) for n, a in self.values.items()}
        mine = self.pair_values.items() if self.n_pairs else ()
        pair_values = {n: np.asarray(function(n, a, other.pair_values[n])) for n, a in mine}
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
        """Summary with no tracked pairs."""
        if not self.n_pairs and not self.pair_values:
            return self
        return replace(self, pairs=_no_pairs(), pair_values=_nothing())

    def without_pairs_of(self, clusters: Sequence[int]) -> Summary:
        """Summary without the tracked pairs that contain any of ``clusters``."""
        return self._keep_pairs(~np.isin(self.pairs, clusters).any(axis=1))

    def pairs_of(self, clusters: Iterable[int]) -> np.ndarray:
        """Whether each tracked pair contains any of a few ``clusters``, ``(M,)``."""
        found = np.zeros(self.n_pairs, bool)
        for i in clusters:
            found |= (self.pairs == i).any(axis=1)
        return found

    def with_pairs(self, pairs: np.ndarray) -> Summary:
        """Summary with these pairs tracked, all their values zero."""
        tracked = {n: v for n, v in self.values.items() if self.fields[n].has_pairs}
        pair_values = {n: np.zeros((len(pairs), *v.shape[1:])) for n, v in tracked.items()}
        return replace(self, pairs=np.asarray(pairs, np.int64).reshape(-1, 2), pair_values=pair_values)

    def insert_empty(self, new_ids: Sequence[int] | np.ndarray) -> Summary:
        """Append clusters that hold no atom.  Ids must be new."""
        new = np.asarray(new_ids, np.int64)
        if len(np.unique(np.concatenate([self.ids, new]))) < len(self.ids) + len(new):
            raise SummaryError(f"ids {new.tolist()} are not all new; clusters are {self.ids.tolist()}")
        values = {n: grow(v, len(new), self.fields[n].n_cluster_axes) for n, v in self.values.items()}
        return replace(self, ids=np.concatenate([self.ids, new]), values=values)

    def take(self, ids: Sequence[int] | np.ndarray) -> Summary:
        """Summary of only the clusters ``ids``, in that order; other clusters are deleted."""
        wanted = np.asarray(ids, np.int64)
        if len(set(wanted.tolist())) < len(wanted):
            raise SummaryError(f"ids {wanted.tolist()} name a cluster twice")
        index = self.positions(wanted)
        values = {n: select(v, index, self.fields[n].n_cluster_axes) for n, v in self.values.items()}
        links = self.links and self.links.take(index)
        taken = replace(self, ids=wanted, values=values, links=links)
        return taken._keep_pairs(np.all(np.isin(self.pairs, wanted), axis=1)) if self.n_pairs else taken

    def widen(self, dim: str, size: int) -> Summary:
        """Append zeros to the axis ``dim`` until its length is ``size``; no atom contributes to the new positions.

        SummaryError if the axis is longer.
        """

        def padded(name: str, value: np.ndarray) -> np.ndarray:
            dims = self.fields[name].dims
            more = [(0, size - length if own == dim else 0) for own, length in zip(dims, value.shape, strict=False)]
            if min((count for _, count in more), default=0) < 0:
                raise SummaryError(f"{name} of shape {value.shape}: {dim} cannot shrink to {size}")
            return np.pad(value, more) if dim in dims else value

        values = {name: padded(name, value) for name, value in self.values.items()}
        return replace(self, values=values, pair_values={n: padded(n, v) for n, v in self.pair_values.items()})

    def merge(self, keep: int, drop: int) -> Summary:
        """Cluster ``keep`` absorbs ``drop`` (eqs. 4.1-4.3).

        Tracked fields take the value tracked for this pair.  Other tracked pairs that contain either cluster are
        forgotten: their value no longer fits the clusters they name.
        """
        if keep == drop:
            raise SummaryError(f"cluster {keep} cannot absorb itself")
        a, b = self.position(keep), self.position(drop)
        m = self._pair_position(keep, drop) if any(f.has_pairs for f in self.fields.values()) else -1
        values = {}
        for name, value in self.values.items():
            declared = self.fields[name]
            if declared.merge == "floor":
                values[name] = np.asarray(value - self.pair_values[name][m])
            elif declared.merge == "tracked":
                values[name] = np.delete(value, b, axis=0)
                values[name][a - (b < a)] = self.pair_values[name][m]
            else:
                values[name] = absorb(value, a, b, declared.n_cluster_axes)
        kept = ~self.pairs_of([keep, drop])
        charged = self._charged(np.array([keep, drop]), kept)
        return replace(charged, ids=np.delete(self.ids, b), values=values)._keep_pairs(kept)

    def _charged(self, ids: np.ndarray, kept: np.ndarray) -> Summary:
        """Summary before the clusters ``ids`` become one: the loss of ``kept`` pairs in floor fields increases."""
        floors = [(n, f.links) for n, f in self.fields.items() if f.links is not None]
        if not floors or not self.n_pairs or len(ids) < 2 or not kept.any():
            return self
        here = self.positions(ids)
        place = self.positions(self.pairs[kept])
        pair_values = dict(self.pair_values)
        for name, links in floors:
            both = self.values[links][:, here].sum(axis=1) + self.values[links][here].sum(axis=0)
            pair_values[name] = pair_values[name].copy()
            pair_values[name][kept] += interplay(2, len(ids), both[place].sum(axis=1))
        return replace(self, pair_values=pair_values)

    def unite(self, keep: int, drop: int, share: float | None) -> Summary:
        """Cluster ``keep`` absorbs ``drop`` without a tracked pair: entropies become lower bounds.

        An atom with shares a and b in the two clusters has the entropy ``-(a + b) log(a + b)`` in their union.  It is
        at least 0, the bound if ``share`` is None.  It is also at least ``-a log a - b log b + a log share +
        b log(1 - share)`` for any share between 0 and 1, since a cross entropy is at least the entropy.  Both bounds
        are linear in statistics, so that bounds of batches add up to a bound of the total.  All pairs are forgotten.
        """
        a, b = self.positions(np.array([keep, drop]))
        pair = self.without_pairs().with_pairs(np.array([[keep, drop]]))
        if share is not None:
            cross = math.log(share) * self.units[a] + math.log1p(-share) * self.units[b]
            for name, tracked in pair.pair_values.items():
                tracked[0] = self[name][a] + self[name][b] + cross
        return pair.merge(keep, drop)

    def exchange(self, donors: Sequence[int], part: Summary, shifts: bool = False) -> Summary:
        """Replace the clusters ``donors`` by the clusters of ``part``: the same atoms, assigned otherwise.

        A cluster in both keeps its position; other clusters of ``part`` are appended.  Values without a cluster axis
        stay; with ``shifts`` the values of ``part`` are added to them.  Tracked pairs that contain any of these
        clusters are forgotten.
        """
        gone = np.asarray(donors, np.int64)
        self.positions(gone)
        new = part.ids[~np.isin(part.ids, gone)]
        if np.isin(new, self.ids).any():
            raise SummaryError(f"clusters {new[np.isin(new, self.ids)].tolist()} are in both and give nothing away")
        stay = self.ids[~np.isin(self.ids, np.setdiff1d(gone, part.ids))]
        final = np.concatenate([stay, new])
        rest = self.take(self.ids[~np.isin(self.ids, gone)])
        values = {}
        for name, value in rest.values.items():
            declared = self.fields[name]
            if declared.n_cluster_axes == 2:
                values[name] = joined(part.links, name, rest.ids, gone, part.values[name], value)
            elif declared.n_cluster_axes == 1:
                values[name] = np.concatenate([value, part.values[name]])
            else:
                values[name] = value + part.values[name] if shifts or declared.merge == "floor" else value
        kept = ~np.any(np.isin(self.pairs, np.union1d(gone, part.ids)), axis=1)
        charged = self._charged(gone, kept)._keep_pairs(kept)
        both = replace(charged, ids=np.concatenate([rest.ids, part.ids]), values=values)
        return both.take(final)

    def _keep_pairs(self, kept: Any) -> Summary:
        pair_values = {n: v[kept] for n, v in self.pair_values.items()}
        return replace(self, pairs=self.pairs[kept], pair_values=pair_values)

    def _pair_position(self, keep: int, drop: int) -> int:
        wanted = np.sort([keep, drop])
        found = np.flatnonzero((np.sort(self.pairs, axis=1) == wanted).all(axis=1))
        if len(found) == 0:
            why = "was not tracked, so the statistics of its union are unknown"
            raise SummaryError(f"pair ({keep}, {drop}) {why}; pass it as a tracked pair to the local step")
        return int(found[0])


# -- edits: verbs as data -----------------------------------------------------------------------------------


def add_in_place(total: Summary, part: Summary) -> None:
    """Add the statistics of a part to a total with the same clusters."""
    for name, value in part.values.items():
        total.values[name][...] += value
    for name, value in part.pair_values.items() if part.n_pairs else ():
        total.pair_values[name][...] += value
