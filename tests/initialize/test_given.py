"""RandomExamples, Responsibilities and FromPosterior."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.initialize import FromPosterior, RandomExamples, Responsibilities
from bnp_dask.model import Model
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from tests.initialize.cases import OBSERVATIONS, Travelling, blobs, context, cut, mixture


def diag(weights=None, n_batches=5, seed=0):
    return context(mixture(DiagGaussian()), cut(Batch(blobs(0)[0], weights), n_batches), seed)


# -- RandomExamples -----------------------------------------------------------------------------------------
def test_examples_are_distinct_atoms_and_only_their_batches_are_read():
    setting = diag(np.full(400, 2.5), n_batches=100)
    setting.source.reads.clear()
    summary = RandomExamples(6).start(setting)
    assert summary["N"].tolist() == [1.0] * 6
    x = setting.model.observation.center + summary["x"]
    match = np.isclose(x[:, None], blobs(0)[0][None]).all(axis=2)
    assert (match.sum(axis=1) == 1).all()
    assert (match.sum(axis=0) <= 1).all()
    assert len(setting.source.reads) <= 6


def test_examples_are_uniform_over_all_atoms():
    x = np.arange(10.0)[:, None]
    source = cut(Batch(x), 3)
    drawn = np.zeros(10)
    for seed in range(400):
        setting = context(mixture(DiagGaussian()), source, seed)
        values = RandomExamples(3).start(setting)["x"][:, 0] + 4.5
        drawn[np.round(values).astype(int)] += 1
    np.testing.assert_allclose(drawn / 400, 0.3, atol=4 * np.sqrt(0.21 / 400))


def test_all_atoms_can_be_examples_but_not_more():
    setting = diag()
    assert RandomExamples(400).start(setting).n_clusters == 400
    with pytest.raises(DataError, match="ask for at most 400"):
        RandomExamples(401).start(setting)
    with pytest.raises(SettingError, match="n_clusters=0"):
        RandomExamples(0)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_examples_for_every_observation_model(name):
    observation, batch = OBSERVATIONS[name]
    setting = context(mixture(observation), cut(batch, 4))
    posterior = setting.model.global_step(RandomExamples(5).start(setting))
    assert np.isfinite(setting.model.observation.kl(posterior.observation)).all()


# -- Responsibilities ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("soft", [True, False])
def test_responsibilities_give_the_exact_summary(name, soft):
    observation, batch = OBSERVATIONS[name]
    rng = np.random.default_rng(0)
    batch = replace(batch, weights=rng.random(240))
    setting = context(mixture(observation), cut(batch, 7))
    resp = rng.dirichlet(np.ones(3), 240) if soft else np.eye(3)[rng.integers(0, 3, 240)]
    expected = setting.model.summarize(np.arange(3), batch, resp * batch.weights[:, None])
    summary = Responsibilities(resp if soft else resp.argmax(axis=1)).start(setting)
    assert summary.ids.tolist() == [0, 1, 2]
    for field in summary.fields:
        np.testing.assert_allclose(summary[field], expected[field], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [RandomExamples(5), Responsibilities(np.arange(400) % 3)])
def test_same_bits_on_another_machine(kind):
    here = kind.start(diag())
    there = kind.start(replace(diag(), executor=Travelling()))
    assert all(np.array_equal(here[name], there[name]) for name in here.fields)


def test_labels_may_have_gaps_be_a_list_float_or_bool():
    setting = diag()
    labels = np.arange(400) % 3
    expected = Responsibilities(labels).start(setting)
    for same in (labels * 50 + 4, labels.tolist(), labels.astype(np.float32), labels.astype(np.uint8)):
        summary = Responsibilities(same).start(setting)
        assert np.array_equal(summary["x"], expected["x"])
    assert Responsibilities(labels > 0).start(setting)["N"].tolist() == [134.0, 266.0]


@pytest.mark.parametrize(
    ("resp", "message"),
    [
        (np.zeros(399, int), "has 399 rows, but array has 400 atoms"),
        (np.ones((401, 1)), "has 401 rows"),
        (np.where(np.arange(400) == 7, -1, 0), "label of atom 7 is -1"),
        (np.full(400, 0.5), "label of atom 0 is 0.5"),
        (np.full(400, np.nan), "label of atom 0 is nan"),
        (np.full((400, 2), 0.4), "responsibilities of atom 0"),
        (np.tile([1.5, -0.5], (400, 1)), "numbers >= 0 that sum to one"),
        (np.full((400, 2), np.nan), "numbers >= 0 that sum to one"),
        (np.ones((400, 0)), "no column"),
        (np.ones((400, 1, 1)), "shape"),
        (np.full(400, "a"), "type"),
    ],
)
def test_bad_responsibilities_are_refused(resp, message):
    with pytest.raises(DataError, match=message):
        Responsibilities(resp).start(diag())


# -- FromPosterior ------------------------------------------------------------------------------------------
def posterior_of(setting, ids=(0, 1, 2)):
    summary = Responsibilities(np.arange(400) % 3).start(setting)
    return setting.model.global_step(replace(summary, ids=np.array(ids)))


def test_posterior_keeps_ids_and_statistics():
    setting = diag()
    posterior = posterior_of(setting, ids=(9, 2, 5))
    summary = FromPosterior(posterior).start(setting)
    assert summary.ids.tolist() == [9, 2, 5]
    assert summary.n_pairs == 0
    again = setting.model.global_step(summary)
    assert np.array_equal(again.observation.m, posterior.observation.m)


def test_posterior_without_summary_says_what_to_give():
    setting = diag()
    with pytest.raises(SettingError, match=r"no summary.*result\.posterior"):
        FromPosterior(posterior_of(setting).light()).start(setting)


def test_posterior_of_another_model_is_refused():
    setting = diag()
    posterior = posterior_of(setting)
    source = setting.source
    with pytest.raises(SettingError, match="observation model is DiagGaussian, but FixedVarianceGaussian"):
        FromPosterior(posterior).start(context(mixture(FixedVarianceGaussian()), source))
    with pytest.raises(SettingError, match="allocation model is DPMixture, but FiniteMixture"):
        FromPosterior(posterior).start(context(Model(FiniteMixture(), DiagGaussian()), source))
    narrow = cut(Batch(blobs(0)[0][:, :3]), 2)
    with pytest.raises(SettingError, match="same features"):
        FromPosterior(posterior).start(context(mixture(DiagGaussian()), narrow))


def test_posterior_about_another_centre_is_refused_and_its_own_model_is_the_way_out():
    posterior = posterior_of(diag())
    other = context(mixture(DiagGaussian()), cut(Batch(blobs(1)[0] + 3.0), 2))
    with pytest.raises(SettingError, match=r"another centre.*posterior\.model"):
        FromPosterior(posterior).start(other)
    own = replace(other, model=posterior.model)
    assert FromPosterior(posterior).start(own).n_clusters == 3


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_posterior_of_every_observation_model(name):
    observation, batch = OBSERVATIONS[name]
    setting = context(mixture(observation), cut(batch, 3))
    posterior = setting.model.global_step(RandomExamples(4).start(setting))
    again = context(mixture(observation), cut(batch, 5))
    assert FromPosterior(posterior).start(again).n_clusters == 4
