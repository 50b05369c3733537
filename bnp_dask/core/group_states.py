"""States of groups (documents) at their last visit: sparse counts, kept beside a batch's summary.

They only start the next visit: no statistic depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.edits import Edit, Exchange, Merge
from bnp_dask.errors import SummaryError

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
