"""How statistics are laid out by cluster: declarations of fields, and links of some clusters with all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core.registry import register
from bnp_dask.errors import SummaryError

CLUSTER = "cluster"

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
    """Sum or difference; None stands for no atoms."""
    if a is None or b is None:
        return a if b is None else b.mapped(lambda x, _: sign * x, None)
    return a.mapped(lambda x, y: x + sign * y, b)


# -- arrays with cluster axes -----------------------------------------------------------------------------------
def grow(value: np.ndarray, count: int, n_axes: int) -> np.ndarray:
    """A copy with ``count`` zeros appended to each of the leading ``n_axes``."""
    out = np.zeros([size + count * (axis < n_axes) for axis, size in enumerate(value.shape)])
    out[tuple(slice(size) for size in value.shape)] = value
    return out


def select(value: np.ndarray, index: np.ndarray, n_axes: int) -> np.ndarray:
    """A copy with the positions ``index`` of each of the leading ``n_axes``."""
    return value[np.ix_(*[index] * n_axes)] if n_axes else value.copy()


def absorb(value: np.ndarray, a: int, b: int, n_axes: int) -> np.ndarray:
    """Add position ``b`` to ``a`` along each of the leading ``n_axes`` and delete ``b``; makes one copy."""
    if n_axes == 0:
        return value.copy()
    out = select(value, np.delete(np.arange(len(value)), b), n_axes)
    for at, more in _absorbed(value, a, b, n_axes):
        out[at] += more
    return out


def lost_digits(value: np.ndarray, a: int, b: int, n_axes: int) -> np.ndarray:
    """Rounding of :func:`absorb`, in the shape of its result: the two add up to the exact sums (Knuth's TwoSum)."""
    out = select(value, np.delete(np.arange(len(value)), b), n_axes)
    lost = np.zeros_like(out)
    for at, more in _absorbed(value, a, b, n_axes):
        before = out[at].copy()
        out[at] += more
        part = out[at] - before
        lost[at] += (before - (out[at] - part)) + (more - part)
    return lost


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
