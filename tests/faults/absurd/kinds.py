"""Every kind of model with a few data that it takes, trained a little, and what holds for every answer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.observation import with_previous

RNG = np.random.default_rng(0)
ROWS = np.repeat(4 * np.eye(3), 12, axis=0) + RNG.normal(size=(36, 3))
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
BITS = (ROWS > 1) * 1.0
COUNTS = RNG.poisson(2.0, (36, 5)) + np.eye(36, 5)
OFFSETS = np.array([0, 12, 24, 36])
IN_STRATA = np.column_stack([np.arange(36) % 3, ROWS[:, 1:]])
STEPS, STEP_OFFSETS = with_previous(ROWS, OFFSETS)


@dataclass(frozen=True)
class Kind:
    """A kind of model with data that it takes."""

    model: Callable[[], Any]
    x: np.ndarray
    groups: np.ndarray | None = None
    is_sparse: bool = False


KINDS = {
    "Gaussian": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.Gaussian()), ROWS),
    "DiagGaussian": Kind(lambda: bnp.Model(bnp.FiniteMixture(), bnp.DiagGaussian()), ROWS),
    "PitmanYorMixture": Kind(lambda: bnp.Model(bnp.PitmanYorMixture(), bnp.DiagGaussian()), ROWS),
    "FixedVarianceGaussian": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.FixedVarianceGaussian()), ROWS),
    "ZeroMeanGaussian": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.ZeroMeanGaussian()), ROWS),
    "SemiConjugateGaussian": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.SemiConjugateGaussian()), ROWS),
    "VonMisesFisher": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.VonMisesFisher()), UNITS),
    "Bernoulli": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.Bernoulli()), BITS),
    "Poisson": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.Poisson()), COUNTS),
    "Multinomial": Kind(lambda: bnp.Model(bnp.DPMixture(), bnp.Multinomial()), COUNTS),
    "Product": Kind(
        lambda: bnp.Model(bnp.DPMixture(), bnp.Product({"0:2": bnp.Gaussian(), "2": bnp.DiagGaussian()})), ROWS
    ),
    "StrataMixture": Kind(
        lambda: bnp.Model(bnp.StrataMixture(), bnp.Product({"0": bnp.Given(), "1:3": bnp.DiagGaussian()})), IN_STRATA
    ),
    "LDA": Kind(lambda: bnp.Model(bnp.LDA(), bnp.Multinomial()), COUNTS, is_sparse=True),
    "HDPTopics": Kind(lambda: bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), COUNTS, is_sparse=True),
    "topics of rows": Kind(lambda: bnp.Model(bnp.HDPTopics(), bnp.DiagGaussian()), ROWS, OFFSETS),
    "FiniteHMM": Kind(lambda: bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian()), ROWS, OFFSETS),
    "FiniteHMT": Kind(lambda: bnp.Model(bnp.FiniteHMT(), bnp.DiagGaussian()), ROWS, OFFSETS),
    "HDPHMM": Kind(lambda: bnp.Model(bnp.HDPHMM(), bnp.Gaussian()), ROWS, OFFSETS),
    "AutoRegressiveGaussian": Kind(
        lambda: bnp.Model(bnp.HDPHMM(kappa=5.0), bnp.AutoRegressiveGaussian()), STEPS, STEP_OFFSETS
    ),
}

WITH_GAPS = Kind(
    lambda: bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise")), np.where(ROWS > 5.0, np.nan, ROWS)
)
"""Not among the others: most of what they must refuse is right here."""


def fit(kind: Kind, data: Any, **more: Any) -> float:
    """Train a little and check what is right of every answer; the objective."""
    if kind.groups is not None and "groups" not in more:
        more["groups"] = kind.groups
    given = {name: more.pop(name) for name in ("groups", "columns", "weights") if name in more}
    model = more.pop("model", None) or kind.model()
    source = bnp.as_source(data, **given, **({"batch_size": more.pop("batch_size")} if "batch_size" in more else {}))
    more = {"schedule": bnp.Memoized(laps=2, window=2), "init": bnp.RandomExamples(2), **more}
    result = bnp.train(model, source, **{"client": SerialExecutor(0), **more})
    check(result)
    return float(result.history[-1]["elbo"])


def check(result: Any) -> None:
    """What holds for every answer."""
    rows = [row for row in result.history if row["exact"]]
    values = np.array([row["elbo"] for row in rows])
    size = np.array([sum(abs(row[term]) for term in ("data", "entropy", "allocation")) for row in rows])
    assert np.isfinite(values).all(), "an objective that is not finite"
    rises = type(result.posterior.model.allocation).__name__ not in ("LDA", "HDPTopics")
    rises = rises and "learning_rate" not in rows[-1]
    assert not rises or (np.diff(values) >= -1e-9 * size[1:] - 1e-3).all(), "an objective that falls"
    weights = result.posterior.weights
    assert np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() <= 1 + 1e-8, "weights of no mixture"


def plain_data(kind: Kind, x: np.ndarray | None = None) -> Any:
    x = kind.x if x is None else x
    return sparse.csr_array(x) if kind.is_sparse else np.ascontiguousarray(x, np.float64)


def finite(value: float) -> float:
    assert np.isfinite(value), value
    return float(value)


_POSTERIORS: dict[str, Any] = {}


def posterior_of(name: str) -> Any:
    """A posterior of a kind of model, trained once."""
    if name not in _POSTERIORS:
        kind = {**KINDS, "with gaps": WITH_GAPS}[name]
        source = bnp.as_source(plain_data(kind), groups=kind.groups)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _POSTERIORS[name] = bnp.train(
                kind.model(),
                source,
                init=bnp.RandomExamples(2),
                schedule=bnp.Memoized(laps=2),
                client=SerialExecutor(0),
            ).posterior
    return _POSTERIORS[name]
