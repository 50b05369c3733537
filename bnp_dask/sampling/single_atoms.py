"""Densities of single atoms in clusters that a few other atoms have joined, cluster by cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.kernels.streaming.single_atoms import (
    bits_density,
    diagonal_density,
    diagonal_table,
    gaussian_density,
    known_variance_density,
    rates_density,
)
from bnp_dask.model import Model
from bnp_dask.observation import (
    Bernoulli,
    BetaBits,
    DiagGaussian,
    FixedVarianceGaussian,
    GammaRates,
    Gaussian,
    NormalGamma,
    NormalMean,
    NormalWishart,
    Poisson,
)
from bnp_dask.observation.priors import known, rounding_variance
from bnp_dask.sampling.visit import statistics

Density = Callable[[int, int, list[int]], float]
"""Log predictive density of an atom (its row) in a cluster (its position, -1: one without atoms) given the atoms that
the cluster had before and some rows, nats."""

PRIOR = -1
"""Position of a cluster that holds no atom before the few join it."""


def density_of(model: Model, base: Summary, params: Any, nothing: Any, atoms: Batch) -> Density:
    """The density of some atoms in the clusters of a summary.

    Parameters
    ----------
    model
        Gaussians of full, of diagonal and of known covariance, bits and counts have compiled loops where rows are dense
        and no entry is missing; all others go by their summaries.
    base, params
        Statistics of the clusters without any of the atoms, and parameters at these.
    nothing
        Parameters of a cluster without atoms.
    atoms
        The few.
    """
    closed = _closed_form(model, params, nothing, atoms)
    return closed if closed is not None else _by_summaries(model, base, atoms)


def table_of(model: Model, params: Any, atoms: Batch) -> np.ndarray:
    """Log predictive densities of some atoms in all clusters, ``(n, K)`` nats."""
    observation = model.observation
    if not isinstance(observation, DiagGaussian) or model.marginalises:
        return np.ascontiguousarray(observation.log_predictive(params, atoms), np.float64)
    y = np.ascontiguousarray(atoms.x - observation.center, np.float64)
    return np.asarray(diagonal_table(y, params.linear / params.precision, params.beta, params.nu, params.kappa))


def _closed_form(model: Model, params: Any, nothing: Any, atoms: Batch) -> Density | None:
    observation = model.observation
    if not isinstance(atoms.x, np.ndarray) or model.marginalises:
        return None
    if isinstance(observation, Gaussian):
        return _of_gaussian(observation, params, nothing, atoms.x)
    if isinstance(observation, DiagGaussian):
        return _of_diagonal(observation, params, nothing, atoms.x)
    if isinstance(observation, FixedVarianceGaussian):
        return _of_known_variance(observation, params, nothing, atoms.x)
    if isinstance(observation, Bernoulli):
        return _of_bits(params, nothing, atoms.x)
    if isinstance(observation, Poisson):
        return _of_rates(params, nothing, atoms.x)
    return None


def _rounding(grain: Any, d: int) -> np.ndarray:
    variance = rounding_variance(grain)
    return np.zeros(d) if variance is None else np.ascontiguousarray(np.broadcast_to(variance, (d,)))


def _with_prior(params: np.ndarray, nothing: np.ndarray) -> np.ndarray:
    """Numbers of all clusters and, last, of one without atoms."""
    return np.concatenate([params, nothing])


def _rows(others: list[int]) -> np.ndarray:
    return np.array(others, np.int64)


def _of_gaussian(observation: Gaussian, params: NormalWishart, nothing: NormalWishart, x: np.ndarray) -> Density:
    y, rounding = np.ascontiguousarray(x - observation.center, np.float64), _rounding(observation.grain, x.shape[1])
    mean, scale = _with_prior(params.shift, nothing.shift), _with_prior(params.B, nothing.B)
    nu, kappa = _with_prior(params.nu, nothing.nu), _with_prior(params.kappa, nothing.kappa)
    return lambda i, k, others: gaussian_density(y, _rows(others), i, mean[k], scale[k], nu[k], kappa[k], rounding)


def _of_diagonal(observation: DiagGaussian, params: NormalGamma, nothing: NormalGamma, x: np.ndarray) -> Density:
    y, rounding = np.ascontiguousarray(x - observation.center, np.float64), _rounding(observation.grain, x.shape[1])
    mean = _with_prior(params.linear / params.precision, nothing.linear / nothing.precision)
    beta, nu = _with_prior(params.beta, nothing.beta), _with_prior(params.nu, nothing.nu)
    kappa = _with_prior(params.kappa, nothing.kappa)
    return lambda i, k, others: diagonal_density(y, _rows(others), i, mean[k], beta[k], nu[k], kappa[k], rounding)


def _of_known_variance(
    observation: FixedVarianceGaussian, params: NormalMean, nothing: NormalMean, x: np.ndarray
) -> Density:
    variance = np.ascontiguousarray(np.broadcast_to(known("variance", observation.variance), x.shape[1:]), np.float64)
    y = np.ascontiguousarray(x - observation.center, np.float64)
    mean = _with_prior(params.linear * variance, nothing.linear * variance)
    kappa = _with_prior(params.kappa, nothing.kappa)
    return lambda i, k, others: known_variance_density(y, _rows(others), i, mean[k], variance, kappa[k])


def _of_bits(params: BetaBits, nothing: BetaBits, x: np.ndarray) -> Density:
    y = np.ascontiguousarray(x, np.float64)
    ones, zeros = _with_prior(params.lam1, nothing.lam1), _with_prior(params.lam0, nothing.lam0)
    return lambda i, k, others: bits_density(y, _rows(others), i, ones[k], zeros[k])


def _of_rates(params: GammaRates, nothing: GammaRates, x: np.ndarray) -> Density:
    y = np.ascontiguousarray(x, np.float64)
    shape, rate = (_with_prior(np.ascontiguousarray(own), none) for own, none in _pairs(params, nothing))
    return lambda i, k, others: rates_density(y, _rows(others), i, shape[k], rate[k])


def _pairs(params: GammaRates, nothing: GammaRates) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (np.broadcast_to(own, params.a.shape), np.broadcast_to(none, nothing.a.shape))
        for own, none in ((params.a, nothing.a), (params.b, nothing.b))
    ]


def _by_summaries(model: Model, base: Summary, atoms: Batch) -> Density:
    """Densities by the summary of a cluster with those that joined it."""
    singles: dict[int, Summary] = {}

    def density(i: int, k: int, others: list[int]) -> float:
        if k not in singles:
            ids = np.zeros(1, np.int64) if k == PRIOR else base.ids[[k]]
            singles[k] = model.empty_summary(ids) if k == PRIOR else base.take(ids)
        one, observation = singles[k], model.observation
        few = atoms.take(_rows(others))
        whole = one + statistics(model, one.ids, few, np.zeros(len(others), np.int64))
        return float(observation.log_predictive(observation.global_step(whole), atoms.rows(i, i + 1))[0, 0])

    return density
