"""Random atoms and random parameters of clusters: from the posterior predictive distribution, and from the posterior of
the parameters."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from bnp_dask.kernels.gaussian.factors import cholesky_factors


@runtime_checkable
class SampledObservation(Protocol):
    """An observation model whose parameters can be drawn; Gibbs sampling needs it."""

    def at_draw(self, params: Any, rng: np.random.Generator) -> Any:
        """Parameters with the coefficients of log p(x | phi) at one draw phi_k ~ q(phi_k) for each cluster, and this
        draw as ``estimates``; their ``kl`` and ``log_predictive`` have no meaning."""
        ...


@runtime_checkable
class DrawingObservation(Protocol):
    """An observation model that draws atoms."""

    def draw(self, params: Any, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """An atom of each of the clusters at the positions ``place (n,)``, ``(n, D)``: each with parameters of its own
        from q(phi_k), so that its density is ``log_predictive``."""
        ...


@runtime_checkable
class DrawingWords(Protocol):
    """An observation model of counts that draws documents."""

    def draw_words(self, params: Any, place: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
        """Counts ``(n, V)`` of documents of ``length`` words, each from the cluster at its position ``place (n,)``."""
        ...


@runtime_checkable
class DrawingSteps(Protocol):
    """An observation model that draws a step given earlier steps."""

    def draw_step(self, params: Any, place: int, before: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A step ``(D,)`` of the state at the position ``place``, after the steps ``before (L D,)``, latest first."""
        ...


def words_of(lam: np.ndarray, place: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """Counts ``(n, V)`` of documents of ``length`` words, each with word probabilities from Dirichlet(lam_k)."""
    out = np.empty((len(place), lam.shape[1]))
    for row, k in enumerate(place.tolist()):
        out[row] = rng.multinomial(length, rng.dirichlet(lam[k]))
    return out


def student_draws(
    scale: np.ndarray, nu: np.ndarray, stretch: np.ndarray, place: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Deviations from the mean of Gaussians whose precision is from W(nu, B^-1), ``(n, D)``.

    A Student t with nu - D + 1 degrees of freedom.

    Parameters
    ----------
    scale
        B, ``(K, D, D)``.
    nu
        ``(K,)``.
    stretch
        Factor by which the mean's uncertainty widens the covariance, ``(K,)``: 1 + 1 / kappa, or 1 for a known mean.
    place
        Cluster of each draw, ``(n,)``.
    rng
        Random number generator.
    """
    d = scale.shape[1]
    normal = rng.standard_normal((len(place), d))
    width = np.sqrt(stretch[place] / rng.chisquare(nu[place] - d + 1.0))
    out = np.empty_like(normal)
    for k in np.unique(place):
        lower, _, _ = cholesky_factors(scale[k][None])
        out[place == k] = normal[place == k] @ lower[0].T
    return out * width[:, None]
