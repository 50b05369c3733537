"""Error-free accumulation: sums that do not drift."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True)
def _two_sum_flat(high, low, x, sign):
    for i in range(high.size):
        a = high[i]
        b = sign * x[i]
        s = a + b
        t = s - a
        low[i] += (a - (s - t)) + (b - t)
        high[i] = s


SPLIT = 2.0**27 + 1.0
"""Factor by which a double is split in two halves of at most 26 bits (Dekker 1971)."""


def product_rest(x: np.ndarray, factor: float) -> np.ndarray:
    """What ``x * factor`` rounds away (Dekker's TwoProduct); 0 where ``|x|`` is beyond 1e300 and cannot be split."""
    product = x * factor
    with np.errstate(over="ignore", invalid="ignore"):
        (a, b), (c, d) = _halves(x), _halves(np.float64(factor))
        rest = ((a * c - product) + a * d + b * c) + b * d
    return np.where(np.isfinite(rest), rest, 0.0)


def _halves(x: Any) -> tuple[Any, Any]:
    scaled = SPLIT * x
    upper = scaled - (scaled - x)
    return upper, x - upper


def two_sum_into(high: np.ndarray, low: np.ndarray, x: np.ndarray, sign: float) -> None:
    """Add ``sign * x`` to the unevaluated sum ``high + low``, in place (Knuth's TwoSum).

    Parameters
    ----------
    high, low
        C-contiguous float64 arrays of one shape; overwritten.
    x
        Array to add, of the same shape; finite.
    sign
        1.0 to add, -1.0 to subtract.

    Raises
    ------
    ValueError
        When an array has another layout or shape: its flat view would be a copy, and the sum would be lost.
    """
    if not (high.flags.c_contiguous and low.flags.c_contiguous and x.flags.c_contiguous):
        raise ValueError("two_sum_into needs C-contiguous arrays; call np.ascontiguousarray first")
    if high.size != low.size or high.size != x.size:
        raise ValueError(f"two_sum_into needs one shape, got {high.shape}, {low.shape} and {x.shape}")
    _two_sum_flat(high.reshape(-1), low.reshape(-1), x.reshape(-1), sign)
