"""Predictive density of one atom in a cluster that a few others joined, if it has a closed form.

Gibbs sampling seats atoms one after the other.  Without a closed form each atom costs the summary of a cluster and its
parameters, which is correct for any likelihood but slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.kernels.streaming.single_atoms import (
    bits_density,
    diagonal_density,
    gaussian_density,
    known_variance_density,
    rates_density,
)
from bnp_dask.observation.missing.entries import marginalises

Density = Callable[[int, int, list[int]], float]
"""Log predictive density of an atom (its row) in a cluster (its position) that some more atoms joined (their rows),
nats."""


@runtime_checkable
class SequentialObservation(Protocol):
    """Observation model with a closed form of the density of one atom given a few others."""

    def sequential_predictive(self, params: Any, batch: Batch) -> Density | None:
        """The density ``log p(x_i | cluster k, x_j for j in others)`` of the atoms of a batch, with h(x).

        ``params`` belong to the clusters without the atoms ``others``.  Called for dense rows without missing entries;
        None if there is no closed form.
        """
        ...


def sequential_predictive(observation: Any, params: Any, batch: Batch) -> Density | None:
    """Closed form of any likelihood for a batch; None if only the general way is left."""
    if batch.is_sparse or marginalises(observation) or not isinstance(observation, SequentialObservation):
        return None
    return observation.sequential_predictive(params, batch)


def total_density(parts: Sequence[Density | None]) -> Density | None:
    """Density of independent parts of an atom; None if a part has none."""
    known = [part for part in parts if part is not None]
    return None if len(known) < len(parts) else lambda i, k, others: sum(part(i, k, others) for part in known)


# -- closed forms -------------------------------------------------------------------------------------------------
def gaussian_form(
    y: np.ndarray,
    mean: np.ndarray,
    scale: np.ndarray,
    nu: np.ndarray,
    kappa: np.ndarray,
    unrecorded: np.ndarray | None,
) -> Density:
    """Density of atoms ``y (n, D)`` under Normal-Wisharts: ``mean (K, D)``, ``scale (K, D, D)``, ``nu, kappa (K,)``,
    and the unrecorded covariance ``(D, D)`` of each atom."""
    y, d = np.ascontiguousarray(y, np.float64), y.shape[1]
    own = np.zeros((d, d)) if unrecorded is None else unrecorded
    return lambda i, k, others: gaussian_density(y, _rows(others), i, mean[k], scale[k], nu[k], kappa[k], own)


def diagonal_form(
    y: np.ndarray,
    mean: np.ndarray,
    beta: np.ndarray,
    nu: np.ndarray,
    kappa: np.ndarray,
    unrecorded: np.ndarray | None,
) -> Density:
    """Density of atoms ``y (n, D)`` under Normal-Gammas: ``mean, beta (K, D)``, ``nu, kappa (K,)``, and the unrecorded
    variance ``(D,)`` of each atom."""
    y = np.ascontiguousarray(y, np.float64)
    own = np.zeros(y.shape[1]) if unrecorded is None else unrecorded
    return lambda i, k, others: diagonal_density(y, _rows(others), i, mean[k], beta[k], nu[k], kappa[k], own)


def known_variance_form(y: np.ndarray, mean: np.ndarray, variance: np.ndarray, kappa: np.ndarray) -> Density:
    """Density of atoms ``y (n, D)`` of unknown mean: ``mean (K, D)``, ``variance (D,)``, ``kappa (K,)``."""
    y = np.ascontiguousarray(y, np.float64)
    return lambda i, k, others: known_variance_density(y, _rows(others), i, mean[k], variance, kappa[k])


def bits_form(x: np.ndarray, ones: np.ndarray, zeros: np.ndarray) -> Density:
    """Density of zeros and ones ``x (n, D)`` under Betas: ``ones, zeros (K, D)``."""
    x = np.ascontiguousarray(x, np.float64)
    return lambda i, k, others: bits_density(x, _rows(others), i, ones[k], zeros[k])


def rates_form(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> Density:
    """Density of counts ``x (n, D)`` under Gammas: ``a, b (K, D)``."""
    x, a, b = (np.ascontiguousarray(part, np.float64) for part in (x, a, b))
    return lambda i, k, others: rates_density(x, _rows(others), i, a[k], b[k])


def _rows(others: list[int]) -> np.ndarray:
    return np.array(others, np.int64)
