"""The right number of clusters from any start, on the toy data sets of the thesis."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.execute import one_blas_thread
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.model import Model
from bnp_dask.moves import Delete, Merge
from bnp_dask.moves.pairs import all_pairs
from bnp_dask.observation import DiagGaussian
from tests.moves import toys
from tests.moves.parts import prepare, start_random


def assert_solved(toy, n_clusters, seed, laps=60):
    with one_blas_thread():
        run = toys.solve(toy, n_clusters, seed, laps)
    assert run.n_clusters == toy.n_true == run.found, f"seed {seed}: {run.why}"
    elbo = np.array([row["elbo"] for row in run.rows if row["exact"]])
    assert np.diff(elbo).min() >= -1e-11 * np.abs(elbo).max()


@pytest.mark.first_case
@pytest.mark.parametrize("n_clusters", [1, 40])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_bars(n_clusters, seed):
    assert_solved(toys.bars(seed=seed), n_clusters, seed)


@pytest.mark.long
@pytest.mark.parametrize("n_clusters", [1, 25])
def test_edges_small(n_clusters):
    assert_solved(toys.edges(20_000, 20), n_clusters, 0)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n_clusters", [1, 40])
def test_bars_ten_seeds(n_clusters):
    for seed in range(10):
        assert_solved(toys.bars(seed=seed), n_clusters, seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("n_clusters", [1, 25])
def test_edges_ten_seeds(n_clusters):
    for seed in range(10):
        assert_solved(toys.edges(seed=seed), n_clusters, seed)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_letters_ten_seeds():
    with one_blas_thread():
        found = [toys.solve(toys.letters(seed=seed), 1, seed).found for seed in range(10)]
    assert sum(n == 26 for n in found) >= 9, found


# -- thesis 4.4.1 ---------------------------------------------------------------------------------------------
def one_gaussian(seed, moves, n_batches=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(25_000, 1))
    batches = [Batch(part, name=f"toy batch {b}") for b, part in enumerate(np.array_split(x, n_batches))]
    model = Model(DPMixture(10.0), DiagGaussian(nu=3.0, beta=1.0, m=0.0, kappa=0.1))
    work = prepare(model, batches, seed, moves)
    # five pieces of the line, as a k-means start gives them
    state = start_random(work, 5, seed)
    edges = np.quantile(x, [0.2, 0.4, 0.6, 0.8])
    total = work.model.empty_summary(np.arange(5))
    for batch in batches:
        total = total + work.model.summarize(np.arange(5), batch, np.eye(5)[np.searchsorted(edges, batch.x[:, 0])])
    return work, type(state).start(work.model, total, n_batches)


@pytest.mark.first_case
@pytest.mark.parametrize(("schedule", "seed"), [(Memoized(70, window=2), 0), (FullBatch(70), 1)])
def test_deletes_find_the_one_gaussian_where_merges_are_stuck(schedule, seed):
    work, state = one_gaussian(seed, (Merge(),))
    for _ in schedule.run(work, state):
        pass
    stuck = state.elbo
    assert state.posterior.n_clusters > 1
    work, state = one_gaussian(seed, (Merge(), Delete()))
    for _ in schedule.run(work, state):
        pass
    assert state.posterior.n_clusters == 1
    assert state.elbo > stuck


# -- thesis 4.4.2 ---------------------------------------------------------------------------------------------
def greedy_merge(model, batch, summary):
    """Merge pairs while the objective of this batch alone rises, as GreedyMerge does; clusters left."""
    while True:
        current = sum(model.elbo(model.global_step(summary), summary).values())
        posterior = model.global_step(summary)
        summary = model.local_step(posterior, batch, all_pairs(posterior.ids))
        current = sum(model.elbo(model.global_step(summary), summary).values())
        found = None
        for a, b in summary.pairs.tolist():
            merged = summary.merge(a, b)
            value = sum(model.elbo(model.global_step(merged), merged).values())
            if value > current:
                found, current = merged, value
        if found is None:
            return summary.n_clusters
        summary = found.without_pairs()


@pytest.mark.long
def test_merges_decided_on_one_batch_destroy_what_whole_data_keep():
    toy = toys.edges(20_000, 100)
    with one_blas_thread():
        run = toys.solve(toy, 1, 0)
        assert run.n_clusters == 8, run.why
        model, batch = run.work.model, toy.batches[0]
        own = model.local_step(run.state.posterior, batch)
        assert greedy_merge(model, batch, own) < 8
        # from the same state, merges that look at all data keep every cluster
        keep = toys.solve(toy, 1, 0, moves=(Merge(),), start=run.state)
        assert keep.n_clusters == 8
        assert keep.proposed == 0 or keep.accepted == 0
