"""Expectation propagation: each atom leaves the total alone and is seated given all others."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming import task
from bnp_dask.inference.streaming.task import seat_batch, site_summary
from bnp_dask.kernels.mixture import RaggedResp
from bnp_dask.kernels.predictive.urns import give_up, note_left, note_seated
from tests.stopping import AfterSteps
from tests.streaming.cases import LIKELIHOODS, case
from tests.streaming.oracle import Oracle
from tests.streaming.test_runs import bits, blobs

PRIORS = [bnp.DPMixture(1.0), bnp.NGGPMixture(1.0, 0.5, 1.0)]

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def visits(model, batch, n, epsilon=0.01):
    """Responsibilities and statistics after ``n`` visits of one batch."""
    held, found = model.empty_summary(np.zeros(0, np.int64)), None
    for _ in range(n):
        found = seat_batch(model, held, batch, epsilon, None if found is None else found.resp)
        held = site_summary(model, np.arange(found.resp.n_clusters), batch, found.resp)
    return found.resp, held


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS, ids=["DP", "NGGP"])
def test_an_atom_that_leaves_and_comes_back_alone_is_seated_by_all_others(likelihood, prior):
    """Atom by atom from a cavity computed from scratch."""
    model, batch = case(likelihood, prior, 8)
    resp, _ = visits(model, batch, 1)
    dense = resp.to_dense()
    rest = dense.copy()
    rest[0] = 0.0
    cavity = site_summary(model, np.arange(dense.shape[1]), batch, ragged(rest))
    alone = seat_batch(model, cavity, batch.rows(0, 1), 0.01).resp.to_dense()[0]
    again = seat_batch(model, site_summary(model, np.arange(dense.shape[1]), batch, resp), batch, 0.01, resp)
    there = again.resp.to_dense()[0]
    assert_allclose(np.sort(there[there > 1e-9]), np.sort(alone[alone > 1e-9]), rtol=1e-6)


def ragged(dense):
    counts = (dense > 0.0).sum(axis=1)
    rows, index = np.nonzero(dense)
    return RaggedResp(np.concatenate([[0], np.cumsum(counts)]), index, dense[rows, index], dense.shape[1])


@pytest.mark.parametrize("likelihood", ["Gaussian", "Multinomial"])
@pytest.mark.parametrize("weighted", [False, True])
def test_compiled_loops_agree_with_log_predictive_at_later_visits(likelihood, weighted):
    model, batch = case(likelihood, bnp.NGGPMixture(1.0, 0.3, 2.0), 20)
    weights = np.random.default_rng(1).gamma(2.0, 0.5, 20) * (np.arange(20) % 7 > 0) if weighted else np.ones(20)
    batch = Batch(batch.x, weights if weighted else None, "b")
    resp, held = visits(model, batch, 1)
    fast = seat_batch(model, held, batch, 0.01, resp)
    slow = task._seat_any(model, held, batch, weights, 0.01, resp)
    assert_allclose(fast.log_predictive, slow.log_predictive, rtol=1e-9)
    assert_allclose(fast.resp.to_dense(), slow.resp.to_dense(), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_last_atom_of_a_cluster_takes_every_digit_of_it_along(likelihood):
    """Whichever cluster it was: rounding left behind would seat later atoms."""
    model, batch = case(likelihood, bnp.DPMixture(1.0), 4)
    weights, resp = np.array([0.1, 0.7, 0.3, 0.3]), ragged(np.eye(4)[[0, 1, 2, 2]][:, :3])
    held = site_summary(model, np.arange(3), Batch(batch.x, weights, "b"), resp)
    absent = np.full(3, -30.0)
    for n in range(4):
        rest, left, vacant = task._left(model, held, absent, batch.rows(n, n + 1), weights[n], resp, n)
        assert vacant == (n if n < 2 else -1)
        own = int(resp.index[n])
        assert left[own] == 0.0 if n < 2 else left[own] > absent[own]
        for name in [name for name, value in held.values.items() if np.ndim(value)]:
            others = np.arange(3) != own
            assert_array_equal(rest[name][others], held[name][others])
            assert not rest[name][own].any() if n < 2 else (rest["N"][own] < held["N"][own])


def test_points_that_cannot_be_taken_out_are_left_out_of_tables_computed_anew(monkeypatch):
    """A point ten thousand deviations from the rest of its cluster, whose removal would leave no digits."""
    model, batch = case("Gaussian", bnp.DPMixture(1.0), 12)
    x = batch.x.copy()
    x[5] += 1e4
    batch, calls, run = Batch(x, None, "far"), [], task._after

    def counted(*args):
        calls.append(args)
        return run(*args)

    monkeypatch.setattr(task, "_after", counted)
    resp = ragged(np.ones((12, 1)))
    held = site_summary(model, np.arange(1), batch, resp)
    fast = seat_batch(model, held, batch, 0.01, resp)
    slow = task._seat_any(model, held, batch, np.ones(12), 0.01, resp)
    assert calls
    assert_allclose(fast.log_predictive, slow.log_predictive, rtol=1e-5)
    assert_allclose(fast.resp.to_dense(), slow.resp.to_dense(), atol=1e-4)


@pytest.mark.parametrize("kind", ["points", pytest.param("counts", marks=pytest.mark.long)])
def test_the_size_of_batches_changes_rounding_only(kind):
    x = blobs(120) if kind == "points" else sparse.csr_array(np.random.default_rng(0).poisson(1.0, (110, 12)) + 0.0)
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian() if kind == "points" else bnp.Multinomial(0.5))
    schedule = bnp.ExpectationPropagation(laps=4, window=1, merge=None, count_tolerance=0.0)
    found = [bnp.train(model, x, schedule=schedule, batch_size=size) for size in (1, 10, 100)]
    last, gains = found[0].history[-1]["elbo"], []
    for other in found[1:]:
        assert_allclose(other.posterior.summary["N"], found[0].posterior.summary["N"], rtol=1e-6)
        assert_allclose(other.history[-1]["elbo"], last, rtol=1e-8)
        first = next(row["elbo"] for row in reversed(other.history) if row["lap"] == other.history[0]["lap"])
        gains.append(abs(last - other.history[-1]["elbo"]) / abs(last - first))
    assert max(gains) < 0.005  # over what the later laps gain on the first, which is the filter


@pytest.mark.parametrize("share", [1e-4, 2e-3])
def test_poor_clusters_stay_closed_in_tables_computed_anew(share):
    """A cluster is closed with the first atom if all others hold less than epsilon of it together, and not else."""
    model, batch = case("Gaussian", bnp.DPMixture(1.0), 12)
    x = batch.x.copy()
    x[5] += 1e4
    batch, resp = Batch(x, None, "far"), ragged(np.tile([1.0 - share, share], (12, 1)))
    held = site_summary(model, np.arange(2), batch, resp)
    found = seat_batch(model, held, batch, 0.01, resp).resp.to_dense()
    slow = task._seat_any(model, held, batch, np.ones(12), 0.01, resp).resp.to_dense()
    assert found[5:, 1].any() == slow[5:, 1].any() == (11 * share >= 0.01)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("prior", PRIORS, ids=["DP", "NGGP"])
def test_an_atom_of_weight_three_leaves_the_statistics_of_three(likelihood, prior):
    model, batch = case(likelihood, prior, 6)
    rng = np.random.default_rng(2)
    dense, times = rng.dirichlet(np.ones(3), 6), np.array([1, 3, 2, 1, 1, 3])
    heavy = site_summary(model, np.arange(3), Batch(batch.x, times.astype(float), "b"), ragged(dense))
    copies = np.repeat(np.arange(6), times)
    light = site_summary(model, np.arange(3), batch.take(copies), ragged(dense[copies]))
    for name, value in light.values.items():
        assert_allclose(heavy[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


def algorithm_2(model, batch, laps, epsilon):
    """Responsibilities by Alg. 2 as it is printed: each atom's cavity is summed anew from all others."""
    dense = np.zeros((batch.n_atoms, 0))
    for _ in range(laps):
        for i in range(batch.n_atoms):
            rest = dense.copy()
            rest[i] = 0.0
            cavity = site_summary(model, np.arange(dense.shape[1]), batch, ragged(rest))
            own = seat_batch(model, cavity, batch.rows(i, i + 1), epsilon).resp.to_dense()[0]
            dense = np.column_stack([dense, np.zeros((batch.n_atoms, len(own) - dense.shape[1]))])
            dense[i] = own
            dense = dense[:, dense.sum(axis=0) >= epsilon]
    return dense


