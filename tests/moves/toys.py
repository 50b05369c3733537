"""Toy data sets of the thesis with known clusters, and runs on them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import Memoized, State, Work
from bnp_dask.initialize import BregmanKMeans, InitContext, RandomExamples
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import Move
from bnp_dask.observation import Multinomial, ZeroMeanGaussian
from bnp_dask.reproduce import data
from tests.batches import Batches
from tests.moves.parts import DictMemo


@dataclass(frozen=True, eq=False)
class Toy:
    """A data set: its batches, the model for it, the cluster that each atom came from ``(n,)`` and how many."""

    model: Model
    batches: list[Batch]
    labels: np.ndarray
    n_true: int


def letters(n: int = 50_000, n_batches: int = 50, seed: int = 0, noise: float = 0.05) -> Toy:
    """Thesis 3.6.1: patches that vary where a letter has ink; each letter is 95 % as frequent as the one before."""
    weights = 0.95 ** np.arange(26)
    return gaussian_toy(data.letter_covariances(noise), weights / weights.sum(), n, n_batches, seed)


def edges(n: int = 100_000, n_batches: int = 100, seed: int = 0, directions: int = 8, side: int = 5) -> Toy:
    """Thesis 4.4.2: patches of 5 x 5 with a strong edge in one of 8 directions; or other sizes of it."""
    covariances = data.edge_covariances(directions, side)
    return gaussian_toy(covariances, np.full(directions, 1 / directions), n, n_batches, seed)


def sticky(
    n_states: int = 15, d: int = 5, n: int = 20, length: int = 500, seed: int = 0, leave: float = 0.02
) -> list[np.ndarray]:
    """Sequences of unit Gaussians, the nearest of which lie 6 deviations apart or more; each step may leave its own."""
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    while len(means) < n_states:
        mean = rng.normal(0.0, 4.0, d)
        if all(np.linalg.norm(mean - other) > 6.0 for other in means):
            means.append(mean)
    sequences = []
    for _ in range(n):
        states = rng.integers(n_states, size=length)  # where a step goes that leaves
        last = np.maximum.accumulate(np.where(rng.random(length) < leave, np.arange(length), 0))
        sequences.append(np.array(means)[states[last]] + rng.normal(size=(length, d)))
    return sequences


def gaussian_toy(covariances: np.ndarray, weights: np.ndarray, n: int, n_batches: int, seed: int) -> Toy:
    """Atoms of zero-mean Gaussians."""
    x, labels = data.gaussian_atoms(covariances, weights, n, seed)
    batches = [Batch(part, name=f"toy batch {b}") for b, part in enumerate(np.array_split(x, n_batches))]
    return Toy(Model(DPMixture(5.0), ZeroMeanGaussian()), batches, labels, len(weights))


def bars(n: int = 1000, length: int = 100, n_batches: int = 10, seed: int = 0) -> Toy:
    """Toy bars: 30 x 30 words, 5 horizontal and 5 vertical bars 6 wide, one bar per document, 5 % of words anywhere."""
    x, labels = data.bar_documents(n, length, seed)
    batches = [
        Batch(sparse.csr_array(part), name=f"toy batch {b}")
        for b, part in enumerate(np.array_split(x.toarray(), n_batches))
    ]
    return Toy(Model(DPMixture(1.0), Multinomial()), batches, labels, 10)


@dataclass(frozen=True, eq=False)
class Solved:
    """How a run ended: clusters, how many true ones have a cluster of their own, laps, seconds, proposals."""

    n_clusters: int
    found: int
    laps: int
    seconds: float
    proposed: int
    accepted: int
    finished: str | None
    rows: list[dict]
    state: State
    work: Work

    @property
    def why(self) -> str:
        """For the message of an assertion."""
        return f"{self.n_clusters} clusters, {self.found} found, {self.laps} laps, {self.finished}"


def solve(
    toy: Toy,
    n_clusters: int,
    seed: int = 0,
    laps: int = 60,
    moves: tuple[Move, ...] | None = None,
    window: int = 8,
    start: State | None = None,
) -> Solved:
    """Train with all moves from ``n_clusters`` clusters or a state, and match what was found with what is true."""
    moves = (Birth(), Merge(), Delete()) if moves is None else moves
    source = Batches(toy.batches)
    survey = combine([survey_batch(b) for b in toy.batches])
    work = Work(toy.model.with_prior(survey), source, survey, SerialExecutor(), DictMemo(), seed, moves)
    init = RandomExamples(n_clusters) if n_clusters > 1 else BregmanKMeans(1)
    initial = (
        start.total.value()
        if start
        else init.start(InitContext(work.model, source, survey, work.executor, np.random.default_rng(seed)))
    )
    state = State.start(work.model, initial, source.n_batches)
    began, rows = time.perf_counter(), []
    for step in Memoized(laps=laps, window=window).run(work, state):
        rows.append(step.row)
    seconds = time.perf_counter() - began
    proposals = [m for row in rows for m in row["moves"]]
    accepted = sum(m["accepted"] for m in proposals)
    return Solved(
        state.posterior.n_clusters,
        own_clusters(toy, work, state),
        state.lap,
        seconds,
        len(proposals),
        accepted,
        state.finished,
        rows,
        state,
        work,
    )


def own_clusters(toy: Toy, work: Work, state: State) -> int:
    """How many true clusters have a cluster of their own: most of its atoms are theirs, most of theirs are its."""
    labels = [work.model.assign(state.posterior, t).resp.argmax(axis=1) for b in toy.batches
              for t in work.model.allocation.tiles(b, state.posterior.n_clusters)]  # fmt: skip
    table = np.zeros((toy.n_true, state.posterior.n_clusters))
    np.add.at(table, (toy.labels, np.concatenate(labels)), 1.0)
    true, own = linear_sum_assignment(-table)
    shared = table[true, own]
    return int(((shared > 0.5 * table.sum(axis=1)[true]) & (shared > 0.5 * table.sum(axis=0)[own])).sum())
