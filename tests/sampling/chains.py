"""Chains of a few atoms in memory, and how far their partitions are from enumeration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import chisquare

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader
from bnp_dask.inference.chains import Chain
from bnp_dask.inference.sampling.chain import add_batch, begin_sweep, draw_clusters, end_sweep, first_chain, others
from bnp_dask.inference.sampling.split_merge import Asked, clusters_of, decide, follow, lead, relabelled
from bnp_dask.inference.sampling.sweep import Others, assign, seat_again
from bnp_dask.inference.sampling.visit import Assigned, Labels, pins_of, positions
from bnp_dask.inference.sides import statistics
from bnp_dask.inference.visit import Request
from bnp_dask.model import Model
from tests.streaming.oracle import Oracle, Partition

NO_ROWS = np.zeros(0, np.int64)


def canonical(labels: np.ndarray) -> Partition:
    """A partition with clusters numbered in the order of their first atoms."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(label), len(names)) for label in labels)


@dataclass
class Few:
    """A chain over some batches in memory, with the labels of their atoms."""

    model: Model
    batches: list[Batch]
    chain: Chain
    labels: list[Labels | None]

    @classmethod
    def of(cls, model: Model, batches: list[Batch], n_clusters: int = 1) -> Few:
        """One that no sweep has moved."""
        chain = first_chain(model, model.empty_summary(np.arange(n_clusters)))
        return cls(model, batches, chain, [None] * len(batches))

    def place(self, partition: Partition, lap: int) -> None:
        """Give the atoms their clusters before lap ``lap``."""
        ids, labels = np.arange(max(partition) + 1), np.array(partition)
        self.chain = Chain(self.model.empty_summary(ids), None, len(ids))
        begin_sweep(self.model, self.chain, self.chain.total.ids, 0)
        known, start = Others(0, lap - 1, self.chain.total, len(ids)), 0
        for i, batch in enumerate(self.batches):
            own = labels[start : start + batch.n_atoms]
            found = statistics(self.model, ids, batch, own)
            self._take(i, Assigned(found, pins_of(known, request(i), own, len(ids)), Labels.of(ids, own)))
            start += batch.n_atoms
        end_sweep(self.model, self.chain)

    def lap(self, lap: int, seated: int | None) -> None:
        """A sweep of all batches but ``seated``, whose atoms are seated again; of all for None."""
        drawn = draw_clusters(self.model, self.chain, 0, lap, 0, 8)
        begin_sweep(self.model, self.chain, self.chain.total.ids, 0)
        for i, batch in enumerate(self.batches):
            if i != seated:
                self._take(i, assign(self.model, drawn, batch, request(i), self.labels[i]))
        if seated is not None:
            known = others(self.chain, 0, lap, drawn)
            self._take(
                seated, seat_again(self.model, known, self.batches[seated], request(seated), self.labels[seated])
            )
        end_sweep(self.model, self.chain)

    def round(self, lap: int, leading: int) -> np.ndarray:
        """Splits and unions of the clusters that there are, which a batch leads; clusters of all rows, as noted."""
        ends = np.cumsum([batch.n_atoms for batch in self.batches])
        rows = {i: np.arange(end - batch.n_atoms, end) for i, (batch, end) in enumerate(zip(self.batches, ends))}
        begin_sweep(self.model, self.chain, self.chain.total.ids, ends[-1])
        ids, own = self.chain.total.ids, (Asked(0, lap),)
        noted = [np.arange(batch.n_atoms) for batch in self.batches]
        for i, batch in enumerate(self.batches):
            places = positions(ids, self.labels[i].ids)
            found = statistics(self.model, ids, batch, places)
            found = Assigned(found, pins_of(own[0], request(i), places, len(ids)), self.labels[i])
            add_batch(self.chain, found, rows[i], self.labels[i].ids)
        given = [
            (request(i, partial(lambda batch: batch, batch)), noted[i], (self.labels[i],))
            for i, batch in enumerate(self.batches)
        ]
        leader = (Asked(0, lap, clusters_of(self.chain)),)
        proposals, first = lead(self.model, leader, *given[leading])[0]
        asked, found = (Asked(0, lap, proposals=proposals),), {leading: first}
        for i in range(len(self.batches)):
            if i != leading:
                found[i] = follow(self.model, asked, *given[i])[0]
        accepted = decide(self.model, self.chain, asked[0], found, rows, 0)
        self.labels = [relabelled(labels, accepted, found[i]) for i, labels in enumerate(self.labels)]
        return end_sweep(self.model, self.chain)

    def _take(self, i: int, found: Assigned) -> None:
        add_batch(self.chain, found, NO_ROWS, NO_ROWS)
        self.labels[i] = found.labels

    @property
    def partition(self) -> Partition:
        """Clusters of all atoms."""
        return canonical(np.concatenate([own.ids for own in self.labels]))


