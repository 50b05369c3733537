"""Whole runs of truncation-free stochastic inference: bits, resuming, and everything that uses a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.cli.jobfile import read_job
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.streaming.unite import Newborn, Opened
from bnp_dask.kernels.predictive.urns import ABSENT
from bnp_dask.testing import survey_of
from tests.faults.parts import Faulty, atoms
from tests.stopping import AfterSteps

QUICK = bnp.TruncationFreeSVI(laps=2, minibatch=20, window=3, burn_in=1)


def blobs(n=900, d=3, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return 8.0 * np.eye(k, d)[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def documents(n=240, seed=0):
    """Documents of two of six topics of four words each."""
    rng = np.random.default_rng(seed)
    phi = np.kron(np.eye(6), np.full(4, 0.25))
    shares = np.array([rng.dirichlet(np.ones(2)) @ np.eye(6)[rng.choice(6, 2, replace=False)] for _ in range(n)])
    return sparse.csr_array(np.array([rng.multinomial(40, s @ phi) for s in shares], float))


TOPICS = bnp.Model(bnp.HDPTopics(1.0, 1.0), bnp.Multinomial(0.1))
KINDS = {
    "points": (bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()), blobs(300), 40),
    "likelihood of its own": (bnp.Model(bnp.DPMixture(1.0), bnp.Poisson()), np.round(np.abs(blobs(60))), 12),
    "documents": (bnp.Model(bnp.DPMixture(1.0), bnp.Multinomial(0.5)), documents(), 40),
    "topics": (TOPICS, documents(), 40),
}


def go(kind, schedule=QUICK, **more):
    model, data, size = KINDS[kind]
    return bnp.train(model, data, schedule=schedule, batch_size=size, **more)


def bits(result):
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    arrays = {**result.posterior.summary.to_arrays(), "weights": result.posterior.weights}
    return rows, {k: v.tobytes() for k, v in arrays.items()}


@pytest.fixture(scope="module")
def alone():
    """Bits of uninterrupted runs in this thread."""
    return {kind: bits(go(kind, client=SerialExecutor())) for kind in KINDS}


# -- the same numbers whatever computes them ------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_workers_change_no_bit(kind, alone):
    executor = ThreadExecutor(2)
    assert bits(go(kind, client=executor)) == alone[kind]
    executor.close()


def test_dask_changes_no_bit(dask_client, alone):
    assert bits(go("topics", client=dask_client(2))) == alone["topics"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 3])
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, kind, stop, alone):
    first = go(kind, store=tmp_path / "run", callbacks=[AfterSteps(stop)])
    assert first.reason == "stopped by a callback"
    assert bits(go(kind, store=tmp_path / "run", resume=True)) == alone[kind]


@pytest.mark.parametrize("kind", ["documents", "topics"])
def test_a_finished_run_is_the_same_when_resumed_and_goes_on_with_more_laps(tmp_path, kind, alone):
    short = bnp.TruncationFreeSVI(laps=1, minibatch=20, window=3, burn_in=1)
    first = go(kind, short, store=tmp_path / "run")
    assert first.reason == "streamed"
    assert bits(go(kind, short, store=tmp_path / "run", resume=True)) == bits(first)
    assert bits(go(kind, store=tmp_path / "run", resume=True)) == alone[kind]


def test_a_batch_that_goes_bad_under_a_run_is_left_out(tmp_path):
    x = atoms()
    source = Faulty(x, str(tmp_path), fails=frozenset((1, call) for call in range(1, 50)))
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    result = bnp.train(model, source, schedule=QUICK, on_bad_batch="skip", client=SerialExecutor())
    assert len(result.skipped) == 1
    assert_allclose(result.posterior.summary["N"].sum(), len(x) * 7 / 8)


# -- learning -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("minibatch", [1, 20, 400])
def test_blobs_are_found_from_nothing(minibatch):
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    schedule = bnp.TruncationFreeSVI(laps=2, minibatch=minibatch)
    posterior = bnp.train(model, blobs(400), schedule=schedule, batch_size=400).posterior
    assert_allclose(posterior.summary["N"].sum(), 400.0)
    assert (np.diff(posterior.summary["N"]) <= 0.0).all()
    truth = bnp.train(model, blobs(400), init=bnp.BregmanKMeans(4), moves=()).posterior
    fresh = blobs(seed=1)
    assert bnp.score(posterior, fresh) > bnp.score(truth, fresh) - 0.15


def test_topics_are_found_from_nothing():
    schedule = bnp.TruncationFreeSVI(laps=4, minibatch=5)
    posterior = bnp.train(TOPICS, documents(), schedule=schedule, batch_size=120).posterior
    phi = posterior.observation.lam / posterior.observation.lam.sum(axis=1, keepdims=True)
    away = 0.5 * np.abs(phi[:, None] - np.kron(np.eye(6), np.full(4, 0.25))[None]).sum(axis=2)
    assert away.min(axis=0).max() < 0.1
    assert_allclose(posterior.summary["N"].sum(), 240 * 40)
    assert_allclose(posterior.weights.sum() + posterior.allocation.rest, 1.0)


def test_history_tells_of_what_was_seen():
    result = go("documents", bnp.TruncationFreeSVI(laps=2, minibatch=7, window=1))
    assert [row["atoms"] for row in result.history] == pytest.approx([40, 80, 120, 160, 200, *[240] * 7])
    assert all(row["elbo"] == row["log_predictive"] < 0.0 for row in result.history)
    assert result.history[11]["elbo"] > result.history[5]["elbo"]


def test_the_objective_of_a_lap_is_the_sum_of_what_its_batches_say_and_begins_anew():
    """Of one atom it is the prior's predictive density, in every lap that has forgotten the others."""
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Multinomial(0.5))
    x = documents(1)
    result = bnp.train(model, x, schedule=bnp.TruncationFreeSVI(laps=1, minibatch=1, window=1))
    n, lam = x.toarray()[0], np.full(24, 0.5)
    alone = gammaln(lam.sum()) - gammaln(lam.sum() + n.sum()) + np.sum(gammaln(lam + n) - gammaln(lam))
    ways = gammaln(n.sum() + 1.0) - gammaln(n + 1.0).sum()
    assert result.history[0]["elbo"] == pytest.approx(alone + ways, rel=1e-9)
    apart, together = (
        bnp.train(model, documents(8), batch_size=2, schedule=bnp.TruncationFreeSVI(laps=1, minibatch=2, window=w))
        for w in (1, 4)
    )
    assert np.all(np.diff([row["elbo"] for row in apart.history]) < 0.0)
    assert together.history[0]["elbo"] < apart.history[2]["elbo"]


