"""Data and settings just inside the range of float64 give the right answer, those just outside are refused by name."""

from __future__ import annotations

import contextlib
import math
import warnings
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import LEAST_WEIGHT, MOST_WEIGHT, survey_batch
from bnp_dask.errors import BnpDaskError, DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inputs.settings import LEAST_MASS, MOST_MASS
from bnp_dask.observation import with_previous
from bnp_dask.observation.priors import LARGEST, MOST_COUNT, SMALLEST

RNG = np.random.default_rng(0)
X = 8 * np.eye(3)[RNG.integers(3, size=300)] + RNG.normal(size=(300, 3))
STEPS, OFFSETS = with_previous(X, np.array([0, 90, 180, 300]))
MOVES = [bnp.Birth(), bnp.Merge(), bnp.Delete()]

CASES = {
    "Gaussian": (bnp.DPMixture(), bnp.Gaussian(), X, None),
    "DiagGaussian": (bnp.DPMixture(), bnp.DiagGaussian(), X, None),
    "FixedVarianceGaussian": (bnp.DPMixture(), bnp.FixedVarianceGaussian(), X, None),
    "ZeroMeanGaussian": (bnp.DPMixture(), bnp.ZeroMeanGaussian(), X, None),
    "AutoRegressiveGaussian": (bnp.HDPHMM(), bnp.AutoRegressiveGaussian(), STEPS, OFFSETS),
    "Product": (bnp.DPMixture(), bnp.Product({"0:2": bnp.Gaussian(), "2": bnp.DiagGaussian()}), X, None),
    "topics of Gaussians": (bnp.HDPTopics(), bnp.Gaussian(), X, np.arange(0, 301, 10)),
    "states of Gaussians": (bnp.HDPHMM(), bnp.DiagGaussian(), X, np.array([0, 90, 180, 300])),
    "point estimates": (bnp.FiniteMixture(top=1), bnp.Gaussian(), X, None),
}


def train(name, scale=1.0, weights=None, moves=(), laps=4, data=None):
    allocation, observation, x, groups = CASES[name]
    source = bnp.as_source((x if data is None else data) * scale, batch_size=130, groups=groups, weights=weights)
    estimate = "map" if name == "point estimates" else "posterior"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(
            bnp.Model(allocation, observation, estimate=estimate),
            source,
            init=bnp.BregmanKMeans(3),
            schedule=bnp.Memoized(laps=laps, window=2),
            moves=moves,
            client=SerialExecutor(0),
        )


def largest(name, ceiling=LARGEST):
    """The power of two that makes the data just small enough: those of residuals have room for the step before."""
    size = np.abs(CASES[name][2]).max() * (2 if name == "AutoRegressiveGaussian" else 1)
    return 2.0 ** math.floor(math.log2(ceiling / size))


def smallest(name):
    x = CASES[name][2]
    spread = np.abs(x).max(axis=0).min() if name == "ZeroMeanGaussian" else np.ptp(x, axis=0).min()
    return 2.0 ** math.ceil(math.log2(SMALLEST / spread))


@pytest.mark.first_case
@pytest.mark.parametrize("name", CASES)
def test_units_at_the_ends_of_the_range_change_the_objective_by_a_known_constant(name):
    same_in_other_units(name, [smallest(name), largest(name)], ())


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_units_between_them_do_as_well_and_moves_decide_alike(name):
    moves = () if name == "point estimates" else MOVES
    same_in_other_units(name, [smallest(name), 2.0**-120, 2.0**-40, 2.0**60, 2.0**200, largest(name)], moves)


def same_in_other_units(name, scales, moves):
    plain = train(name, moves=moves)
    width = 3
    for scale in scales:
        scaled = train(name, scale, moves=moves)
        assert scaled.posterior.n_clusters == plain.posterior.n_clusters
        a, b = plain.history[-1], scaled.history[-1]
        # densities change by the determinant of the change of units, and the prior's normaliser by its own of a mode
        if name != "point estimates":
            shift = len(CASES[name][2]) * width * math.log(scale)
            size = sum(abs(a[term]) for term in ("data", "entropy", "allocation")) + abs(shift)
            assert abs(b["elbo"] + shift - a["elbo"]) < 1e-11 * size
        source = bnp.as_source(CASES[name][2] * scale, groups=CASES[name][3])
        same = bnp.as_source(CASES[name][2], groups=CASES[name][3])
        np.testing.assert_array_equal(bnp.predict(scaled.posterior, source), bnp.predict(plain.posterior, same))