def test_one_atom_per_batch_is_the_algorithm_as_printed():
    x = blobs(30)
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    schedule = bnp.ExpectationPropagation(laps=3, window=1, merge=None, epsilon=0.01, count_tolerance=0.0)
    result = bnp.train(model, x, schedule=schedule, batch_size=1)
    dense = algorithm_2(result.posterior.model, Batch(x), 3, 0.01)
    assert_allclose(np.sort(result.posterior.summary["N"]), np.sort(dense.sum(axis=0)), rtol=1e-6)


def test_a_cluster_that_only_one_atom_held_keeps_its_id():
    x = np.concatenate([blobs(50, k=1), [[90.0, 90.0, 90.0]]])
    model = bnp.Model(bnp.DPMixture(0.1), bnp.FixedVarianceGaussian(variance=1.0))
    schedule = bnp.ExpectationPropagation(laps=5, window=1, merge=None, epsilon=0.5, count_tolerance=0.0)
    result = bnp.train(model, x, schedule=schedule, batch_size=17)
    assert_array_equal(result.posterior.ids, [0, 1])
    assert_allclose(result.posterior.summary["N"], [50.0, 1.0], atol=1e-3)


@pytest.mark.first_case
@pytest.mark.parametrize("likelihood", ["Gaussian", "Multinomial"])
@pytest.mark.parametrize("prior", PRIORS, ids=["DP", "NGGP"])
def test_propagation_stays_near_enumeration(likelihood, prior):
    """Probabilities that two atoms are together; for so few atoms the filter alone is nearer (.03 for .06 to .09)."""
    errors = []
    for seed in range(4):
        model, batch = case(likelihood, prior, 6, seed)
        dense = visits(model, batch, 6)[0].to_dense()
        errors.append(np.abs(dense @ dense.T - Oracle(model, batch).together)[np.triu_indices(6, 1)].mean())
    assert np.mean(errors) < 0.12


