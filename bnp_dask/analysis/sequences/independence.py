"""Share of the steps of sequences that are independent evidence of their states, from residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import for_batches, open_for, require_posterior
from bnp_dask.core import Batch
from bnp_dask.data import Reader
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.model import Posterior
from bnp_dask.structure import sequence_offsets

if TYPE_CHECKING:
    from distributed import Client

LONGEST = 500
"""Most steps between two residuals whose correlation is looked at."""

FEW = 50
"""Least pairs of steps from which a correlation is estimated."""

NOTHING = 0.05
"""Correlation below which residuals count as uncorrelated; the sum ends there, since later ones are noise."""


def independent_share(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | str | None = None
) -> float:
    """Share of the steps of sequences that are independent evidence of their states, above 0 and at most 1.

    A hidden Markov model takes the rows of a state as independent draws.  Frames of a recording are not: neighbours are
    nearly the same row, so each row counts as if it were many, and the objective rises with states that are moments of
    one movement.  With ``weights`` of this share for all rows, the rows of a state count as many times as they are
    independent, like the effective sample size of a Markov chain.

    Parameters
    ----------
    posterior
        A hidden Markov model trained on the data, with more states than are expected: states that stand for several
        have residuals that last as long as those.  Thirty states without moves do.
    data
        Sequences of dense rows, as for :func:`bnp_dask.train`.
    batch_size
        Rows per batch.
    client
        Where to compute, as for :func:`bnp_dask.score`.

    Returns
    -------
    share
        ``n / (n + 2 sum_l n_l rho_l)``, with rho_l the correlation of residuals ``l`` steps apart on the most likely
        path, within one stay in a state, averaged over columns, which are divided by their deviation in the state, and
        n_l the pairs of steps so far apart in one stay, ``n = n_0``.  It is the variance that sums over stays would
        have if their steps were independent, as a share of the one they have.  Stays of L equal rows have ``1 / L``.
        The sum ends at the first correlation below 0.05.

    Raises
    ------
    SettingError
        The model has no sequences, or its rows follow from rows before (autoregressive likelihoods say themselves how
        steps depend on one another).

    Notes
    -----
    Drawn chains of independent rows have 1.  Of recordings (30 states, no moves): five of six of mocap6 .17, five of
    six dances of bees .24, gestures .03.  Pairs that a stay is too short for do not exist, and count nothing: with
    ``n_l = n`` these were .13, .18 and .02.

    References
    ----------
    Geyer 1992, "Practical Markov chain Monte Carlo", 3.3: effective sample sizes.
    """
    require_posterior(posterior)
    model = posterior.model
    if not model.structure.is_ordered or model.lags:
        raise SettingError(
            f"independent_share(): {type(model.allocation).__name__} of {type(model.observation).__name__} has no "
            "states whose rows are taken as independent; it needs a hidden Markov model of plain rows, such as HDPHMM()"
        )
    source = open_for(posterior, data, batch_size)
    count, first, second = map(sum, zip(*for_batches(posterior, source, client, _moments, "moments"), strict=True))
    count = np.maximum(count, 1.0)
    mean = first / count
    scale = np.sqrt(np.maximum(second / count - mean**2, 0.0))
    products = sum(for_batches(posterior, source, client, _Products(mean, scale), "residuals"))
    return _share(*products)


def _share(products: np.ndarray, pairs: np.ndarray) -> float:
    """The share from sums of products of residuals, and numbers of pairs, at distances 0, 1, ... ``(L,)``."""
    if not products[0] > 0.0:
        return 1.0
    level, total = products[0] / pairs[0], 1.0
    for product, number in zip(products[1:], pairs[1:], strict=True):
        correlation = product / max(number, 1.0) / level
        if number < FEW or correlation < NOTHING:
            break
        total += 2.0 * correlation * number / pairs[0]
    return 1.0 / total


def _path(posterior: Posterior, read: Reader) -> tuple[np.ndarray, np.ndarray, Batch]:
    """Rows and most likely states of a batch; missing entries are NaN."""
    batch = read()
    posterior.model.check(batch)
    path = [labels for _, labels in posterior.model.labels(posterior, batch)]
    if batch.is_sparse:
        raise DataError(f"{batch.name}: sparse counts have no residuals; independent_share() needs dense rows")
    return batch.x, np.concatenate([np.zeros(0, np.int64), *path]), batch


def _moments(posterior: Posterior, read: Reader) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observed entries of each state, and sums of them and of their squares, ``(K, D)`` each."""
    x, path, _ = _path(posterior, read)
    resp = np.zeros((len(path), posterior.n_clusters))
    resp[np.arange(len(path)), path] = 1.0
    known = np.isfinite(x)
    x = np.where(known, x, 0.0)
    return matmul(resp.T, known.astype(np.float64)), matmul(resp.T, x), matmul(resp.T, x**2)


@dataclass(frozen=True)
class _Products:
    """Sums of products of residuals, about means and in units of deviations ``(K, D)``."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, posterior: Posterior, read: Reader) -> np.ndarray:
        x, path, batch = _path(posterior, read)
        scale = self.scale[path]
        residual = np.where(np.isfinite(x) & (scale > 0.0), (x - self.mean[path]) / np.where(scale > 0.0, scale, 1), 0)
        begins = np.zeros(len(path), np.bool_)
        begins[1:] = path[1:] != path[:-1]
        starts = sequence_offsets(batch)[:-1]
        begins[starts[starts < len(path)]] = True
        stay = np.cumsum(begins)
        out = np.zeros((2, LONGEST + 1))
        for lag in range(min(LONGEST + 1, len(path))):
            same = stay[lag:] == stay[: len(stay) - lag]
            if not same.any():
                break
            both = residual[lag:][same] * residual[: len(residual) - lag][same]
            out[:, lag] = both.mean(axis=1).sum(), same.sum()
        return out
