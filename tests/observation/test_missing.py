"""Entries that are missing: integrated over exactly, in every likelihood that takes them."""

from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, stats

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Field, Summary
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.kernels.mixture import cluster_sums
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.missing import counts_of
from bnp_dask.testing import random_resp

D = 4
KINDS = {
    "gaussian": bnp.Gaussian,
    "diag": bnp.DiagGaussian,
    "fixed": bnp.FixedVarianceGaussian,
    "bernoulli": bnp.Bernoulli,
    "poisson": bnp.Poisson,
    "negative_binomial": bnp.NegativeBinomial,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.ones(3), np.array(["marginalise"]), True, "drop", ["marginalise"]], ids=str)
def test_a_way_to_take_missing_entries_that_is_none_is_refused(kind, value):
    with pytest.raises(SettingError, match='missing=.*needs "marginalise" or None'):
        KINDS[kind](missing=value)


def rows(kind, n=60, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "bernoulli":
        return (rng.random((n, D)) < 0.4).astype(float)
    if kind in ("poisson", "negative_binomial"):
        return rng.poisson(3.0, (n, D)).astype(float)
    return rng.normal(size=(n, D)) @ rng.normal(size=(D, D)) + 5.0


def with_holes(x, share=0.3, seed=1):
    x = x.copy()
    x[np.random.default_rng(seed).random(x.shape) < share] = np.nan
    x[3] = np.nan
    return x


def fitted(model, x, k=3):
    batch = Batch(x)
    model = model.with_prior(survey_batch(batch, may_miss=True))
    resp = random_resp(np.random.default_rng(2), len(x), k)
    values = {"N": cluster_sums(resp), **model.summarize(batch, resp)}
    summary = Summary(np.arange(k), {"N": Field(("cluster",)), **model.fields}, values)
    return model, batch, resp, summary, model.global_step(summary)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("estimate", ["posterior", "map"])
def test_with_nothing_missing_all_numbers_are_the_same_bits(kind, estimate):
    x = rows(kind)
    plain, batch, _, summary, params = fitted(KINDS[kind](), x)
    own, _, _, other, asked = fitted(KINDS[kind](missing="marginalise"), x)
    if estimate == "map":
        params, asked = plain.at_mode(params), own.at_mode(asked)
    for name in summary.values:
        assert_array_equal(summary[name], other[name])
    assert_array_equal(plain.expected_log_lik(params, batch), own.expected_log_lik(asked, batch))
    assert_array_equal(plain.log_predictive(params, batch), own.log_predictive(asked, batch))
    for function in ("kl", "log_prior"):
        assert_array_equal(getattr(plain, function)(params), getattr(own, function)(asked))
    assert_array_equal(plain.score(params, summary), own.score(asked, other))


@pytest.mark.parametrize("kind", ["bernoulli", "poisson", "negative_binomial"])
def test_predictive_density_sums_over_all_values_that_may_be_missing(kind):
    model, _, _, _, params = fitted(KINDS[kind](missing="marginalise"), with_holes(rows(kind)))
    row = rows(kind, 1, seed=5)
    row[0, [0, 2]] = np.nan
    values = np.arange(2.0 if kind == "bernoulli" else 80.0)
    full = np.array([[a, row[0, 1], b, row[0, 3]] for a in values for b in values])
    terms = model.log_predictive(params, Batch(full))
    assert_allclose(model.log_predictive(params, Batch(row))[0], np.log(np.exp(terms).sum(axis=0)), rtol=1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "diag", "fixed"])
