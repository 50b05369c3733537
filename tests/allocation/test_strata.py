"""Mixtures in strata: enumeration, exact limits, quadrature by draws, runs, updates, job files."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from numpy.testing import assert_allclose
from scipy.special import gammaln, logsumexp

import bnp_dask as bnp
from bnp_dask.allocation.strata import (
    StrataCounts,
    constant_bound,
    moments_of_shares,
    moments_of_sticks,
    shares_term,
)
from bnp_dask.cli import main
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.kernels import mixture as kernel
from bnp_dask.testing import StructureSuite, survey_of
from tests.streaming.oracle import partitions
from tests.twins import strata_top_level as twin

LIKELIHOOD = bnp.Product({"0": bnp.Given(), "1,2": bnp.DiagGaussian()})


def rows(rng, n, n_strata=3):
    """Rows of two clusters, whose shares differ by stratum."""
    site = np.arange(n) % n_strata
    label = rng.random(n) < (0.2, 0.8, 0.5)[n_strata - 1] * (site + 1) / n_strata
    return np.column_stack([site, rng.normal(label[:, None] * 3.0, 1.0, (n, 2))])


class TestStrata(StructureSuite):
    def model(self):
        return bnp.Model(bnp.StrataMixture(alpha=3.0), LIKELIHOOD, learn_prior="never")

    def batch(self, rng, n):
        return Batch(rows(rng, n))


@pytest.mark.long
class TestOrderedStrata(TestStrata):
    def model(self):
        return bnp.Model(bnp.StrataMixture(alpha=3.0, ordered=True), LIKELIHOOD, learn_prior="never")


# -- the bound ------------------------------------------------------------------------------------------------------
def drawn(a, b, n=100_000):
    """Weights drawn from sticks."""
    u = np.random.default_rng(0).beta(a, b, (n, len(a)))
    left = np.cumprod(1.0 - u, axis=1)
    return np.column_stack([u, np.ones(n)]) * np.column_stack([np.ones(n), left])


@pytest.mark.parametrize("alpha", [0.5, 5.0, 50.0])
def test_the_bound_of_the_priors_constant_is_below_the_mean_of_draws_and_near_it(alpha):
    rng = np.random.default_rng(1)
    a, b = 0.5 + rng.gamma(3.0, 2.0, (2, 4))
    theta = 0.5 + rng.gamma(3.0, 2.0, 5)
    for parent, m in (
        (moments_of_sticks(a, b), drawn(a, b)),
        (moments_of_shares(theta), rng.dirichlet(theta, 100_000)),
    ):
        exact = gammaln(alpha) - gammaln(alpha * m).sum(axis=1)
        error = 4.0 * exact.std() / np.sqrt(len(m))
        bound = constant_bound(parent, alpha)
        assert bound <= exact.mean() + error
        assert bound >= exact.mean() - 1.0 - error
        assert_allclose(parent.mean, m.mean(axis=0), atol=5e-3)


def test_with_certain_global_weights_the_objective_is_the_dirichlet_multinomial():
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.ones(4))
    u = share[:3] / (1.0 - np.append(0.0, np.cumsum(share)[:2]))
    counts, alpha, sure = rng.gamma(1.0, 9.0, (2, 3)), 2.5, 1e9
    parent = moments_of_sticks(u * sure, (1.0 - u) * sure)
    wanted = np.column_stack([counts, np.zeros(2)]) + alpha * parent.mean
    found = 2 * constant_bound(parent, alpha) + shares_term(wanted, wanted).sum()
    prior = alpha * share[:3]
    exact = np.sum(gammaln(counts + prior) - gammaln(prior)) + np.sum(gammaln(alpha) - gammaln(alpha + counts.sum(1)))
    assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize("is_chain", [False, True])
def test_the_kernel_is_its_twin_and_the_global_step_an_optimum(is_chain):
    rng = np.random.default_rng(0)
    counts = np.ascontiguousarray(rng.gamma(0.5, 20.0, (4, 5)))
    fit = StrataCounts(counts, 2.0, 3.0, is_chain)
    point = rng.normal(size=2 * 5 + 3 * 6 * is_chain)
    slope = np.empty(len(point))
    value = kernel.value_and_slope(point, counts, 2.0, 3.0, slope)
    expected = twin.value_and_slope(point, counts, 2.0, 3.0)
    assert_allclose(value, expected[0], rtol=1e-12)
    assert_allclose(slope, expected[1], rtol=1e-9, atol=1e-9)
    steps = 1e-6 * np.eye(len(point))
    numeric = [fit.value_and_slope(point + e)[0] - fit.value_and_slope(point - e)[0] for e in steps]
    assert_allclose(slope, np.array(numeric) / 2e-6, rtol=1e-5, atol=1e-5)
    a, b, theta = fit.best()
    best = np.log(np.concatenate([a, b, theta[:-1].ravel() if is_chain else []]))
    top, flat = fit.value_and_slope(best)
    assert np.abs(flat).max() < 1e-4
    for _ in range(20):
        assert fit.value_and_slope(best + rng.normal(0.0, 0.3, len(best)))[0] < top


@pytest.mark.parametrize("ordered", [False, True])
def test_the_allocation_has_the_top_levels_term_and_strata_without_atoms_have_their_parents_weights(ordered):
    """Strata 0, 2 and 4 of five have no atoms: they count for nothing in the objective."""
    rng, here = np.random.default_rng(4), [1, 3]
    counts = np.zeros((3, 5))
    counts[:, here] = rng.gamma(2.0, 5.0, (3, 2))
    allocation = bnp.StrataMixture(gamma=1.3, alpha=4.0, ordered=ordered, column=0, n_strata=5)
    summary = {"strata": counts, "H": rng.random(3)}
    found = allocation.global_step(summary)
    parents = [found.theta[1]] if ordered else []
    point = np.log(np.concatenate([found.a, found.b, *parents]))
    top = StrataCounts(np.ascontiguousarray(counts[:, here].T), 1.3, 4.0, ordered).value_and_slope(point)[0]
    terms = allocation.elbo(found, summary)
    assert_allclose(terms["allocation"], top, rtol=1e-10)
    assert terms["entropy"] == pytest.approx(summary["H"].sum())
    sticks = moments_of_sticks(found.a, found.b).mean
    shares = found.theta / found.theta.sum(axis=1, keepdims=True)
    for s, parent in ((0, sticks), (2, shares[1] if ordered else sticks), (4, shares[3] if ordered else sticks)):
        assert_allclose(found.theta[s], 4.0 * parent, rtol=1e-12)
        assert_allclose(found.log_pi[:, s], np.log(parent[:-1]), rtol=1e-12)
    assert_allclose(allocation.shares(found), shares, rtol=1e-12)
    assert_allclose(allocation.weights(found), (shares[here].T @ counts.sum(axis=0)[here] / counts.sum())[:-1])


# -- all assignments ------------------------------------------------------------------------------------------------
@cache
def stirling(n, m):
    """Unsigned Stirling numbers of the first kind."""
    if n == m == 0:
        return 1.0
    return 0.0 if m < 1 or m > n else stirling(n - 1, m - 1) + (n - 1) * stirling(n - 1, m)


def log_partition(n, gamma, alpha):
    """Log probability of a partition with counts ``n (S, K)``: the tables of all restaurants are summed out."""
    base = np.sum(gammaln(alpha) - gammaln(alpha + n.sum(axis=1)))
    terms = []
    for tables in product(*[range(1, c + 1) if c else (0,) for c in n.ravel().tolist()]):
        m = np.array(tables).reshape(n.shape)
        ways = sum(np.log(stirling(c, t)) for c, t in zip(n.ravel().tolist(), tables, strict=True))
        of_all = m.sum(axis=0)
        dishes = n.shape[1] * np.log(gamma) + gammaln(of_all).sum() + gammaln(gamma) - gammaln(gamma + m.sum())
        terms.append(ways + m.sum() * np.log(alpha) + dishes)
    return base + logsumexp(terms)


@pytest.mark.parametrize("alpha", [0.5, 10.0])
def test_the_objective_is_below_the_evidence_of_all_partitions(alpha):
    rng, gamma = np.random.default_rng(0), 1.3
    batch = Batch(rows(rng, 5, 2))
    model = bnp.Model(bnp.StrataMixture(gamma, alpha), LIKELIHOOD, learn_prior="never").with_prior(survey_of(batch))
    prior, joint = [], []
    for place in partitions(5):
        k = max(place) + 1
        own = model.summarize(np.arange(k), batch, np.eye(k)[list(place)])
        prior.append(log_partition(own["strata"].T.astype(int), gamma, alpha))
        data = model.best_data_terms(own).sum() + own.values.get("log_base", 0.0)
        joint.append(prior[-1] + data)
        # each assignment by itself is a bound, up to the order of the sticks, of its own probability
        assert model.best_objective(own) < joint[-1] + 1e-9
    assert logsumexp(prior) == pytest.approx(0.0, abs=1e-9)
    for k in (1, 2, 3):
        posterior = model.global_step(model.summarize(np.arange(k), batch, rng.dirichlet(np.ones(k), 5)))
        for _ in range(30):
            summary = model.local_step(posterior, batch)
            posterior = model.global_step(summary)
        assert sum(model.elbo(posterior, summary).values()) < logsumexp(joint)


# -- runs -----------------------------------------------------------------------------------------------------------
SHARES = np.array([[0.8, 0.2, 0.0], [0.1, 0.2, 0.7], [0.0, 0.9, 0.1]])


def test_a_stratum_of_many_atoms_leaves_the_scores_of_others_alone():
    """It has no mass left for unseen clusters; the others have."""
    rng = np.random.default_rng(3)
    batch = Batch(rows(rng, 60))
    model = bnp.Model(bnp.StrataMixture(alpha=3.0), LIKELIHOOD, learn_prior="never").with_prior(survey_of(batch))
    resp = np.eye(2)[(batch.x[:, 1] > 1.5).astype(int)]
    posterior = model.global_step(model.summarize(np.arange(2), batch, resp))
    crowded = posterior.allocation
    shares = type(model.allocation).shares

    def without_rest(self, params):
        found = shares(self, params).copy()
        found[0] = [*(found[0, :-1] / found[0, :-1].sum()), 0.0]
        return found

    others = Batch(batch.x[batch.x[:, 0] > 0.0])
    wanted = model.structure.log_density(model, posterior, others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.allocation), "shares", without_rest)
        assert (model.allocation.shares(crowded)[1:, -1] > 1e-3).all()
        assert_allclose(model.structure.log_density(model, posterior, others), wanted, rtol=1e-13)


def sites(n, rng, names=("north", "south", "west")):
    """Rows of three clusters that overlap, in three strata that differ in their shares."""
    site = rng.integers(3, size=n)
    label = np.array([rng.choice(3, p=SHARES[s]) for s in site])
    x = rng.normal(np.array([0.0, 2.5, 5.0])[label], 1.0)
    return pd.DataFrame({"site": pd.Categorical.from_codes(site, [*names, "later"]), "x": x, "y": rng.normal(size=n)})


PARTS = bnp.Product({"site": bnp.Given(), "x,y": bnp.DiagGaussian()})


def test_strata_have_their_shares_and_predict_better_than_without_and_a_later_stratum_joins():
    rng = np.random.default_rng(0)
    table, test = sites(500, rng), sites(600, rng)
    settings = {"batch_size": 250, "rng": 0, "init": bnp.RandomExamples(4), "moves": [bnp.Merge()]}
    schedule = bnp.Memoized(laps=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        own = bnp.train(bnp.Model(bnp.StrataMixture(), PARTS), table, schedule=schedule, **settings).posterior
        plain = bnp.train(bnp.Model(bnp.DPMixture(), PARTS), table, schedule=schedule, **settings).posterior
    assert bnp.score(own, test) > bnp.score(plain, test) + 0.05
    found = own.to_xarray()["strata"]
    assert list(found.stratum.values) == ["north", "south", "west", "later"]
    # a stratum without rows is predicted by the global weights
    later = test.assign(site=pd.Categorical(["later"] * len(test), test["site"].cat.categories))
    assert np.isfinite(bnp.score(own, later))
    assert found.sel(stratum="later").sum() < 1.0
    drawn = bnp.sample(own, 300, 0)
    assert set(drawn.x["site"]) == {"north", "south", "west"}


def test_rows_of_a_stratum_that_was_empty_give_it_weights_and_strange_strata_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    table = sites(300, rng)
    model = bnp.Model(bnp.StrataMixture(ordered=True), PARTS)
    init, schedule = bnp.RandomExamples(3), bnp.Memoized(laps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        bnp.train(model, table, init=init, moves=(), schedule=schedule, store=tmp_path / "run", rng=0)
        new = table[table["x"] > 3.0].assign(site="later").astype({"site": table["site"].dtype})
        bnp.update(tmp_path / "run", new)
        posterior = bnp.load(tmp_path / "run")
    mass = posterior.allocation.mass
    assert mass[3] == pytest.approx(len(new))
    weights = posterior.to_xarray()["strata"].sel(stratum="later").values
    means = posterior.to_xarray()["x,y.mean"].values[:, 0]
    assert means[weights.argmax()] > 3.0
    strange = new.assign(site=pd.Categorical(["elsewhere"] * len(new)))
    with pytest.raises(DataError, match="elsewhere"):
        bnp.predict(posterior, strange)


def test_a_likelihood_without_a_column_of_strata_is_refused():
    for observation in (bnp.Gaussian(), bnp.Product({"0": bnp.Gaussian()})):
        with pytest.raises(SettingError, match=r"which column holds the strata.*Given\(\)"):
            bnp.Model(bnp.StrataMixture(), observation)
    with pytest.raises(SettingError, match="alpha"):
        bnp.StrataMixture(alpha=0.0)
    for wrong in ({"column": -1}, {"column": "site"}, {"n_strata": 0}, {"n_strata": np.ones(2)}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            bnp.StrataMixture(**wrong)


def test_rows_without_a_stratum_and_other_columns_than_those_of_the_data_are_refused():
    table = sites(40, np.random.default_rng(0))
    model = bnp.Model(bnp.StrataMixture(), PARTS)
    facts = {"init": bnp.RandomExamples(2), "schedule": bnp.Memoized(laps=1), "moves": ()}
    with pytest.raises(DataError, match=r"row 3, column 'site' is missing; a row is in one stratum"):
        bnp.train(model, table.assign(site=[None if i == 3 else site for i, site in enumerate(table["site"])]), **facts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        posterior = bnp.train(model, table, **facts).posterior
    ready = posterior.model
    for wrong in ({"column": 99}, {"n_strata": 10**9}):
        with pytest.raises(SettingError, match=r"the data have 4 strata in column 0"):
            replace(ready, allocation=replace(ready.allocation, **wrong))
    # sums that cancelled
    params = replace(posterior.allocation, mass=posterior.allocation.mass * [1.0, 1.0, -1e-17, 1.0])
    drawn = bnp.sample(replace(posterior, allocation=params), 20, rng=0)
    assert drawn.x["site"].nunique() == 2


@pytest.mark.long
def test_a_job_file_trains_with_births_resumes_and_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sites(400, np.random.default_rng(0)).to_parquet("rows.parquet")
    parts = {"site": "Given", "x,y": "DiagGaussian"}
    job = {
        "model": {
            "allocation": {"type": "StrataMixture", "alpha": 5.0},
            "observation": {"type": "Product", "groups": parts},
        },
        "data": {"path": "rows.parquet", "batch_size": 200},
        "init": {"type": "RandomExamples", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 4},
        "store": "run",
    }
    Path("run.yaml").write_text(yaml.safe_dump(job))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "run.yaml", "--laps", "2"]) == 0
        assert main(["resume", "run", "--laps", "4"]) == 0
    trained = bnp.load("run/posterior.zarr")
    assert trained.model.allocation.alpha == 5.0
    assert main(["report", "run", "page.html"]) == 0
    assert "StrataMixture" in Path("page.html").read_text()


def test_without_an_atom_weights_are_those_of_the_global_sticks():
    model = bnp.Model(bnp.StrataMixture(alpha=3.0), LIKELIHOOD, learn_prior="never")
    model = model.with_prior(survey_of(Batch(rows(np.random.default_rng(0), 30))))
    own = model.allocation
    params = own.global_step(model.empty_summary(np.arange(3)))
    weights = own.weights(params)
    assert_allclose(weights, [0.5, 0.25, 0.125], rtol=1e-9)  # of sticks Beta(1, 1)
