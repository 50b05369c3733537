"""Hidden Markov models reproduce recorded objectives term by term (bnpy 0.1.7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import psi

from bnp_dask.allocation import HDPHMM, StateSticks
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.kernels.gaussian.quadratic import pack, packed_outer
from bnp_dask.model import Model
from bnp_dask.observation import AutoRegressiveGaussian, Bernoulli, Gaussian
from tests.chains.top_level import ExpectedLogs
from tests.golden.cases import recorded

GIVEN, CHOSEN = 1e-8, 1e-5
NAMES = ["gauss_fixedu", "argauss_fixedu", "bern_sticky_fixedu", "gauss_vb", "gauss_sticky_vb"]


def observation(case, arrays):
    """The likelihood, and the statistics from which its global step gives the recorded start."""
    kind = case["obsModel"]
    if kind == "Bern":
        model = Bernoulli(lam1=arrays["prior_lam1"], lam0=arrays["prior_lam0"])
        return model, {"x": arrays["init_lam1"] - arrays["prior_lam1"]}
    n = arrays["init_nu"] - arrays["prior_nu"]
    if kind == "Gauss":
        d = arrays["X"].shape[1]
        m, kappa = arrays["prior_m"], float(arrays["prior_kappa"])
        model = Gaussian(nu=float(arrays["prior_nu"]), B=arrays["prior_B"], m=m, kappa=kappa, center=np.zeros(d))
        kappas, mean = arrays["init_kappa"], arrays["init_m"]
        second = pack(arrays["init_B"] - arrays["prior_B"]) - kappa * packed_outer(m[None], m[None])
        second = second + kappas[:, None] * packed_outer(mean, mean)
        return model, {"x": kappas[:, None] * mean - kappa * m, "xx": second}
    prior = {name: arrays[f"prior_{name}"] for name in ("B", "M", "V")}
    model = AutoRegressiveGaussian(nu=float(arrays["prior_nu"]), **prior)
    v, shift = arrays["init_V"], arrays["init_M"] - prior["M"]
    cross = shift @ v
    scatter = arrays["init_B"] - prior["B"] + cross @ shift.transpose(0, 2, 1)
    upper = np.concatenate([scatter, cross], axis=2)
    lower = np.concatenate([cross.transpose(0, 2, 1), v - prior["V"]], axis=2)
    return model, {"N": n, "zz": pack(np.concatenate([upper, lower], axis=1))}


def setting(case, arrays):
    """Model, all sequences as a batch, and the initial posterior."""
    hyper = case["hyper_thesis"]
    x = np.hstack([arrays["X"], arrays["Xprev"]]) if "Xprev" in arrays else arrays["X"]
    batch = Batch(np.ascontiguousarray(x, np.float64), groups=arrays["doc_range"].astype(np.int64))
    likelihood, statistics = observation(case, arrays)
    allocation = HDPHMM(hyper["gamma"], hyper["alpha"], hyper["alpha_0"], hyper["kappa"])
    model = Model(allocation, likelihood).with_prior(survey_batch(batch))
    empty = model.empty_summary(np.arange(case["K"]))
    if "init_nu" in arrays:
        statistics["N"] = arrays["init_nu"] - arrays["prior_nu"]
    else:
        statistics["N"] = (arrays["init_lam1"] + arrays["init_lam0"] - arrays["prior_lam1"] - arrays["prior_lam0"])[
            :, 0
        ]
    summary = replace(empty, values={**empty.values, **statistics})
    start = [arrays[f"init_{n}"] for n in ("u", "omega", "startTheta", "transTheta")]
    return model, batch, replace(model.global_step(summary), allocation=StateSticks.of(*start))


def check(model, posterior, summary, arrays, t, tolerance):
    terms = model.elbo(posterior, summary)
    own, params = model.allocation, posterior.allocation
    found = {
        "data": terms["data"],
        "entropy": terms["entropy"],
        "trans": own.transition_term(params, summary),
        "top": own.top_term(params),
        "total": sum(terms.values()),
    }
    for name, value in found.items():
        assert value == pytest.approx(arrays[f"L_{name}"][t], rel=tolerance), (name, t)
    assert_allclose(summary["N"], arrays["N_k"][t], rtol=100 * tolerance, atol=100 * tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_given_the_top_level(name):
    case, arrays = recorded(f"hdphmm_{name}")
    model, batch, posterior = setting(case, arrays)
    for t in range(case["nIter"]):
        summary = model.local_step(posterior, batch)
        posterior = replace(model.global_step(summary), allocation=model.allocation.given_sticks(
            arrays["u"][t], arrays["omega"][t], summary["start"], summary["M"]))  # fmt: skip
        check(model, posterior, summary, arrays, t, GIVEN)
    assert_allclose(posterior.allocation.theta, arrays["final_transTheta"], rtol=1e-6, atol=1e-6)
    assert_allclose(posterior.allocation.theta0, arrays["final_startTheta"], rtol=1e-6, atol=1e-6)
    for field in ("B", "M", "V", "lam1", "lam0"):
        if f"final_{field}" in arrays:
            assert_allclose(getattr(posterior.observation, field), arrays[f"final_{field}"], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["gauss_vb", "gauss_sticky_vb"])
def test_with_the_recorded_alternation(name):
    """theta, then twice u and omega for this theta, then theta: as the reference does it."""
    case, arrays = recorded(f"hdphmm_{name}")
    model, batch, posterior = setting(case, arrays)
    own = model.allocation
    for t in range(case["nIter"]):
        summary = model.local_step(posterior, batch)
        u, omega = posterior.allocation.u, posterior.allocation.omega
        for _ in range(2):
            params = own.given_sticks(u, omega, summary["start"], summary["M"])
            logs = expected_logs(params)
            u, omega = ExpectedLogs(own.concentrations, *logs).best()
        params = own.given_sticks(u, omega, summary["start"], summary["M"])
        posterior = replace(model.global_step(summary), allocation=params)
        check(model, posterior, summary, arrays, t, CHOSEN)


def expected_logs(params):
    return psi(params.theta0) - psi(params.theta0.sum()), psi(params.theta) - psi(params.theta.sum(1, keepdims=True))


@pytest.mark.parametrize("name", ["gauss_vb", "gauss_sticky_vb"])
def test_the_own_optimum_is_no_lower(name):
    case, arrays = recorded(f"hdphmm_{name}")
    model, batch, posterior = setting(case, arrays)
    last = -np.inf
    for _ in range(case["nIter"]):
        summary = model.local_step(posterior, batch)
        posterior = model.global_step(summary)
        value = sum(model.elbo(posterior, summary).values())
        assert value >= last - 1e-9 * abs(value)
        last = value
    assert last >= arrays["L_total"][-1] - CHOSEN * abs(last)
