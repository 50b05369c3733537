"""Error-free accumulation: sums that do not drift."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _two_sum_flat(high, low, x, sign):
    for i in range(high.size):
        a = high[i]
        b = sign * x[i]
        s = a + b
        t = s - a
        low[i] += (a - (s - t)) + (b - t)
        high[i] = s


def two_sum_into(high: np.ndarray, low: np.ndarray, x: np.ndarray, sign: float) -> None:
    """Add ``sign * x`` to the unevaluated sum ``high + low``, in place (Knuth's TwoSum).

    ``high`` and ``low`` are contiguous float64 arrays that this function overwrites; ``x`` has their shape.
    """
    _two_sum_flat(high.reshape(-1), low.reshape(-1), x.reshape(-1), sign)
