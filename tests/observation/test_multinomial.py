"""Multinomial: the shipped suite, scipy's distributions, and what it refuses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse, stats

from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.observation.multinomial import Multinomial
from bnp_dask.testing import ObservationSuite, random_resp, survey_of

V = 12


class TestMultinomial(ObservationSuite):
    def model(self):
        return Multinomial()

    def batch(self, rng, n_atoms):
        x = rng.multinomial(rng.integers(1, 60, n_atoms), rng.dirichlet(np.full(V, 0.5), n_atoms))
        return Batch(sparse.csr_array(x.astype(float)))

    def draw(self, params, k, rng):
        return rng.dirichlet(params.lam[k])

    def log_density(self, phi, x):
        x = x.toarray()
        # scipy's multinomial refuses an exact zero probability, which tiny pseudo-counts do draw
        phi = np.maximum(phi, 1e-300)
        return stats.multinomial.logpmf(x, x.sum(axis=1), phi / phi.sum())


class TestDenseMultinomial(TestMultinomial):
    def model(self):
        return Multinomial(lam=np.linspace(0.5, 2.0, V))

    def batch(self, rng, n_atoms):
        return Batch(super().batch(rng, n_atoms).x.toarray())

    def log_density(self, phi, x):
        return super().log_density(phi, sparse.csr_array(x))


def counts(rng, n=40, v=V):
    return sparse.csr_array(rng.poisson(0.7, (n, v)).astype(float) + np.eye(n, v))


def fitted(x, lam=0.2, k=3):
    batch = Batch(x)
    model = Multinomial(lam).with_prior(survey_of(batch))
    summary = TestMultinomial().summary(model, batch, random_resp(np.random.default_rng(1), batch.n_atoms, k))
    return model, batch, summary, model.global_step(summary)


def test_dense_and_sparse_rows_are_the_same():
    x = counts(np.random.default_rng(0))
    model, batch, summary, params = fitted(x)
    _, dense, summary2, _ = fitted(x.toarray())
    assert_array_equal(model.expected_log_lik(params, dense), model.expected_log_lik(params, batch))
    assert_array_equal(model.log_predictive(params, dense), model.log_predictive(params, batch))
    assert_allclose(summary2["x"], summary["x"])


def test_against_scipy():
    model, batch, _, params = fitted(counts(np.random.default_rng(0)))
    x = batch.x.toarray()
    mode = model.expected_log_lik(model.at_mode(params), batch)
    base = TestMultinomial().log_base(model, batch)
    for k in range(3):
        phi = params.lam[k] / params.lam[k].sum()
        assert_allclose(mode[:, k] + base, stats.multinomial.logpmf(x, x.sum(axis=1), phi))
        expected = stats.dirichlet_multinomial.logpmf(x.astype(int), params.lam[k], x.sum(axis=1).astype(int))
        assert_allclose(model.log_predictive(params, batch)[:, k], expected, rtol=1e-9)


def test_summary_stays_contiguous_whatever_the_responsibilities():
    """Running totals update summaries in place through a flat view."""
    rng = np.random.default_rng(0)
    batch = Batch(counts(rng))
    model = Multinomial().with_prior(survey_of(batch))
    for resp in (random_resp(rng, 40, 3), np.eye(40, 8), np.ones((40, 1))):
        assert model.summarize(batch, resp)["x"].flags.c_contiguous


def test_huge_counts_are_finite_and_exact():
    rng = np.random.default_rng(0)
    x = np.floor(rng.random((10, 3)) * 1e9) + 1
    model, batch, summary, fit = fitted(sparse.csr_array(x), k=2)
    for params in (fit, model.global_step(summary.zeros())):
        for values in (model.expected_log_lik(params, batch), model.log_predictive(params, batch), model.kl(params)):
            assert np.isfinite(values).all()
    assert_allclose(model.global_step(summary).lam.sum(), x.sum() + 6 * 0.2)
    one = np.ones((10, 1))
    chain, suite = 0.0, TestMultinomial()
    for i in range(10):
        before = model.global_step(suite.summary(model, batch.rows(0, i), one[:i]))
        chain += model.log_predictive(before, batch.rows(i, i + 1))[0, 0]
    total = suite.summary(model, batch, one)
    params = model.global_step(total)
    assert_allclose(model.score(params, total) - model.kl(params) + total["log_base"], chain, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "why"),
    [(-2.0, "negative"), (1.5, "not a whole number"), (np.nan, "not a finite"), (np.inf, "not a finite")],
)
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_refuses_what_are_no_counts(value, why, layout):
    x = counts(np.random.default_rng(0)).toarray()
    model = Multinomial().with_prior(survey_of(Batch(x)))
    x[7, 5] = value
    with pytest.raises(DataError, match=rf"kos batch 3: row \(document\) 7, column \(word\) 5 is {value}.*{why}"):
        model.check(Batch(layout(x), name="kos batch 3"))


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_refuses_documents_without_words(layout):
    x = counts(np.random.default_rng(0)).toarray()
    model = Multinomial().with_prior(survey_of(Batch(x)))
    x[[4, 9]] = 0
    with pytest.raises(DataError, match=r"2 document\(s\) without any word, first at row 4.*Drop them"):
        model.check(Batch(layout(x)))


def test_refuses_counts_in_pieces():
    x = sparse.csr_array((np.ones(3), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, V))
    model = Multinomial().with_prior(survey_of(Batch(np.ones((2, V)))))
    with pytest.raises(DataError, match=r"sum_duplicates"):
        model.check(Batch(x))


def test_accepts_words_in_any_order():
    x = sparse.csr_array((np.array([2.0, 3.0, 1.0]), np.array([5, 1, 0]), np.array([0, 2, 3])), shape=(2, V))
    model = Multinomial().with_prior(survey_of(Batch(np.ones((2, V)))))
    model.check(Batch(x))
    params = model.global_step(TestMultinomial().summary(model, Batch(x), np.ones((2, 1))))
    assert_array_equal(params.lam[0], model.lam + x.toarray().sum(axis=0))


def test_refuses_impossible_priors():
    survey = survey_of(Batch(np.ones((2, V))))
    for lam in (0.0, -1.0, np.inf, [1.0, 2.0]):
        with pytest.raises(SettingError, match="lam"):
            Multinomial(lam).with_prior(survey)


def test_a_prior_that_knows_common_words():
    x = sparse.csr_array(np.array([[6.0, 0.0, 2.0], [2.0, 0.0, 0.0]]))
    survey = survey_of(Batch(x, np.array([1.0, 2.0])))
    made = Multinomial(0.4, common=0.75).with_prior(survey)
    assert_allclose(made.lam, 0.4 * (0.25 + 0.75 * 3 * np.array([10, 0, 2]) / 12), rtol=1e-12)
    assert made.lam.mean() == pytest.approx(0.4)
    again = made.with_prior(survey)  # what is set is not set twice
    assert_array_equal(again.lam, made.lam)
    assert_array_equal(Multinomial(common=0.0).with_prior(survey).lam, np.full(3, 0.1))
    assert_array_equal(Multinomial(0.2).with_prior(survey).lam, np.full(3, 0.2))


def test_a_prior_that_nobody_gave_follows_word_frequencies():
    survey = survey_of(Batch(sparse.csr_array(np.array([[6.0, 0.0, 2.0]]))))
    left_out, given = (words.with_prior(survey) for words in (Multinomial(), Multinomial(0.15, common=0.5)))
    assert_array_equal(left_out.lam, given.lam)
    assert left_out.lam[0] > left_out.lam[2] > left_out.lam[1] > 0


@pytest.mark.parametrize("wrong", [{"common": 1.0}, {"common": -0.1}, {"common": float("nan")}])
def test_shares_of_a_prior_that_cannot_be(wrong):
    with pytest.raises(SettingError, match="at least 0 and less than 1"):
        Multinomial(0.1, **wrong)


def test_a_prior_for_each_word_says_it_all():
    with pytest.raises(SettingError, match="give lam as a number"):
        Multinomial(np.full(3, 0.1), common=0.5)
