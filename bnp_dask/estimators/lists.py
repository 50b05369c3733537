"""Lists of sequences, one of the ways in which :class:`bnp_dask.SequenceModel` takes data and gives results."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.data.sources.forms import sequences_of
from bnp_dask.data.sources.frames import is_list_of_frames, joined
from bnp_dask.errors import DataError
from bnp_dask.estimators.fitting import sound_input
from bnp_dask.inputs.arrow_streams import is_stream


def one_below_the_other(X: Any, lengths: Any) -> tuple[Any, Any]:
    """Rows of an array ``(G, T, D)`` or a list of matrices ``(n_g, D)`` and their lengths; other values unchanged.

    Raises
    ------
    DataError
        Lengths together with a list, or matrices with unequal columns.
    """
    arrays = isinstance(X, (list, tuple)) and len(X) and all(isinstance(x, np.ndarray) and x.ndim == 2 for x in X)
    cube = isinstance(X, np.ndarray) and X.ndim == 3
    if lengths is not None and (arrays or cube or is_list_of_frames(X)):
        raise DataError("X is a list of sequences, which have their lengths; leave lengths out")
    if is_list_of_frames(X):
        return joined(X), [len(x) for x in X]
    if cube:
        sound_input(X.reshape(len(X), -1), "X")
        rows, offsets = sequences_of(X)
        return rows, np.diff(offsets)
    if not arrays:
        return X, lengths
    for g, x in enumerate(X):
        sound_input(x, f"sequence {g}")
    widths = {x.shape[1] for x in X}
    if len(widths) > 1:
        raise DataError(f"sequences have {' and '.join(map(str, sorted(widths)))} columns; all need the same")
    return np.concatenate(X), [len(x) for x in X]


def as_given(values: np.ndarray, X: Any, offsets: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Values of all rows, as a list if ``X`` is a list of sequences, in two axes if it is an array ``(G, T, D)``."""
    if isinstance(X, np.ndarray) and X.ndim == 3:
        return values.reshape(*X.shape[:2], *values.shape[1:])
    listed = isinstance(X, (list, tuple)) and len(X) == len(offsets) - 1
    whole = listed and all(is_stream(x) or np.ndim(x) == 2 for x in X)
    return np.split(values, offsets[1:-1]) if whole else values
