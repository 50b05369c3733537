"""Whole runs of filters and expectation propagation: bits, resuming, and everything that uses a result."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.streaming import task
from bnp_dask.inference.streaming.task import seat_batch, site_summary
from tests.faults.parts import Faulty, atoms
from tests.pairwise import in_pairs
from tests.stopping import AfterSteps
from tests.streaming.cases import case

EP = bnp.ExpectationPropagation(laps=3, window=3, count_tolerance=0.0)
SCHEDULES = {"filter": bnp.Filter(), "filter that unites": bnp.Filter(merge=3.0), "propagation": EP}

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def blobs(n=900, d=3, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return 8.0 * np.eye(k, d)[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def go(schedule, data=None, allocation=None, **more):
    model = bnp.Model(allocation or bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    return bnp.train(model, blobs() if data is None else data, schedule=schedule, batch_size=100, **more)


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    return rows, {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}


# -- the same numbers whatever computes them ------------------------------------------------------------------------
@pytest.mark.parametrize(*in_pairs(start=[0, 12], weighted=[False, True], likelihood=["Gaussian", "Multinomial"]))
def test_compiled_loops_agree_with_log_predictive(likelihood, weighted, start):
    prior = bnp.NGGPMixture(1.0, 0.3, 2.0)
    model, batch = case(likelihood, prior, 20)
    weights = np.random.default_rng(1).gamma(2.0, 0.5, 20) * (np.arange(20) % 7 > 0) if weighted else np.ones(20)
    first, rest = batch.rows(0, start), batch.rows(start, 20)
    held = model.empty_summary(np.zeros(0, np.int64))
    if start:
        found = seat_batch(model, held, first, 0.01)
        held = site_summary(model, np.arange(found.resp.n_clusters), first, found.resp)
    rest = Batch(rest.x, weights[start:] if weighted else None, "rest")
    fast = seat_batch(model, held, rest, 0.01)
    slow = task._seat_any(model, held, rest, weights[start:], 0.01)
    assert_allclose(fast.log_predictive, slow.log_predictive, rtol=1e-10)
    assert_allclose(fast.resp.to_dense(), slow.resp.to_dense(), rtol=1e-7, atol=1e-12)


def test_loops_go_on_when_there_is_no_room_left(monkeypatch):
    model, batch = case("Gaussian", bnp.DPMixture(5.0), 20)
    nothing = model.empty_summary(np.zeros(0, np.int64))
    whole = seat_batch(model, nothing, batch, 0.0)
    monkeypatch.setattr(task, "ROOM", 2)
    small = seat_batch(model, nothing, batch, 0.0)
    assert whole.resp.n_clusters > 5
    assert_allclose(small.resp.to_dense(), whole.resp.to_dense(), rtol=1e-12, atol=1e-300)


def test_sigma_zero_is_the_filter_of_the_dirichlet_process():
    nggp, dp = (
        go(bnp.Filter(epsilon=0.01), allocation=a) for a in (bnp.NGGPMixture(2.0, 0.0, 5.0), bnp.DPMixture(2.0))
    )
    assert_array_equal(nggp.posterior.summary["N"], dp.posterior.summary["N"])
    assert nggp.history[-1]["elbo"] == dp.history[-1]["elbo"]


def test_weights_count_atoms():
    x = np.repeat(blobs(60), 2, axis=0)
    twice = go(bnp.Filter(), blobs(60), weights=np.full(60, 2.0))
    assert_allclose(twice.posterior.summary["N"].sum(), len(x))


@pytest.mark.parametrize("name", SCHEDULES)
def test_workers_change_no_bit(name):
    alone = bits(go(SCHEDULES[name], client=SerialExecutor()))
    for n_workers in (1, 2):
        executor = ThreadExecutor(n_workers)
        assert bits(go(SCHEDULES[name], client=executor)) == alone
        executor.close()


def test_dask_changes_no_bit(dask_client):
    assert bits(go(EP, client=dask_client(2))) == bits(go(EP, client=SerialExecutor()))


@pytest.mark.first_case
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stop", [1, 4])
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, name, stop):
    whole = go(SCHEDULES[name])
    first = go(SCHEDULES[name], store=tmp_path / "run", callbacks=[AfterSteps(stop)])
    assert first.reason == "stopped by a callback"
    assert bits(go(SCHEDULES[name], store=tmp_path / "run", resume=True)) == bits(whole)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_batch_that_goes_bad_under_a_run_is_left_out(name, tmp_path):
    x = atoms()
    source = Faulty(x, str(tmp_path), fails=frozenset((1, call) for call in range(1, 50)))
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    result = bnp.train(model, source, schedule=SCHEDULES[name], on_bad_batch="skip", client=SerialExecutor())
    assert len(result.skipped) == 1
    assert_allclose(result.posterior.summary["N"].sum(), len(x) * 7 / 8, rtol=1e-2)


@pytest.mark.parametrize("name", [*SCHEDULES, "truncation-free"])
@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_a_silent_change_of_the_data_is_an_error_where_a_stopped_run_goes_on(tmp_path, name, mode):
    """Size and time of the file are those of before, so that only a batch that is read can tell."""
    path, x = tmp_path / "x.npy", blobs(500)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
    schedule = {**SCHEDULES, "truncation-free": bnp.TruncationFreeSVI(laps=1, minibatch=50, window=1)}[name]

    def trained(**more):
        facts = {"schedule": schedule, "batch_size": 100, "store": tmp_path / "run", "on_bad_batch": mode}
        return bnp.train(model, path, client=SerialExecutor(), **facts, **more)

    np.save(path, x)
    trained(callbacks=[AfterSteps(1)])
    then = path.stat()
    x[420, 1] = np.nextafter(x[420, 1], 10.0)
    np.save(path, x)
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    with pytest.raises(DataError, match=r"batch 4.*: the data changed, its content is not the same as"):
        trained(resume=True)


# -- filter -------------------------------------------------------------------------------------------------------
def test_filter_finds_blobs_in_one_pass_and_ends():
    result = go(bnp.Filter(merge=3.0))
    assert result.reason == "filtered"
    assert [row["batch"] for row in result.history] == list(range(9))
    assert np.sum(result.posterior.summary["N"] > 20) == 4
    assert_allclose(result.posterior.summary["N"].sum(), 900)


def test_batches_of_any_size_give_one_filter():
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    one, many = (bnp.train(model, blobs(), schedule=bnp.Filter(), batch_size=size) for size in (900, 50))
    assert_allclose(one.posterior.summary["N"], many.posterior.summary["N"], rtol=1e-7)
    assert_allclose(one.history[-1]["elbo"], many.history[-1]["elbo"], rtol=1e-9)


def test_clusters_that_are_one_are_united():
    apart, united = go(bnp.Filter(epsilon=0.01), blobs(seed=3)), go(bnp.Filter(epsilon=0.01, merge=2.0), blobs(seed=3))
    merges = [move for row in united.history for move in row["moves"]]
    assert merges
    assert all(move["gain"] > 2.0 for move in merges)
    assert united.posterior.n_clusters < apart.posterior.n_clusters
    assert_allclose(united.posterior.summary["N"].sum(), 900)


def test_a_filter_goes_on_where_another_stands():
    x = blobs()
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Gaussian())
    first = bnp.train(model, x[:500], schedule=bnp.Filter(), batch_size=100)
    rest = bnp.train(
        first.posterior.model, x[500:], schedule=bnp.Filter(), init=bnp.FromPosterior(first.posterior), batch_size=100
    )
    whole = bnp.train(first.posterior.model, x, schedule=bnp.Filter(), batch_size=100)
    assert_allclose(rest.posterior.summary["N"], whole.posterior.summary["N"], rtol=1e-7)
    assert len(set(rest.posterior.ids)) == rest.posterior.n_clusters


@pytest.mark.parametrize("data", [blobs(), sparse.csr_array(np.random.default_rng(0).poisson(1.0, (300, 8)) + 1.0)])
def test_everything_that_uses_a_posterior_takes_that_of_a_filter(tmp_path, data):
    observation = bnp.Gaussian() if isinstance(data, np.ndarray) else bnp.Multinomial()
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.5, 1.0), observation)
    result = bnp.train(model, data, schedule=bnp.Filter(), batch_size=100, store=tmp_path / "run")
    posterior = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert_array_equal(bnp.predict(posterior, data), bnp.predict(result.posterior, data))
    assert_allclose(bnp.predict(posterior, data, soft=True).sum(axis=1), 1.0)
    assert np.isfinite(bnp.score(posterior, data))
    assert 0.0 < posterior.weights.sum() < 1.0
    posterior.to_xarray()
    assert "NGGPMixture" in repr(posterior)
    bnp.report(tmp_path / "run", tmp_path / "page.html")
    assert "NGGPMixture" in (tmp_path / "page.html").read_text()
    bnp.inspect(tmp_path / "run")


def test_score_is_the_predictive_density_with_unseen_clusters():
    model, batch = case("Gaussian", bnp.NGGPMixture(3.0, 0.5, 1.5), 20)
    result = bnp.train(model, batch.x[:19], schedule=bnp.Filter(epsilon=0.0))
    found = seat_batch(result.posterior.model, result.posterior.summary, batch.rows(19, 20), 0.0)
    assert_allclose(bnp.score(result.posterior, batch.x[19:]), found.log_predictive, rtol=1e-9)


# -- expectation propagation ----------------------------------------------------------------------------------------
def test_first_lap_of_propagation_is_the_filter():
    schedule = bnp.ExpectationPropagation(laps=1, window=1, epsilon=0.25, merge=None)
    ep, adf = go(schedule), go(bnp.Filter(epsilon=0.25))
    assert_allclose(ep.posterior.summary["N"], adf.posterior.summary["N"], rtol=1e-9)
    assert_allclose(ep.history[-1]["elbo"], adf.history[-1]["elbo"], rtol=1e-12)


def test_propagation_settles_and_says_so():
    result = go(bnp.ExpectationPropagation(laps=40, window=1, count_tolerance=1e-3))
    assert result.converged
    assert_allclose(result.posterior.summary["N"].sum(), 900, rtol=1e-3)


def test_batches_in_flight_together_do_not_open_one_cluster_twice():
    model = bnp.Model(bnp.DPMixture(0.01), bnp.FixedVarianceGaussian(variance=1.0))
    for window in (1, 8):
        schedule = bnp.ExpectationPropagation(laps=2, window=window)
        result = bnp.train(model, blobs(160, k=3), schedule=schedule, batch_size=20)
        assert result.posterior.n_clusters == 3


def test_clusters_of_many_batches_side_by_side_are_united_and_no_atom_is_lost():
    for sigma in (0.0, 0.5):
        schedule = bnp.ExpectationPropagation(laps=4, window=8, count_tolerance=0.0)
        result = go(schedule, blobs(1600), bnp.NGGPMixture(1.0, sigma, 1.0))
        counts = result.posterior.summary["N"]
        assert np.sum(counts > 1.0) == 4
        assert_allclose(counts.sum(), 1600.0, rtol=1e-3)  # less what was given up with a cluster
        assert [move for row in result.history for move in row["moves"]]


# -- what cannot be -------------------------------------------------------------------------------------------------
def test_batches_in_flight_together_keep_apart_what_are_two_clusters():
    far = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[0.0], [50.0]], 30, axis=0)  # a blob in each batch
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    schedule = bnp.ExpectationPropagation(laps=1, window=2, epsilon=0.5)
    result = bnp.train(model, far, schedule=schedule, batch_size=30)
    assert_allclose(result.posterior.summary["N"], 30.0, atol=0.01)


@pytest.mark.parametrize("schedule", [bnp.Filter(), EP])
def test_models_without_an_urn_are_refused(schedule):
    with pytest.raises(SettingError, match="FiniteMixture has no predictive rule"):
        go(schedule, allocation=bnp.FiniteMixture())
    with pytest.raises(SettingError, match="HDPTopics has no predictive rule"):
        bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), np.ones((5, 3)), schedule=schedule)
    with pytest.raises(SettingError, match="reproducible"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), blobs(), schedule=schedule, reproducible=True)
    with pytest.raises(SettingError, match="moves"):
        go(schedule, moves=[bnp.Merge()])


@pytest.mark.parametrize("schedule", [None, bnp.FullBatch(), bnp.Stochastic()])
def test_an_nggp_mixture_needs_a_filter(schedule):
    with pytest.raises(SettingError, match="schedule=Filter"):
        go(schedule)


@pytest.mark.parametrize("wrong", [{"epsilon": 1.0}, {"epsilon": -0.1}, {"merge": -1.0}])
def test_settings_of_filters_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        bnp.Filter(**wrong)


def test_propagation_starts_from_nothing():
    first = go(bnp.Filter())
    with pytest.raises(SettingError, match="starts from no cluster"):
        bnp.train(first.posterior.model, blobs(), schedule=EP, init=bnp.FromPosterior(first.posterior))


@pytest.mark.parametrize("name", SCHEDULES)
def test_bad_atoms_are_an_error_that_names_the_batch(name):
    x = blobs()
    x[350, 1] = np.nan
    with pytest.raises(DataError, match="batch 3"):
        go(SCHEDULES[name], x)


def test_job_files_know_them(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: x.npy\nmodel:\n  allocation: {type: NGGPMixture, a: 2.0, sigma: 0.25, tau: 3.0}\n"
        "  observation: {type: Gaussian}\nschedule: {type: Filter, merge: 5.0}\n"
    )
    job = read_job(path)
    assert job.schedule == bnp.Filter(merge=5.0)
    assert job.model.allocation == bnp.NGGPMixture(2.0, 0.25, 3.0)