def test_clusters_of_less_than_one_atom_go_now_and_then():
    x = np.concatenate([blobs(299), [[1e3, 0.0, 0.0]]])
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian(B=1.0))
    kept, gone = (
        bnp.train(model, x, schedule=bnp.TruncationFreeSVI(laps=3, minibatch=10, prune_every=n), batch_size=100)
        for n in (10**6, 100)
    )
    assert kept.posterior.summary["N"].min() < 1.0
    assert gone.posterior.summary["N"].min() >= 1.0 - 1e-9


def test_a_stream_goes_on_where_another_posterior_stands():
    model, x = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()), blobs()
    first = bnp.train(model, x[:600], schedule=QUICK, batch_size=100).posterior
    start = bnp.FromPosterior(first)
    rest = bnp.train(first.model, x[600:], schedule=QUICK, init=start, batch_size=100)
    assert rest.history[0]["atoms"] == pytest.approx(300.0)
    assert set(first.ids[first.summary["N"] > 50]) <= set(rest.posterior.ids)


def test_weights_count_atoms():
    x, w = blobs(60), np.where(np.arange(60) % 5 > 0, 2.0, 0.0)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    assert_allclose(bnp.train(model, x, schedule=QUICK, weights=w).posterior.summary["N"].sum(), 96.0)
    found = bnp.train(TOPICS, documents(60), schedule=QUICK, weights=w).posterior.summary
    assert_allclose(found["N"].sum(), 96.0 * 40)


