"""Kernels as Python: what numba has for compiled code alone, written in NumPy.

Without compilation an intrinsic cannot be called.  Those of the package are vectors of eight numbers and products that
are rounded once; each has a function of its name here.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable
from typing import Any

import numpy as np

LANES = 8
"""Numbers of a vector: ``bnp_dask.kernels.numeric.simd``."""

ROWS, LINE = 6, 64
"""Rows of a tile, and bytes in a row: ``bnp_dask.kernels.numeric.arithmetic``."""

_LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBRARY.fma.restype, _LIBRARY.fma.argtypes = ctypes.c_double, [ctypes.c_double] * 3
_LIBRARY.fmaf.restype, _LIBRARY.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def load(row: np.ndarray, k: int) -> np.ndarray:
    return row[k : k + LANES].copy()


def store(row: np.ndarray, k: int, x: np.ndarray) -> None:
    row[k : k + LANES] = x


def fill(a: float) -> np.ndarray:
    return np.full(LANES, a, np.float64)


def where_above(test: np.ndarray, floor: float, x: np.ndarray) -> np.ndarray:
    return np.where(test > floor, x, 0.0)


def total(x: np.ndarray) -> float:
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return float(x[0])


def fused(x: Any, y: Any, z: Any) -> Any:
    """``x y + z``, rounded once: three numbers, or vectors of them."""
    if isinstance(x, np.ndarray):
        return np.array([_LIBRARY.fma(*numbers) for numbers in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)])
    if isinstance(x, np.float32):
        return np.float32(_LIBRARY.fmaf(x, y, z))
    return np.float64(_LIBRARY.fma(x, y, z))


def _tile(left: np.ndarray, i: int, right: np.ndarray, j: int, depth: int, sums: np.ndarray) -> None:
    width = LINE // sums.itemsize
    for k in range(depth):
        for r in range(ROWS):
            for c in range(width):
                at = r * width + c
                sums[at] = fused(left[i + k * ROWS + r], right[j + k * width + c], sums[at])


def places_for(n: int, rules: Any) -> np.ndarray | None:
    return None if rules.top is None else np.empty((n, rules.top), np.int32)


OVERLOADED = {"places_for": places_for}

STAND_INS = {function.__name__: function for function in (load, store, fill, where_above, total, fused, _tile)}


def uncompiled() -> None:
    """From here on, kernels are imported as Python; to be called before any is.

    Compiled code divides by zero without a word, so NumPy does too.
    """
    os.environ["NUMBA_DISABLE_JIT"] = "1"
    import numba.extending

    def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
        return STAND_INS.get(function.__name__, function)

    def overload(function: Any, **options: Any) -> Callable[[Any], Any]:
        if function.__name__ in OVERLOADED:
            function.__code__ = OVERLOADED[function.__name__].__code__
        return lambda compiled: compiled

    numba.extending.intrinsic, numba.extending.overload = intrinsic, overload
    np.seterr(all="ignore")
