"""Summaries: the additive statistics of a set of atoms, and the ONE place that knows about cluster axes.

A :class:`Field` is declared once by the model part that owns it, with its axes and its behaviour when two clusters are
merged.  A :class:`Summary` holds the values of all fields of a model for one set of atoms.  Clusters carry ids that
never change; their positions may.  Verbs that change clusters are recorded as edits (:class:`Edit`), which bring stored
summaries up to date.  A :class:`RunningTotal` adds up the summaries of batches without rounding, and
:class:`GroupStates` keep what groups knew of their topics at their last visit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core.registry import register
from bnp_dask.errors import SummaryError
from bnp_dask.kernels import SparseSum, is_mostly_zero, product_rest, two_sum_into

# -- fields -------------------------------------------------------------------------------------------------------
CLUSTER = "cluster"
"""Name of an axis that runs over clusters."""

UNITS = "units"
"""Field of the counts of units, in models of linked atoms; see :mod:`bnp_dask.structure.linked`."""


@register
@dataclass(frozen=True)
class Field:
    """How one statistic is laid out and how it behaves when clusters change.

    Parameters
    ----------
    dims
        Names of the axes.  ``"cluster"`` may stand first, or first and second, or nowhere.
    merge
        Effect of a merge in which cluster A absorbs B.  ``"sum"``: values add along each cluster axis (eq. 4.2).
        ``"tracked"``: not linear in the responsibilities (the entropy, eq. 4.3); the value tracked for the pair is
        taken, and an untracked pair is refused.
        ``"floor"``: one number for all clusters together (the entropy of chains of states, 6.24), from which a merge
        subtracts the loss tracked for the pair.  The joint loss of several merges is unknown, so that after a second
        merge the value is a lower bound (see :func:`interplay`).
    links
        For a ``"floor"`` field: the field with two cluster axes that counts how often one cluster follows another.
    """

    dims: tuple[str, ...] = ()
    merge: Literal["sum", "tracked", "floor"] = "sum"
    links: str | None = None

    def __post_init__(self) -> None:
        if self.merge not in ("sum", "tracked", "floor"):
            raise SummaryError(f'merge={self.merge!r}: needs "sum", "tracked" or "floor"')
        if CLUSTER in self.dims[self.n_cluster_axes :]:
            raise SummaryError(f"cluster axes must come first, got dims {self.dims}")
        if self.merge == "tracked" and self.n_cluster_axes != 1:
            raise SummaryError(f"a tracked field needs exactly one cluster axis, got dims {self.dims}")
        if (self.merge == "floor") != (self.links is not None) or (self.merge == "floor" and self.dims):
            raise SummaryError(f"{self}: a floor field has no axes and names its links; others have none")

    @property
    def n_cluster_axes(self) -> int:
        """Number of leading axes that run over clusters (0, 1 or 2)."""
        count = 0
        for dim in self.dims[:2]:
            if dim != CLUSTER:
                break
            count += 1
        return count

    @property
    def has_pairs(self) -> bool:
        """Whether values of unions have to be tracked."""
        return self.merge != "sum"


@runtime_checkable
class Counting(Protocol):
    """A model part that says which of its statistics cannot be negative."""

    @property
    def counts(self) -> Collection[str]:
        """Names of fields that sum nonnegative terms, such as counts and squares."""
        ...


def interplay(first: int, second: int, between: np.ndarray | float) -> np.ndarray | float:
    """Upper bound of the joint loss of two unions in a ``"floor"`` field beyond the sum of their separate losses.

    One unites ``first`` clusters, the other ``second``, and no cluster is in both.  For a pair of steps with one step
    in each union, the joint loss of entropy exceeds the sum of the separate losses by the mutual information between
    the clusters of the two steps.  This is at most the log of the smaller number of clusters, for each of the
    ``between`` such pairs of steps.
    """
    return math.log(min(first, second)) * np.maximum(between, 0.0)


@dataclass(frozen=True, eq=False)
class Links:
    """Counts, in fields with two cluster axes, between the clusters of a trial and all others.

    A summary of a trial has its receivers only; links add their counts with other clusters.

    Parameters
    ----------
    rest
        Ids of all clusters that are not donors, ``(R,)``.
    donors
        Ids of the clusters whose atoms the receivers share out.
    values
        For each field ``(2, J, R)``: from the receivers to the rest, and from the rest to the receivers.  Under
        ``"field@trial"`` counts with the receivers of another trial of the lap, in case it is accepted too.
    """

    rest: np.ndarray
    donors: np.ndarray
    values: Mapping[str, np.ndarray]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """As named arrays."""
        values = {f"links.{n}": v for n, v in self.values.items()}
        return {"links-rest": self.rest, "links-donors": self.donors, **values}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> Links | None:
        """Inverse of :meth:`to_arrays`; None when there are no such arrays."""
        if "links-rest" not in arrays:
            return None
        values = {n.removeprefix("links."): a for n, a in arrays.items() if n.startswith("links.")}
        return Links(arrays["links-rest"], arrays["links-donors"], values)

    def mapped(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray], other: Links | None) -> Links:
        """Links with ``function`` of the values and of the values of ``other``, which has the same clusters."""
        if other is not None and not (
            np.array_equal(self.rest, other.rest) and np.array_equal(self.donors, other.donors)
        ):
            raise SummaryError("statistics of different trials cannot be added")
        nothing = np.zeros(())
        values = {n: function(v, nothing if other is None else other.values[n]) for n, v in self.values.items()}
        return replace(self, values=values)

    def merge(self, keep: int, drop: int) -> Links:
        """Cluster ``keep`` of the rest absorbs ``drop``; unchanged if either is not in the rest."""
        a, b = np.flatnonzero(self.rest == keep), np.flatnonzero(self.rest == drop)
        if len(a) == 0 or len(b) == 0:
            return self
        values = dict(self.values)
        for name, value in self.values.items():
            if "@" in name:
                continue
            new = value.copy()
            new[:, :, a[0]] += value[:, :, b[0]]
            values[name] = np.delete(new, b[0], axis=2)
        return replace(self, rest=np.delete(self.rest, b[0]), values=values)

    def exchange(self, donors: Sequence[int], trial: str, ids: np.ndarray) -> Links:
        """Replace the clusters ``donors`` of the rest by ``ids``, the receivers of another trial."""
        values = {name: value for name, value in self.values.items() if not name.endswith(f"@{trial}")}
        keep = ~np.isin(self.rest, donors)
        for name in [n for n in values if "@" not in n]:
            other = self.values.get(f"{name}@{trial}")
            if other is None:
                return self  # the other trial ran without this one; exchanging both is refused
            values[name] = np.concatenate([values[name][:, :, keep], other], axis=2)
        return replace(self, rest=np.concatenate([self.rest[keep], ids]), values=values)

    def take(self, index: np.ndarray) -> Links:
        """Links of only the receivers at the positions ``index``."""
        return replace(self, values={n: v[:, index] for n, v in self.values.items()})

    def between(self, name: str, ids: Sequence[int]) -> float:
        """Count between the receivers and the clusters ``ids`` of the rest, in both directions."""
        return float(self.values[name][:, :, np.isin(self.rest, ids)].sum())

    def zeros(self) -> Links:
        """Links of no atoms."""
        return self.mapped(lambda v, _: np.zeros_like(v), None)


def joined(
    links: Links | None, name: str, rest: np.ndarray, donors: np.ndarray, inner: np.ndarray, outer: np.ndarray
) -> np.ndarray:
    """Joint counts of all clusters but the donors, ``outer (R, R)`` in the order ``rest``, and of a trial's receivers.

    ``inner (J, J)`` are counts between receivers.  SummaryError when the links are of other clusters.
    """
    if links is None:
        raise SummaryError(f"field {name} has two cluster axes; its clusters cannot be exchanged without their links")
    if set(links.rest.tolist()) != set(rest.tolist()) or set(links.donors.tolist()) != set(donors.tolist()):
        raise SummaryError(
            f"a trial of clusters {donors.tolist()} knows {name} to and from {links.rest.tolist()}, but now there are "
            f"{rest.tolist()}: other clusters were shared out since"
        )
    order = np.argsort(links.rest)
    place = order[np.searchsorted(links.rest, rest, sorter=order)]
    out, back = links.values[name][:, :, place]
    return np.block([[outer, back.T], [out, inner]])


def combine_links(a: Links | None, b: Links | None, sign: float) -> Links | None:
    """Sum of links (``sign=1``) or their difference (``sign=-1``); None stands for links of no atoms."""
    if a is None or b is None:
        return a if b is None else b.mapped(lambda x, _: sign * x, None)
    return a.mapped(lambda x, y: x + sign * y, b)


# -- arrays with cluster axes -----------------------------------------------------------------------------------
def grow(value: np.ndarray, count: int, n_axes: int) -> np.ndarray:
    """A copy with ``count`` zeros appended to each of the leading ``n_axes``."""
    if value.dtype == object:
        return np.concatenate([value, np.zeros(count)])  # numbers stand for whole rows, whose width may be unknown
    out = np.zeros([size + count * (axis < n_axes) for axis, size in enumerate(value.shape)])
    out[tuple(slice(size) for size in value.shape)] = value
    return out


def select(value: np.ndarray, index: np.ndarray, n_axes: int) -> np.ndarray:
    """A copy with the positions ``index`` of each of the leading ``n_axes``."""
    if n_axes == 1:
        return value[index]  # the usual case, without the general rule's grid
    return value[np.ix_(*[index] * n_axes)] if n_axes else value.copy()


def absorb(value: np.ndarray, a: int, b: int, n_axes: int) -> np.ndarray:
    """Add position ``b`` to ``a`` along each of the leading ``n_axes`` and delete ``b``; makes one copy."""
    if n_axes == 0:
        return value.copy()
    out = select(value, np.delete(np.arange(len(value)), b), n_axes)
    for at, more in _absorbed(value, a, b, n_axes):
        out[at] = out[at] + more  # in place, this would change the rows of others
    return out


def lost_digits(value: np.ndarray, a: int, b: int, n_axes: int) -> tuple[Any, np.ndarray]:
    """Rounding of :func:`absorb` and its place in the result: the two add up to the exact sums (Knuth's TwoSum)."""
    if n_axes == 1:
        return a - (b < a), _rounding(value[a], value[b], value[a] + value[b])
    out = select(value, np.delete(np.arange(len(value)), b), n_axes)
    lost = np.zeros_like(out)
    for at, more in _absorbed(value, a, b, n_axes):
        before = out[at].copy()
        out[at] += more
        lost[at] += _rounding(before, more, out[at])
    return ..., lost


def _rounding(before: np.ndarray, more: np.ndarray, after: np.ndarray) -> np.ndarray:
    part = after - before
    return (before - (after - part)) + (more - part)


def _absorbed(value: np.ndarray, a: int, b: int, n_axes: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Additions by which position ``a`` absorbs ``b``: places in the result, and addends."""
    new_a = a - (b < a)
    if n_axes == 1:
        yield new_a, value[b]
        return
    rest = np.delete(np.arange(len(value)), b)
    yield new_a, value[b, rest]
    yield (slice(None), new_a), value[rest, b]
    yield (new_a, new_a), value[b, b]


def rows_of(value: np.ndarray) -> np.ndarray:
    """The rows of ``value (K, V)`` as an array of K objects, none of them a copy."""
    out = np.empty(len(value), object)
    for k, row in enumerate(value):
        out[k] = row
    return out


# -- summaries ----------------------------------------------------------------------------------------------------
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
        found = int((self.ids == cluster_id).argmax()) if len(self.ids) else -1
        if found < 0 or self.ids[found] != cluster_id:
            raise self._unknown(cluster_id)
        return found

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
        return self._mapped(lambda name, a, b: a + b, other, combine_links(self.links, other.links, 1.0))

    def __sub__(self, other: Summary) -> Summary:
        self._require_aligned(other)
        return self._mapped(lambda name, a, b: a - b, other, combine_links(self.links, other.links, -1.0))

    def scale(self, factor: float) -> Summary:
        """All values times ``factor`` (stochastic steps count a batch as N / N_b batches)."""
        links = self.links and self.links.mapped(lambda a, _: a * factor, None)
        return self._mapped(lambda name, a, _: a * factor, self, links)

    def absolute(self) -> Summary:
        """The absolute values; their sum is the size of the terms of a sum."""
        return self._mapped(lambda name, a, _: np.abs(a), self, None)

    def zeros(self) -> Summary:
        """The summary of no atoms, with the same clusters and pairs."""
        return self._mapped(lambda name, a, _: np.zeros_like(a), self, None)

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
        for name in ("ids", "pairs"):
            if arrays[name].dtype.kind not in "iu" or arrays[name].shape[1:] != (() if name == "ids" else (2,)):
                raise SummaryError(f"{name} is {arrays[name].dtype} {arrays[name].shape}; needs whole numbers (N, ...)")
        if len(np.unique(arrays["ids"])) != len(arrays["ids"]):
            raise SummaryError(f"ids has a cluster twice: {arrays['ids'].tolist()}")
        lengths = {CLUSTER: len(arrays["ids"])}
        for name, declared in fields.items():
            shape, kind = np.shape(values[name]), np.asarray(values[name]).dtype.kind
            if len(shape) != len(declared.dims) or kind not in "biuf":
                raise SummaryError(f"value.{name} is {values[name].dtype} {shape}; needs numbers {declared.dims}")
            for dim, length in zip(declared.dims, shape, strict=True):
                if lengths.setdefault(dim, length) != length:
                    raise SummaryError(f"value.{name} has shape {shape}; needs {declared.dims} with {lengths}")
        for name in fields:
            tracked = arrays.get(f"pair.{name}")
            if tracked is not None and (tracked.dtype.kind not in "biuf" or len(tracked) != len(arrays["pairs"])):
                raise SummaryError(f"pair.{name} has shape {tracked.shape}; needs {len(arrays['pairs'])} pairs")
        pair_values = {n: arrays[f"pair.{n}"] for n in fields if f"pair.{n}" in arrays}
        return Summary(arrays["ids"], fields, values, arrays["pairs"], pair_values, Links.from_arrays(arrays))

    def _mapped(self, function: Callable[[str, Any, Any], Any], other: Summary, links: Links | None) -> Summary:
        # asarray, because numpy turns an expression of 0-d arrays into a scalar
        values = {n: np.asarray(function(n, a, other.values[n])) for n, a in self.values.items()}
        mine = self.pair_values.items() if self.n_pairs else ()
        pair_values = {n: np.asarray(function(n, a, other.pair_values[n])) for n, a in mine}
        return Summary(self.ids, self.fields, values, self.pairs, pair_values, links)

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
        taken = Summary(wanted, self.fields, values, self.pairs, self.pair_values, links)
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
        ids, tracked = np.delete(self.ids, b), charged.pair_values
        return Summary(ids, self.fields, values, self.pairs, tracked, self.links)._keep_pairs(kept)

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
        return Summary(self.ids, self.fields, self.values, self.pairs[kept], pair_values, self.links)

    def _pair_position(self, keep: int, drop: int) -> int:
        first, second = self.pairs.T
        found = np.flatnonzero(((first == keep) & (second == drop)) | ((first == drop) & (second == keep)))
        if len(found) == 0:
            why = "was not tracked, so the statistics of its union are unknown"
            raise SummaryError(f"pair ({keep}, {drop}) {why}; pass it as a tracked pair to the local step")
        return int(found[0])


def add_in_place(total: Summary, part: Summary) -> None:
    """Add the statistics of a part to a total with the same clusters."""
    for name, value in part.values.items():
        total.values[name][...] += value
    for name, value in part.pair_values.items() if part.n_pairs else ():
        total.pair_values[name][...] += value


def sum_of(summaries: Sequence[Summary]) -> Summary:
    """Sum of statistics of disjoint sets of atoms, with the same clusters."""
    total = summaries[0]
    for own in summaries[1:]:
        total = total + own
    return total


# -- edits of stored summaries ------------------------------------------------------------------------------------
# A stored summary is brought up to date by replaying the edits it has not seen (:func:`replay`).
@dataclass(frozen=True)
class InsertEmpty:
    """Recorded :meth:`Summary.insert_empty`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.insert_empty(self.ids)


@dataclass(frozen=True)
class Take:
    """Recorded :meth:`Summary.take`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.take(self.ids)


@dataclass(frozen=True)
class Merge:
    """Recorded :meth:`Summary.merge`."""

    keep: int
    drop: int

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.merge(self.keep, self.drop)


@dataclass(frozen=True)
class Unite:
    """Recorded :meth:`Summary.unite`: a merge of two clusters whose union was not tracked."""

    keep: int
    drop: int
    share: float | None

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.unite(self.keep, self.drop, self.share)


@dataclass(frozen=True)
class Exchange:
    """Recorded :meth:`Summary.exchange`; each summary has its own part, found by the name of the trial."""

    trial: str
    donors: tuple[int, ...]
    shifts: bool = False

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        if self.trial not in parts:
            raise SummaryError(f"trial {self.trial} was not accumulated beside this summary")
        return summary.exchange(self.donors, parts[self.trial], self.shifts)


@dataclass(frozen=True)
class Forget:
    """Recorded :meth:`Summary.without_pairs`: a lap ended, and the pairs tracked during it are void.

    With ``of``, only pairs of these clusters: one was split, and unions with it are no longer known.
    """

    of: tuple[int, ...] = ()

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.without_pairs_of(self.of) if self.of else summary.without_pairs()


@dataclass(frozen=True)
class Fade:
    """Recorded :meth:`Summary.scale`: time has passed, and all weights are multiplied by ``factor``.

    ``rest`` are the digits of the factor below double precision, which running totals take into account.
    """

    factor: float
    rest: float = 0.0

    def then(self, other: Fade) -> Fade:
        """Both in one."""
        factor = self.factor * other.factor
        rest = float(product_rest(np.array(self.factor), other.factor))
        return Fade(factor, rest + self.factor * other.rest + self.rest * other.factor)

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.scale(self.factor)


@dataclass(frozen=True)
class Widen:
    """Recorded :meth:`Summary.widen`: the axis ``dim`` has length ``size`` from now on."""

    dim: str
    size: int

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.widen(self.dim, self.size)


Edit = InsertEmpty | Take | Merge | Unite | Exchange | Forget | Fade | Widen
"""Change of clusters, of weights or of the width of an axis, as data: ``apply`` makes it on a summary."""

NO_PARTS: Mapping[str, Summary] = {}
"""Statistics of no trials."""


def replay(summary: Summary, edits: Iterable[Edit], parts: Mapping[str, Summary] = NO_PARTS) -> Summary:
    """Apply recorded edits in order: brings a stored summary up to date.

    ``parts`` are the statistics of some clusters under each trial, by the name of the trial.
    """
    todo = list(edits)
    names = by_rows(todo, summary, parts)
    held, parts = in_rows(summary, names), {name: in_rows(part, names) for name, part in parts.items()}
    for edit in todo:
        held, parts = edit.apply(held, parts), follow(parts, edit)
    return from_rows(held, summary, names)


def by_rows(edits: Sequence[Edit], summary: Summary, parts: Mapping[str, Summary]) -> list[str]:
    """Names of values whose rows some edits move one by one: counts of words, if there are several edits.

    Each edit copies all values.  Of hundreds of topics and a hundred thousand words that is half a gigabyte.  In four
    laps that went from 108 topics of 35,000 words to 43, these copies took half as long as the steps of documents.  So
    edits move pointers to rows.
    """
    if len(edits) < 2 or not summary.n_clusters or any(isinstance(edit, Fade | Widen) for edit in edits):
        return []
    all_of = [summary, *parts.values()]
    words = [name for name, declared in summary.fields.items() if declared == Field(WORDS)]
    return [name for name in words if all(own[name].dtype == np.float64 for own in all_of)]


def in_rows(summary: Summary, names: Sequence[str]) -> Summary:
    """Summary with some values as arrays of rows, which only edits understand; 0.0 is a row of zeros."""
    if not names:
        return summary
    return replace(summary, values={**summary.values, **{name: rows_of(summary[name]) for name in names}})


def from_rows(held: Summary, before: Summary, names: Sequence[str]) -> Summary:
    """Inverse of :func:`in_rows`; ``before`` has the widths of the rows."""
    if not names:
        return held
    values = dict(held.values)
    for name in names:
        values[name] = np.empty((held.n_clusters, before[name].shape[1]))
        for k, row in enumerate(held[name]):
            values[name][k] = row
    return replace(held, values=values)


def follow(parts: Mapping[str, Summary], edit: Edit) -> Mapping[str, Summary]:
    """Statistics of trials after an edit, so that they can still be exchanged after other edits."""
    if isinstance(edit, Fade | Widen):
        return {name: edit.apply(part, NO_PARTS) for name, part in parts.items()}
    if not isinstance(edit, Merge | Exchange) or all(part.links is None for part in parts.values()):
        return parts
    ids = parts[edit.trial].ids if isinstance(edit, Exchange) else np.zeros(0, np.int64)
    return {name: _follow(part, edit, ids) for name, part in parts.items()}


def _follow(part: Summary, edit: Merge | Exchange, ids: np.ndarray) -> Summary:
    """Statistics of a trial after an edit of clusters outside it; ``ids`` are the clusters that the edit makes."""
    gone = (edit.keep, edit.drop) if isinstance(edit, Merge) else edit.donors
    if part.links is None or not np.isin(gone, part.links.rest).all():
        return part
    values = dict(part.values)
    for name, declared in part.fields.items():
        if declared.links is not None:
            between = part.links.between(declared.links, gone)
            values[name] = np.asarray(values[name] - interplay(len(gone), len(part.links.donors), between))
    if isinstance(edit, Merge):
        return replace(part, values=values, links=part.links.merge(edit.keep, edit.drop))
    return replace(part, values=values, links=part.links.exchange(gone, edit.trial, ids))


# -- totals that do not drift -------------------------------------------------------------------------------------
WORDS = ("cluster", "word")
"""Axes of values that are mostly zero in one batch."""

FEW = 0.25
"""Largest share of nonzero values for which a difference stores only the nonzero ones."""


class RunningTotal:
    """A sum of summaries that batches enter and leave for hundreds of laps without drifting.

    Every value is held as an unevaluated sum ``high + low`` of two doubles and updated by Knuth's error-free
    TwoSum, so the rounding error of one visit is about 1e-32 of the total instead of 1e-16.  All verbs of the
    summary algebra are linear or a selection, so they apply to both parts.

    Parameters
    ----------
    high, low
        Start of the sum; copied, so that summaries handed in are never overwritten.
    sparse
        Mostly zero values that are held separately and are in neither of the two; only in a difference.
    """

    def __init__(
        self, high: Summary, low: Summary | None = None, sparse: Mapping[str, SparseSum] | None = None
    ) -> None:
        self.high = _contiguous(high.scale(1.0))
        self.low = _contiguous(high.zeros() if low is None else low.scale(1.0))
        self.sparse = dict(sparse or {})

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.high.nbytes + self.low.nbytes + sum(held.nbytes for held in self.sparse.values())

    def value(self) -> Summary:
        """The total as a summary."""
        whole = self.whole()
        return whole.high + whole.low

    def value_of(self, name: str) -> np.ndarray:
        """One value of the total, as in :meth:`value`."""
        if name in self.sparse:
            return self.value()[name]
        return self.high[name] + self.low[name]

    def whole(self) -> RunningTotal:
        """Total with no value held separately."""
        if not self.sparse:
            return self
        dense = {name: held.to_dense() for name, held in self.sparse.items()}
        high = _with_values(self.high, {name: both[0] for name, both in dense.items()})
        return RunningTotal(high, _with_values(self.low, {name: both[1] for name, both in dense.items()}))

    def insert_empty(self, ids: np.ndarray) -> RunningTotal:
        """Total with empty clusters appended."""
        sparse = {name: held.with_rows(len(ids)) for name, held in self.sparse.items()}
        return RunningTotal(self.high.insert_empty(ids), self.low.insert_empty(ids), sparse)

    def add(self, own: Summary | RunningTotal) -> None:
        """Include the statistics of more atoms."""
        if isinstance(own, RunningTotal):
            self.join(own)
        else:
            self._accumulate(own, 1.0)

    def subtract(self, own: Summary | RunningTotal) -> None:
        """Exclude statistics that were added before; pairs tracked only since then stay unchanged."""
        own = with_pairs(own, self.high.pairs)
        if isinstance(own, RunningTotal):
            self.join(own, -1.0)
        else:
            self._accumulate(own, -1.0)

    def join(self, other: RunningTotal, sign: float = 1.0) -> None:
        """Include another total with all its digits; exclude it with ``sign=-1``."""
        if self.sparse.keys() - other.sparse.keys():
            mine = self.whole()
            self.high, self.low, self.sparse = mine.high, mine.low, {}
        rest = {name: held for name, held in other.sparse.items() if name not in self.sparse}
        for name in self.sparse:
            self.sparse[name] = self.sparse[name].plus(other.sparse[name], sign)
        self._accumulate(other.high, sign, rest)
        self._accumulate(other.low, sign, rest)
        for name, held in rest.items():
            held.add_to(self.high.values[name], self.low.values[name], sign)

    def before(self, other: RunningTotal | None = None) -> Callable[[], None]:
        """Undo function that restores every bit of now after :meth:`join` of ``other``, or after any change for None.

        Of sparse values only the entries that ``other`` changes are copied, because a copy of all topics and words
        takes longer than the sum.
        """
        sparse, high, low = dict(self.sparse), self.high, self.low
        few_of = {} if other is None else other.sparse
        rest = {name: held.place for name, held in few_of.items() if name not in sparse}
        kept = [(part, _without(part, rest).scale(1.0)) for part in (high, low)]
        few = [(part.values[name].reshape(-1), at) for part in (high, low) for name, at in rest.items()]
        old = [values[at] for values, at in few]

        def undo() -> None:
            for (values, at), numbers in zip(few, old, strict=True):
                values[at] = numbers
            self.high, self.low = (
                replace(part, values={**part.values, **own.values}, pair_values=own.pair_values, links=own.links)
                for part, own in kept
            )
            self.sparse = sparse

        return undo

    def apply(self, edits: Iterable[Edit], parts: Mapping[str, RunningTotal] | None = None) -> None:
        """Change clusters in the total; ``parts`` are the totals of trials.

        Sums of united clusters, and sums that fade, keep all their digits.  A batch's sums change in the same way
        before they leave the total (:func:`edited`): what the batch rounded otherwise than the total would stay in it
        for ever, and may be all that is left of a cluster whose atoms go, or whose sums cancel.
        """
        if self.sparse:
            raise SummaryError("a difference is not edited: bring the total up to date")
        todo = list(edits)
        names = by_rows(todo, self.high, {name: part.high for name, part in (parts or {}).items()})
        high: Mapping[str, Summary] = {name: in_rows(part.high, names) for name, part in (parts or {}).items()}
        low: Mapping[str, Summary] = {name: in_rows(part.low, names) for name, part in (parts or {}).items()}
        first, rest = in_rows(self.high, names), in_rows(self.low, names)
        for edit in todo:
            lost = _lost_digits(first, edit)
            first, rest = edit.apply(first, high), edit.apply(rest, low)
            for name, (at, digits) in lost.items():
                rest.values[name][at] = rest[name][at] + digits
            high, low = follow(high, edit), follow(low, edit)
        self.high = _contiguous(from_rows(first, self.high, names))
        self.low = _contiguous(from_rows(rest, self.low, names))

    def track(self, pairs: np.ndarray) -> None:
        """Start to track pairs: summaries added from now on must have them, subtracted summaries need not."""
        self.high, self.low = self.high.with_pairs(pairs), self.low.with_pairs(pairs)

    def copy(self) -> RunningTotal:
        """An independent total of the same value."""
        return RunningTotal(self.high, self.low, self.sparse)

    def _accumulate(self, summary: Summary, sign: float, besides: Mapping[str, SparseSum] | None = None) -> None:
        """Add or subtract a summary; ``besides`` names values that it lacks, which stay unchanged."""
        lacking = besides or {}
        _without(self.high, lacking)._require_aligned(summary)
        for mine, rest, new in (
            (self.high.values, self.low.values, summary.values),
            (self.high.pair_values, self.low.pair_values, summary.pair_values),
        ):
            for name, total in mine.items():
                if name in lacking:
                    continue
                if mine is self.high.pair_values and not self.high.n_pairs:
                    continue
                two_sum_into(total, rest[name], np.ascontiguousarray(new[name], np.float64), sign)
        if summary.links is not None:  # links last one lap only, so that their rounding error does not grow
            links = combine_links(self.high.links, summary.links, sign)
            self.high, self.low = replace(self.high, links=links), replace(self.low, links=links and links.zeros())


def difference(new: Summary, old: Summary | RunningTotal | None = None) -> RunningTotal:
    """``new - old`` with all digits; mostly zero counts of words by topic are held separately.

    The bits do not depend on how ``old`` is stored.
    """
    names = [n for n, f in new.fields.items() if f.dims == WORDS and is_mostly_zero(new[n], FEW)]
    out = RunningTotal(_without(new, names), None, {name: SparseSum.of(new[name]) for name in names})
    if isinstance(old, Summary):
        out.sparse = {name: held.plus(SparseSum.of(old[name]), -1.0) for name, held in out.sparse.items()}
        out.subtract(_without(old, names))
    elif old is not None:
        out.subtract(old)
    return out


def edited(summary: Summary, edits: Sequence[Edit], parts: Mapping[str, Summary] = NO_PARTS) -> Summary | RunningTotal:
    """A stored summary brought up to date, to leave a total: with all digits, if its sums were changed since.

    ``parts`` are the statistics of some clusters under each trial, by the name of the trial.
    """
    if not any(isinstance(edit, Merge | Unite | Fade) for edit in edits):
        return replay(summary, edits, parts)
    out = RunningTotal(summary)
    out.apply(edits, {name: _total_of(part) for name, part in parts.items()})
    return out


def _total_of(part: Summary) -> RunningTotal:
    """Statistics of a trial as a total, with links in both of its parts."""
    return RunningTotal(part, replace(part.zeros(), links=part.links and part.links.zeros()))


def _lost_digits(summary: Summary, edit: Edit) -> dict[str, tuple[Any, np.ndarray]]:
    """Place in the result, and size, of what an edit rounds away, by field."""
    if isinstance(edit, Fade):
        return {name: (..., product_rest(v, edit.factor) + v * edit.rest) for name, v in summary.values.items()}
    if not isinstance(edit, Merge | Unite):
        return {}
    a, b = summary.position(edit.keep), summary.position(edit.drop)
    sums = {name: f.n_cluster_axes for name, f in summary.fields.items() if f.merge == "sum" and f.n_cluster_axes}
    return {name: lost_digits(summary[name], a, b, n_axes) for name, n_axes in sums.items()}


def with_pairs(own: Summary | RunningTotal, pairs: np.ndarray) -> Summary | RunningTotal:
    """Statistics that track these pairs: their own values if they tracked the same, else zeros."""
    if isinstance(own, Summary):
        return own if np.array_equal(own.pairs, pairs) else own.with_pairs(pairs)
    if np.array_equal(own.high.pairs, pairs):
        return own
    return RunningTotal(own.high.with_pairs(pairs), own.low.with_pairs(pairs), own.sparse)


def _without(summary: Summary, names: Iterable[str]) -> Summary:
    gone = set(names)
    if not gone:
        return summary
    fields = {name: declared for name, declared in summary.fields.items() if name not in gone}
    values = {name: value for name, value in summary.values.items() if name not in gone}
    return replace(summary, fields=fields, values=values)


def _with_values(summary: Summary, values: Mapping[str, np.ndarray]) -> Summary:
    fields = {**summary.fields, **dict.fromkeys(values, Field(WORDS))}
    return replace(summary, fields=fields, values={**summary.values, **values})


def _contiguous(summary: Summary) -> Summary:
    """Summary in C-contiguous float64 arrays, which can be updated in place through a flat view."""
    values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.values.items()}
    pair_values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.pair_values.items()}
    return replace(summary, values=values, pair_values=pair_values)


# -- states of groups at their last visit -------------------------------------------------------------------------
# They only start the next visit; no statistic depends on them.
SMALL = 2.0**-100
"""Least count in float32, which avoids denormal numbers: above zero, and negligible beside one token."""


@dataclass(frozen=True, eq=False)
class GroupStates:
    """Counts N_dk > 0 of G groups.

    Parameters
    ----------
    offsets
        Start of each group in the other two arrays, ``(G + 1,)`` int64.
    cluster
        Cluster ids, ``(S,)`` int64, or positions where documented; -1 for a deleted cluster.
    count
        Tokens of the group that belong to the cluster, ``(S,)`` float32 or float64.
    """

    offsets: np.ndarray
    cluster: np.ndarray
    count: np.ndarray

    @property
    def n_groups(self) -> int:
        """Number of groups G."""
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.offsets.nbytes + self.cluster.nbytes + self.count.nbytes

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Compact named arrays: offsets become lengths of groups."""
        lengths = np.diff(self.offsets).astype(np.int32)
        return {"lengths": lengths, "cluster": _narrow(self.cluster), "count": self.count}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> GroupStates:
        """Inverse of :meth:`to_arrays`."""
        offsets = np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)]).astype(np.int64)
        return GroupStates(offsets, arrays["cluster"].astype(np.int64), np.asarray(arrays["count"]))

    # -- verbs ------------------------------------------------------------------------------------------------
    def groups(self, start: int, stop: int) -> GroupStates:
        """States of the groups ``start:stop``."""
        span = slice(int(self.offsets[start]), int(self.offsets[stop]))
        return GroupStates(self.offsets[start : stop + 1] - self.offsets[start], self.cluster[span], self.count[span])

    def named(self, ids: np.ndarray) -> GroupStates:
        """Replace positions by the cluster ids ``(K,)`` at these positions."""
        count = np.maximum(self.count, SMALL) if self.count.dtype == np.float32 else self.count
        return replace(self, cluster=np.asarray(ids, np.int64)[self.cluster], count=count)

    def placed(self, ids: np.ndarray) -> GroupStates:
        """Replace cluster ids by their positions in ``ids (K,)``, or -1 if absent."""
        if len(ids) == 0:
            return replace(self, cluster=np.full(len(self.cluster), -1))
        order = np.argsort(ids, kind="stable")
        place = np.minimum(np.searchsorted(ids, self.cluster, sorter=order), len(ids) - 1)
        found = order[place]
        return replace(self, cluster=np.where(np.asarray(ids)[found] == self.cluster, found, -1).astype(np.int64))

    def merge(self, keep: int, drop: int) -> GroupStates:
        """Cluster ``keep`` absorbs ``drop`` in every group."""
        return replace(self, cluster=np.where(self.cluster == drop, keep, self.cluster))._united()

    def exchange(self, donors: tuple[int, ...], part: GroupStates) -> GroupStates:
        """Replace counts of the clusters ``donors`` by the counts in ``part``, of the same groups."""
        if part.n_groups != self.n_groups:
            raise SummaryError(f"states of {part.n_groups} groups cannot be exchanged with states of {self.n_groups}")
        stay = ~np.isin(self.cluster, np.array(donors, np.int64))
        group = np.concatenate([self._owner()[stay], part._owner()])
        cluster = np.concatenate([self.cluster[stay], part.cluster])
        count = np.concatenate([self.count[stay], part.count])
        return _sorted(group, cluster, count, self.n_groups)

    def _united(self) -> GroupStates:
        """States with repeated counts of one cluster in one group added up."""
        done = _sorted(self._owner(), self.cluster, self.count, self.n_groups)
        group = done._owner()
        first = np.ones(len(group), np.bool_)
        first[1:] = (np.diff(group) != 0) | (np.diff(done.cluster) != 0)
        if first.all():
            return done
        count = np.add.reduceat(done.count, np.flatnonzero(first))
        return _sorted(group[first], done.cluster[first], count, self.n_groups)

    def _owner(self) -> np.ndarray:
        return np.repeat(np.arange(self.n_groups), np.diff(self.offsets))