def request(batch: int, reader: Reader | None = None) -> Request:
    """The request for a batch, in memory unless it has a reader."""
    return Request(batch, "few", reader)


def visited(model: Model, batches: list[Batch], n_sweeps: int, n_clusters: int = 1) -> Counter[Partition]:
    """How often a chain visits each partition; the atoms lie in some batches."""
    few, found = Few.of(model, batches, n_clusters), Counter()
    for lap in range(n_sweeps):
        seated = lap % len(batches) if few.chain.pins is not None else None
        few.lap(lap, seated)
        found[few.partition] += 1
    return found


def left_by_one_lap(
    exact: dict[Partition, float], model: Model, batches: list[Batch], laps: int, seated: int | None
) -> Counter[Partition]:
    """Where one lap leads from draws of the exact posterior."""
    rng, few, found = np.random.default_rng(1), Few.of(model, batches), Counter()
    known, chance = list(exact), np.array(list(exact.values()))
    for lap, start in enumerate(rng.choice(len(known), laps, p=chance / chance.sum()), 1):
        few.place(known[start], lap)
        few.lap(lap, seated)
        found[few.partition] += 1
    return found


def left_by_rounds(
    exact: dict[Partition, float], model: Model, batches: list[Batch], rounds: int
) -> tuple[Counter[Partition], int]:
    """Where rounds of splits and unions lead from states spread as the exact posterior is; how many moved."""
    few, found, moved = Few.of(model, batches), Counter(), 0
    known, chance = list(exact), np.cumsum(list(exact.values()))
    for lap, start in enumerate(np.searchsorted(chance, (np.arange(rounds) + 0.5) / rounds * chance[-1]), 1):
        few.place(known[start], lap)
        few.round(lap, lap % len(batches))
        found[few.partition] += 1
        moved += few.partition != known[start]
    return found, moved


def left_by_laps_and_rounds(
    exact: dict[Partition, float], model: Model, batches: list[Batch], times: int
) -> Counter[Partition]:
    """Where a lap that a round ends leads from states spread as the exact posterior is."""
    few, found, known, chance = Few.of(model, batches), Counter(), list(exact), np.cumsum(list(exact.values()))
    for turn, start in enumerate(np.searchsorted(chance, (np.arange(times) + 0.5) / times * chance[-1]), 1):
        few.place(known[start], 2 * turn)
        few.lap(2 * turn, turn % len(batches))
        few.round(2 * turn + 1, turn // len(batches) % len(batches))
        found[few.partition] += 1
    return found


def surprise(found: Counter[Partition], exact: dict[Partition, float], least: float = 10.0) -> float:
    """Probability of a larger chi-squared statistic, for independent draws; partitions expected less often are one."""
    total = sum(found.values())
    expected = {p: total * probability for p, probability in exact.items()}
    some = [p for p, e in expected.items() if e >= least]
    seen, due = [float(found[p]) for p in some], [expected[p] for p in some]
    rest = total - sum(due)
    if rest >= least:
        seen, due = [*seen, total - sum(seen)], [*due, rest]
    scale = sum(seen) / sum(due)
    return float(chisquare(seen, np.array(due) * scale).pvalue)


def halves(batch: Batch) -> list[Batch]:
    """Two batches of one."""
    middle = batch.n_atoms // 2
    return [batch.rows(0, middle), batch.rows(middle, batch.n_atoms)]


def variation(found: Counter[Partition], exact: dict[Partition, float]) -> float:
    """Total variation between how often partitions were found and their probabilities."""
    total = sum(found.values())
    return 0.5 * sum(abs(found[p] / total - probability) for p, probability in exact.items())


def distance(model: Model, batch: Batch, n_sweeps: int, n_clusters: int | None = None) -> float:
    """Total variation between the partitions of a chain and their exact posterior."""
    exact = Oracle(model, batch, n_clusters).posterior
    return variation(visited(model, halves(batch), n_sweeps, 1 if n_clusters is None else n_clusters), exact)
