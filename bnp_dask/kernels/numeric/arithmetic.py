"""Products, exponentials and logarithms: of NumPy and BLAS, or in an order that is the same on every processor.

Inside :func:`~.fixed_order.fixed_order` everything here is computed by our own kernels.  BLAS and NumPy choose
code by the processor: their results differ in the last bits between AVX2 and AVX-512, and decisions of a long run then
differ in more than that.  Sums by NumPy (``sum``, ``einsum``, ``bincount``) add in one order everywhere, and so do our
kernels.  Scalar functions of the C library and of ``scipy.special`` are one code on all processors with AVX2 and FMA.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp

from bnp_dask.kernels.numeric.fixed_order import is_fixed
from bnp_dask.kernels.numeric.functions import fixed_exp, fixed_log, fixed_log1p
from bnp_dask.kernels.numeric.products import fixed_product


def matmul(a: Any, b: Any, out: np.ndarray | None = None) -> Any:
    """``a @ b`` of vectors, matrices and stacks of them.  Sparse matrices always add in the order of their entries."""
    if not is_fixed() or sparse.issparse(a) or sparse.issparse(b):
        return a @ b if out is None else np.matmul(a, b, out=out)
    if a.ndim == b.ndim == 1:
        return (a * b).sum()
    found = fixed_product(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    found = found[..., 0, :] if a.ndim == 1 else (found[..., 0] if b.ndim == 1 else found)
    if out is None:
        return found
    out[...] = found
    return out


def inner(a: np.ndarray, b: np.ndarray) -> float:
    """The sum of products of all numbers of two arrays of one shape."""
    return float((a * b).sum() if is_fixed() else np.vdot(a, b))


def exp(x: Any) -> Any:
    """``exp(x)``, elementwise."""
    return fixed_exp(x) if is_fixed() else np.exp(x)


def log(x: Any) -> Any:
    """Natural logarithm, elementwise."""
    return fixed_log(x) if is_fixed() else np.log(x)


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    """``log(sum(exp(x)))`` of each row, ``(n,)``."""
    if not is_fixed():
        return logsumexp(x, axis=1)
    top = x.max(axis=1)
    shift = np.where(np.isfinite(top), top, 0.0)
    return shift + fixed_log(fixed_exp(x - shift[:, None]).sum(axis=1))


def log1p(x: Any) -> Any:
    """``log(1 + x)``, elementwise."""
    return fixed_log1p(x) if is_fixed() else np.log1p(x)
