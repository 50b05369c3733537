"""The table of likelihoods that the documents of a batch share, from its logs."""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.mixture.softmax import exp_block
from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True)
def _less_the_top(row, lowest):
    # row minus its maximum, cut below; NaN stays
    t0 = t1 = t2 = t3 = -np.inf
    n = len(row)
    for k in range(0, n - n % 4, 4):
        t0 = row[k] if row[k] > t0 else t0
        t1 = row[k + 1] if row[k + 1] > t1 else t1
        t2 = row[k + 2] if row[k + 2] > t2 else t2
        t3 = row[k + 3] if row[k + 3] > t3 else t3
    for k in range(n - n % 4, n):
        t0 = row[k] if row[k] > t0 else t0
    top = max(max(t0, t1), max(t2, t3))
    for k in range(n):
        d = row[k] - top
        row[k] = lowest if d < lowest else d


@njit(nogil=True, cache=True)
def table_of(log_lik, lowest, table):
    """``exp(log_lik)`` by rows ``(R, K)``, each up to a factor of its own, in ``table``.

    ``log_lik`` is adjusted: its rows get a maximum of zero, and numbers below ``lowest`` (nats, above -700, so that
    all are normal numbers) are cut there.
    """
    power = np.empty(log_lik.shape[1])
    for i in range(len(log_lik)):
        _less_the_top(log_lik[i], lowest)
        exp_block(log_lik[i], lowest, power, table[i])
