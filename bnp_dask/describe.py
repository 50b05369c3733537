"""What a cluster looks like, in numbers that people read: means, deviations, words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from bnp_dask.errors import DataError
from bnp_dask.model import Posterior
from bnp_dask.observation import (
    AutoRegressiveGaussian,
    Bernoulli,
    DiagGaussian,
    FixedVarianceGaussian,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
    ZeroMeanGaussian,
)

SHOWN = 6
"""Features or words that a description names."""


@dataclass(frozen=True)
class ClusterRow:
    """One cluster in a table: id, expected share, atoms (None when unknown), description."""

    id: int
    weight: float
    count: float | None
    text: str


def cluster_rows(
    posterior: Posterior, names: Sequence[str] | None = None, limit: int | None = None
) -> list[ClusterRow]:
    """Clusters by falling weight, the first ``limit`` of them; ``names`` are those of features or words, ``(D,)``."""
    weights = posterior.weights
    order = np.argsort(-weights, kind="stable")[:limit]
    counts = None if posterior.summary is None else posterior.summary["N"]
    observation, params = posterior.model.observation, posterior.observation
    return [
        ClusterRow(
            int(posterior.ids[k]),
            float(weights[k]),
            None if counts is None else float(counts[k]),
            describe(observation, params, int(k), names),
        )
        for k in order
    ]


def means(observation: Any, params: Any) -> np.ndarray | None:
    """Expected value of an atom of each cluster, ``(K, D)``; None where the likelihood has none that says much."""
    match observation:
        case Gaussian() | DiagGaussian() | FixedVarianceGaussian():
            return params.m
        case Bernoulli():
            return params.lam1 / (params.lam1 + params.lam0)
        case Poisson():
            return params.a / params.b
        case Multinomial():
            return params.lam / params.lam.sum(axis=1, keepdims=True)
        case _:
            return None


def variances(observation: Any, params: Any) -> np.ndarray | None:
    """Expected variance of each feature within each cluster, ``(K, D)``; None for likelihoods without."""
    match observation:
        case Gaussian() | ZeroMeanGaussian():
            scale = np.einsum("kii->ki", params.B)
            return scale / _wishart_factor(params.nu, scale.shape[1])[:, None]
        case DiagGaussian():
            return params.beta / np.where(params.nu > 2, params.nu - 2, params.nu)[:, None]
        case FixedVarianceGaussian():
            return np.broadcast_to(np.asarray(observation.variance), params.m.shape)
        case _:
            return None


def covariance(observation: Any, params: Any, k: int) -> np.ndarray | None:
    """Expected covariance of cluster at position ``k``, ``(D, D)``; None for likelihoods without one."""
    if isinstance(observation, (Gaussian, ZeroMeanGaussian)):
        return params.B[k] / _wishart_factor(params.nu, params.B.shape[1])[k]
    variance = variances(observation, params)
    return None if variance is None else np.diag(variance[k])


def _wishart_factor(nu: np.ndarray, n_features: int) -> np.ndarray:
    """What divides B to give E[covariance]; E[precision]^-1 where that mean does not exist."""
    return np.where(nu > n_features + 1, nu - n_features - 1, nu)


def describe(observation: Any, params: Any, k: int, names: Sequence[str] | None = None) -> str:
    """The cluster at position ``k`` in a few words."""
    match observation:
        case Product():
            return _describe_product(observation, params, k, names)
        case Gaussian() | DiagGaussian() | FixedVarianceGaussian():
            return f"mean {_vector(_mean(observation, params, k))}; sd {_deviations(observation, params, k)}"
        case ZeroMeanGaussian():
            values = np.linalg.eigvalsh(params.B[k])
            share = values[-1] / values.sum()
            return f"sd {_deviations(observation, params, k)}; {share:.0%} of variance in one direction"
        case AutoRegressiveGaussian():
            noise = np.diagonal(params.B[k]) / _wishart_factor(params.nu, params.B.shape[1])[k]
            size = np.abs(np.linalg.eigvals(params.M[k])).max()
            return f"follows the row before, eigenvalues up to {size:.3g}; sd of noise {_vector(np.sqrt(noise))}"
        case Multinomial():
            return ", ".join(_largest(_mean(observation, params, k), names, "word"))
        case Bernoulli():
            return "ones: " + ", ".join(_largest(_mean(observation, params, k), names, "column"))
        case Poisson():
            return "rates: " + ", ".join(_largest(_mean(observation, params, k), names, "column"))
        case _:
            return _describe_any(params, k)


def _mean(observation: Any, params: Any, k: int) -> np.ndarray:
    return np.asarray(means(observation, params))[k]


def _describe_product(observation: Product, params: Any, k: int, names: Sequence[str] | None) -> str:
    texts = []
    for group, own in zip(observation.groups, params.parts, strict=True):
        columns, part = cast(tuple[str, Any], group)  # in this form once Product is made
        named = None if names is None else [names[i] for i in _positions(columns)]
        texts.append(f"[{columns}] {describe(part, own, k, named)}")
    return "; ".join(texts)


def _positions(columns: str) -> list[int]:
    """Positions that a group of Product names, once its prior is set: ``"0:3,5"``."""
    positions: list[int] = []
    for piece in columns.split(","):
        bounds = [int(bound) for bound in piece.split(":")]
        positions.extend(range(*bounds) if len(bounds) > 1 else bounds)
    return positions


def _describe_any(params: Any, k: int) -> str:
    """A likelihood unknown here: the size of each parameter."""
    texts = []
    for field in fields(params):
        value = getattr(params, field.name)
        if isinstance(value, np.ndarray) and value.ndim:
            texts.append(f"{field.name} {_vector(np.ravel(value[k]))}")
    return "; ".join(texts)


def _deviations(observation: Any, params: Any, k: int) -> str:
    variance = variances(observation, params)
    return "?" if variance is None else _vector(np.sqrt(variance[k]))


def _vector(values: np.ndarray) -> str:
    """All of a short vector; range and median of a long one."""
    if len(values) <= SHOWN:
        return "(" + ", ".join(f"{v:.3g}" for v in values) + ")" if len(values) > 1 else f"{values[0]:.3g}"
    return f"{np.min(values):.3g} .. {np.median(values):.3g} .. {np.max(values):.3g}"


def _largest(values: np.ndarray, names: Sequence[str] | None, kind: str) -> list[str]:
    order = np.argsort(-values, kind="stable")[:SHOWN]
    return [f"{f'{kind} {i}' if names is None else names[i]} {values[i]:.3g}" for i in order]


def check_names(posterior: Posterior, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names, or the words that the posterior knows; DataError unless there is one for each feature or word."""
    if names is None:
        return None if posterior.words is None else posterior.words.words
    value = means(posterior.model.observation, posterior.observation)
    if isinstance(posterior.model.observation, Product):
        width = posterior.model.observation.n_features
    else:
        width = None if value is None else value.shape[1]
    if width is not None and len(names) != width:
        raise DataError(f"{len(names)} names of words or features, but the model has {width}")
    return names