def test_predictive_density_is_the_integral_over_what_is_missing(kind):
    model, _, _, _, params = fitted(KINDS[kind](missing="marginalise"), with_holes(rows(kind)))
    row = rows(kind, 1, seed=5)
    row[0, 2] = np.nan

    def density(value, k):
        filled = np.where(np.isnan(row), value, row)
        return float(np.exp(model.log_predictive(params, Batch(filled))[0, k]))

    for k in range(3):
        expected, _ = integrate.quad(density, -np.inf, np.inf, args=(k,), epsabs=0.0, epsrel=1e-9)
        assert_allclose(np.exp(model.log_predictive(params, Batch(row))[0, k]), expected, rtol=1e-6)
    assert_array_equal(model.log_predictive(params, Batch(np.full((1, D), np.nan))), np.zeros((1, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_score_is_the_sum_of_log_likelihoods_also_where_entries_are_missing(kind):
    model, batch, resp, summary, params = fitted(KINDS[kind](missing="marginalise"), with_holes(rows(kind)))
    if kind == "gaussian":  # statistics are expectations under q(missing), and best when q is that of the parameters
        values = {"N": summary["N"], **model.complete(params, batch, resp)}
        summary = Summary(summary.ids, summary.fields, values)
    log_lik = model.expected_log_lik(params, batch)
    assert_allclose(model.score(params, summary), (resp * log_lik).sum(axis=0), rtol=1e-10)
    assert_allclose(log_lik[3], np.zeros(3), atol=1e-12)


def test_point_estimates_of_a_gaussian_give_the_density_of_the_entries_that_are_there():
    model, batch, _, _, params = fitted(bnp.Gaussian(missing="marginalise"), with_holes(rows("gaussian")))
    log_lik = model.expected_log_lik(model.at_mode(params), batch)
    for k in range(3):
        covariance = params.B[k] / params.nu[k]
        for n in np.delete(np.arange(20), 3):
            own = np.flatnonzero(~np.isnan(batch.x[n]))
            expected = stats.multivariate_normal.logpdf(batch.x[n, own], params.m[k, own], covariance[np.ix_(own, own)])
            assert_allclose(log_lik[n, k], expected if len(own) else 0.0, rtol=1e-9)


def test_the_base_measure_of_known_variances_leaves_out_the_entries_that_are_missing():
    model, batch, resp, summary, params = fitted(
        bnp.FixedVarianceGaussian(missing="marginalise"), with_holes(rows("fixed"))
    )
    mode = model.at_mode(params)
    density = stats.norm(mode.m[:, None], np.sqrt(model.variance)).logpdf(batch.x)
    whole = np.sum(resp.T * np.nansum(density, axis=2))
    assert model.score(mode, summary).sum() + summary[LOG_BASE] == pytest.approx(whole, rel=1e-12)


def test_expected_statistics_of_a_gaussian_are_those_of_the_conditional_distribution():
    model, batch, _, _, params = fitted(bnp.Gaussian(missing="marginalise"), with_holes(rows("gaussian")))
    n, k = 7, 1
    gaps = np.isnan(batch.x[n])
    assert 0 < gaps.sum() < D
    precision = params.nu[k] * np.linalg.inv(params.B[k])
    inner = np.linalg.inv(precision[np.ix_(gaps, gaps)])
    y = batch.x[n] - model.center
    y[gaps] = params.shift[k, gaps] - inner @ precision[np.ix_(gaps, ~gaps)] @ (y - params.shift[k])[~gaps]
    second = np.outer(y, y)
    second[np.ix_(gaps, gaps)] += inner
    one = np.zeros((1, 3))
    one[0, k] = 0.5
    found = model.complete(params, batch.rows(n, n + 1), one)
    assert_allclose(found["x"][k], 0.5 * y)
    assert_allclose(found["xx"][k], 0.5 * second[np.triu_indices(D)])
    assert_allclose(found["H_missing"][k], 0.5 * stats.multivariate_normal(cov=inner).entropy())
    assert not found["x"][0].any()
    assert_allclose(model.impute(params, batch.rows(n, n + 1), 2 * one)[0], y + model.center)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_many_patterns_of_holes_are_worth_what_each_is_alone(kind):
    x = rows(kind)
    for n in range(len(x)):  # every pattern of the first three columns, and none
        x[n, [d for d in range(3) if n >> d & 1]] = np.nan
    model, batch, resp, _, params = fitted(KINDS[kind](missing="marginalise"), x)

    def answers(batch, resp):
        log_lik = model.expected_log_lik(params, batch)
        return log_lik, model.log_predictive(params, batch), model.impute(params, batch, resp)

    together = answers(batch, resp)
    for n in range(16):
        for both, own in zip(together, answers(batch.rows(n, n + 1), resp[n : n + 1]), strict=True):
            assert_allclose(both[n], own[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["diag", "fixed", "bernoulli", "poisson"])
def test_beliefs_about_a_feature_are_those_of_the_atoms_that_have_it(kind):
    """Features are independent here: each by itself, without the rows that lack it, gives its part of all terms."""
    x = with_holes(rows(kind))
    model, _, resp, summary, params = fitted(KINDS[kind](missing="marginalise"), x)
    parts = {"kl": 0.0, "log_prior": 0.0, "score": 0.0}
    for d in range(D):
        settings = {f.name: getattr(model, f.name) for f in fields(model)}
        own = {
            name: value[[d]] for name, value in settings.items() if isinstance(value, np.ndarray) and value.ndim == 1
        }
        one, here = replace(model, missing=None, **own), ~np.isnan(x[:, d])
        values = {"N": cluster_sums(resp[here]), **one.summarize(Batch(x[here][:, [d]]), resp[here])}
        alone = Summary(np.arange(3), {"N": Field(("cluster",)), **one.fields}, values)
        beliefs = one.global_step(alone)
        parts["kl"] += one.kl(beliefs)
        parts["log_prior"] += one.log_prior(one.at_mode(beliefs))
        parts["score"] += one.score(beliefs, alone)
    assert_allclose(model.kl(params), parts["kl"], rtol=1e-9)
    assert_allclose(model.log_prior(model.at_mode(params)), parts["log_prior"], rtol=1e-9)
    assert_allclose(model.score(params, summary), parts["score"], rtol=1e-9)


def test_all_parts_of_a_product_that_take_holes_are_imputed():
    x = np.concatenate([rows(kind)[:, :2] for kind in ("gaussian", "bernoulli", "poisson")], axis=1)
    parts = {"0:2": bnp.DiagGaussian(missing="marginalise"), "2:4": bnp.Bernoulli(missing="marginalise")}
    holed = with_holes(x)
    whole = fitted(bnp.Product({**parts, "4:6": bnp.Poisson(missing="marginalise")}), holed)
    model, batch, resp, summary, params = whole
    filled = model.impute(params, batch, resp)
    total = dict.fromkeys(("expected_log_lik", "log_predictive"), 0.0)
    for i, part in enumerate(model.parts):
        own = Batch(np.ascontiguousarray(holed[:, 2 * i : 2 * i + 2]))
        assert_array_equal(filled[:, 2 * i : 2 * i + 2], part.impute(params.parts[i], own, resp))
        for name in total:
            total[name] = total[name] + getattr(part, name)(params.parts[i], own)
    for name, value in total.items():
        assert_allclose(getattr(model, name)(params, batch), value, rtol=1e-10)
    # both of the parts that have a base measure count in it
    product = bnp.Product({"0:2": bnp.FixedVarianceGaussian(), "2:4": bnp.Bernoulli(), "4:6": bnp.Poisson()})
    plain, batch, resp, summary, _ = fitted(product, x)
    bases = [
        part.summarize(Batch(np.ascontiguousarray(x[:, c])), resp)[LOG_BASE]
        for part, c in ((plain.parts[0], [0, 1]), (plain.parts[2], [4, 5]))
    ]
    assert_allclose(summary[LOG_BASE], sum(bases), rtol=1e-12)


def test_a_row_without_any_entry_is_imputed_by_the_means_of_its_clusters():
    model, batch, resp, _, params = fitted(bnp.Gaussian(missing="marginalise"), with_holes(rows("gaussian")))
    assert_allclose(model.impute(params, batch, resp)[3], resp[3] @ params.m)


def test_no_feature_has_fewer_than_no_atoms_where_rounding_leaves_more_gone_than_there_were():
    fields = {"N": Field(("cluster",)), "gone": Field(("cluster", "feature"))}
    values = {"N": np.array([0.3, 2.0]), "gone": np.array([[np.nextafter(0.3, 1.0), 0.1], [0.0, 2.0]])}
    assert (counts_of(Summary(np.arange(2), fields, values), "marginalise") >= 0.0).all()


def test_a_product_takes_missing_entries_in_the_parts_that_say_so():
    x = np.concatenate([rows("gaussian"), rows("bernoulli")], axis=1)
    x[5, 1] = np.nan
    model = bnp.Product({"0:4": bnp.Gaussian(missing="marginalise"), "4:8": bnp.Bernoulli()})
    model, batch, resp, _, params = fitted(model, x)
    model.check(batch)
    assert np.isfinite(model.expected_log_lik(params, batch)).all()
    filled = model.impute(params, batch, resp)
    assert_array_equal(filled[:5], x[:5])
    assert np.isfinite(filled).all() and np.isnan(batch.x[5, 1])  # the data stay as they are
    spoilt = x.copy()
    spoilt[2, 6] = np.nan
    with pytest.raises(DataError, match="row 2.*nan"):
        model.check(Batch(spoilt))


def test_surveys_of_data_with_holes_ignore_what_is_missing():
    x = with_holes(rows("gaussian", 500))
    weights = np.random.default_rng(3).random(500)
    parts = [survey_batch(Batch(x[i : i + 100], weights[i : i + 100]), may_miss=True) for i in range(0, 500, 100)]
    found = combine(parts)
    there = ~np.isnan(x)
    mean = np.nansum(weights[:, None] * x, axis=0) / (weights[:, None] * there).sum(axis=0)
    assert_allclose(found.mean, mean)
    spread = np.nansum(weights[:, None] * (x - mean) ** 2, axis=0) / (weights[:, None] * there).sum(axis=0)
    assert_allclose(found.variance, spread)
    assert_array_equal(found.minimum, np.nanmin(x, axis=0))
    assert_allclose(found.quantiles.at(0.5), np.nanmedian(x, axis=0), atol=0.5)
    x[:, 1] = np.nan
    with pytest.raises(DataError, match="no value"):
        combine([survey_batch(Batch(x), may_miss=True)])


def test_missing_entries_are_refused_unless_asked_for():
    with pytest.raises(DataError, match="nan"):
        bnp.DiagGaussian().check(Batch(with_holes(rows("diag"))))
    with pytest.raises(SettingError, match="marginalise"):
        bnp.Gaussian(missing="drop")