@pytest.mark.parametrize("samples", [1, 3])
def test_several_draws_of_an_atom_are_one_atom(samples):
    x = blobs(100)
    found = bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, schedule=replace(QUICK, samples=samples))
    assert_allclose(found.posterior.summary["N"].sum(), 100.0)


# -- batches side by side -------------------------------------------------------------------------------------------
def test_clusters_that_batches_opened_side_by_side_are_united_or_kept_apart():
    model = bnp.Model(bnp.DPMixture(1.0), bnp.FixedVarianceGaussian(variance=1.0))
    model = model.with_prior(survey_of(places([0.0, 40.0])))
    near, far = (Opened(summary_at(model, x), np.full(len(x), 30.0)) for x in ([0.0], [0.1, 40.0, 0.05]))
    newborn = Newborn()
    assert newborn.names_for(model, near, 7) == [7]
    assert newborn.names_for(model, far, 8) == [7, 8, 9]  # two of one batch stay two
    assert_allclose(newborn.held.counts, [60.0, 30.0, 30.0])
    assert newborn.names_for(model, far, 10) == [7, 8, 9]


@pytest.mark.parametrize(("gamma", "names"), [(1e-10, [7]), (1e10, [8])])
def test_the_more_clusters_the_prior_expects_the_more_stay_apart(gamma, names):
    """Five atoms and five at three standard deviations gain some 13 nats by their union, less the log of gamma."""
    model = bnp.Model(bnp.DPMixture(gamma), bnp.FixedVarianceGaussian(variance=1.0))
    model = model.with_prior(survey_of(places([0.0, 40.0])))
    newborn = Newborn()
    for place, ids in ((0.0, [7]), (3.0, names)):
        summary = model.summarize(np.arange(1), Batch(np.full((5, 1), place)), np.ones((5, 1)))
        assert newborn.names_for(model, Opened(summary, np.full(1, 5.0)), ids[0]) == ids


def summary_at(model, centers):
    each = np.repeat(np.eye(len(centers)), 30, axis=0)
    return model.summarize(np.arange(len(centers)), places(centers), each)


def places(centers):
    """Thirty atoms at each of some places."""
    return Batch(np.repeat(np.array(centers), 30)[:, None], None, "places")


def test_side_by_side_or_not_blobs_are_found():
    model = bnp.Model(bnp.DPMixture(0.01), bnp.FixedVarianceGaussian(variance=1.0))
    for window in (1, 8):
        schedule = bnp.TruncationFreeSVI(laps=2, minibatch=20, window=window)
        found = bnp.train(model, blobs(90, k=3), schedule=schedule, batch_size=15).posterior
        assert np.sum(found.summary["N"] > 10) == 3


# -- everything that uses a result ------------------------------------------------------------------------------------
@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["points", "topics"])
def test_everything_that_uses_a_posterior_takes_it(tmp_path, kind):
    data = KINDS[kind][1]
    result = go(kind, store=tmp_path / "run")
    posterior = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert_array_equal(posterior.weights, result.posterior.weights)
    found = bnp.predict(posterior, data, soft=True)
    assert_allclose(found.sum(axis=1), 1.0)
    assert np.isfinite(bnp.score(posterior, data))
    posterior.to_xarray()
    bnp.report(tmp_path / "run", tmp_path / "page.html")
    assert type(posterior.model.allocation).__name__ in (tmp_path / "page.html").read_text()
    bnp.inspect(tmp_path / "run")
    start, schedule = bnp.FromPosterior(posterior), bnp.Memoized(laps=1)
    with pytest.warns(bnp.ConvergenceWarning):
        later = bnp.train(posterior.model, data, init=start, schedule=schedule, moves=())
    assert later.posterior.n_clusters == posterior.n_clusters


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_take_the_schedule():
    schedule = bnp.TruncationFreeSVI(laps=1, minibatch=20)
    mixture = bnp.DirichletProcessMixture(schedule=schedule).fit(blobs(300))
    assert mixture.n_clusters_ >= 4
    assert ABSENT not in mixture.posterior_.summary
    topics = bnp.TopicModel(schedule=schedule).fit(documents())
    assert topics.posterior_.n_clusters >= 2


