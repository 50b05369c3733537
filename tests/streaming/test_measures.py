"""Normalized random measures by their Levy intensities: tables against closed forms, enumeration and quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.allocation.levy import draw_jumps, table_of
from bnp_dask.core.summary import Field, Summary
from bnp_dask.errors import SettingError
from bnp_dask.kernels import ABSENT, RaggedResp, log_absent
from bnp_dask.kernels.predictive.urns import (
    NO_SEATS,
    column_weights,
    expected_clusters,
    interpolated,
    log_cumulant,
    table_rule,
    weigh,
    weight_of,
)
from tests.sampling.chains import halves, left_by_one_lap, variation
from tests.streaming.cases import case
from tests.streaming.oracle import Oracle, partitions


@bnp.register
@dataclass(frozen=True)
class Numerically:
    """A generalized gamma process that hides its closed forms."""

    a: float = 1.0
    sigma: float = 0.5
    tau: float = 1.0

    def log_intensity(self, s):
        return bnp.GeneralizedGamma(self.a, self.sigma, self.tau).log_intensity(s)


@bnp.register
@dataclass(frozen=True)
class ByCumulants:
    """A generalized gamma process by its Laplace exponent and cumulants."""

    a: float = 1.0
    sigma: float = 0.5
    tau: float = 1.0

    def laplace_exponent(self, u):
        return bnp.GeneralizedGamma(self.a, self.sigma, self.tau).laplace_exponent(u)

    def log_cumulant(self, m, u):
        return bnp.GeneralizedGamma(self.a, self.sigma, self.tau).log_cumulant(m, u)


@bnp.register
@dataclass(frozen=True)
class Both(ByCumulants):
    """The same with its density, from which masses are drawn."""

    def log_intensity(self, s):
        return bnp.GeneralizedGamma(self.a, self.sigma, self.tau).log_intensity(s)


@bnp.register
@dataclass(frozen=True)
class StableBeta:
    """Jumps below one: ``a s^(-1 - sigma) (1 - s)^(c + sigma - 1)``."""

    a: float = 1.0
    sigma: float = 0.3
    c: float = 2.0

    def log_intensity(self, s):
        small = np.minimum(s, 1.0)
        with np.errstate(divide="ignore"):
            inside = -(1.0 + self.sigma) * np.log(small) + (self.c + self.sigma - 1.0) * np.log1p(-small)
        return np.where(s < 1.0, np.log(self.a) + inside, -np.inf)


@bnp.register
@dataclass(frozen=True)
class Two:
    """The sum of two processes with discounts of their own."""

    a: float = 1.0

    def log_intensity(self, s):
        parts = bnp.GeneralizedGamma(self.a, 0.6, 1.0), bnp.GeneralizedGamma(3.0 * self.a, 0.2, 5.0)
        return np.logaddexp(*(part.log_intensity(s) for part in parts))


PRIORS = [(1.0, 0.5, 1.0), (0.2, 0.75, 10.0), (2.0, 0.0, 1.0)]
DEAR = [pytest.param(Numerically(*prior), marks=pytest.mark.long) for prior in (*PRIORS[1:], (10.0, 0.1, 0.0))]
"""Tables by quadrature take some seconds each."""


@pytest.mark.first_case
@pytest.mark.parametrize("kind", [*(ByCumulants(*prior) for prior in PRIORS), Numerically(), *DEAR], ids=str)
def test_the_table_of_a_generalized_gamma_process_is_its_closed_form(kind):
    own, table = bnp.GeneralizedGamma(kind.a, kind.sigma, kind.tau), table_of(kind)
    u, m = np.exp(table.log_u), kind.sigma + np.array([0.02, 0.3, 1.0, 1.7, 3.0, 40.0])
    assert_allclose(table.sigma, kind.sigma, atol=1e-12)
    assert_allclose(table.psi, own.laplace_exponent(u), rtol=1e-9)
    assert_allclose(table.log_cumulants(m), own.log_cumulant(m, u[:, None]), atol=1e-8)


@pytest.mark.parametrize("prior", PRIORS)
def test_closed_forms_are_the_integrals_of_the_intensity(prior):
    own = bnp.GeneralizedGamma(*prior)

    def integral(function):
        log = [lambda t: function(np.exp(t)) * np.exp(own.log_intensity(np.exp(t)) + t)]
        return sum(quad(log[0], *ends, epsrel=1e-11, limit=400)[0] for ends in ((-90, -20), (-20, -3), (-3, 9)))

    for u in (0.1, 5.0):
        assert_allclose(own.laplace_exponent(u), integral(lambda s, u=u: -np.expm1(-u * s)), rtol=1e-7)
        for m in (1.0, 2.5):
            want = integral(lambda s, u=u, m=m: s**m * np.exp(-u * s))
            assert_allclose(np.exp(own.log_cumulant(m, u)), want, rtol=1e-7)


INTENSITIES = [
    Numerically(),
    ByCumulants(2.0, 0.0, 1.0),
    *(pytest.param(x, marks=pytest.mark.long) for x in (StableBeta(), Two())),
]


@pytest.mark.parametrize("intensity", INTENSITIES, ids=str)
def test_partitions_have_probability_one_and_their_ratios_are_the_predictive_rule(intensity):
    mixture = bnp.NRMMixture(intensity)
    for n in (1, 4, 6):
        total = sum(np.exp(mixture.log_partition(np.bincount(p).astype(float))) for p in partitions(n))
        assert_allclose(total, 1.0, atol=1e-8)
    for counts in ([1.0], [3.0, 1.0, 2.0], [40.0, 7.0, 3.0]):
        n = np.array(counts)
        seats, new = mixture.urn.weights_after(n, np.full(len(n), -50.0))
        assert_allclose(seats.sum() + new, 1.0, atol=2e-7)
        before = mixture.log_partition(n)
        assert_allclose(np.log(new), mixture.log_partition(np.append(n, 1.0)) - before, atol=1e-8)
        for k in range(len(n)):
            assert_allclose(np.log(seats[k]), mixture.log_partition(n + np.eye(len(n))[k]) - before, atol=1e-8)


@pytest.mark.parametrize("prior", PRIORS)
def test_the_rule_for_expected_counts_is_that_of_the_closed_form(prior):
    rng = np.random.default_rng(0)
    resp = rng.dirichlet(np.full(5, 0.3), 40)
    counts, absent = resp.sum(axis=0), np.log1p(-np.minimum(resp, 1.0 - 1e-15)).sum(axis=0)
    numeric, closed = bnp.NRMMixture(ByCumulants(*prior)).urn, bnp.NGGPMixture(*prior).urn
    for scale in (1.0, 0.1):  # some clusters hold less than the discount
        found = numeric.weights_after(scale * counts, scale * absent)
        want = closed.weights_after(scale * counts, scale * absent)
        assert_allclose(np.append(*found), np.append(*want), rtol=1e-8, atol=1e-14)
    gains = [urn.log_unions(np.array([3.0]), np.array([2.0]), counts, absent) for urn in (numeric, closed)]
    assert_allclose(gains[0], gains[1], rtol=0.2)  # the closed form takes expected numbers before the union for it


def test_the_gain_of_a_union_is_the_ratio_of_the_partitions():
    mixture, counts = bnp.NRMMixture(Numerically()), np.array([4.0, 3.0, 2.0])
    found = mixture.urn.log_unions(counts[:1], counts[1:2], counts, np.full(3, -50.0))
    want = mixture.log_partition(np.array([7.0, 2.0])) - mixture.log_partition(counts)
    assert_allclose(found, [want], atol=1e-8)


@pytest.mark.long
def test_cumulants_of_other_intensities_are_those_of_adaptive_quadrature():
    own, table = StableBeta(1.0, 0.3, 2.0), table_of(StableBeta(1.0, 0.3, 2.0))
    for j in np.searchsorted(table.log_u, [-3.0, 0.0, 3.0]):
        u = np.exp(table.log_u[j])
        for m in (1.0, 1.7, 12.0):
            whole = sum(
                quad(lambda s, m=m, u=u: np.exp(-u * s + m * np.log(s) + own.log_intensity(s)), low, high,
                     epsrel=1e-12, limit=400)[0]
                for low, high in ((1e-14, 1e-9), (1e-9, 1e-6), (1e-6, 1e-3), (1e-3, 0.5), (0.5, 1.0 - 1e-15))
            )  # fmt: skip
            assert_allclose(table.log_cumulants(np.array([m]), np.array([j]))[0, 0], np.log(whole), atol=3e-8)


def test_the_predictive_rule_is_the_quadrature_over_all_nodes():
    """The compiled rule, which cuts the density of log U off, against sums over the whole table."""
    table = table_of(Numerically())
    counts, absent = np.array([5.0, 2.0, 1.0]), np.full(3, -50.0)
    logs = table.log_terms(counts, np.ones(3))
    q = np.exp(logs - logs.max())
    share = q / q.sum() * np.exp(table.log_u) / 8.0
    want = [share @ np.exp(np.diff(table.log_cumulants(np.array([m, m + 1.0])), axis=1))[:, 0] for m in counts]
    out = np.empty(3)
    new, _ = table_rule(8.0, counts, absent, 3, table.sigma, table.arrays(), 0.0, out)
    assert_allclose(out, want, rtol=1e-9)
    assert_allclose(new, share @ np.exp(table.log_cumulants(np.ones(1)))[:, 0], rtol=1e-9)


@pytest.mark.first_case
@pytest.mark.parametrize("schedule", [bnp.Filter(), bnp.ExpectationPropagation(laps=2)], ids=["ADF", "EP"])
@pytest.mark.parametrize("likelihood", ["Gaussian", "Multinomial", "DiagGaussian"])
def test_filters_are_those_of_the_closed_form(likelihood, schedule):
    found = []
    for prior in (bnp.NRMMixture(Numerically()), bnp.NGGPMixture(1.0, 0.5, 1.0)):
        model, batch = case(likelihood, prior, 30)
        with pytest.warns(bnp.ConvergenceWarning) if type(schedule) is bnp.ExpectationPropagation else nothing():
            found.append(bnp.train(model, batch.x, schedule=schedule, batch_size=15))
    assert_allclose(found[0].posterior.summary["N"], found[1].posterior.summary["N"], rtol=1e-7)
    assert_allclose(found[0].history[-1]["elbo"], found[1].history[-1]["elbo"], rtol=1e-9)
    assert_allclose(found[0].posterior.weights, found[1].posterior.weights, rtol=1e-7)


class nothing:
    """No context."""

    def __enter__(self):
        return None

    def __exit__(self, *error):
        return False


@pytest.mark.long
@pytest.mark.parametrize("seated", [None, 0], ids=["sweep", "seating again"])
@pytest.mark.parametrize("likelihood", ["Multinomial", pytest.param("Gaussian", marks=pytest.mark.long)])
def test_one_lap_from_the_exact_posterior_leads_to_the_exact_posterior(likelihood, seated, monkeypatch):
    mixture = bnp.NRMMixture(Both(2.0, 0.5, 1.0))
    monkeypatch.setattr("tests.streaming.oracle.log_prior", lambda own, counts, n=None: own.log_partition(counts))
    model, batch = case(likelihood, mixture, 4)
    exact = Oracle(model, batch, None).posterior
    assert variation(left_by_one_lap(exact, model, halves(batch), 1500, seated), exact) < 0.06


@pytest.mark.long
def test_masses_given_u_have_the_moments_of_their_density():
    rng, n, u = np.random.default_rng(0), 4.0, 2.0
    drawn = np.exp(draw_jumps(Numerically(1.0, 0.5, 1.0), np.full(20_000, n), np.log(u), rng))
    assert_allclose(drawn.mean(), (n - 0.5) / 3.0, rtol=0.02)  # a gamma distribution
    assert_allclose(drawn.var(), (n - 0.5) / 9.0, rtol=0.05)


def test_weights_given_u_are_ratios_of_cumulants():
    urn = bnp.NRMMixture(Numerically(1.0, 0.5, 1.0)).urn
    seats = urn.given_node(1900, 5)
    u = np.exp(urn.table.log_u[1900])
    assert_allclose(seats.weight(np.arange(1.0, 6.0)), (np.arange(1.0, 6.0) - 0.5) / (u + 1.0), rtol=1e-9)
    assert_allclose(seats.price(7.0, 3.0), (u + 1.0) ** -0.5, rtol=1e-9)
    n = np.arange(1.0, 6.0)
    assert_allclose(
        seats.logs[1:6], gammaln(n - 0.5) - gammaln(0.5) - (n - 1.0) * np.log(u + 1.0), rtol=1e-8, atol=1e-9
    )


def test_parts_of_the_rule_against_plain_sums():
    """Interpolation is linear in the table, so that weights of columns and values at orders agree."""
    table = table_of(ByCumulants())
    m, times = table.sigma + np.array([0.3, 2.0, 7.7]), np.array([1.0, 0.5, 2.0])
    values = interpolated(table.rest, m, table.sigma, table.width)
    columns = column_weights(m, times, table.sigma, table.width, table.rest.shape[1])
    want = [sum(times[k] * row[k] for k in range(3)) for row in values]
    assert_allclose(table.rest @ columns, want, rtol=1e-12)
    rows = [3, 40, 900]
    exact = ByCumulants().log_cumulant(m, np.exp(table.log_u[rows])[:, None])
    base = np.log(np.exp(table.log_u[rows]) + 1.0)[:, None] * (m - table.sigma)
    assert_allclose(values[rows], exact - gammaln(m - table.sigma) + base, atol=1e-9)
    by_count, logs = np.array([0.0, 3.0, 8.0]), np.array([0.0, 0.5, 1.5])
    assert [weight_of(2.0, 0.5, by_count), weight_of(2.0, 0.5, NO_SEATS)] == [8.0, 1.5]
    assert_allclose([log_cumulant(2.0, 0.5, logs), log_cumulant(2.0, 0.5, NO_SEATS)], [1.5, gammaln(1.5)])
    counts, out = np.array([3.0, 0.2, 2.0]), np.empty(3)
    new, _ = weigh(bnp.NGGPMixture().urn.packed(), counts, np.zeros(3), 3, 5.2, 2.2, 0.0, out)
    seat, fresh = bnp.NGGPMixture().urn.rule_after(5.2, 2.2)
    assert_allclose([*out, new], [*(max(seat * (n - 0.5), 0.0) for n in counts), fresh], rtol=1e-9)


# -- what is no intensity -------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Power:
    """``s^power`` up to ``end``, and ``s^tail`` beyond one."""

    power: float
    tail: float = -9.0
    end: float = np.inf

    def log_intensity(self, s):
        return np.where(s < self.end, np.where(s < 1.0, self.power, self.tail) * np.log(s), -np.inf)


@dataclass(frozen=True)
class Holes:
    """No jumps at all below one."""

    start: float = 1.0

    def log_intensity(self, s):
        return np.where(s < self.start, -np.inf, -s)


@dataclass(frozen=True)
class NoNumber:
    def log_intensity(self, s):
        return np.where(s > 2.0, np.nan, -1.5 * np.log(s))


@dataclass(frozen=True)
class WrongSlope(ByCumulants):
    def laplace_exponent(self, u):
        return 2.0 * super().laplace_exponent(u)


@dataclass
class NotFrozen:
    def log_intensity(self, s):
        return -1.5 * np.log(s) - s


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Power(-2.5), r"min\(1, s\) rho\(s\) is infinite near zero.*s\^-2.5"),
        (Power(-0.5), r"finitely many jumps.*-1 or less"),
        (Power(-1.5, tail=-0.5), r"infinite for large s"),
        (Holes(), "no jumps near zero"),
        (NoNumber(), "not a number at s="),
        (WrongSlope(), r"slope has to be kappa_1"),
        (NotFrozen(), "frozen dataclass"),
        (Numerically, "needs an object with log_intensity"),
        (0.5, "needs an object with log_intensity"),
        (bnp.GeneralizedGamma(1.0, 0.0, 0.0), "needs tau > 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_levy_intensity_of_infinitely_many_jumps_is_refused(wrong, words):
    with pytest.raises(SettingError, match=words):
        bnp.NRMMixture(wrong)


def test_gibbs_needs_the_intensity_itself():
    model, batch = case("Gaussian", bnp.NRMMixture(ByCumulants()), 6)
    with pytest.raises(SettingError, match=r"ByCumulants has no log_intensity.*schedule=Filter"):
        bnp.train(model, batch.x, schedule=bnp.Gibbs(laps=2, burn_in=1, thin=1), init=bnp.RandomExamples(2))


def test_closed_forms_are_used_where_there_are_any():
    assert bnp.NRMMixture(bnp.GeneralizedGamma(2.0, 0.5, 3.0)).urn == bnp.NGGPMixture(2.0, 0.5, 3.0).urn
    gamma = bnp.NRMMixture(bnp.GeneralizedGamma(2.0, 0.0, 1.0))
    seats, new = gamma.urn.weights_after(np.array([3.0]), np.array([-50.0]))
    assert_allclose([seats[0], new], [0.6, 0.4])


# -- at home --------------------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_job_file_names_an_intensity_and_its_run_is_saved_resumed_and_shown(tmp_path, monkeypatch):
    from pathlib import Path

    import yaml

    from bnp_dask.cli import main

    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", np.random.default_rng(0).normal(size=(60, 2)))
    job = {
        "model": {
            "allocation": {"type": "NRMMixture", "intensity": {"type": f"{__name__}.Numerically", "sigma": 0.5}},
            "observation": "DiagGaussian",
        },
        "data": {"path": "rows.npy", "batch_size": 20},
        "schedule": {"type": "Filter"},
        "store": "run",
    }
    Path("run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "run.yaml"]) == 0
    trained = bnp.load("run/posterior.zarr")
    assert trained.model.allocation == bnp.NRMMixture(Numerically())
    assert main(["resume", "run"]) == 0
    assert main(["predict", "run", "rows.npy", "labels.zarr"]) == 0
    assert main(["report", "run", "page.html"]) == 0
    assert "NRMMixture" in Path("page.html").read_text()
    job["model"]["allocation"]["intensity"] = {"type": "GeneralizedGama"}
    Path("run.yaml").write_text(yaml.safe_dump({**job, "store": "other"}))
    assert main(["train", "run.yaml"]) == 2


@pytest.mark.parametrize(("a", "sigma", "tau"), [(2.5, 0.0, 3.0), (2.5, 0.5, 0.0), (0.7, 0.3, 1.7)])
def test_closed_forms_of_a_generalized_gamma_process_are_the_integrals_of_its_intensity(a, sigma, tau):
    own = bnp.GeneralizedGamma(a, sigma, tau)

    def integral(function):
        """Over all masses, in log s."""
        return quad(lambda y: function(np.exp(y)) * np.exp(y + own.log_intensity(np.exp(y))), -60.0, 40.0, limit=400)[0]

    def moment(m, u):
        return integral(lambda s: s**m * np.exp(-u * s))

    for u in (0.2, 1.0, 6.0):
        assert_allclose(own.laplace_exponent(np.float64(u)), integral(partial(missed, u)), rtol=1e-6)
        for m in (1.0, 3.0):
            assert_allclose(np.exp(own.log_cumulant(np.float64(m), np.float64(u))), moment(m, u), rtol=1e-6)


def missed(u, s):
    """Chance that a jump of mass s is hit in a time u."""
    return -np.expm1(-u * s)


@pytest.mark.parametrize(
    "mixture", [bnp.NGGPMixture(1.0, 0.4, 1.0), bnp.PitmanYorMixture(1.0, 0.4)], ids=["NGGP", "PY"]
)
def test_drawn_masses_of_clusters_are_gamma_numbers_of_their_atoms_less_the_discount(mixture):
    counts = np.array([1.0, 3.0, 20.0])
    rng = np.random.default_rng(0)
    drawn = np.exp([mixture.draw_weights(counts, rng) for _ in range(4000)])
    assert_allclose(drawn.mean(axis=0), counts - 0.4, rtol=0.08)
    assert_allclose(drawn.var(axis=0), counts - 0.4, rtol=0.15)


def test_atoms_that_are_certain_leave_no_cluster_empty_and_weights_count_in_that():
    mixture = bnp.NGGPMixture(1.0, 0.4, 1.0)
    certain = np.eye(3)[np.repeat([0, 1, 2], [1, 2, 4])]
    values = mixture.certain_values(np.array([1.0, 2.0, 4.0]))
    assert (values[ABSENT] <= log_absent(certain, None)).all()
    assert_allclose(values[ABSENT] / values[ABSENT][0], [1.0, 2.0, 4.0])
    assert not values["H"].any()
    weights = np.array([1.0, 3.0, 0.5])
    batch = bnp.Batch(np.zeros((3, 1)), weights)
    fields = {"N": Field(("cluster",)), ABSENT: Field(("cluster",))}
    held = {"N": np.array([4.0, 2.0]), ABSENT: np.array([-90.0, -50.0])}
    params = mixture.global_step(Summary(np.arange(2), fields, held))
    log_lik = np.random.default_rng(0).normal(size=(3, 2))
    for step in (
        mixture.local_step(params, log_lik.copy(), batch, np.zeros((0, 2), np.int64)),
        mixture.reassign(params, log_lik.copy(), batch, np.ones(3)),
    ):
        assert_allclose(step.values[ABSENT], log_absent(step.resp, weights))
    assert 0.0 < params.new < 1.0 and params.seats.sum() + params.new == pytest.approx(1.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_chance_that_a_cluster_is_empty_is_that_all_of_its_atoms_are_elsewhere(weighted):
    share = np.array([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [0.1, 0.6, 0.3]])
    weights = np.array([2.0, 1.0, 1.0, 0.5]) if weighted else None
    times = np.ones(4) if weights is None else weights
    wanted = np.sum(times[:, None] * np.log(np.maximum(1.0 - share, 1e-15)), axis=0)
    resp = share * times[:, None]
    atom, cluster = np.nonzero(share)
    offsets = np.concatenate([[0], np.cumsum((share > 0).sum(axis=1))])
    ragged = RaggedResp(offsets, cluster, resp[atom, cluster], 3)
    assert_allclose(log_absent(resp, weights), wanted, rtol=1e-4)
    assert_allclose(log_absent(ragged, weights), wanted, rtol=1e-4)
    assert_allclose(expected_clusters(log_absent(resp, weights)), np.sum(1.0 - np.exp(wanted)), rtol=1e-4)
