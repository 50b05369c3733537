"""Sequences whose steps follow from those before: rows that hold a step and its predecessors, and back again."""

from __future__ import annotations

import numpy as np


def lagged_rows(offsets: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with ``lags`` steps of their sequence before them, ``(n',)``, and their offsets ``(G + 1,)``."""
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    kept = np.concatenate([[0], np.cumsum(np.maximum(lengths - lags, 0))])
    return np.flatnonzero(place >= lags), kept.astype(np.int64)


def with_lags(x: np.ndarray, index: np.ndarray, lags: int) -> np.ndarray:
    """Rows ``[x_t, x_{t-1}, ..., x_{t-lags}]`` for the steps t in ``index (n',)``, ``(n', (1 + lags) D)``."""
    return np.hstack([x[index - j] for j in range(lags + 1)])


def spread(values: np.ndarray, offsets: np.ndarray, lags: int, alone: np.ndarray) -> np.ndarray:
    """Values of lagged rows for each recorded step, ``(n, ...)``.

    The first ``lags`` steps of a sequence have the value of the step after them, and the steps of a sequence without
    lagged rows the value ``alone``.
    """
    lengths = np.diff(offsets)
    kept = np.concatenate([[0], np.cumsum(np.maximum(lengths - lags, 0))])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    source = np.repeat(kept[:-1], lengths) + np.maximum(place - lags, 0)
    known = np.repeat(lengths > lags, lengths)
    out = np.empty((len(place), *values.shape[1:]), values.dtype)
    out[known] = values[source[known]]
    out[~known] = alone
    return out
