"""Columns that are constant, doubled, sums of others or all but that leave clusters as they are, for all Gaussians."""

import contextlib
import functools
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.core.survey import combine, joint_moments
from bnp_dask.inference.visit import survey_checked
from bnp_dask.observation import with_previous
from bnp_dask.training.survey_pass import survey_from_arrays, survey_to_arrays


def noise(size):
    return np.random.default_rng(8).normal(size=size)


ADDED = {
    "constant": lambda x: np.full((len(x), 1), 3.0),
    "zero": lambda x: np.zeros((len(x), 1)),
    "doubled": lambda x: x[:, :1],
    "doubled in other units": lambda x: 1e6 * x[:, 1:2],
    "doubled in smaller units": lambda x: 1e-6 * x[:, 1:2],
    "a sum": lambda x: x.sum(axis=1, keepdims=True),
    "a sum in single precision": lambda x: x.astype(np.float32).sum(axis=1, keepdims=True).astype(float),
    "doubled with noise of 1e-3": lambda x: x[:, :1] + 1e-3 * noise((len(x), 1)),
    "doubled with noise of 1e-7": lambda x: x[:, :1] + 1e-7 * noise((len(x), 1)),
    "small noise": lambda x: 3.0 + 1e-6 * noise((len(x), 1)),
}


def two_groups(rng):
    labels = np.repeat([0, 1], 60)
    return np.array([[0.0, 0.0], [4.0, 2.0]])[labels] + rng.normal(size=(120, 2)), labels


def two_shapes(rng):
    labels = np.repeat([0, 1], 150)
    return np.array([[3.0, 0.4], [0.4, 3.0]])[labels] * rng.normal(size=(300, 2)), labels


