"""Series of exponential and logarithm; digamma, log gamma and exponentials of digamma of many numbers, in vector code.

Digamma and log gamma shift their argument above 8 by the recurrence, where Stirling's series has the precision of a
double.  numba's own exp and log call a scalar library function, so both are written out (see ``kernels/mixture.py``).
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.options import copy_into, njit

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest whole number, which the last bits then hold
LOWEST = -640.0  # exp below this is set to zero: it is far from the smallest normal number, and nothing beside one
HALF_LOG_2PI = 0.9189385332046727
BLOCK = 512


@njit(inline="always")
def exp_near_zero(r):
    """exp(r) for ``|r| <= log(2) / 2``: a Taylor polynomial, relative error 5e-16."""
    r2 = r * r
    r4 = r2 * r2
    a = 0.5 + r * (1.0 / 6.0)
    b = 1.0 / 24.0 + r * (1.0 / 120.0)
    c6 = 1.0 / 720.0 + r * (1.0 / 5040.0)
    c8 = 1.0 / 40320.0 + r * (1.0 / 362880.0)
    c10 = 1.0 / 3628800.0 + r * (1.0 / 39916800.0)
    c12 = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
    return ((((b + c6 * r2) + ((c8 + c10 * r2) + c12 * r4) * r4) * r4 + a * r2) + r) + 1.0


@njit(inline="always")
def log_series(t):
    """``(log(m) / s - 2) / t`` for ``s = (m - 1) / (m + 1)``, ``t = s * s`` and m from sqrt(1/2) to sqrt(2)."""
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
    return p * t + 2.0 / 3.0


@njit(inline="always")
def psi_series(v):
    """``(psi(z) - log(z) + 1 / (2 z)) / v`` for ``v = 1 / z**2`` and z of 8 or more."""
    p = 691.0 / 32760.0 - v * (1.0 / 12.0)
    p = -1.0 / 132.0 + v * p
    p = 1.0 / 240.0 + v * p
    p = -1.0 / 252.0 + v * p
    p = 1.0 / 120.0 + v * p
    return -1.0 / 12.0 + v * p


@njit(nogil=True, cache=True)
def psi_one(x):
    """Digamma of one positive number."""
    y = x * (x + 7.0)
    a, b, c = y + 6.0, y + 10.0, y + 12.0
    # sum of 1 / (x + j), j = 0..7, two from each end together
    shift = (2.0 * x + 7.0) * ((y + a) / (y * a) + (b + c) / (b * c)) if x < 1e30 else 0.0
    z = x + 8.0
    v = 1.0 / (z * z)
    p = 691.0 / 32760.0 - v / 12.0
    p = -1.0 / 132.0 + v * p
    p = 1.0 / 240.0 + v * p
    p = -1.0 / 252.0 + v * p
    p = 1.0 / 120.0 + v * p
    p = -1.0 / 12.0 + v * p
    return math.log(z) - 0.5 / z + v * p - shift


@njit(nogil=True, cache=True, error_model="numpy")
def exp_psi(mass, prior, width, out, bits, power):
    """``exp(psi(mass + prior))`` of the first ``width`` numbers; ``bits`` is scratch and ``power`` its float view."""
    for k in range(width):
        x = mass[k] + prior[k]
        y = x * (x + 7.0)
        a, b, c = y + 6.0, y + 10.0, y + 12.0
        ya, bc = y * a, b * c
        shift = (2.0 * x + 7.0) * ((y + a) * bc + (b + c) * ya) / (ya * bc)
        z = x + 8.0
        w = 1.0 / z
        v = w * w
        d = v * psi_series(v) - 0.5 * w - shift
        e = d if d > LOWEST else LOWEST
        t = e * LOG2_E + ROUND
        power[k] = t  # its last bits are the whole number
        whole = t - ROUND
        r = (e - whole * LN2_HIGH) - whole * LN2_LOW
        # a prior or count of NaN must not look like an unused topic
        out[k] = 0.0 if d <= LOWEST else exp_near_zero(r) * z
    for k in range(width):
        bits[k] = (bits[k] + 1023) << 52
    for k in range(width):
        out[k] *= power[k]


@njit(nogil=True, cache=True, error_model="numpy")
def log_positive(x, bits, n, out):
    """Natural logs of the first ``n`` positive normal numbers, which are overwritten; ``bits``: their integer view."""
    for i in range(n):
        raw = bits[i]
        exponent = (raw >> 52) - 1023
        out[i] = np.float64(exponent)
        bits[i] = (raw & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000
    for i in range(n):
        m, e = x[i], out[i]
        large = m > 1.4142135623730951
        m = 0.5 * m if large else m
        e = e + 1.0 if large else e
        s = (m - 1.0) / (m + 1.0)
        t = s * s
        p = log_series(t) * t + 2.0
        out[i] = e * LN2_HIGH + (s * p + e * LN2_LOW)


@njit(nogil=True, cache=True, error_model="numpy")
def psi_gamma_block(x, n, z, zbits, prod, pbits, log_z, log_p, psi, gamma):
    """Digamma and log gamma of ``n`` positive normal numbers ``x``; all but ``psi`` and ``gamma`` is scratch."""
    for i in range(n):
        a = x[i]
        y = a * (a + 7.0)
        # beyond 64 the series needs no shift, and the product of the shift would overflow far above
        far = a > 64.0
        z[i] = a if far else a + 8.0
        prod[i] = 1.0 if far else y * (y + 6.0) * ((y + 10.0) * (y + 12.0))
    for i in range(n):
        a = x[i]
        y = a * (a + 7.0)
        b, c, d = y + 6.0, y + 10.0, y + 12.0
        yb, cd = y * b, c * d
        shift = (2.0 * a + 7.0) * ((y + b) * cd + (c + d) * yb) / (yb * cd)
        w = 1.0 / z[i]
        v = w * w
        psi[i] = v * psi_series(v) - 0.5 * w - (0.0 if a > 64.0 else shift)
        g = -691.0 / 360360.0 + v * (1.0 / 156.0)
        g = 1.0 / 1188.0 + v * g
        g = -1.0 / 1680.0 + v * g
        g = 1.0 / 1260.0 + v * g
        g = -1.0 / 360.0 + v * g
        g = 1.0 / 12.0 + v * g
        gamma[i] = w * g + HALF_LOG_2PI - z[i]
    for i in range(n):
        log_z[i], log_p[i] = 0.0, 0.0
        x[i] = z[i]  # the logs overwrite their arguments
    log_positive(z, zbits, n, log_z)
    log_positive(prod, pbits, n, log_p)
    for i in range(n):
        psi[i] += log_z[i]
        gamma[i] += (x[i] - 0.5) * log_z[i] - log_p[i]


@njit(nogil=True, cache=True)
def _psi_gamma(values, psi, gamma):
    x = np.empty(BLOCK)
    z, prod, log_z, log_p = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    zbits, pbits = z.view(np.int64), prod.view(np.int64)
    for start in range(0, len(values), BLOCK):
        n = min(BLOCK, len(values) - start)
        copy_into(x, values[start : start + n])
        psi_gamma_block(x, n, z, zbits, prod, pbits, log_z, log_p, psi[start:], gamma[start:])


def psi_gammaln(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Digamma and log gamma of positive normal numbers, ``(n,)`` each."""
    x = np.ascontiguousarray(x, np.float64)
    psi, gamma = np.empty(x.shape), np.empty(x.shape)
    _psi_gamma(x.ravel(), psi.ravel(), gamma.ravel())
    return psi, gamma


@njit(nogil=True, cache=True, error_model="numpy")
def trigamma(x):
    """Derivative of digamma at a positive number: shifted by 12, where the series has all digits."""
    total = 0.0
    for j in range(12):
        total += 1.0 / ((x + j) * (x + j))
    z = x + 12.0
    v = 1.0 / (z * z)
    p = -691.0 / 2730.0 + v * (7.0 / 6.0)
    p = 5.0 / 66.0 + v * p
    p = -1.0 / 30.0 + v * p
    p = 1.0 / 42.0 + v * p
    p = -1.0 / 30.0 + v * p
    p = 1.0 / 6.0 + v * p
    return total + 1.0 / z + 0.5 * v + p * v / z
