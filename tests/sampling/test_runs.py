"""Whole runs of samplers: bits, resuming, what uses a result, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.core.batch import Batch
from bnp_dask.data.view import checksum
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.chains import sampler_to_json
from bnp_dask.inference.sampling.sweep import sweep
from bnp_dask.inference.visit import Request
from bnp_dask.testing import survey_of
from tests.faults.parts import Faulty, atoms
from tests.stopping import AfterSteps

GIBBS = bnp.Gibbs(laps=6, thin=1, chains=2, window=3, rows=40)


def blobs(n=240, d=2, k=3, seed=0):
    rng = np.random.default_rng(seed)
    return 8.0 * np.eye(k, d)[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def go(schedule=GIBBS, data=None, allocation=None, **more):
    model = bnp.Model(allocation or bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.DiagGaussian())
    x = blobs() if data is None else data
    return bnp.train(model, x, schedule=schedule, batch_size=80, init=bnp.BregmanKMeans(4), **more)


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    arrays = {k: v.tobytes() for k, v in result.posterior.summary.to_arrays().items()}
    draws = result.draws
    return rows, arrays, draws.labels.tobytes(), draws.log_joint.tobytes(), draws.values["x"].tobytes()


@pytest.fixture(scope="module")
def whole():
    return go(client=SerialExecutor())


def test_workers_change_no_bit(whole):
    executor = ThreadExecutor(2)
    assert bits(go(client=executor)) == bits(whole)
    executor.close()


def test_dask_changes_no_bit(dask_client, whole):
    assert bits(go(client=dask_client(2))) == bits(whole)


@pytest.mark.parametrize("stop", [4, 14])
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, stop, whole):
    first = go(store=tmp_path / "run", callbacks=[AfterSteps(stop)])
    assert first.reason == "stopped by a callback"
    assert bits(go(store=tmp_path / "run", resume=True)) == bits(whole)


def test_documents_that_are_split_and_united_are_the_same_bits_on_threads_and_resumed(tmp_path):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(30, 0.2), size=5)
    x = sparse.csr_array([rng.multinomial(40, shares[i % 5]).astype(float) for i in range(90)])
    model = bnp.Model(bnp.NGGPMixture(1.0, 0.25, 1.0), bnp.Multinomial(0.2))
    more = {"schedule": replace(GIBBS, laps=8), "init": bnp.RandomExamples(1), "batch_size": 90}
    serial = bnp.train(model, x, client=SerialExecutor(), **more)
    executor = ThreadExecutor(2)
    assert bits(bnp.train(model, x, client=executor, **more)) == bits(serial)
    executor.close()
    bnp.train(model, x, callbacks=[AfterSteps(3)], store=tmp_path / "run", **more)
    assert bits(bnp.train(model, x, store=tmp_path / "run", resume=True, **more)) == bits(serial)
    assert serial.posterior.n_clusters == 5


def test_a_run_goes_on_with_more_laps(tmp_path, whole):
    go(bnp.Gibbs(laps=4, thin=1, chains=2, window=3, rows=40), store=tmp_path / "run")
    longer = go(store=tmp_path / "run", resume=True)
    assert bits(longer)[2:] == bits(whole)[2:]
    assert_array_equal(bnp.load_draws(tmp_path / "run").labels, whole.draws.labels)


def test_a_chain_does_not_depend_on_the_others(whole):
    alone = go(bnp.Gibbs(laps=6, thin=1, chains=1, window=3, rows=40))
    assert_array_equal(alone.draws.labels[0], whole.draws.labels[0])


def test_draws_add_up(whole):
    draws = whole.draws
    assert whole.reason == "sampled"
    assert draws.labels.shape == (2, 3, 40)
    for chain, draw in np.ndindex(2, 3):
        assert draws.summary(chain, draw)["N"].sum() == 240
    shared = draws.co_clustering()
    assert_allclose(shared.diagonal(), 1.0)
    assert_allclose(shared, shared.T)
    chain, draw = draws.point()
    assert_array_equal(whole.posterior.ids, draws.summary(chain, draw).ids)
    assert (np.diff(whole.posterior.summary["N"]) <= 0).all()


def test_the_last_row_of_the_history_tells_of_the_last_draw(whole):
    """The posterior is the point estimate by then, which may have other clusters."""
    assert whole.history[-1]["n_clusters"] == whole.draws.n_clusters[0, -1]


def test_draws_are_labelled_arrays_as_arviz_reads_them(whole):
    pytest.importorskip("xarray")
    found = whole.draws.to_xarray()
    assert found["log_joint"].dims == ("chain", "draw")
    assert found["mean"].dims == ("chain", "draw", "cluster", "feature")
    assert found["labels"].dims == ("chain", "draw", "row")
    assert "nu" not in found
    assert_allclose(found["share"].sum("cluster"), 1.0)
    assert_array_equal(found["n_clusters"], np.isfinite(found["mean"][..., 0]).sum("cluster"))


def test_everything_that_uses_a_posterior_takes_the_point_estimate(tmp_path, whole):
    labels = bnp.predict(whole.posterior, blobs())
    assert len(np.unique(labels)) >= 2
    assert np.isfinite(bnp.score(whole.posterior, blobs(seed=1)))
    assert np.isfinite(bnp.score(whole.draws.posterior(1, 0), blobs(seed=1)))
    bnp.save(whole.posterior, tmp_path / "p.zarr")
    assert_array_equal(bnp.load(tmp_path / "p.zarr").ids, whole.posterior.ids)


def test_objective_of_a_dirichlet_process_is_the_log_probability_of_partition_and_data():
    result = go(bnp.Gibbs(laps=2, thin=1), allocation=bnp.DPMixture(1.0))
    draws, model = result.draws, result.posterior.model
    summary = draws.summary(0, 0)
    expected = model.allocation.log_partition(summary["N"]) + model.best_data_terms(summary).sum()
    assert_allclose(draws.log_joint[0, 0], expected, rtol=1e-10)
    assert result.history[-1]["elbo"] == draws.log_joint[0, -1]


def test_blobs_are_found_and_finite_mixtures_keep_their_clusters():
    found = go(bnp.Gibbs(laps=40, thin=2), allocation=bnp.FiniteMixture(1.0))
    assert found.posterior.n_clusters == 4
    assert_allclose(np.sort(found.posterior.summary["N"])[-3:].sum(), 240, atol=30)


def test_weights_are_how_often_an_atom_is_there():
    times = np.arange(240) % 3
    result = go(bnp.Gibbs(laps=2, thin=1, rows=(0, 1, 2)), weights=times.astype(float))
    assert result.posterior.summary["N"].sum() == times.sum()
    assert (result.draws.labels[0, 0] >= 0).tolist() == [False, True, True]
    with pytest.raises(DataError, match=r"row 0 has weight 0\.5.*whole numbers"):
        go(weights=np.full(240, 0.5))


def test_a_batch_that_goes_bad_under_a_run_is_left_out(tmp_path):
    x = atoms()
    source = Faulty(x, str(tmp_path), fails=frozenset((1, call) for call in range(1, 50)))
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    schedule = bnp.Gibbs(laps=4, thin=1)
    result = bnp.train(model, source, schedule=schedule, on_bad_batch="skip", client=SerialExecutor())
    assert len(result.skipped) == 1
    assert_allclose(result.posterior.summary["N"].sum(), len(x) * 7 / 8, rtol=1e-2)


def test_a_batch_that_cannot_be_read_in_a_sweep_has_nothing_and_says_why():
    def broken():
        raise DataError("batch 0: gone")

    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()).with_prior(survey_of(Batch(blobs(), None, "x")))
    found = sweep(model, (), Request(0, "batch 0", broken, empty=broken), np.arange(3), None)
    assert "gone" in found.lost
    assert found.rows.shape == (0, 3)


def test_entries_may_be_missing_where_features_are_independent():
    x = blobs()
    x[::7, 0] = np.nan
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise"))
    assert bnp.train(model, x, schedule=bnp.Gibbs(laps=4, thin=1)).draws.n_draws == 2
    with pytest.raises(SettingError, match="expectations in place of missing entries"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian(missing="marginalise")), x, schedule=GIBBS)


def test_what_is_not_sampled_is_refused_by_name():
    for allocation in (bnp.LDA(), bnp.FiniteHMM()):
        with pytest.raises(SettingError, match=f"{type(allocation).__name__} is not sampled"):
            bnp.train(bnp.Model(allocation, bnp.Multinomial()), np.ones((5, 3)), schedule=GIBBS)
    with pytest.raises(SettingError, match="topics of Gaussian are not sampled"):
        bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Gaussian()), np.ones((5, 3)), schedule=GIBBS)
    with pytest.raises(SettingError, match="reproducible"):
        go(reproducible=True)
    with pytest.raises(SettingError, match="moves"):
        go(moves=[bnp.Merge()])
    with pytest.raises(SettingError, match="chains=3"):
        go(n_init=3)
    with pytest.raises(SettingError, match="row 500 is not there"):
        go(bnp.Gibbs(laps=2, thin=1, rows=[1, 500]))
    with pytest.raises(SettingError, match="has no meaning"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian(), estimate="map"), blobs(), schedule=GIBBS)


@pytest.mark.parametrize(
    "wrong",
    [{"laps": 0}, {"burn_in": -1}, {"thin": 0}, {"chains": 0}, {"rows": 0}, {"rows": ()}, {"window": 0}, {"states": 0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        bnp.Gibbs(**wrong)


def test_a_sampler_that_would_keep_no_draw_is_refused():
    with pytest.raises(SettingError, match="no draw would be kept"):
        bnp.Gibbs(laps=10, burn_in=10)


def test_job_files_know_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: x.npy\nmodel:\n  allocation: {type: DPMixture, gamma: 2.0}\n  observation: {type: Gaussian}\n"
        "schedule: {type: Gibbs, laps: 20, chains: 2, rows: [1, 2, 3]}\n"
    )
    assert read_job(path).schedule == bnp.Gibbs(laps=20, chains=2, rows=(1, 2, 3))


def test_draws_say_how_many_they_are_and_of_what(whole):
    draws, k = whole.draws, whole.draws.n_clusters
    few, many = k.min(), k.max()
    assert f"of 2 chain(s), sweeps {draws.laps[0]} to {draws.laps[-1]}, {few} to {many} clusters, 40" in repr(draws)
    spread = replace(draws, labels=np.zeros_like(draws.labels))
    assert repr(spread).startswith(f"Draws({draws.n_draws} of ")


def test_data_that_changed_since_the_run_began_are_refused_by_a_sweep():
    batch = Batch(blobs(), None, "batch 0")
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()).with_prior(survey_of(batch))
    with pytest.raises(DataError, match="the data changed"):
        sweep(model, (), Request(0, "batch 0", lambda: batch, 0, checksum(batch) ^ 1), np.arange(3), None)


def nameless(sampler):
    """How checkpoints of versions up to 0.2 told of a sampler: nothing of its kind."""
    held = sampler_to_json(sampler)
    return held if held is None else {key: value for key, value in held.items() if key != "kind"}


@pytest.fixture
def old(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("bnp_dask.inference.checkpoint.sampler_to_json", nameless)
        yield patch


def test_a_run_of_a_sampler_that_kept_no_atoms_is_refused_and_its_draws_are_read(tmp_path, old):
    go(bnp.Gibbs(laps=4, thin=1, chains=2, window=3, rows=40), store=tmp_path / "run")
    old.undo()
    with pytest.raises(StoreError, match=r"lap 4.*load_draws.*begin a new run"):
        go(store=tmp_path / "run", resume=True)
    assert bnp.load_draws(tmp_path / "run").n_draws == 2


def test_a_finite_mixture_goes_on_from_where_an_old_sampler_stopped(tmp_path, old):
    finite, whole = bnp.FiniteMixture(1.0), go(allocation=bnp.FiniteMixture(1.0))
    go(allocation=finite, store=tmp_path / "run", callbacks=[AfterSteps(8)])
    old.undo()
    assert bits(go(allocation=finite, store=tmp_path / "run", resume=True)) == bits(whole)
