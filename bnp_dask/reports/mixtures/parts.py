"""Parameters of clusters by kind, with their columns, for any likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.model import Posterior
from bnp_dask.observation import Product
from bnp_dask.observation.interface.describing import Estimate, estimates_of


@dataclass(frozen=True, eq=False)
class Normals:
    """Features with means and variances.

    Parameters
    ----------
    columns
        Position of each feature in the data, ``(d,)``.
    mean, variance
        Mean and variance of each cluster and feature, ``(K, d)``.
    blocks
        Part of the likelihood of each feature, ``(d,)``, and the covariances ``(K, m, m)`` of each part, None if its
        features are independent.
    """

    columns: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    blocks: tuple[np.ndarray, tuple[np.ndarray | None, ...]]

    def covariance(self, i: int, j: int) -> np.ndarray:
        """Covariance of features i and j in each cluster, ``(K, 2, 2)``."""
        found = np.zeros((len(self.mean), 2, 2))
        found[:, 0, 0], found[:, 1, 1] = self.variance[:, i], self.variance[:, j]
        of, matrices = self.blocks
        matrix = matrices[of[i]]
        if of[i] == of[j] and matrix is not None:
            first = int(np.flatnonzero(of == of[i])[0])
            found[:, 0, 1] = found[:, 1, 0] = matrix[:, i - first, j - first]
        return found


@dataclass(frozen=True, eq=False)
class Values:
    """One number for each cluster and feature.

    Parameters
    ----------
    kind
        ``"probability"`` of a one, ``"share"`` of a word, ``"rate"`` of counts, or ``"mean"`` without variances.
    columns
        Position of each feature in the data, ``(d,)``.
    value
        ``(K, d)``.
    """

    kind: str
    columns: np.ndarray
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class LevelValues:
    """Probabilities ``(K, L)`` of the levels of one column."""

    column: int
    levels: tuple[str, ...]
    value: np.ndarray


@dataclass(frozen=True, eq=False)
class Parts:
    """Parameters of all clusters that pictures show, in the order of the posterior."""

    normals: Normals | None
    values: tuple[Values, ...]
    levels: tuple[LevelValues, ...]


def parts_of(posterior: Posterior) -> Parts:
    """Parameters by kind; other parameters of a likelihood are left out."""
    observation, params = posterior.model.observation, posterior.observation
    # columns are named by their positions, which Product and Categorical then put into their own names
    found = estimates_of(observation, params, [str(i) for i in range(_width(observation, params))])
    groups: dict[str, dict[str, Estimate]] = {}
    for name, estimate in found.items():
        label, _, kind = name.rpartition(".")
        groups.setdefault(label, {})[kind] = estimate
    normals: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]] = []
    values: list[Values] = []
    levels: list[LevelValues] = []
    for own in groups.values():
        if "covariance" in own or ("mean" in own and "variance" in own):
            normals.append(_normal(own))
        elif "probability" in own and own["probability"].axes[0].name.rpartition(".")[2] == "level":
            levels += _levels(own["probability"])
        else:
            values += [
                Values(_kind(kind, own[kind]), _columns(own[kind]), own[kind].values)
                for kind in ("probability", "rate", "mean")
                if kind in own and len(own[kind].axes) == 1
            ]
    return Parts(_joined(normals), tuple(values), tuple(levels))


def _kind(kind: str, estimate: Estimate) -> str:
    """Kind of a value; probabilities of words are shares of one whole."""
    return "share" if kind == "probability" and estimate.axes[0].name.rpartition(".")[2] == "word" else kind


def _width(observation: Any, params: Any) -> int:
    """Columns of the data, as far as the likelihood names them."""
    if isinstance(observation, Product):
        return observation.n_features or 0
    return max(
        (len(found.values[0]) for found in estimates_of(observation, params, None).values() if found.axes), default=0
    )


def _columns(estimate: Estimate) -> np.ndarray:
    """Positions of the columns of an axis, from the names that they were given."""
    labels: Sequence[str] | None = estimate.axes[0].labels
    return np.arange(len(estimate.values[0])) if labels is None else np.array([int(label) for label in labels])


def _normal(own: dict[str, Estimate]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Columns, means, variances, and covariances of one part; zero-mean Gaussians have means as well: zero."""
    covariance = own["covariance"].values if "covariance" in own else None
    variance = own["variance"].values if covariance is None else np.einsum("kii->ki", covariance)
    mean = own["mean"].values if "mean" in own else np.zeros_like(variance)
    return _columns(own["variance" if covariance is None else "covariance"]), mean, variance, covariance


def _joined(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]]) -> Normals | None:
    if not parts:
        return None
    columns, mean, variance, covariances = zip(*parts, strict=True)
    of = np.repeat(np.arange(len(parts)), [len(own) for own in columns])
    joined = [np.concatenate(mean, axis=1), np.concatenate(variance, axis=1)]
    return Normals(np.concatenate(columns), joined[0], joined[1], (of, covariances))


def _levels(estimate: Estimate) -> list[LevelValues]:
    """Levels of each column; their labels are ``position=level``."""
    labels = [label.partition("=") for label in estimate.axes[0].labels or ()]
    columns = np.array([int(column) for column, _, _ in labels])
    values = estimate.values
    return [
        LevelValues(int(c), tuple(labels[i][2] for i in np.flatnonzero(columns == c)), values[:, columns == c])
        for c in np.unique(columns)
    ]
