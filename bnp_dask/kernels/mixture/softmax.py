"""Normalised exponentials of rows of log weights, a block of rows at a time.

exp is written out because numba's calls a scalar library function, and numpy's is only fast on some machines: 2**z from
its bits, times a Taylor polynomial on ``|r| <= log(2) / 2`` (relative error 5e-16).  Its loop has no branch and runs
over all numbers of a block, so that it compiles to vector code however short the rows are.
"""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.options import njit

TINY = 2.0**-53
"""Responsibilities below it are set to zero."""

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest whole number, which the last bits then hold
LOG_NOTHING = -40.0  # so far below log(TINY) that numbers cut there change no row's sum
LOG_LEAST = -690.0  # exp of it is lost beside one, however many there are
LOG_NEVER = -1e300  # stands for -inf, so that zero times a log is zero
BLOCK = 1024  # numbers


@njit(nogil=True, cache=True)
def exp_block(d, lowest, power, out):
    """exp(d) of numbers; numbers below ``lowest`` (above -700) count as ``lowest``; ``power`` is overwritten."""
    bits = power.view(np.int64)
    for k in range(len(d)):
        c = lowest if d[k] < lowest else d[k]  # NaN stays
        t = c * LOG2_E + ROUND
        power[k] = t
        z = t - ROUND
        r = (c - z * LN2_HIGH) - z * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        a = 0.5 + r * (1.0 / 6.0)
        b = 1.0 / 24.0 + r * (1.0 / 120.0)
        c6 = 1.0 / 720.0 + r * (1.0 / 5040.0)
        c8 = 1.0 / 40320.0 + r * (1.0 / 362880.0)
        c10 = 1.0 / 3628800.0 + r * (1.0 / 39916800.0)
        c12 = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
        out[k] = ((((b + c6 * r2) + ((c8 + c10 * r2) + c12 * r4) * r4) * r4 + a * r2) + r) + 1.0
    for k in range(len(d)):
        bits[k] = (bits[k] + 1023) << 52
    for k in range(len(d)):
        out[k] *= power[k]


@njit(inline="always")  # calls with rows of a matrix cost more than short rows take
def _less_the_top(row, shift, out):
    # row + shift minus its maximum: all NaN if the maximum is not finite, and NaN stays
    top = -np.inf
    for k in range(len(row)):
        out[k] = row[k] + shift[k]
    for k in range(len(row)):
        top = out[k] if out[k] > top else top
    for k in range(len(row)):
        d = out[k] - top
        out[k] = LOG_NEVER if d < LOG_NEVER else d


@njit(inline="always")
def _sum(row):
    # four partial sums in a fixed order: the same bits on every machine, unlike a compiler's reduction
    whole = len(row) - len(row) % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, whole, 4):
        s0 += row[k]
        s1 += row[k + 1]
        s2 += row[k + 2]
        s3 += row[k + 3]
    for k in range(whole, len(row)):
        s0 += row[k]
    return (s0 + s1) + (s2 + s3)


@njit(nogil=True, cache=True)
def softmax_rows(log_weights, shift, resp, log_resp, counts, entropy):
    """Responsibilities of rows of ``log_weights + shift (K,)``; NaN if a row has no finite maximum.

    ``resp`` may be ``log_weights`` itself.  ``log_resp`` may have no rows: it is then left out, and ``entropy (K,)``
    gets minus the sum of count r log r, with ``counts (n,)``.
    """
    n, n_clusters = log_weights.shape
    rows = max(1, BLOCK // n_clusters)
    logs, powers = np.empty((rows, n_clusters)), np.empty((rows, n_clusters))
    space = np.empty(rows * n_clusters)
    for first in range(0, n, rows):
        size = min(rows, n - first)
        for i in range(size):
            _less_the_top(log_weights[first + i], shift, logs[i])
        numbers = size * n_clusters
        exp_block(logs.reshape(-1)[:numbers], LOG_NOTHING, space[:numbers], powers.reshape(-1)[:numbers])
        for i in range(size):
            power, log, out = powers[i], logs[i], resp[first + i]
            total = _sum(power)
            part, normaliser = 1.0 / total, np.log(total)
            if len(log_resp):
                to = log_resp[first + i]
                for k in range(n_clusters):
                    share = power[k] * part
                    out[k] = 0.0 if share < TINY else share
                    to[k] = log[k] - normaliser
            else:
                count = counts[first + i]
                for k in range(n_clusters):
                    share = power[k] * part
                    share = 0.0 if share < TINY else share
                    out[k] = share
                    entropy[k] -= (count * share) * (log[k] - normaliser)


@njit(nogil=True, cache=True)
def log_sums(log_weights, shift, out):
    """``log(sum(exp(row)))`` of rows of ``log_weights + shift (K,)``, into ``out (n,)``.

    NaN for rows with NaN or infinity; minus infinity for rows of only minus infinity.
    """
    n, n_clusters = log_weights.shape
    rows = max(1, BLOCK // n_clusters)
    logs, powers = np.empty((rows, n_clusters)), np.empty((rows, n_clusters))
    space = np.empty(rows * n_clusters)
    for first in range(0, n, rows):
        size = min(rows, n - first)
        for i in range(size):
            _less_the_top(log_weights[first + i], shift, logs[i])
        numbers = size * n_clusters
        exp_block(logs.reshape(-1)[:numbers], LOG_LEAST, space[:numbers], powers.reshape(-1)[:numbers])
        for i in range(size):
            top, has_nothing = -np.inf, True
            for k in range(n_clusters):
                number = log_weights[first + i, k] + shift[k]
                top = number if number > top else top
                has_nothing &= number == -np.inf
            out[first + i] = -np.inf if has_nothing else top + np.log(_sum(powers[i]))