def test_leaving_undoes_seating_and_poor_clusters_are_closed():
    counts, absent = np.array([3.0, 0.5]), np.array([-4.0, -0.7])
    before = counts.copy(), absent.copy()
    rise = note_seated(absent, 0, 2.0, 0.3)
    counts[0] += 0.6
    mass, fall, vacant = note_left(counts, absent, 0, 2.0, 0.3)
    assert not vacant
    assert_allclose([mass, fall], [0.6, rise], rtol=1e-12)
    assert_allclose([counts, absent], before, rtol=1e-12)
    assert note_left(counts, absent, 1, 1.0, 0.5)[2]
    assert_allclose(counts, [3.0, 0.0])
    assert give_up(counts, absent, 2, 4.0)[0] == 3.0
    assert_allclose(counts, 0.0)


def test_stopped_in_a_later_lap_and_resumed_is_the_uninterrupted_run(tmp_path):
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    schedule = bnp.ExpectationPropagation(laps=3, window=2, merge=None, count_tolerance=0.0)
    whole = bnp.train(model, blobs(), schedule=schedule, batch_size=100)
    store = tmp_path / "run"
    bnp.train(model, blobs(), schedule=schedule, batch_size=100, store=store, callbacks=[AfterSteps(7)])
    rest = bnp.train(model, blobs(), schedule=schedule, batch_size=100, store=store, resume=True)
    assert bits(rest) == bits(whole)