@pytest.mark.parametrize("name", CASES)
def test_units_beyond_the_range_are_refused_with_the_scale_that_would_do(name):
    with pytest.raises(
        DataError, match=r"is too small for double precision; needs 1e-140 .* Multiply the column by 1e1"
    ):
        train(name, smallest(name) / 4)
    too_large = 4 * largest(name)
    with pytest.raises(BnpDaskError, match=r"too large|squared units of the data") as caught:
        train(name, too_large)
    assert "Divide" in str(caught.value) or "divide" in str(caught.value) or "rescale" in str(caught.value)


@pytest.mark.parametrize("scale", [1e-155, 1e-170, 1e160, 1e-310])
@pytest.mark.parametrize("name", list(CASES)[:5])
def test_what_ended_in_one_cluster_or_nan_is_refused(name, scale):
    """Data times 1e-155 or 1e-170 "converged" at one cluster."""
    with pytest.raises(DataError, match=r"batch 0.*column \d"):
        train(name, scale)


def test_one_column_in_other_units_is_named():
    with pytest.raises(DataError, match="column 1 varies by .*e-16"):
        train("Gaussian", np.array([1.0, 1e-170, 1.0]))
    far = X.copy()
    far[123, 2] = -1e150
    with pytest.raises(DataError, match="row 123, column 2 is -1e.150"):
        train("DiagGaussian", data=far)


def test_a_constant_column_is_no_small_column():
    x = X.copy()
    x[:, 1] = 1e-200
    with pytest.warns(UserWarning, match="constant"):
        assert train("Gaussian", data=x).posterior.n_clusters == 3


