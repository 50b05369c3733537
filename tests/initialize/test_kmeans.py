"""Bregman k-means++ and k-means on atoms in memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.initialize import kmeans
from bnp_dask.initialize.base import summarize_assigned, take_atoms
from bnp_dask.initialize.kmeans import (
    Drawn,
    KMeansParallel,
    _attract,
    _draw,
    _keep_all_clusters,
    _reassign,
    hard_kmeans,
    hard_model,
    largest_first,
    most_likely,
    nearest,
    plus_plus,
    sample_size,
)
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from tests.initialize.cases import OBSERVATIONS, blobs, context, cut, mixture


def model_of(observation, batch):
    return context(mixture(observation), cut(batch, 1)).model


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("candidates", [1, None])
def test_seeds_are_distinct_and_labels_are_their_nearest(name, candidates):
    observation, batch = OBSERVATIONS[name]
    model = model_of(observation, batch)
    seeds = plus_plus(model, batch, 12, np.random.default_rng(0), candidates)
    assert len(np.unique(seeds.centres)) == 12
    assert np.array_equal(seeds.labels[seeds.centres], np.arange(12))
    assert (seeds.distance[seeds.centres] == 0).all()
    assert (seeds.distance >= 0).all()


def test_next_seed_is_drawn_in_proportion_to_weighted_divergence():
    x = np.array([[0.0], [1.0], [3.0], [-2.0]])
    weights = np.array([1e9, 2.0, 1.0, 0.5])  # the first seed is atom 0 but for one draw in 1e8
    batch = Batch(x, weights)
    model = model_of(FixedVarianceGaussian(variance=1.0), batch)
    rng = np.random.default_rng(1)
    second = [int(plus_plus(model, batch, 2, rng, candidates=1).centres[1]) for _ in range(1500)]
    share = np.bincount(second, minlength=4) / 1500
    expected = weights[1:] * x[1:, 0] ** 2
    expected /= expected.sum()
    assert share[0] == 0
    np.testing.assert_allclose(share[1:], expected, atol=4 * 0.5 / np.sqrt(1500))


def test_cost_is_that_of_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    x, _ = blobs(11, 8, 1000, 5, spread=2.0)
    batch = Batch(x)
    model = model_of(FixedVarianceGaussian(variance=1.0, kappa=1e-6), batch)

    def cost(index):
        return ((x[:, None] - x[index][None]) ** 2).sum(axis=2).min(axis=1).sum()

    ours = [cost(plus_plus(model, batch, 20, np.random.default_rng(s)).centres) for s in range(10)]
    theirs = [cost(cluster.kmeans_plusplus(x, 20, random_state=s)[1]) for s in range(10)]
    assert 0.9 < np.mean(ours) / np.mean(theirs) < 1.1


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_log_joint_never_falls_and_no_cluster_dies(name):
    observation, batch = OBSERVATIONS[name]
    batch = replace(batch, weights=np.random.default_rng(1).random(batch.n_atoms) + 0.1)
    model = model_of(observation, batch)
    hard = hard_model(model)
    labels = plus_plus(model, batch, 20, np.random.default_rng(2)).labels
    values = []
    for _ in range(6):
        summary = summarize_assigned(hard, batch, labels, 20)
        assert (summary["N"] > 0).all()
        values.append(sum(hard.elbo(hard.global_step(summary), summary).values()))
        labels = hard_kmeans(model, batch, labels, 20, laps=1)
    assert values[-1] > values[0]
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()


def test_more_clusters_than_structure_keep_an_atom_each():
    x = np.random.default_rng(0).normal(size=(60, 2))
    batch = Batch(x)
    model = model_of(DiagGaussian(), batch)
    labels = hard_kmeans(model, batch, np.arange(60) % 50, 50, laps=20)
    assert (np.bincount(labels, minlength=50) > 0).all()


def test_k_means_matches_scikit_learn_on_separated_blobs():
    cluster = pytest.importorskip("sklearn.cluster")
    x, _ = blobs(5, 6, 600, 3, spread=4.0)
    batch = Batch(x)
    model = model_of(FixedVarianceGaussian(variance=1.0, kappa=1e-6), batch)
    seeds = plus_plus(model, batch, 6, np.random.default_rng(0))
    labels = hard_kmeans(model, batch, seeds.labels, 6, laps=50)
    theirs = cluster.KMeans(6, init=x[seeds.centres], n_init=1).fit(x)
    table = np.zeros((6, 6))
    np.add.at(table, (labels, theirs.labels_), 1)
    assert (np.count_nonzero(table, axis=1) == 1).all()


def test_fewer_distinct_atoms_than_clusters():
    x = np.repeat(np.array([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]]), 20, axis=0)
    batch = Batch(x)
    seeds = plus_plus(model_of(DiagGaussian(), batch), batch, 10, np.random.default_rng(0))
    assert len(seeds.centres) == 3
    assert (seeds.distance == 0).all()


def test_largest_cluster_first_by_weight():
    labels = np.array([0, 0, 0, 1, 2, 2])
    assert largest_first(labels, None, 3).tolist() == [0, 0, 0, 2, 1, 1]
    assert largest_first(labels, np.array([1.0, 1, 1, 9, 1, 1]), 3).tolist() == [1, 1, 1, 0, 2, 2]


def test_data_that_changed_since_they_were_surveyed_are_refused_by_every_pass():
    observation, batch = OBSERVATIONS["DiagGaussian"]
    model = model_of(observation, batch)
    pair, surveyed = batch.take(np.arange(2)), batch.n_atoms
    passes = (
        lambda: _attract(lambda: batch, model, surveyed + 1, pair),
        lambda: take_atoms(lambda: batch, model, surveyed - 1, np.arange(2)),
    )
    for one in passes:
        with pytest.raises(DataError, match="when it was surveyed; the data must not change"):
            one()


# -- by hand, with random numbers that are given ---------------------------------------------------------------------
class Given:
    """Random numbers in their order; ``sizes`` are how many each call asked for."""

    def __init__(self, *numbers):
        self.numbers, self.sizes = list(numbers), []

    def random(self, size):
        self.sizes.append(size)
        return np.array([self.numbers.pop(0) for _ in range(size)])


TABLE = np.abs(np.subtract.outer(PLACES := np.array([0.0, 1.0, 5.0, 5.0, 9.0]), PLACES))
"""Distances of five atoms on a line, the third and fourth in one place."""


def seeds(rng, k, weights=None, candidates=1, table=TABLE):
    batch = Batch(PLACES[:, None], weights)
    return plus_plus(None, batch, k, rng, candidates, lambda index: table[:, index])


def test_the_first_seed_is_drawn_by_weight_and_the_next_by_weight_times_distance():
    # shares of the weights end at .1, .2, .4, .9, 1
    weights = np.array([1.0, 1.0, 2.0, 5.0, 1.0])
    found = seeds(Given(0.3, 0.35), 2, weights)
    # of the third: weights times distances are 5, 4, 0, 0, 4
    assert found.centres.tolist() == [2, 0]
    assert found.labels.tolist() == [1, 1, 0, 0, 0] and found.distance.tolist() == [0.0, 1.0, 0.0, 0.0, 4.0]
    assert seeds(Given(0.3, 0.5), 2, weights).centres.tolist() == [2, 1]
    assert seeds(Given(0.05, 0.999), 2, weights).centres.tolist() == [0, 4]
    assert seeds(Given(0.89, 0.0), 2, weights).centres.tolist() == [3, 0]
    # 5, 16, 0, 0, 4: by the distances alone it would be the first
    assert seeds(Given(0.6, 0.3), 2, np.array([1.0, 4.0, 2.0, 2.0, 1.0])).centres.tolist() == [2, 1]


def test_of_several_candidates_the_one_that_leaves_the_least_weighted_distance_is_kept():
    light, heavy = np.ones(5), np.array([1.0, 1.0, 1.0, 1.0, 9.0])
    # from the first atom: distances 0, 1, 5, 5, 9; candidates 2 and 4
    assert seeds(Given(0.0, 0.1, 0.9), 2, light, 2).centres.tolist() == [0, 2]  # leaves 1 + 4, not 1 + 4 + 4
    assert seeds(Given(0.0, 0.1, 0.9), 2, heavy, 2).centres.tolist() == [0, 4]  # leaves 9, not 1 + 36
    assert seeds(Given(0.0, 0.9, 0.9), 2, light, 2).centres.tolist() == [0, 4]


def test_seeds_end_where_no_atom_differs_and_a_seed_is_never_drawn_twice():
    found = seeds(Given(0.5, 0.0, 0.999, 0.9), 5)
    assert sorted(found.centres.tolist()) == [0, 1, 2, 4] and len(found.centres) == 4  # two are in one place
    assert not found.distance.any()
    own = TABLE + 2.0 * np.eye(5)  # 5, 4, 0, 0, 4 and not 5, 4, 2, 0, 4
    assert seeds(Given(0.5, 0.633), 2, table=own).centres.tolist() == [2, 1]
    noisy = TABLE + 1e-9  # an atom is not quite where it is: its own distance counts as zero
    found = seeds(Given(0.5, 0.0, 0.5, 0.5, 0.5), 5, table=noisy)
    assert sorted(found.centres.tolist()) == [0, 1, 2, 3, 4]
    assert found.labels[found.centres].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("k", "tries"), [(2, 2), (3, 3), (8, 4), (21, 5)])
def test_more_candidates_are_tried_for_more_clusters(k, tries):
    x = np.arange(30.0)
    rng = Given(*np.linspace(0.0, 0.99, 200))
    plus_plus(None, Batch(x[:, None]), k, rng, None, lambda index: np.abs(x[:, None] - x[index]))
    assert rng.sizes == [1] + [tries] * (k - 1)
    rng = Given(*np.linspace(0.0, 0.99, 200))
    seeds(rng, 2, candidates=9)  # at most all atoms
    assert rng.sizes == [1, 5]


def test_nothing_of_zero_bias_is_drawn_at_the_ends_of_the_range():
    for bias, low, high in (([0.0, 2.0, 1.0, 0.0], 1, 2), ([3.0, 0.0], 0, 0), ([0.0, 0.0, 4.0], 2, 2)):
        assert _draw(np.array(bias), 2, Given(0.0, 1.0)).tolist() == [low, high]


def test_of_a_cluster_that_would_be_empty_the_atom_that_gains_least_stays():
    labels, gain = np.array([0, 0, 1, 1, 1, 2]), np.array([1.0, 2.0, 3.0, 0.5, 0.7, 0.0])
    wanted = np.array([0, 0, 0, 0, 2, 2])
    assert _keep_all_clusters(wanted, labels, gain, 3).tolist() == [0, 0, 0, 1, 2, 2]
    # the only atom that came to the third goes back to the second, so the third keeps one of its own
    wanted = np.array([0, 0, 0, 0, 2, 0])
    gain = np.array([1.0, 2.0, 3.0, 0.9, 0.7, 5.0])
    assert _keep_all_clusters(wanted, labels, gain, 3).tolist() == [0, 0, 0, 0, 1, 2]
    assert wanted.tolist() == [0, 0, 0, 0, 2, 0]


def test_gains_of_another_cluster_count_its_weight(monkeypatch):
    setting = context(mixture(DiagGaussian()), cut(Batch(np.array([[0.0], [1.0], [2.0], [10.0]])), 1))
    batch = setting.source.batches[0]
    hard = hard_model(setting.model)
    posterior = hard.global_step(summarize_assigned(hard, batch, np.array([0, 0, 0, 1]), 2))
    labels = np.array([0, 1, 0, 0])
    log_lik = hard.observation.expected_log_lik(posterior.observation, batch)
    table = log_lik + hard.allocation.log_weights(posterior.allocation)
    for tiles in (None, (0, 1, 4)):
        if tiles is not None:
            monkeypatch.setattr(kmeans, "atom_tiles", lambda m, b, k: (b.rows(*ends) for ends in ((0, 1), (1, 4))))
        wanted, gain = _reassign(posterior, batch, labels)
        assert wanted.tolist() == table.argmax(axis=1).tolist() == [0, 0, 0, 1]
        np.testing.assert_allclose(gain, table.max(axis=1) - table[np.arange(4), labels], atol=1e-12)
        assert gain[1] > 0.0 and gain[3] > 0.0 and gain[0] == gain[2] == 0.0
        assert most_likely(posterior, batch).tolist() == log_lik.argmax(axis=1).tolist()


def test_the_nearest_of_many_centres_is_the_same_in_tiles_of_any_size(monkeypatch):
    setting = context(mixture(DiagGaussian()), cut(Batch(blobs(0, 4, 60, 2)[0]), 1))
    model, batch = setting.model, setting.source.batches[0]
    centres = batch.take(np.array([3, 8, 3, 20, 41, 8, 55]))  # some twice: the lowest of equals
    joint = kmeans.log_joint(model, kmeans.single_atoms(model, centres), batch)
    wanted = joint.argmax(axis=1)
    for _ in range(2):
        labels, value = nearest(model, batch, centres)
        assert labels.tolist() == wanted.tolist()
        np.testing.assert_allclose(value, joint.max(axis=1), rtol=1e-12)
        threes = lambda m, b: (b.rows(a, min(a + 3, b.n_atoms)) for a in range(0, b.n_atoms, 3))  # noqa: E731
        monkeypatch.setattr(kmeans, "_tiles", threes)
        monkeypatch.setattr(kmeans, "atom_tiles", lambda m, b, k: (b.rows(*e) for e in ((0, 7), (7, 20), (20, 60))))


def test_candidates_pass_by_their_share_of_the_cost_with_what_belongs_to_them():
    score, uniform = np.array([1.0, 2.0, 0.0, 4.0]), np.array([0.3, 0.3, 0.0, 0.9])
    drawn = Drawn(4, 10.0, Batch(np.arange(4.0)[:, None]), np.array([2, 5, 6, 9]), score, uniform)
    found = drawn.thin(2.0, 10.0)  # shares .2, .4, 0, .8
    assert found.position.tolist() == [5] and found.score.tolist() == [2.0] and found.uniform.tolist() == [0.3]
    assert found.atoms.x[:, 0].tolist() == [1.0] and (found.batch, found.cost) == (4, 10.0)
    assert drawn.thin(1e9, 10.0).position.tolist() == [2, 5, 9]  # one without a score never passes
    again = drawn.thin(4.0, 10.0)
    assert again.position.tolist() == [2, 5, 9] and again.uniform.tolist() == [0.3, 0.3, 0.9]


def test_the_heaviest_candidate_of_each_cluster_is_named_among_all_candidates():
    setting = context(mixture(DiagGaussian()), cut(Batch(np.array([[0.0], [0.1], [50.0], [50.1], [50.2], [0.2]])), 1))
    candidates, attracted = setting.source.batches[0], np.array([0.0, 2.0, 1.0, 7.0, 3.0, 1.0])
    posterior, heaviest = kmeans._recluster(setting.model, KMeansParallel(2), 5, candidates, attracted)
    assert posterior.n_clusters == 2 and heaviest.tolist() == [3, 1]  # the largest cluster first


def test_labels_are_ranks_and_not_the_order():
    assert largest_first(np.array([0, 1, 1, 2, 2, 2]), None, 3).tolist() == [2, 1, 1, 0, 0, 0]
    assert largest_first(np.array([0, 0, 1, 2, 2, 2]), None, 3).tolist() == [1, 1, 2, 0, 0, 0]
    assert largest_first(np.array([0, 0, 0, 1, 2, 2]), np.array([1.0, 1, 1, 4, 9, 9]), 3).tolist() == [2, 2, 2, 1, 0, 0]


def test_samples_hold_ten_atoms_for_each_cluster_and_all_atoms_at_most():
    def size(k, given=None, n=10**6, d=2):
        model = context(mixture(DiagGaussian()), cut(Batch(np.random.default_rng(0).normal(size=(3, d))), 1)).model
        return sample_size(SimpleNamespace(model=model, survey=SimpleNamespace(n_atoms=n)), k, given)

    assert size(5) == 10_000 and size(5, n=700) == 700
    assert size(5, 60) == 60 and size(5, 49) == 50 and size(1001) == 10_010 and size(5, 40, n=45) == 45


def test_the_cost_of_a_batch_weighs_its_atoms():
    x = np.array([[0.0], [3.0], [-1.0], [4.0]])
    weights = np.array([1.0, 0.5, 8.0, 0.0])
    setting = context(mixture(FixedVarianceGaussian(variance=1.0)), cut(Batch(x, weights), 1))
    batch, key = setting.source.batches[0], (3, 0, 7)
    args = (lambda: batch, setting.model, 4, batch.take(np.array([0])))
    everyone = kmeans._draw_candidates(*args, 1e9, 0.0, key)
    _, joint = nearest(setting.model, batch, args[3])
    distance = kmeans.divergence(kmeans.best_joint(setting.model, batch), joint[:, None])[:, 0]
    assert everyone.cost == pytest.approx(weights @ distance) and everyone.batch == 7
    assert everyone.position.tolist() == [1, 2] and everyone.atoms.weights is None  # zero away, and of zero weight
    np.testing.assert_allclose(everyone.score, (weights * distance)[[1, 2]])
    uniform = kmeans.child_rng(*key).random(4)
    np.testing.assert_array_equal(everyone.uniform, uniform[[1, 2]])
    for cost in (0.0, 50.0):  # of its own cost, or what is known of the whole if that is more
        found = kmeans._draw_candidates(*args, 1.5, cost, key)
        passed = uniform * max(cost, weights @ distance) < 1.5 * weights * distance
        assert found.position.tolist() == np.flatnonzero(passed).tolist()
    labels, _ = nearest(setting.model, batch, batch.take(np.array([0, 1])))
    assert labels.tolist() == [0, 1, 0, 1]
    assert _attract(lambda: batch, setting.model, 4, batch.take(np.array([0, 1]))).tolist() == [9.0, 0.5]
    assert _attract(lambda: Batch(x), setting.model, 4, batch.take(np.array([2, 1, 0]))).tolist() == [1.0, 2.0, 1.0]
