"""Parts of likelihoods beyond training: readable clusters, random atoms, equality, densities of single atoms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from bnp_dask.core import Batch
from bnp_dask.inputs import is_a
from bnp_dask.kernels import (
    bits_density,
    cholesky_factors,
    diagonal_density,
    gaussian_density,
    known_variance_density,
    rates_density,
)
from bnp_dask.observation.missing import marginalises

# -- readable clusters --------------------------------------------------------------------------------------------
SHOWN = 6
"""Number of features or words in a description."""

SETTINGS = frozenset(("nu", "kappa", "a", "b", "lam", "lam1", "lam0"))
"""Estimates that are settings of q, not parameters of the likelihood."""

Names = Sequence[str] | None
"""Names of features or words, ``(D,)``, or None."""


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of labelled arrays, such as ``feature``, and the name of each of its entries."""

    name: str
    labels: Names = None


@dataclass(frozen=True, eq=False)
class Estimate:
    """Public parameter of all clusters.

    Parameters
    ----------
    axes
        Axes after the axis of the clusters.
    compute
        Function that returns the values, ``(K, ...)``; called on demand.
    """

    axes: tuple[Axis, ...]
    compute: Callable[[], np.ndarray]

    @property
    def values(self) -> np.ndarray:
        """The values, ``(K, ...)``."""
        return self.compute()


Estimates = Mapping[str, Estimate]
"""Public parameters by name."""


@runtime_checkable
class DescribedObservation(Protocol):
    """Observation model that describes its clusters."""

    def estimates(self, params: Any, names: Names) -> Estimates:
        """Expected values such as ``mean`` and ``covariance``, and the settings of q, for labelled arrays."""
        ...

    def describe(self, params: Any, k: int, names: Names) -> str:
        """The cluster at position ``k`` in a few words."""
        ...


def each(values: np.ndarray) -> Estimate:
    """One number for each cluster, ``(K,)``."""
    return Estimate((), lambda: values)


def by_feature(values: np.ndarray, names: Names, axis: str = "feature") -> Estimate:
    """A number for each cluster and feature, ``(K, D)``."""
    return Estimate((Axis(axis, names),), lambda: values)


def by_feature_or_each(values: np.ndarray, names: Names) -> Estimate:
    """A number for each cluster, ``(K,)``, or for each cluster and feature, ``(K, D)``."""
    return each(values) if values.ndim == 1 else by_feature(values, names)


# -- words -------------------------------------------------------------------------------------------------------
def vector(values: np.ndarray, names: Names = None) -> str:
    """All values of a short vector; least, median and largest of a long one; with names if there are any."""
    if names is not None and len(values) <= SHOWN:
        return ", ".join(f"{name} {v:.3g}" for name, v in zip(names, values, strict=True))
    if len(values) <= SHOWN:
        return "(" + ", ".join(f"{v:.3g}" for v in values) + ")" if len(values) > 1 else f"{values[0]:.3g}"
    outermost = (int(values.argmin()), int(values.argmax()))
    ends = [f"{values[i]:.3g}" + ("" if names is None else f" ({names[i]})") for i in outermost]
    return f"{ends[0]} .. {np.median(values):.3g} .. {ends[1]}"


def mean_and_deviation(mean: np.ndarray, variance: np.ndarray, names: Names) -> str:
    """Mean and standard deviation of each feature."""
    deviation = np.sqrt(variance)
    if names is not None and len(mean) <= SHOWN:
        rows = zip(names, mean, deviation, strict=True)
        return "mean (sd): " + ", ".join(f"{name} {m:.3g} ({s:.3g})" for name, m, s in rows)
    return f"mean {vector(mean, names)}; sd {vector(deviation, names)}"


def largest(values: np.ndarray, names: Names, kind: str) -> str:
    """The features with the largest values, called ``kind`` if they have no names."""
    order = np.argsort(-values, kind="stable")[:SHOWN]
    return ", ".join(f"{f'{kind} {i}' if names is None else names[i]} {values[i]:.3g}" for i in order)


# -- any likelihood ------------------------------------------------------------------------------------------------
def estimates_of(observation: Any, params: Any, names: Names) -> Estimates:
    """Public parameters of a likelihood; all its arrays if it does not declare them."""
    if is_a(observation, DescribedObservation):
        return observation.estimates(params, names)
    sizes = observation.sizes
    found = {}
    for name, value in _arrays(params).items():
        axes = tuple(_axis(length, sizes, names) for length in value.shape[1:])
        found[name] = Estimate(axes, partial(np.asarray, value))
    return found


def _axis(length: int, sizes: Mapping[str, int], names: Names) -> Axis:
    """The first axis of the likelihood's statistics that has this length."""
    name = next((dim for dim, size in sizes.items() if size == length), f"axis_{length}")
    return Axis(name, names if name in ("feature", "word") and names is not None and len(names) == length else None)


def describe_cluster(observation: Any, params: Any, k: int, names: Names) -> str:
    """The cluster at position ``k`` in a few words; the size of each parameter if the likelihood has no description."""
    if is_a(observation, DescribedObservation):
        return observation.describe(params, k, names)
    return "; ".join(f"{name} {vector(np.ravel(value[k]))}" for name, value in _arrays(params).items())


def _arrays(params: Any) -> dict[str, np.ndarray]:
    """Arrays with an axis of clusters, by name."""
    held = {f.name: getattr(params, f.name) for f in fields(params)}
    return {name: value for name, value in held.items() if isinstance(value, np.ndarray) and value.ndim}


# -- random atoms, and random parameters of clusters --------------------------------------------------------------
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


# -- equality by settings -----------------------------------------------------------------------------------------
T = TypeVar("T")


def compared_by_settings(cls: type[T]) -> type[T]:
    """Class decorator: instances of a frozen dataclass are equal if all fields are, arrays number by number.

    Copies, also through a file or another process, are then equal to their originals.
    """

    def equals(self: Any, other: object) -> Any:
        return _same(self, other) if type(other) is cls else NotImplemented

    # arrays have no hash; settings that differ only in these share one
    def hashed(self: Any) -> int:
        return hash((cls, tuple(f.name for f in fields(self) if getattr(self, f.name) is None)))

    cls.__eq__ = equals  # type: ignore[method-assign, assignment]
    cls.__hash__ = hashed  # type: ignore[method-assign, assignment]
    return cls


def _same(a: Any, b: Any) -> bool:
    if type(a) is type(b) and is_dataclass(a):
        return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return a is b or (isinstance(a, str) and isinstance(b, str) and a == b)
    return bool(np.array_equal(a, b))


# -- predictive density of one atom in a cluster that a few others joined -----------------------------------------
# Gibbs sampling seats atoms one after the other.  Without a closed form each atom costs the summary of a cluster
# and its parameters, which is correct for any likelihood but slow.
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
    if batch.is_sparse or marginalises(observation) or not is_a(observation, SequentialObservation):
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
