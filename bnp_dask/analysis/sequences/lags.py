"""Results for sequences as recorded, from a model whose rows also hold the steps before each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.data.groups import lagged
from bnp_dask.data.output import Outputs
from bnp_dask.kernels.numeric.lags import lagged_rows, spread
from bnp_dask.model import Posterior


def for_recorded(posterior: Posterior, batch: Batch, compute: Callable[[Posterior, Batch], Outputs]) -> Outputs:
    """Columns of a batch as recorded, from columns of the model's rows.

    The first steps of each sequence, on which the others are conditioned, have the values of the step after them.
    Steps of a sequence that has no other get the model's expectation of a start: its states by their probability, the
    most probable as their label.
    """
    lags = posterior.model.lags
    if lags == 0:
        return compute(posterior, batch)
    rows = lagged(batch, lags)
    offsets = batch.group_offsets
    start = _start(posterior)
    rank = np.argsort(-start, kind="stable")
    found = {}
    for name, values in compute(posterior, rows).items():
        width = values.shape[1] if values.ndim == 2 else 1
        if name == "label":
            alone = posterior.ids[rank[:width]] if values.ndim == 2 else posterior.ids[rank[0]]
        else:
            alone = start if width == len(start) else start[rank[:width]]
        found[name] = spread(values, offsets, lags, np.asarray(alone))
    return found


def density_of_recorded(
    posterior: Posterior, batch: Batch, density: Callable[[Posterior, Batch], np.ndarray]
) -> np.ndarray:
    """Densities of the steps of a batch as recorded, ``(n,)``; NaN for steps on which the others are conditioned."""
    lags = posterior.model.lags
    if lags == 0:
        return density(posterior, batch)
    out = np.full(batch.n_atoms, np.nan)
    rows = lagged(batch, lags)
    out[lagged_rows(batch.group_offsets, lags)[0]] = density(posterior, rows)
    return out


def _start(posterior: Posterior) -> np.ndarray:
    """Prior probability of each cluster at a step without data, ``(K,)``."""
    shares = posterior.model.structure.shares(posterior)
    return shares / shares.sum()