# -- settings of the scale ---------------------------------------------------------------------------------------
SCALED = {
    "B": lambda v: bnp.Gaussian(B=v),
    "beta": lambda v: bnp.DiagGaussian(beta=v),
    "variance": lambda v: bnp.FixedVarianceGaussian(variance=v),
    "zero-mean B": lambda v: bnp.ZeroMeanGaussian(B=v),
    "V": lambda v: bnp.AutoRegressiveGaussian(V=v),
    "AR B": lambda v: bnp.AutoRegressiveGaussian(B=v),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("value", [1e-300, 1e-285, 1e300])
def test_prior_scales_that_the_data_do_not_fit_are_refused(name, value):
    x, groups = (STEPS, OFFSETS) if name in ("V", "AR B") else (X, None)
    with pytest.raises(SettingError, match=rf"^{name.split()[-1]} of column 0 is .*double precision holds"):
        bnp.train(bnp.Model(bnp.DPMixture(), SCALED[name](value)), bnp.as_source(x, groups=groups))


@pytest.mark.parametrize("make", [lambda v: bnp.Gaussian(m=v), lambda v: bnp.DiagGaussian(center=v)])
def test_locations_that_cannot_be_squared_are_refused(make):
    with pytest.raises(SettingError, match="needs sizes up to 1e.140"):
        bnp.train(bnp.Model(bnp.DPMixture(), make(1e200)), X)


@pytest.mark.parametrize("family", [bnp.Gaussian, bnp.DiagGaussian, bnp.FixedVarianceGaussian])
def test_a_center_far_from_the_data_is_refused(family):
    family(center=1e6).with_prior(survey_batch(Batch(X)))
    with pytest.raises(SettingError, match=r"center of column 0 is 1e\+18, .* Leave center out"):
        bnp.train(bnp.Model(bnp.DPMixture(), family(center=1e18)), X)


def test_rows_that_are_too_far_from_a_posterior_are_refused_at_prediction():
    posterior = train("Gaussian", 2.0**-400).posterior
    rows = np.array([[0.0, 0.0, 0.0], [0.0, 1e100, 0.0]])
    for use in (bnp.predict, bnp.score):
        assert np.isfinite(use(posterior, rows[:1])).all()
        with pytest.raises(DataError, match="row 1, column 1 is 1e.100"):
            use(posterior, rows)


# -- counts -----------------------------------------------------------------------------------------------------
BERNOULLI = [(1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798)]
"""B_2, B_4, ..."""


def log_gamma(z):
    """Log of the Gamma function of a Decimal, to some 40 digits: Stirling's series after 60 steps of the recurrence."""
    z, steps = Decimal(z), Decimal(0)
    for i in range(60):
        steps += (z + i).ln()
    z += 60
    half_log_2pi = Decimal("0.918938533204672741780329736405617639861397473637783412817151540482766")
    series = sum(Decimal(n) / (d * 2 * k * (2 * k - 1) * z ** (2 * k - 1)) for k, (n, d) in enumerate(BERNOULLI, 1))
    return (z - Decimal("0.5")) * z.ln() - z + half_log_2pi + series - steps


def poisson_evidence(counts, a, b):
    """Log evidence of Poisson counts ``(n,)`` of one cluster, with 40 digits."""
    with localcontext() as context:
        context.prec = 60
        a, b, n, s = Decimal(a), Decimal(b), len(counts), sum(int(c) for c in counts)
        total = a * b.ln() - log_gamma(a) + log_gamma(a + s) - (a + s) * (b + n).ln()
        return float(total - sum(log_gamma(int(c) + 1) for c in counts))


def test_the_reference_of_these_tests_is_right():
    with localcontext() as context:
        context.prec = 60
        for z in (1e-100, 0.5, 1.0, 7.0, 1e10):
            assert float(log_gamma(z)) == pytest.approx(math.lgamma(z), rel=1e-14, abs=1e-14)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_counts_up_to_the_largest_give_the_right_objective(kind):
    counts = RNG.poisson(5.0, (20, 2)).astype(float)
    counts[:, 0] = MOST_COUNT - RNG.integers(0, 10**6, 20)
    b = 1.0 / counts.mean(axis=0)
    data = sparse.csr_array(counts) if kind == "sparse" else counts
    model = bnp.Model(bnp.FiniteMixture(), bnp.Poisson(a=1.0, b=b))
    result = bnp.train(model, data, init=bnp.RandomExamples(1), schedule=bnp.Memoized(laps=4))
    exact = sum(poisson_evidence(counts[:, d], 1.0, float(b[d])) for d in range(2))
    # 2**-53 x log x is 3.4e-3 nats for each atom, and three terms are as large
    assert abs(result.history[-1]["elbo"] - exact) < 3 * 20 * 3.4e-3


@pytest.mark.parametrize("observation", [bnp.Poisson(), bnp.Multinomial()], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_larger_counts_are_refused_by_row_and_column(observation, kind):
    """Poisson counts of 1e16 gained 65,250 nats that are not there."""
    counts = RNG.poisson(3.0, (30, 4)).astype(float) + 1
    counts[7, 2] = 1e16
    data = sparse.csr_array(counts) if kind == "sparse" else counts
    with pytest.raises(DataError, match=r"row .document. 7, column .word. 2 is 1e.16, which is too large"):
        bnp.train(bnp.Model(bnp.DPMixture(), observation), data)


def test_documents_of_too_many_words_are_refused():
    counts = np.full((3, 4), MOST_COUNT / 2)
    with pytest.raises(DataError, match="has 2.2e.12 words"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.Multinomial()), counts)


# -- weights ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("total", [LEAST_WEIGHT * 1.001, 1.0, MOST_WEIGHT / 1.001])
def test_weights_at_the_ends_of_their_range_give_a_finite_rising_objective(total):
    is_light = total < 2.0
    with pytest.warns(UserWarning, match="sum to") if is_light else contextlib.nullcontext():
        result = train("Gaussian", weights=np.full(len(X), total / len(X)))
    values = [row["elbo"] for row in result.history if row["exact"]]
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-11 * np.abs(values[1:])).all()


@pytest.mark.parametrize("total", [LEAST_WEIGHT / 2, MOST_WEIGHT * 2, 1e300, 1e-300])
def test_weights_beyond_it_are_refused(total):
    with pytest.raises(DataError, match="the weights of 300 atoms sum to"):
        train("Gaussian", weights=np.full(len(X), total / len(X)))


