"""Exponentials and logarithms made of additions, multiplications and divisions alone, in an order that is written out.

NumPy uses other code on processors with AVX-512, whose last bits differ.
"""

from __future__ import annotations

import numpy as np

from bnp_dask.kernels.mixture.softmax import LN2_HIGH, LN2_LOW, LOG2_E, ROUND
from bnp_dask.kernels.options import njit

HIGHEST, LOWEST = 709.782712893384, -745.2
"""Arguments above and below which an exponential is infinite and zero."""

SMALLEST_NORMAL = 2.0**-1022
LIFT = 2.0**54


@njit(nogil=True, cache=True)
def _exp_all(x, out):
    power = np.empty(2)
    bits = power.view(np.int64)
    for k in range(len(x)):
        c = min(max(x[k], LOWEST), HIGHEST) if x[k] == x[k] else 0.0
        z = (c * LOG2_E + ROUND) - ROUND
        r = (c - z * LN2_HIGH) - z * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        a = 0.5 + r * (1.0 / 6.0)
        b = 1.0 / 24.0 + r * (1.0 / 120.0)
        c6 = 1.0 / 720.0 + r * (1.0 / 5040.0)
        c8 = 1.0 / 40320.0 + r * (1.0 / 362880.0)
        c10 = 1.0 / 3628800.0 + r * (1.0 / 39916800.0)
        c12 = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
        p = ((((b + c6 * r2) + ((c8 + c10 * r2) + c12 * r4) * r4) * r4 + a * r2) + r) + 1.0
        # in two steps, so that denormal results are rounded once, and the largest are reached
        half = np.int64(z) // 2
        bits[0] = (half + 1023) << 52
        bits[1] = (np.int64(z) - half + 1023) << 52
        value = (p * power[0]) * power[1]
        if not (LOWEST < x[k] <= HIGHEST):
            value = 0.0 if x[k] <= LOWEST else (np.inf if x[k] > HIGHEST else np.nan)
        out[k] = value


@njit(nogil=True, cache=True)
def _log_all(x, out):
    number = np.empty(1)
    bits = number.view(np.int64)
    for i in range(len(x)):
        value = x[i]
        if not 0.0 < value < np.inf:
            out[i] = -np.inf if value == 0.0 else (np.inf if value > 0.0 else np.nan)
            continue
        low = value < SMALLEST_NORMAL
        number[0] = value * LIFT if low else value
        exponent = (bits[0] >> 52) - (1077 if low else 1023)
        bits[0] = (bits[0] & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000
        m = number[0]
        if m > 1.4142135623730951:
            m, exponent = 0.5 * m, exponent + 1
        e, f = np.float64(exponent), m - 1.0
        s = f / (2.0 + f)
        t = s * s
        p = 2.0 / 23.0
        p = p * t + 2.0 / 21.0
        p = p * t + 2.0 / 19.0
        p = p * t + 2.0 / 17.0
        p = p * t + 2.0 / 15.0
        p = p * t + 2.0 / 13.0
        p = p * t + 2.0 / 11.0
        p = p * t + 2.0 / 9.0
        p = p * t + 2.0 / 7.0
        p = p * t + 2.0 / 5.0
        p = p * t + 2.0 / 3.0
        # f - f f / 2 + ...: the large terms are exact (Sun's fdlibm, e_log.c)
        half = 0.5 * f * f
        out[i] = e * LN2_HIGH - ((half - (s * (half + p * t) + e * LN2_LOW)) - f)


def fixed_exp(x: np.ndarray) -> np.ndarray:
    """``exp(x)`` to less than one unit in the last place."""
    return _apply(_exp_all, x)


def fixed_log(x: np.ndarray) -> np.ndarray:
    """``log(x)`` to less than one unit in the last place; zero gives minus infinity, less gives NaN."""
    return _apply(_log_all, x)


def fixed_log1p(x: np.ndarray) -> np.ndarray:
    """``log(1 + x)`` to three units in the last place, also for small ``x``."""
    x = np.asarray(x, np.float64)
    whole = 1.0 + x
    # corrects the rounding of 1 + x to first order (Higham, "Accuracy and Stability", problem 1.5)
    with np.errstate(invalid="ignore", divide="ignore"):
        small = fixed_log(whole) * x / (whole - 1.0)
    return np.where(whole == 1.0, x, np.where(np.isfinite(x) & (whole > 0.0), small, fixed_log(whole)))[()]


def _apply(function, x):
    x = np.asarray(x, np.float64)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty(flat.shape)
    function(flat, out)
    return out.reshape(x.shape)[()]
