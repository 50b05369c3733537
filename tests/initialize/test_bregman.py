"""BregmanKMeans and KMeansParallel over batches, through executors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.initialize import BregmanKMeans, KMeansParallel
from bnp_dask.initialize.kmeans import _draw_candidates, best_joint, divergence, nearest
from bnp_dask.model import Model
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.multinomial import Multinomial
from tests.initialize.cases import OBSERVATIONS, Travelling, blobs, context, cut, mixture

BOTH = [BregmanKMeans, KMeansParallel]


def same_bits(a, b):
    return np.array_equal(a.ids, b.ids) and all(np.array_equal(a[n], b[n]) for n in a.fields)


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("kind", BOTH)
def test_every_observation_model_gives_a_posterior(name, kind):
    observation, batch = OBSERVATIONS[name]
    setting = context(mixture(observation), cut(batch, 4))
    summary = kind(n_clusters=6).start(setting)
    assert summary.ids.tolist() == list(range(6))
    assert summary["N"].sum() == pytest.approx(batch.n_atoms)
    assert summary.n_pairs == 0
    assert (summary["H"] == 0).all()
    model = setting.model
    posterior = model.global_step(summary)
    step = model.local_step(posterior, batch)
    assert np.isfinite(sum(model.elbo(posterior, step).values()))
    one = model.global_step(kind(n_clusters=1).start(setting))
    better = model.elbo(model.global_step(step), step)
    worse = model.elbo(one, model.local_step(one, batch))
    assert sum(better.values()) > sum(worse.values())


@pytest.mark.first_case
@pytest.mark.parametrize("observation", [DiagGaussian, Gaussian])
@pytest.mark.parametrize("kind", BOTH)
def test_finds_separated_blobs_in_most_seeds(kind, observation):
    found = 0
    for seed in range(10):
        x, labels = blobs(seed)
        summary = kind(n_clusters=8).start(context(mixture(observation()), cut(Batch(x), 5), seed))
        truth = np.array([x[labels == k].mean(axis=0) for k in range(8)])
        means = summary["x"] / summary["N"][:, None] + x.mean(axis=0)
        gap = np.abs(means[:, None] - truth[None]).max(axis=2)
        found += bool((gap.min(axis=0) < 0.01).all())
    assert found >= 9


@pytest.mark.parametrize("kind", BOTH)
def test_same_bits_whatever_the_executor_other_bits_for_another_seed(kind):
    batch = Batch(blobs(2)[0], np.random.default_rng(0).random(400))
    model = mixture(DiagGaussian())
    init = kind(n_clusters=25)
    with_threads = ThreadExecutor(3)
    try:
        executors = (SerialExecutor(), with_threads, Travelling())
        runs = [init.start(context(model, cut(batch, 9), 4, e)) for e in executors]
    finally:
        with_threads.close()
    assert same_bits(runs[0], runs[1])
    assert same_bits(runs[0], runs[2])
    assert not same_bits(runs[0], init.start(context(model, cut(batch, 9), 5)))


@pytest.mark.parametrize("kind", BOTH)
def test_weights_give_the_mass(kind):
    weights = np.random.default_rng(3).random(400) * 3
    weights[::7] = 0.0
    summary = kind(n_clusters=4).start(context(mixture(DiagGaussian()), cut(Batch(blobs(1)[0], weights), 3)))
    assert summary["N"].sum() == pytest.approx(weights.sum())


def test_sample_is_scaled_to_the_mass_of_the_data():
    x, _ = blobs(1, n=2000)
    source = cut(Batch(x), 10)
    setting = context(mixture(DiagGaussian()), source)
    source.reads.clear()
    summary = BregmanKMeans(n_clusters=2, sample=100).start(setting)
    assert summary["N"].sum() == pytest.approx(2000)
    assert np.allclose(summary["N"] / 20, np.round(summary["N"] / 20))
    assert sorted(source.reads) == sorted(set(source.reads))


def test_one_cluster_of_all_atoms_is_the_exact_summary():
    x, _ = blobs(1)
    setting = context(mixture(DiagGaussian()), cut(Batch(x), 3))
    expected = setting.model.summarize(np.zeros(1, np.int64), Batch(x), np.ones((400, 1)))
    for kind in BOTH:
        summary = kind(n_clusters=1).start(setting)
        for name in summary.fields:
            np.testing.assert_allclose(summary[name], expected[name], rtol=1e-10, atol=1e-8)


def test_clusters_come_largest_first():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(n, 2)) + c for n, c in ((20, 0.0), (200, 50.0), (80, -50.0))])
    for kind in BOTH:
        summary = kind(n_clusters=3).start(context(mixture(DiagGaussian()), cut(Batch(x), 2)))
        assert summary["N"].tolist() == [200, 80, 20]
        assert summary.ids.tolist() == [0, 1, 2]


def test_empty_batches_are_passed_over():
    x = blobs(1)[0]
    source = cut(Batch(x), 2)
    source = replace(source, batches=(Batch(x[:0]), source.batches[0], Batch(x[:0]), source.batches[1]))
    for kind in BOTH:
        assert kind(n_clusters=3).start(context(mixture(DiagGaussian()), source))["N"].sum() == pytest.approx(400)


@pytest.mark.parametrize("kind", BOTH)
def test_fewer_distinct_atoms_than_clusters_warns_and_says_how_many(kind):
    x = np.repeat(np.array([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]]), 30, axis=0)
    with pytest.warns(UserWarning, match="starting with 3 clusters instead of 7"):
        summary = kind(n_clusters=7).start(context(mixture(DiagGaussian()), cut(Batch(x), 4)))
    assert summary.ids.tolist() == [0, 1, 2]
    assert summary["N"].tolist() == pytest.approx([30, 30, 30])


@pytest.mark.parametrize("kind", BOTH)
def test_more_clusters_than_atoms_is_refused(kind):
    setting = context(mixture(DiagGaussian()), cut(Batch(blobs(0)[0][:10]), 2))
    with pytest.raises(DataError, match="array has 10 atoms"):
        kind(n_clusters=11).start(setting)
    assert kind(n_clusters=10).start(setting).n_clusters == 10


@pytest.mark.parametrize("kind", BOTH)
def test_bad_atoms_are_named(kind):
    x = blobs(0)[0]
    source = cut(Batch(x), 2)
    setting = context(mixture(DiagGaussian()), source)
    spoiled = x[200:].copy()
    spoiled[3, 1] = np.nan
    broken = replace(setting, source=replace(source, batches=(source.batches[0], Batch(spoiled, name="batch 1"))))
    with pytest.raises(DataError, match="batch 1: row 3, column 1"):
        kind(n_clusters=4).start(broken)
    shorter = replace(setting, source=replace(source, batches=(source.batches[0], Batch(x[:50], name="batch 1"))))
    with pytest.raises(DataError, match="batch 1: 50 atoms, but 200 when it was surveyed"):
        kind(n_clusters=4).start(shorter)


@pytest.mark.parametrize(
    "call",
    [
        lambda: BregmanKMeans(n_clusters=0),
        lambda: BregmanKMeans(n_clusters=2.5),
        lambda: BregmanKMeans(n_clusters=True),
        lambda: BregmanKMeans(3, laps=-1),
        lambda: BregmanKMeans(3, sample=0),
        lambda: BregmanKMeans(3, candidates=0),
        lambda: KMeansParallel(n_clusters=0),
        lambda: KMeansParallel(3, rounds=0),
        lambda: KMeansParallel(3, oversample=0.0),
        lambda: KMeansParallel(3, oversample=float("nan")),
        lambda: KMeansParallel(3, laps=-1),
        lambda: KMeansParallel(3, candidates=0),
    ],
)
def test_settings_are_checked(call):
    with pytest.raises(SettingError, match="needs a"):
        call()


def test_atoms_of_weight_zero_alone_are_refused():
    weights = np.zeros(400)
    weights[0] = 1.0
    observation = FixedVarianceGaussian(variance=1.0)
    setting = context(mixture(observation), cut(Batch(blobs(0)[0], weights), 2), seed=1)
    with pytest.raises(DataError, match="weight zero"):
        BregmanKMeans(1, sample=10).start(setting)


# -- k-means|| ----------------------------------------------------------------------------------------------
def test_candidates_do_not_depend_on_the_lower_bound_of_the_cost():
    x, _ = blobs(4)
    setting = context(mixture(DiagGaussian()), cut(Batch(x), 4))
    candidates = setting.source.batches[0].rows(0, 2)
    loose = [
        _draw_candidates(setting.source.reader(b), setting.model, 100, candidates, 10.0, 0.0, (1, 0, b))
        for b in range(4)
    ]
    cost = sum(d.cost for d in loose)
    tight = [
        _draw_candidates(setting.source.reader(b), setting.model, 100, candidates, 10.0, cost, (1, 0, b))
        for b in range(4)
    ]
    assert sum(len(d.score) for d in loose) > sum(len(d.score) for d in tight)
    for a, b in zip(loose, tight, strict=True):
        assert np.array_equal(a.thin(10.0, cost).atoms.x, b.atoms.x)
    everyone = Batch(x)
    _, joint = nearest(setting.model, everyone, candidates)
    distance = divergence(best_joint(setting.model, everyone), joint[:, None])
    assert cost == pytest.approx(distance.sum())


def test_each_round_draws_about_oversample_times_k_atoms():
    x, _ = blobs(4, n=4000)
    setting = context(mixture(FixedVarianceGaussian(variance=100.0)), cut(Batch(x), 5))
    init = KMeansParallel(n_clusters=10, oversample=3.0)
    model = setting.executor.share("model", setting.model)
    start = setting.source.batches[0].rows(0, 1)
    drawn = [sum(len(d.score) for d in init._round(setting, model, start, s, 0)[1]) for s in range(20)]
    assert 25 < np.mean(drawn) < 35


def test_many_clusters_cost_no_more_than_k_means_plus_plus():
    x, _ = blobs(9, 16, 3000, 4, spread=3.0)
    observation = FixedVarianceGaussian(variance=1.0, kappa=1e-6)
    costs = []
    for kind in BOTH:
        setting = context(Model(DPMixture(), observation), cut(Batch(x), 6))
        summary = kind(n_clusters=100).start(setting)
        means = summary["x"] / summary["N"][:, None] + setting.model.observation.center
        costs.append(((x[:, None] - means[None]) ** 2).sum(axis=2).min(axis=1).sum())
    assert costs[1] < 1.1 * costs[0]


def test_rounds_go_on_until_there_are_enough_candidates():
    x = np.random.default_rng(0).normal(size=(300, 3))
    init = KMeansParallel(n_clusters=40, rounds=1, oversample=0.5)
    assert init.start(context(mixture(DiagGaussian()), cut(Batch(x), 3))).n_clusters == 40


def test_candidates_know_where_they_come_from():
    setting = context(mixture(DiagGaussian()), cut(Batch(blobs(4)[0]), 7))
    found = KMeansParallel(n_clusters=9)._draw_candidates(setting, setting.executor.share("m", setting.model))
    assert found.atoms.n_atoms == len(found.origin) > 30
    assert len(np.unique(found.origin, axis=0)) == len(found.origin)
    for atom, (b, position) in zip(found.atoms.x, found.origin, strict=True):
        assert np.array_equal(atom, setting.source.batches[b].x[position])


def test_sparse_counts_stay_sparse():
    _, batch = OBSERVATIONS["Multinomial"]
    setting = context(mixture(Multinomial()), cut(batch, 3))
    summary = KMeansParallel(n_clusters=4).start(setting)
    np.testing.assert_allclose(summary["x"].sum(axis=0), np.asarray(batch.x.sum(axis=0)))
