"""Topics as points in the plane: near one another where their words are alike."""

from __future__ import annotations

import numpy as np

from bnp_dask.analysis.topics.words import hellinger
from bnp_dask.model import Posterior


def topic_positions(posterior: Posterior) -> np.ndarray:
    """Classical scaling of the Hellinger distances between topics, ``(K, 2)``, centred (Torgerson 1952).

    These are distances between points, the square roots of the probabilities of words, so that no eigenvalue is
    negative; the points spread most along the two axes.  The sign of each axis is such that its largest coordinate is
    positive.
    """
    square = hellinger(posterior) ** 2
    centred = square - square.mean(axis=0) - square.mean(axis=1)[:, None] + square.mean()
    values, vectors = np.linalg.eigh(-0.5 * centred)
    out = np.zeros((len(square), 2))
    for axis, at in enumerate(range(len(values) - 1, max(-1, len(values) - 3), -1)):
        column = vectors[:, at] * np.sqrt(max(values[at], 0.0))
        out[:, axis] = column * (-1.0 if column[np.abs(column).argmax()] < 0 else 1.0)
    return out