def test_job_files_know_it(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: x.npy\nmodel:\n  allocation: {type: DPMixture, gamma: 2.0}\n  observation: {type: Gaussian}\n"
        "schedule: {type: TruncationFreeSVI, minibatch: 7, laps: 3, order: fixed}\n"
    )
    assert read_job(path).schedule == bnp.TruncationFreeSVI(minibatch=7, laps=3, order="fixed")


# -- what cannot be -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "model",
    [
        bnp.Model(bnp.FiniteMixture(), bnp.Gaussian()),
        bnp.Model(bnp.NGGPMixture(), bnp.Gaussian()),
        bnp.Model(bnp.LDA(), bnp.Multinomial()),
        bnp.Model(bnp.HDPHMM(), bnp.Gaussian()),
    ],
)
def test_models_whose_sticks_do_not_follow_from_counts_are_refused(model):
    with pytest.raises(SettingError, match=f"TruncationFreeSVI.*{type(model.allocation).__name__}"):
        bnp.train(model, blobs(), schedule=QUICK)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"reproducible": True}, "reproducible"),
        ({"moves": [bnp.Merge()]}, "moves"),
        ({"model": bnp.Model(bnp.DPMixture(), bnp.Gaussian(), estimate="map")}, "map"),
        ({"model": bnp.Model(bnp.DPMixture(), bnp.Gaussian(), learn_prior="full")}, "learn_prior"),
        ({"model": bnp.Model(bnp.DPMixture(), bnp.Gaussian(missing="marginalise"))}, "marginalise"),
        ({"model": bnp.Model(bnp.HDPTopics(), bnp.Gaussian())}, "words"),
    ],
)
def test_what_makes_no_sense_together_is_refused(more, says):
    with pytest.raises(SettingError, match=says):
        bnp.train(**{"model": KINDS["points"][0], "data": blobs(), "schedule": QUICK, **more})


def test_topics_need_whole_numbers_of_words_in_sparse_rows_and_start_from_none():
    half = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(fractional=True))
    with pytest.raises(DataError, match="fractions"):
        bnp.train(half, 0.5 * documents(), schedule=QUICK)
    with pytest.raises(SettingError, match="leave init out"):
        bnp.train(TOPICS, documents(), schedule=QUICK, init=bnp.RandomExamples(3))


@pytest.mark.parametrize("kind", ["points", "topics"])
def test_bad_atoms_are_an_error_that_names_the_batch(kind):
    model, data, size = KINDS[kind]
    data = data.copy()
    if isinstance(data, np.ndarray):
        data[130] = np.nan
    else:
        data.data[data.indptr[130]] = -1.0
    with pytest.raises(DataError, match="batch 3"):
        bnp.train(model, data, schedule=QUICK, batch_size=size)


WRONG = [{name: 0} for name in ("laps", "minibatch", "window", "samples", "prune_every")]


@pytest.mark.parametrize("wrong", [*WRONG, {"burn_in": -1}, {"order": "random"}, {"extrapolate": "yes"}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        bnp.TruncationFreeSVI(**wrong)


def test_no_burn_in_is_a_setting():
    assert bnp.TruncationFreeSVI(burn_in=0).burn_in == 0
