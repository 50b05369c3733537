"""Readable clusters: labelled expected values, and a few words about one cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

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


# -- words --------------------------------------------------------------------------------------------------------
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


# -- any likelihood -----------------------------------------------------------------------------------------------
def estimates_of(observation: Any, params: Any, names: Names) -> Estimates:
    """Public parameters of a likelihood; all its arrays if it does not declare them."""
    if isinstance(observation, DescribedObservation):
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
    if isinstance(observation, DescribedObservation):
        return observation.describe(params, k, names)
    return "; ".join(f"{name} {vector(np.ravel(value[k]))}" for name, value in _arrays(params).items())


def _arrays(params: Any) -> dict[str, np.ndarray]:
    """Arrays with an axis of clusters, by name."""
    held = {f.name: getattr(params, f.name) for f in fields(params)}
    return {name: value for name, value in held.items() if isinstance(value, np.ndarray) and value.ndim}