def _sorted(group: np.ndarray, cluster: np.ndarray, count: np.ndarray, n_groups: int) -> GroupStates:
    order = np.lexsort((cluster, group))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=n_groups))]).astype(np.int64)
    return GroupStates(offsets, cluster[order], count[order])


def _narrow(cluster: np.ndarray) -> np.ndarray:
    small = len(cluster) == 0 or (cluster.max() < 2**31 and cluster.min() >= -(2**31))
    return cluster.astype(np.int32) if small else cluster


def concatenate_states(parts: list[GroupStates]) -> GroupStates:
    """Concatenated states of several runs of groups."""
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return GroupStates(offsets, np.concatenate([p.cluster for p in parts]), np.concatenate([p.count for p in parts]))


def replay_states(states: GroupStates, edits: Iterable[Edit], parts: Mapping[str, GroupStates]) -> GroupStates:
    """Bring states up to date with recorded changes of clusters; ``parts`` are states from trials, by trial name.

    Clusters that are only reordered, inserted or deleted need no change: ids stay, and the next visit ignores counts
    of deleted clusters.
    """
    for edit in edits:
        if isinstance(edit, Merge):
            states = states.merge(edit.keep, edit.drop)
        elif isinstance(edit, Exchange) and edit.trial in parts:
            states = states.exchange(edit.donors, parts[edit.trial])
    return states
