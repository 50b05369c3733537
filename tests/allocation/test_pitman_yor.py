"""Pitman-Yor mixtures: the shipped suite, the Dirichlet process as a case, quadrature, enumeration, and a run."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.pitman_yor import PitmanYorMixture
from bnp_dask.cli import main
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.testing import AllocationSuite
from tests.allocation.test_mixtures import SIZES, beta_expectation, summary
from tests.streaming.oracle import partitions


class TestPitmanYorMixture(AllocationSuite):
    def model(self, top=None):
        return PitmanYorMixture(gamma=2.0, discount=0.3, top=top)


def test_without_a_discount_it_is_the_dirichlet_process():
    own, other = PitmanYorMixture(2.5, 0.0), DPMixture(2.5)
    a, b = own.global_step(summary(SIZES)), other.global_step(summary(SIZES))
    assert_array_equal(own.log_weights(a), other.log_weights(b))
    assert own.elbo(a, summary(SIZES)) == pytest.approx(other.elbo(b, summary(SIZES)), rel=1e-14)
    mode = [model.log_joint(model.at_mode(p), summary(SIZES)) for model, p in ((own, a), (other, b))]
    assert mode[0] == pytest.approx(mode[1], rel=1e-14)
    counts = np.array([3.0, 1.0, 7.0])
    assert_allclose(own.log_partition(counts), other.log_partition(counts), rtol=1e-13)
    many = summary(SIZES)
    assert_allclose(own.learned(a, many).gamma, other.learned(b, many).gamma, rtol=1e-9)


@pytest.mark.parametrize("reverse", [False, True], ids=["at the optimum", "away from it"])
def test_its_objective_against_quadrature(reverse):
    """E[log p(z|u)] + E[log p(u)] - E[log q(u)], term by term."""
    model = PitmanYorMixture(gamma=2.5, discount=0.4)
    params = model.global_step(summary(SIZES[::-1] if reverse else SIZES))
    total = 0.0
    for k in range(4):
        ones, zeros = 0.6, 2.5 + 0.4 * (k + 1)
        prior, a, b = stats.beta(ones, zeros), params.eta1[k], params.eta0[k]
        log_u = beta_expectation(lambda u, v: np.log(u), a, b)
        log_not_u = beta_expectation(lambda u, v: np.log(v), a, b)
        assert_allclose([params.log_u[k], params.log_not_u[k]], [log_u, log_not_u], rtol=1e-8)
        total += SIZES[k] * log_u + SIZES[k + 1 :].sum() * log_not_u + stats.beta(a, b).entropy()
        total += (ones - 1.0) * log_u + (zeros - 1.0) * log_not_u - (np.log(1.0) - prior.logpdf(0.5))
        total -= (ones - 1.0) * np.log(0.5) + (zeros - 1.0) * np.log(0.5)
    assert_allclose(model.elbo(params, summary(SIZES))["allocation"], total, rtol=1e-8)


@pytest.mark.parametrize("discount", [0.0, 0.25, 0.8])
def test_partitions_have_probability_one_and_their_ratios_are_the_predictive_rule(discount):
    model = PitmanYorMixture(1.7, discount)
    total = sum(np.exp(model.log_partition(np.bincount(p).astype(float))) for p in partitions(6))
    assert_allclose(total, 1.0, rtol=1e-12)
    counts = np.array([4.0, 1.0, 2.0])
    seats, new = model.urn.weights_after(counts, np.full(3, -50.0))
    before = model.log_partition(counts)
    assert_allclose(np.log(new), model.log_partition(np.append(counts, 1.0)) - before, atol=1e-12)
    for k in range(3):
        assert_allclose(np.log(seats[k]), model.log_partition(counts + np.eye(3)[k]) - before, atol=1e-12)
    known = np.sum(np.log(1.7 + discount * np.arange(1, 3))) + gammaln(1.0 + 1.7) - gammaln(1.7 + 7)
    known += np.sum(gammaln(counts - discount) - gammaln(1.0 - discount))
    assert_allclose(before, known, rtol=1e-12)


def test_a_union_of_two_clusters_has_the_odds_of_the_partitions():
    model, counts = PitmanYorMixture(1.7, 0.4), np.array([4.0, 3.0, 2.0])
    found = model.urn.log_unions(counts[:1], counts[1:2], counts, np.full(3, -50.0))
    want = model.log_partition(np.array([7.0, 2.0])) - model.log_partition(counts)
    assert_allclose(found, [want], rtol=1e-12)


@pytest.mark.parametrize("discount", [0.1, 0.6])
def test_the_learned_concentration_is_the_best(discount):
    model, many = PitmanYorMixture(1.0, discount), summary(np.full(40, 3.0))
    params = model.global_step(many)
    best = model.learned(params, many)

    def worth(gamma):
        own = PitmanYorMixture(gamma, discount)
        return own.elbo(params, many)["allocation"] + own.log_hyperprior()

    assert worth(best.gamma) > max(worth(best.gamma * 0.99), worth(best.gamma * 1.01), worth(1.0))


@pytest.mark.parametrize("wrong", [{"gamma": 0.0}, {"discount": 1.0}, {"discount": -0.1}, {"top": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        PitmanYorMixture(**wrong)


# -- runs -----------------------------------------------------------------------------------------------------------
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 2)) + np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[rng.integers(3, size=300)]


@pytest.mark.long
def test_a_job_file_trains_resumes_updates_and_shows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", rows())
    job = {
        "model": {
            "allocation": {"type": "PitmanYorMixture", "gamma": 1.0, "discount": 0.2},
            "observation": "DiagGaussian",
        },
        "data": {"path": "rows.npy", "batch_size": 100},
        "init": {"type": "RandomExamples", "n_clusters": 8},
        "schedule": {"type": "Memoized", "laps": 30, "window": 1},
        "store": "run",
    }
    Path("run.yaml").write_text(yaml.safe_dump(job))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "run.yaml", "--laps", "2"]) == 0
    assert main(["resume", "run", "--laps", "30"]) == 0
    trained = bnp.load("run/posterior.zarr")
    assert trained.model.allocation == PitmanYorMixture(1.0, 0.2)
    assert np.sum(trained.summary["N"] > 20) == 3
    bnp.update("run", rows() + 0.01)
    assert_allclose(bnp.load("run/posterior.zarr").summary["N"].sum(), 600.0)
    assert main(["report", "run", "page.html"]) == 0
    assert "PitmanYorMixture" in Path("page.html").read_text()


def test_the_objective_never_falls_and_its_concentration_is_learned():
    model = bnp.Model(PitmanYorMixture(1.0, 0.3), bnp.ZeroMeanGaussian(), learn_prior="diagonal")
    data = rows() - rows().mean(axis=0)
    with pytest.warns(bnp.ConvergenceWarning):
        result = bnp.train(model, data, init=bnp.RandomExamples(4), schedule=bnp.Memoized(laps=6, tolerance=0.0),
                           moves=[bnp.Merge()], batch_size=100, callbacks=[])  # fmt: skip
    elbo = np.array([row["elbo"] for row in result.history if row["lap"] > 1])
    assert np.all(np.diff(elbo) >= -1e-9 * abs(elbo[-1]))
    assert result.posterior.model.allocation.gamma != 1.0
    assert result.posterior.model.allocation.discount == 0.3


def test_it_is_filtered_like_the_dirichlet_process_without_a_discount():
    model = [bnp.Model(kind, bnp.DiagGaussian()).with_prior(survey_batch(bnp.Batch(rows())))
             for kind in (PitmanYorMixture(1.0, 0.0), DPMixture(1.0))]  # fmt: skip
    found = [bnp.train(one, rows(), schedule=bnp.Filter(), batch_size=100).posterior for one in model]
    assert_allclose(found[0].summary["N"], found[1].summary["N"], rtol=1e-12)
