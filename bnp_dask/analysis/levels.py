"""Turns positions of levels into the levels themselves, for results that people read."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.inputs.levels import Levels, is_text
from bnp_dask.model import Posterior


def with_levels(posterior: Posterior, x: np.ndarray, index: Any = None) -> Any:
    """Atoms ``(n, D)`` with levels in place of their positions.

    Parameters
    ----------
    posterior
        Posterior with the levels; if it has none, and no ``index`` is given, the atoms are returned unchanged.
    x
        Atoms as batches hold them.
    index
        Index of the requested DataFrame, or None for an array if all levels are numbers.

    Returns
    -------
    numpy.ndarray or pandas.DataFrame
        An array if all levels are numbers; else a DataFrame with the model's columns, text columns as pandas
        categories.
    """
    known = None if posterior.columns is None else posterior.columns.levels
    levels = known or (None,) * x.shape[1]
    if index is None and not any(own is not None and is_text(own) for own in levels):
        numbers = [x[:, i] if own is None else _numbers(x[:, i], own) for i, own in enumerate(levels)]
        return x if known is None else np.column_stack(numbers)
    import pandas as pd

    if known is None:
        return pd.DataFrame(x, index=index, columns=posterior.feature_names)
    names = posterior.feature_names or range(x.shape[1])
    columns = [x[:, i] if own is None else _column(x[:, i], own) for i, own in enumerate(levels)]
    frame = pd.DataFrame(dict(enumerate(columns)), index=index)
    return frame.set_axis(list(names), axis="columns")


def _numbers(places: np.ndarray, levels: Levels) -> np.ndarray:
    return np.array(levels, np.float64)[places.astype(np.int64)]


def _column(places: np.ndarray, levels: Levels) -> Any:
    """Levels of a column: a category of texts, else numbers or truth values."""
    import pandas as pd

    if is_text(levels):
        return pd.Categorical.from_codes(places.astype(np.int64), categories=list(levels))
    return np.array(levels)[places.astype(np.int64)]
