"""The table of likelihoods that the documents of a batch share, from its logs."""

from __future__ import annotations

import numpy as np
from numba import njit

from bnp_dask.kernels.special import LN2_HIGH, LN2_LOW, LOG2_E, ROUND


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
def table_of(log_lik, lowest):
    """``exp(log_lik)`` by rows ``(R, K)``, each up to a factor of its own.

    ``log_lik`` is made to fit: its rows get a maximum of zero, and numbers below ``lowest`` (nats, above -700, so that
    all are normal numbers) are cut there.  The exponential is written out, for its loop to compile to vector code:
    2**z from its bits, times a Taylor polynomial on ``|r| <= log(2) / 2`` (relative error 5e-16).
    """
    rows, width = log_lik.shape
    table = np.empty((rows, width))
    power = np.empty(width)
    bits = power.view(np.int64)
    for i in range(rows):
        row, out = log_lik[i], table[i]
        _less_the_top(row, lowest)
        for k in range(width):
            t = row[k] * LOG2_E + ROUND
            power[k] = t  # its last bits are the whole number
            z = t - ROUND
            r = (row[k] - z * LN2_HIGH) - z * LN2_LOW
            r2 = r * r
            r4 = r2 * r2
            q0 = 0.5 + r * (1.0 / 6.0)
            q2 = 1.0 / 24.0 + r * (1.0 / 120.0)
            q4 = 1.0 / 720.0 + r * (1.0 / 5040.0)
            q6 = 1.0 / 40320.0 + r * (1.0 / 362880.0)
            q8 = 1.0 / 3628800.0 + r * (1.0 / 39916800.0)
            q10 = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
            out[k] = ((((q2 + q4 * r2) + ((q6 + q8 * r2) + q10 * r4) * r4) * r4 + q0 * r2) + r) + 1.0
        for k in range(width):
            bits[k] = (bits[k] + 1023) << 52
        for k in range(width):
            out[k] *= power[k]
    return table
