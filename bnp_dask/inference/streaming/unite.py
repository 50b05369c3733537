"""Whether two clusters are one: the evidence of their union against the evidence of both, from summaries.

Clusters opened by batches that were visited side by side are united or kept apart before they get ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation import StickAllocation
from bnp_dask.core import Summary
from bnp_dask.inference.streaming.task import urn_of
from bnp_dask.inputs import as_a
from bnp_dask.kernels import ABSENT, log
from bnp_dask.model import Model
from bnp_dask.moves import LAP, best_first, evidence_gains, matched_in_turn, near_pairs

PAIRS_BYTES = 2**25
"""Bytes of statistics of unions held at once."""


def union_gains(model: Model, a: Summary, b: Summary, total: Summary) -> np.ndarray:
    """Log odds that pairs of clusters are one cluster rather than two, ``(M,)`` nats.

    Both data and partition count: the evidence of all atoms in one cluster over the evidence of two, times the
    probability of the partition with the union over the probability without (exact if each atom belongs to one
    cluster).

    Parameters
    ----------
    a, b
        M clusters each, compared in order.
    total
        Statistics of all clusters.
    """
    urn = urn_of(model)
    if not a.n_clusters:
        return np.zeros(0)
    evidence = evidence_gains(model, a, b)
    n_a, n_b = np.maximum(a["N"], 1.0), np.maximum(b["N"], 1.0)
    absent = total[ABSENT] if ABSENT in total else np.where(total["N"] > 0.0, -np.inf, 0.0)
    return np.asarray(evidence + urn.log_unions(n_a, n_b, total["N"], absent))


def pair_gains(model: Model, a: Summary, b: Summary, total: Summary) -> np.ndarray:
    """:func:`union_gains` of each cluster of one summary with each of another, ``(J, K)`` nats."""
    first, second = np.divmod(np.arange(a.n_clusters * b.n_clusters), max(b.n_clusters, 1))
    return _gains(model, a, b, first, second, total).reshape(a.n_clusters, b.n_clusters)


def _gains(model: Model, a: Summary, b: Summary, first: np.ndarray, second: np.ndarray, total: Summary) -> np.ndarray:
    """Gains of unions of clusters of two summaries, at the positions ``first`` and ``second (M,)``."""
    size = max(1, PAIRS_BYTES // max(1, total.nbytes // max(1, total.n_clusters)))
    parts = [
        union_gains(model, rows(a, first[i : i + size]), rows(b, second[i : i + size]), total)
        for i in range(0, len(first), size)
    ]
    return np.concatenate([np.zeros(0), *parts])


def unions(model: Model, total: Summary, least: float, concerned: np.ndarray) -> list[tuple[int, int, float]]:
    """Pairs of clusters whose union gains more than ``least`` nats, best first, each cluster in one pair at most.

    Scored are all such pairs, or, if there are more than ``LAP.all_pairs`` squared, the near ones
    (:func:`bnp_dask.moves.pairs.near_pairs`).

    Parameters
    ----------
    total
        Statistics of all clusters.
    least
        Nats.
    concerned
        Ids of clusters, ``(J,)``; each pair must contain at least one of them.
    """
    bare, wanted = total.without_pairs(), np.isin(total.ids, concerned)
    first, second = _scored(model, bare, wanted)
    gain = _gains(model, bare, bare, first, second, bare)
    pairs = np.stack([total.ids[first], total.ids[second]], axis=1)
    chosen = best_first(pairs, gain, least)
    return [(int(pairs[m].min()), int(pairs[m].max()), float(gain[m])) for m in chosen]


def _scored(model: Model, bare: Summary, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of pairs that contain a ``wanted (K,)`` cluster, ``(M,)`` each, the smaller one first."""
    n, some = bare.n_clusters, np.flatnonzero(wanted)
    if n * len(some) > LAP.all_pairs**2:
        first, second = near_pairs(model, model.global_step(bare), bare)
        kept = wanted[first] | wanted[second]
        return first[kept], second[kept]
    one, other = np.repeat(some, n), np.tile(np.arange(n), len(some))
    apart = one != other
    pairs = np.unique(np.minimum(one, other)[apart] * n + np.maximum(one, other)[apart])
    first, second = np.divmod(pairs, max(n, 1))
    return first, second


GREW = 1.5
"""Factor by which a cluster must grow to be compared with all others again."""


def grown(before: Summary, total: Summary) -> np.ndarray:
    """Ids of the new clusters of a total, and of clusters that have grown by :data:`GREW`."""
    old = np.zeros(total.n_clusters)
    there = np.isin(total.ids, before.ids)
    old[there] = before["N"][before.positions(total.ids[there])]
    return total.ids[total["N"] > GREW * old]


def rows(summary: Summary, positions: np.ndarray) -> Summary:
    """Clusters of a summary at some positions, which may repeat, with new ids."""
    values = {
        name: value[positions] if summary.fields[name].n_cluster_axes else value
        for name, value in summary.values.items()
    }
    return replace(summary, ids=np.arange(len(positions)), values=values)


# -- clusters opened side by side -------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Opened:
    """Clusters that a batch opened: statistics of their atoms, and their counts (in topic models: tables), ``(J,)``."""

    summary: Summary
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.counts)


@dataclass
class Newborn:
    """Clusters that the batches of a group have opened so far, under their names."""

    names: list[int] = field(default_factory=list)
    held: Opened | None = None

    def names_for(self, model: Model, opened: Opened, next_id: int) -> list[int]:
        """Ids of the clusters that one more batch opened, new ones from ``next_id`` on.

        A cluster takes the name of its most probable match among the earlier ones, if the union is more probable than
        two clusters; clusters of one batch stay apart.
        """
        known = 0 if self.held is None else len(self.names)
        places = matched_in_turn(len(opened), known, lambda j, free: self._gains(model, np.array(free), opened, j))
        out: list[int] = []
        for place in places:
            if place < 0:
                self.names.append(next_id)
                next_id += 1
            out.append(self.names[place])  # the last one if it is new
        self._add(out, opened)
        return out

    def _gains(self, model: Model, places: np.ndarray, opened: Opened, j: int) -> np.ndarray:
        """Log odds that a cluster and each of some earlier ones are one cluster rather than two, ``(M,)`` nats."""
        assert self.held is not None
        evidence = evidence_gains(model, rows(self.held.summary, places), rows(opened.summary, np.full(len(places), j)))
        a, b = np.maximum(self.held.counts[places], 1.0), max(float(opened.counts[j]), 1.0)
        price = float(log(as_a(model.allocation, StickAllocation).gamma))
        return np.asarray(evidence + gammaln(a + b) - gammaln(a) - gammaln(b) - price)

    def _add(self, names: list[int], opened: Opened) -> None:
        """Add the atoms of clusters that now have names."""
        ids = np.array(self.names, np.int64)
        mine = replace(opened.summary, ids=np.array(names, np.int64))
        mine = mine.insert_empty(ids[~np.isin(ids, mine.ids)]).take(ids)
        counts = np.zeros(len(ids))
        counts[[self.names.index(name) for name in names]] = opened.counts
        if self.held is None:
            self.held = Opened(mine, counts)
            return
        before = self.held.summary.insert_empty(ids[self.held.summary.n_clusters :])
        older = np.concatenate([self.held.counts, np.zeros(len(ids) - len(self.held))])
        self.held = Opened(before + mine, older + counts)