def two_dynamics(rng, n=400):
    x, labels = np.zeros((n, 2)), (np.arange(n) // 40) % 2
    for t in range(1, n):
        rule = np.array([[0.9, -0.4], [0.4, 0.9]]) if labels[t] else np.diag([0.5, 0.0])
        x[t] = rule @ x[t - 1] + rng.normal(size=2) * 0.3
    return x, labels


def gappy(x):
    rows = np.flatnonzero(np.arange(len(x)) % 7 == 0)
    x = np.array(x)
    x[rows, rows % x.shape[1]] = np.nan
    return x


def plain(x):
    return x


FAMILIES = {
    "Gaussian": (bnp.Gaussian(), two_groups, plain),
    "Gaussian with missing entries": (bnp.Gaussian(missing="marginalise"), two_groups, gappy),
    "ZeroMeanGaussian": (bnp.ZeroMeanGaussian(), two_shapes, plain),
    "DiagGaussian": (bnp.DiagGaussian(), two_groups, plain),
    "DiagGaussian with missing entries": (bnp.DiagGaussian(missing="marginalise"), two_groups, gappy),
    "FixedVarianceGaussian": (bnp.FixedVarianceGaussian(), two_groups, plain),
    "AutoRegressiveGaussian": (
        bnp.AutoRegressiveGaussian(lags=1),
        two_dynamics,
        lambda x: with_previous(x, np.array([0, len(x)]))[0],
    ),
    "Product": (bnp.Product({":": bnp.Gaussian()}), two_groups, plain),
}


def gain_of_two(observation, rows, labels):
    """Nats by which two clusters with the true labels are better than one cluster of all rows."""
    model = bnp.Model(bnp.DPMixture(), observation)
    batch = Batch(rows)
    ready = model.with_prior(survey_checked(model, batch))
    found = []
    for k in (1, 2):
        resp = np.eye(k)[labels % k]
        ids = np.arange(k)
        summary = ready.summarize(ids, batch, resp)
        params = ready.observation.global_step(summary)
        found.append(float((ready.observation.score(params, summary) - ready.observation.kl(params)).sum()))
        assert isinstance(summary, Summary)
    return found[1] - found[0]


INDEPENDENT = ("DiagGaussian", "DiagGaussian with missing entries", "FixedVarianceGaussian")
"""Likelihoods that take columns as independent."""


FOLLOWING = [name for name in ADDED if name.startswith(("doubled", "a sum"))]
"""Columns that follow from others, or nearly."""


def told(family, added):
    """Words of the warning of a family of likelihoods about an added column; "" for none."""
    if added == "zero" or (added == "constant" and family != "ZeroMeanGaussian"):
        return "are constant: they carry no information"
    return "Drop them, or use Gaussian" if family in INDEPENDENT and added in FOLLOWING else ""


def warned(words):
    """Context in which a warning with these words is given; without words none may be."""
    return pytest.warns(UserWarning, match=words) if words else contextlib.nullcontext()


SPARE = 5.0
"""Nats by which a column may cost more than the dearest of five columns of noise: their costs deviate by 2.5."""


@functools.cache
def costs_of_noise(family):
    """Nats by which two clusters gain less beside a column of noise, for five such columns, ``(5,)``."""
    observation, data, rows = FAMILIES[family]
    x, labels = data(np.random.default_rng(1))
    labels = labels[-len(rows(x)) :]
    alone = gain_of_two(observation, rows(x), labels)
    columns = np.random.default_rng(20).normal(size=(5, len(x), 1))
    return alone - np.array([gain_of_two(observation, rows(np.hstack([x, each])), labels) for each in columns])


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_column_that_says_nothing_costs_two_clusters_no_more_than_a_column_of_noise(family, added):
    observation, data, rows = FAMILIES[family]
    x, labels = data(np.random.default_rng(1))
    labels = labels[-len(rows(x)) :]
    alone = gain_of_two(observation, rows(x), labels)
    with warned(told(family, added)):
        beside = gain_of_two(observation, rows(np.hstack([x, ADDED[added](x)])), labels)
    assert alone > 70.0
    assert beside > alone - costs_of_noise(family).max() - SPARE


@pytest.mark.parametrize(
    ("family", "n_numbers"),
    # mean and covariances of the third column; of steps, covariances and a row and a column of the regression more
    [("Gaussian", 4), ("ZeroMeanGaussian", 3), ("DiagGaussian", 2), ("AutoRegressiveGaussian", 8)],
)
def test_a_column_of_noise_costs_half_a_logarithm_of_the_rows_for_each_number_of_one_cluster_more(family, n_numbers):
    # Schwarz 1978: the evidence of n rows falls by log(n) / 2 for each number, and by what the prior of it costs
    _, data, rows = FAMILIES[family]
    n_rows = len(rows(data(np.random.default_rng(1))[0])) / 2
    assert costs_of_noise(family).mean() == pytest.approx(0.5 * n_numbers * np.log(n_rows), abs=1.5 * n_numbers)


def test_what_the_steps_before_determine_counts_the_same_for_all_states():
    x, labels = two_dynamics(np.random.default_rng(1))
    late = np.vstack([np.zeros((1, 1)), x[:-1, :1]])
    total = np.cumsum(x[:, :1], axis=0)
    alone = gain_of_two(bnp.AutoRegressiveGaussian(lags=1), with_previous(x, np.array([0, 400]))[0], labels[1:])
    for column in (late, total):
        rows = with_previous(np.hstack([x, column]), np.array([0, 400]))[0]
        cost = alone - gain_of_two(bnp.AutoRegressiveGaussian(lags=1), rows, labels[1:])
        assert cost < costs_of_noise("AutoRegressiveGaussian").max() + SPARE


def ready_prior(observation, x):
    model = bnp.Model(bnp.DPMixture(), observation)
    return model.with_prior(survey_checked(model, Batch(x))).observation


def test_data_that_vary_in_all_directions_have_the_prior_that_they_had():
    x, _ = two_groups(np.random.default_rng(2))
    prior = ready_prior(bnp.Gaussian(), np.hstack([x, x[:, :1] + 0.1 * noise((120, 1))]))
    assert prior.null.shape == (2, 0, 3)
    assert prior.nu == 5.0
    assert_array_equal(prior.B, np.diag(np.diag(prior.B)))


def test_prior_follows_directions_in_which_the_data_hardly_vary():
    x, _ = two_groups(np.random.default_rng(2))
    copy = x[:, :1] + 1e-4 * noise((120, 1))
    more = np.hstack([x, copy])
    scale = ready_prior(bnp.Gaussian(), more).B
    # the direction of least variance in units of the columns, of which the difference of the two is a neighbour
    unit = more.std(axis=0)
    variances, directions = np.linalg.eigh(np.cov((more / unit).T, ddof=0))
    along = directions[:, 0] / unit
    assert variances[0] < 1e-8
    assert_allclose(along @ scale @ along, 0.1 * variances[0], rtol=1e-6)
    apart = np.array([1.0, 0.0, -1.0])
    assert_allclose(apart @ scale @ apart, 0.1 * np.var(x[:, 0] - copy[:, 0]), rtol=1e-2)


def test_few_rows_do_not_pass_for_dependent_columns():
    rng = np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prior = ready_prior(bnp.Gaussian(), rng.normal(size=(12, 20)))
    assert prior.null.shape == (2, 0, 20)
    assert prior.nu == 42.0


@pytest.mark.parametrize("family", FAMILIES)
def test_one_line_names_the_columns(family, caplog):
    observation, data, rows = FAMILIES[family]
    x, _ = data(np.random.default_rng(4))
    more = rows(np.hstack([x, np.full((len(x), 1), 2.0), x[:, :1]]))
    if "missing" in family:
        more[:] = np.where(np.isnan(more).any(axis=1, keepdims=True) & (np.arange(len(more)) > 60)[:, None], 0.0, more)
        more[:, 2] = 2.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ready_prior(observation, more)
    lines = [str(each.message) for each in said] + [record.getMessage() for record in caplog.records]
    text = " ".join(lines)
    constant = "" if family == "ZeroMeanGaussian" else "[2] are constant"
    assert constant in text
    assert "[3] follow from others" in text or "3] follow from others" in text
    assert len(lines) == len(set(lines)) <= 2


@pytest.mark.parametrize("likelihood", [bnp.Gaussian(), bnp.ZeroMeanGaussian(), bnp.DiagGaussian()])
def test_random_atoms_keep_to_what_the_data_keep_to(likelihood):
    x, _ = two_groups(np.random.default_rng(5))
    more = np.hstack([x, np.full((len(x), 1), 7.0), x[:, :1] - 2.0 * x[:, 1:]])
    schedule = bnp.Memoized(laps=2)
    model, init = bnp.Model(bnp.DPMixture(), likelihood), bnp.BregmanKMeans(3)
    drop = "Drop them" if isinstance(likelihood, bnp.DiagGaussian) else ""
    constant = "" if isinstance(likelihood, bnp.ZeroMeanGaussian) else "are constant"
    with pytest.warns(UserWarning, match="at the limit"), warned(constant), warned(drop):
        result = bnp.train(model, more, init=init, schedule=schedule, rng=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = np.asarray(bnp.sample(result.posterior, 50, rng=1).x)
    if not isinstance(likelihood, bnp.ZeroMeanGaussian):
        assert_allclose(drawn[:, 2], 7.0, rtol=1e-6)
    if not isinstance(likelihood, bnp.DiagGaussian):
        assert_allclose(drawn[:, 3], drawn[:, 0] - 2.0 * drawn[:, 1], atol=1e-4)


def test_joint_moments_add_up_over_batches_and_survive_being_written():
    rng = np.random.default_rng(6)
    x, weights = rng.normal(50.0, 2.0, (40, 3)), rng.uniform(0.5, 2.0, 40)
    x[5, 1] = np.nan
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(missing="marginalise"))
    cuts = [slice(0, 1), slice(1, 17), slice(17, 17), slice(17, 40)]
    found = combine(survey_checked(model, Batch(x[cut], weights=weights[cut])) for cut in cuts)
    joint = survey_from_arrays(survey_to_arrays(found)).joint
    held = ~np.isnan(x).any(axis=1)
    assert joint.count == held.sum()
    assert_allclose(joint.covariance, np.cov(x[held].T, ddof=0, aweights=weights[held]), rtol=1e-12)
    assert_array_equal(joint.features(np.array([2, 0])).covariance, joint.covariance[np.ix_([2, 0], [2, 0])])
    assert joint_moments(x, weights, np.zeros(0, np.int64)).count == 0


@pytest.mark.parametrize(
    "added", ["a sum", *(pytest.param(name, marks=pytest.mark.long) for name in ADDED if name != "a sum")]
)
def test_autoregressive_states_are_found_beside_a_column_that_says_nothing(added):
    x, labels = two_dynamics(np.random.default_rng(7))
    model = bnp.Model(bnp.HDPHMM(kappa=50.0), bnp.AutoRegressiveGaussian(lags=1))
    found = []
    words = told("AutoRegressiveGaussian", added)
    for rows, says in ((x, ""), (np.hstack([x, ADDED[added](x)]), words)):
        source = bnp.as_source(rows, groups=[0, 400])
        init, schedule = bnp.ContiguousBlocks(3), bnp.Memoized(laps=5)
        with pytest.warns(UserWarning, match="stopped at the limit"), warned(says):
            result = bnp.train(model, source, init=init, schedule=schedule, rng=0)
        found.append(adjusted_rand_score(labels, bnp.predict(result.posterior, source)))
    assert found[0] > 0.6
    assert found[1] > found[0] - 0.1


def wide_groups(n_columns, n_rows, n_groups, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_groups), n_rows)
    return rng.normal(0.0, 1.5, (n_groups, n_columns))[labels] + rng.normal(size=(len(labels), n_columns)), labels


@pytest.mark.parametrize(
    ("n_columns", "n_rows", "n_clusters", "seed"),
    [
        (30, 10, 6, 0),
        (60, 20, 6, 0),
        *(pytest.param(60, 20, n, seed, marks=pytest.mark.long) for n in (6, None) for seed in (1, 2, 3)),
        *(pytest.param(256, 30, n, 0, marks=pytest.mark.long) for n in (6, None)),
    ],
)
def test_groups_of_fewer_rows_than_columns_are_found_by_default(n_columns, n_rows, n_clusters, seed):
    x, labels = wide_groups(n_columns, n_rows, 3, seed)
    found = bnp.DirichletProcessMixture("gaussian", n_clusters=n_clusters, random_state=0).fit(x)
    assert adjusted_rand_score(labels, found.predict(x)) > 0.95
    assert found.n_iter_ <= 25
