"""Detects from clusters whether their features are the pixels of images."""

from __future__ import annotations

import numpy as np

from bnp_dask.model import Posterior
from bnp_dask.reports import describe

LEAST = 64
"""Features of the smallest images that are detected."""

NEAR = 0.5
"""Difference of neighbouring pixels, as a share of the difference of any two, below which features are pixels.

Chosen on clusters of 8 x 8 digits (0.32 to 0.45) and of white noise (0.70 at least with Gaussian noise, 0.52 with
lognormal, of 16,000 draws each of 1 to 20 clusters and 64 or 256 features); checked on clusters of MNIST (28 x 28) and
of patches of photographs (8 x 8, 12 x 12), which are below it, and of the indicators of 64 levels, which are above it.
"""


def image_shape(posterior: Posterior) -> tuple[int, int] | None:
    """Rows and columns of square images of which the features are clearly the pixels; None if they are not.

    Features with names are not pixels.  Others are if neighbours in both directions are much more alike, over all
    clusters, than any two features, and features one row apart more alike than features half a row apart.  This
    excludes spectra and other curves, which are smooth in one direction.
    """
    if posterior.feature_names is not None:
        return None
    difference = _differences(posterior)
    side = 0 if difference is None else round(len(difference) ** 0.5)
    if difference is None or side * side != len(difference) or len(difference) < LEAST:
        return None
    place = np.arange(side * side).reshape(side, side)
    across = difference[place[:, 1:], place[:, :-1]].mean()
    down = difference[place[1:], place[:-1]].mean()
    half = np.diagonal(difference, side // 2).mean()
    any_two = difference.sum() / (len(difference) * (len(difference) - 1))
    return (side, side) if across + down < 2.0 * NEAR * any_two and down < half else None


def _differences(posterior: Posterior) -> np.ndarray | None:
    """Mean squared difference of pairs of features, ``(D, D)``: over clusters' means, or within zero-mean clusters."""
    observation, params = posterior.model.observation, posterior.observation
    means = describe.means(observation, params)
    if means is not None:
        second = means.T @ (posterior.weights[:, None] * means)
    else:
        found = describe.covariances(observation, params)
        if found is None:
            return None
        second = np.einsum("k,kij->ij", posterior.weights, found)
    squares = np.diagonal(second)
    difference: np.ndarray = np.maximum(squares[:, None] + squares[None, :] - 2.0 * second, 0.0)
    return difference
