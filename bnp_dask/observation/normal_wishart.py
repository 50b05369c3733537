"""Normal-Wishart distributions: posteriors of means, or regressions, and precisions (thesis 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bnp_dask.core import register
from bnp_dask.kernels import EMPTY, quadratic_coefficients, scatter_matrices


@register
@dataclass(frozen=True, eq=False)
class NormalWishart:
    """q(mu, Lam) per cluster, and the coefficients of the log likelihood.

    Parameters
    ----------
    nu, kappa
        Degrees of freedom and pseudo-count of the mean, ``(K,)``.
    B, m
        Scale matrix ``(K, D, D)`` and mean ``(K, D)``.
    shift
        ``m`` minus the center of the statistics, ``(K, D)``, exact where ``m`` is large.
    log_det
        ``log|B|``, ``(K,)``.
    level
        Log likelihood of an atom at ``m``, ``(K,)`` nats.
    theta
        Coefficients of ``[y, 1, y_i y_j (i <= j)]`` for centred atoms y, ``(K, D + 1 + D (D + 1) / 2)``.
    whiten
        Clusters whose log likelihoods are computed by whitening, because ``theta`` would lose digits, ``(K,)``.
    """

    nu: np.ndarray
    B: np.ndarray
    m: np.ndarray
    kappa: np.ndarray
    shift: np.ndarray
    log_det: np.ndarray
    level: np.ndarray
    theta: np.ndarray
    whiten: np.ndarray


class NormalWishartPrior(NamedTuple):
    """Settings, all known: ``B (D, D)``, and ``m, center (D,)``."""

    nu: float
    B: np.ndarray
    m: np.ndarray
    kappa: float
    center: np.ndarray


def at_level(params: NormalWishart, level: np.ndarray) -> NormalWishart:
    """Parameters with another log likelihood at the mean, ``(K,)``, from which the constant follows."""
    d = params.shift.shape[1]
    theta = params.theta.copy()
    theta[:, d] = constant_term(level, theta[:, :d], params.shift)
    return replace(params, level=level, theta=theta)


def coefficients(precision: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Coefficients ``(K, D + 1 + D (D + 1) / 2)`` of the quadratic forms about ``shift (K, D)``; the constant is left
    for :func:`constant_term`."""
    quadratic, (k, d) = quadratic_coefficients(precision), shift.shape
    theta = np.empty((k, d + 1 + quadratic.shape[1]))
    theta[:, :d] = np.einsum("kij,kj->ki", precision, shift)
    theta[:, d + 1 :] = quadratic
    return theta


def constant_term(level: np.ndarray, linear: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Constant of the log likelihood ``(K,)`` nats, from its value at the mean and its linear terms ``(K, D)``."""
    return np.asarray(level - 0.5 * np.einsum("kd,kd->k", linear, shift))


def posterior_scale(
    prior: NormalWishartPrior,
    unrecorded: np.ndarray | None,
    n: np.ndarray,
    x: np.ndarray,
    xx: np.ndarray,
    kappa: np.ndarray,
) -> np.ndarray:
    """B of the posterior, ``(K, D, D)``: prior + scatter about the cluster's own mean + shrinkage of the mean +
    unrecorded covariance.

    Only the scatter is a difference; sums that include the prior mean would cancel when it is far away.

    Parameters
    ----------
    prior
        Settings of the prior.
    unrecorded
        Unrecorded covariance of each atom, ``(D, D)``; None for none.
    n, x, xx
        Statistics of the clusters: counts, and sums of centred atoms and of their packed squares.
    kappa
        Pseudo-counts of the posterior means, ``(K,)``.
    """
    held = n[:, None] > EMPTY
    mean = np.divide(x, n[:, None], out=np.zeros_like(x), where=held)
    away = mean - (prior.m - prior.center)
    shrinkage = np.maximum(n, 0.0) * prior.kappa / kappa
    scale = scatter_matrices(xx, x, mean, shrinkage, away)
    scale += prior.B
    if unrecorded is not None:
        scale += np.maximum(n, 0.0)[:, None, None] * unrecorded
    return scale


@register
@dataclass(frozen=True, eq=False)
class MatrixNormalWishart:
    """q(A, Lam) per cluster, and the coefficients of the log likelihood.

    Parameters
    ----------
    nu, B
        Degrees of freedom ``(K,)`` and scale matrix ``(K, D, D)`` of Lam.
    M, V
        Mean ``(K, D, L D)`` of A and precision of its columns ``(K, L D, L D)``.
    shift
        ``M`` minus the prior's, ``(K, D, L D)``.
    log_det, log_det_v
        ``log|B|`` and ``log|V|``, ``(K,)``.
    theta
        Coefficients of ``[1, z_i z_j (i <= j)]`` of ``z = [x - M_prior p, p]``, ``(K, 1 + P)``.
    whiten
        Clusters whose log likelihoods are computed by whitening, because ``theta`` would lose digits, ``(K,)``.
    spread
        Factor of ``p' V^-1 p`` in the log likelihood: -D / 2, or 0 at a point estimate.
    """

    nu: np.ndarray
    B: np.ndarray
    M: np.ndarray
    V: np.ndarray
    shift: np.ndarray
    log_det: np.ndarray
    log_det_v: np.ndarray
    theta: np.ndarray
    whiten: np.ndarray
    spread: float
