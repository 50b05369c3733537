"""Clusters opened by batches that were visited side by side: united or kept apart, by evidence, before they get ids."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import gammaln

from bnp_dask.allocation.base import StickAllocation
from bnp_dask.core.summary import Summary
from bnp_dask.inference.streaming.unite import rows
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.numeric.arithmetic import log
from bnp_dask.model import Model
from bnp_dask.moves.pairs import evidence_gains, matched_in_turn


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
