"""Projection of dense rows on their principal components, in two passes over a stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bnp_dask.core.location import Location
from bnp_dask.data.batching import float_rows
from bnp_dask.data.ingestion.formats import Piece
from bnp_dask.data.sources.zarr_rows import ZarrArray
from bnp_dask.errors import DataError, SettingError

MOST_FEATURES = 20_000
"""The covariance matrix of more features than this is too large to hold."""


@dataclass(frozen=True, eq=False)
class Projection:
    """``(x - mean) @ components``.

    Parameters
    ----------
    mean
        ``(D,)``.
    components
        Orthonormal columns by falling variance, ``(D, p)``; the largest entry of each is positive.
    explained
        Share of the variance that the components keep, or None if they were fitted to other data.
    """

    mean: np.ndarray
    components: np.ndarray
    explained: float | None

    @property
    def n_features(self) -> int:
        """Columns before, D."""
        return self.components.shape[0]

    @property
    def n_components(self) -> int:
        """Columns after, p."""
        return self.components.shape[1]

    def apply(self, x: np.ndarray, name: str) -> np.ndarray:
        """Project rows ``(n, D)`` to ``(n, p)``."""
        if x.shape[1] != self.n_features:
            raise DataError(f"{name} has {x.shape[1]} features, but the projection takes {self.n_features}")
        return (float_rows(x, name) - self.mean) @ self.components


def fit_projection(pieces: Iterable[Piece], n_components: int, n_features: int, name: str) -> Projection:
    """Principal components of a stream, weighted; covariances combine by the update of Chan et al. (1983)."""
    if isinstance(n_components, bool) or not 1 <= n_components <= n_features:
        raise SettingError(f"project={n_components!r}: needs 1 to {n_features} components, the features of {name}")
    if n_features > MOST_FEATURES:
        raise SettingError(f"project: {name} has {n_features} features; at most {MOST_FEATURES} can be projected")
    weight, mean, scatter = 0.0, np.zeros(n_features), np.zeros((n_features, n_features))
    for raw, weights in pieces:
        if not isinstance(raw, np.ndarray):
            raise DataError(f"{name} holds counts; project= is for dense rows")
        x = float_rows(raw, name)
        if not np.isfinite(x).all():
            raise DataError(f"{name} has NaN or infinite values, which cannot be projected; drop or impute such rows")
        w = np.ones(len(x)) if weights is None else weights
        total = float(w.sum())
        if total == 0:
            continue
        center = w @ x / total
        y = (x - center) * np.sqrt(w)[:, None]
        shift = center - mean
        scatter += y.T @ y + np.outer(shift, shift) * (weight * total / (weight + total))
        mean = mean + shift * (total / (weight + total))
        weight += total
    if weight == 0:
        raise DataError(f"{name}: all weights are zero")
    values, vectors = np.linalg.eigh(scatter)
    values, vectors = values[::-1], vectors[:, ::-1]
    components = vectors[:, :n_components]
    # eigenvectors come with either sign; fix it
    largest = np.abs(components).argmax(axis=0)
    components = components * np.where(components[largest, np.arange(n_components)] < 0, -1.0, 1.0)
    everything = float(values.clip(0).sum())
    explained = float(values[:n_components].clip(0).sum()) / everything if everything > 0 else 1.0
    return Projection(mean, np.ascontiguousarray(components), explained)


def load_projection(store: Location, n_features: int) -> Projection:
    """The projection of a store that was ingested with one."""
    store.require()
    if not store.child("projection_components").exists():
        raise DataError(f"{store.name} was not projected; ingest it with project=50, or pass a number here")
    mean = ZarrArray.open(store.child("projection_mean"))
    components = ZarrArray.open(store.child("projection_components"))
    if components.shape[0] != n_features:
        raise DataError(f"{store.name} projects {components.shape[0]} features, but the data have {n_features}")
    real = np.dtype(np.float64)
    span = (0, n_features)
    return Projection(mean.read(span, real), components.read(span, real), None)