# -- pseudo-counts --------------------------------------------------------------------------------------------------
COUNTS = RNG.poisson(2.0, (60, 5)).astype(float) + 1
MASSES = {
    "DPMixture gamma": (lambda v: bnp.Model(bnp.DPMixture(v), bnp.DiagGaussian()), X, None),
    "FiniteMixture gamma": (lambda v: bnp.Model(bnp.FiniteMixture(v), bnp.DiagGaussian()), X, None),
    "LDA alpha": (lambda v: bnp.Model(bnp.LDA(v), bnp.Multinomial()), COUNTS, None),
    "HDPTopics gamma": (lambda v: bnp.Model(bnp.HDPTopics(v, 0.5), bnp.Multinomial()), COUNTS, None),
    "HDPTopics alpha": (lambda v: bnp.Model(bnp.HDPTopics(5.0, v), bnp.Multinomial()), COUNTS, None),
    "FiniteHMM alpha": (lambda v: bnp.Model(bnp.FiniteHMM(v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "FiniteHMM kappa": (lambda v: bnp.Model(bnp.FiniteHMM(kappa=v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "HDPHMM gamma": (lambda v: bnp.Model(bnp.HDPHMM(v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "HDPHMM alpha": (lambda v: bnp.Model(bnp.HDPHMM(alpha=v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "HDPHMM alpha0": (lambda v: bnp.Model(bnp.HDPHMM(alpha0=v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "HDPHMM kappa": (lambda v: bnp.Model(bnp.HDPHMM(kappa=v), bnp.DiagGaussian()), X, [0, 90, 180, 300]),
    "Gaussian kappa": (lambda v: bnp.Model(bnp.DPMixture(), bnp.Gaussian(kappa=v)), X, None),
    "DiagGaussian kappa": (lambda v: bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(kappa=v)), X, None),
    "DiagGaussian nu": (lambda v: bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(nu=v)), X, None),
    "FixedVariance kappa": (lambda v: bnp.Model(bnp.DPMixture(), bnp.FixedVarianceGaussian(kappa=v)), X, None),
    "Multinomial lam": (lambda v: bnp.Model(bnp.DPMixture(), bnp.Multinomial(v)), COUNTS, None),
    "Bernoulli lam1": (lambda v: bnp.Model(bnp.DPMixture(), bnp.Bernoulli(v)), (COUNTS > 3) * 1.0, None),
    "Poisson a": (lambda v: bnp.Model(bnp.DPMixture(), bnp.Poisson(v)), COUNTS, None),
}


def run(make, x, groups, value):
    model = make(value)
    grouped = model.structure.has_shares
    data = sparse.csr_array(x) if grouped else bnp.as_source(x, groups=groups, batch_size=130)
    init = bnp.RandomExamples(3) if grouped else bnp.BregmanKMeans(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer clusters than asked for, where the prior tells no two atoms apart
        return bnp.train(model, data, init=init, schedule=bnp.Memoized(laps=4, window=2), client=SerialExecutor(0))


@pytest.mark.first_case
@pytest.mark.parametrize("value", [LEAST_MASS, pytest.param(1e-30, marks=pytest.mark.long), MOST_MASS / 10])
@pytest.mark.parametrize("name", MASSES)
def test_pseudo_counts_at_the_ends_of_their_range_give_a_rising_objective(name, value):
    result = run(*MASSES[name], value)
    rows = [row for row in result.history if row["exact"]]
    values = np.array([row["elbo"] for row in rows])
    size = np.array([sum(abs(row[term]) for term in ("data", "entropy", "allocation")) for row in rows])
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-10 * size[1:] - 1e-3).all()
    weights = result.posterior.weights
    assert np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() <= 1 + 1e-9


@pytest.mark.parametrize("name", MASSES)
def test_pseudo_counts_beyond_it_are_refused_by_name(name):
    for value in (1e-310, 1e-150, 1e12, 1e300):
        with pytest.raises(SettingError, match=rf"{name.split()[1]}.*needs .*1e-100 to 1e.10"):
            run(*MASSES[name], value)


@pytest.mark.parametrize("gamma", [LEAST_MASS, 1.0, MOST_MASS])
def test_the_objective_of_sticks_is_right_at_both_ends(gamma):
    """Against 40 digits."""
    allocation, n = bnp.DPMixture(gamma), np.array([120.0, 60.0, 20.0])
    summary = {"N": n, "H": np.zeros(3)}
    found = allocation.elbo(allocation.global_step(summary), summary)["allocation"]
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(0)
        for k, after in zip(n.tolist(), (80, 20, 0), strict=True):
            one, zero = Decimal(1 + k), Decimal(gamma) + after
            exact += log_gamma(one) + log_gamma(zero) - log_gamma(one + zero) + Decimal(gamma).ln()
    assert found == pytest.approx(float(exact), rel=1e-12, abs=1e-4)


def test_batches_of_no_rows_reach_nowhere():
    bnp.Gaussian().check(Batch(np.empty((0, 3))))
