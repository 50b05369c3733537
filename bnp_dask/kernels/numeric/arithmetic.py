"""Products, exponentials and logarithms: of NumPy and BLAS, or in an order that is the same on every processor.

Inside :func:`fixed_order` everything here is computed by our own kernels.  BLAS and NumPy choose code by the processor:
their results differ in the last bits between AVX2 and AVX-512, and decisions of a long run then differ in more than
that.  Sums by NumPy (``sum``, ``einsum``, ``bincount``) add in one order everywhere, and so do our kernels.  Scalar
functions of the C library and of ``scipy.special`` are one code on all processors with AVX2 and FMA.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from scipy import sparse
from scipy.special import logsumexp

from bnp_dask.kernels.numeric.special import LN2_HIGH, LN2_LOW, LOG2_E, ROUND, exp_near_zero, log_series
from bnp_dask.kernels.options import njit


# -- whether this thread computes in a fixed order: a task computes as its submitting thread did, on any machine ------
class _Order(threading.local):
    """Whether this thread is inside a block of fixed order."""

    fixed = False


@cache
def _order() -> _Order:
    return _Order()


@contextmanager
def fixed_order(fixed: bool) -> Iterator[None]:
    """Compute in this thread in an order that does not depend on the processor; with False as libraries do."""
    order = _order()
    before, order.fixed = order.fixed, fixed
    try:
        yield
    finally:
        order.fixed = before


def is_fixed() -> bool:
    """Whether this thread is inside a block of fixed order."""
    return _order().fixed


# -- exponentials and logarithms in an order that is written out --------------------------------------------------
# They consist of additions, multiplications and divisions alone.  NumPy uses other code on processors with AVX-512,
# whose last bits differ.
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
        p = exp_near_zero(r)
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
        p = log_series(t)
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


# -- products of matrices in a fixed order ------------------------------------------------------------------------
# Each number of the result is one chain of fused multiplications and additions, over the common index in ascending
# order.  A fused operation is rounded once, the same everywhere, and vectors lie across numbers of the result, never
# along a sum.  So width of vectors, blocks for the cache and shapes of tiles leave the bits alone.  See Goto & van de
# Geijn, "Anatomy of high-performance matrix multiplication" (2008), for the blocks.
ROWS = 6
"""Rows of a tile: with 64 bytes in each of them, the sums fill 12 of 16 AVX2 registers."""

LINE = 64
"""Bytes in a row of a tile."""

DEPTH = 256
"""Common index of a block: panels of both sides lie in the first cache."""

HEIGHT = 20 * ROWS
"""Rows of a block of the left side: 240 kB of the second cache."""

WIDTH = 512
"""Columns of a block of the right side: 1 MB of the third."""

SIMPLE = 2**12
"""Multiplications below which copying both sides costs more than it saves."""


@intrinsic  # type: ignore[misc]
def fused(typingctx, x, y, z):
    """``x y + z`` of three doubles, or of three floats, rounded once."""
    if x not in (types.float64, types.float32):
        return None

    def codegen(context, builder, signature, args):
        return builder.fma(*args)

    return x(x, x, x), codegen


@intrinsic  # type: ignore[misc]
def _tile(typingctx, left, i, right, j, depth, sums):
    """Add the product of a panel of ROWS rows from ``i`` on and a panel of columns from ``j`` on to flat ``sums``."""

    def codegen(context, builder, signature, args):
        number = context.get_data_type(signature.args[0].dtype)
        width = LINE // (8 if signature.args[0].dtype == types.float64 else 4)
        vector = ir.VectorType(number, width)
        name = f"llvm.fma.v{width}{number.intrinsic_name}"
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
        data = [context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 2, 5)]
        a, b = builder.gep(data[0], [args[1]]), builder.gep(data[1], [args[3]])
        at = [builder.gep(data[2], [ir.Constant(ir.IntType(64), r * width)]) for r in range(ROWS)]
        at = [builder.bitcast(p, vector.as_pointer()) for p in at]
        sums = [cgutils.alloca_once_value(builder, builder.load(p, align=4)) for p in at]
        nothing, zeros = (
            ir.Constant(vector, ir.Undefined),
            ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width),
        )
        with cgutils.for_range(builder, args[4]) as loop:
            place = builder.mul(loop.index, loop.index.type(width))
            row = builder.load(builder.bitcast(builder.gep(b, [place]), vector.as_pointer()), align=4)
            for r in range(ROWS):
                place = builder.add(builder.mul(loop.index, loop.index.type(ROWS)), loop.index.type(r))
                one = builder.insert_element(nothing, builder.load(builder.gep(a, [place])), ir.IntType(32)(0))
                same = builder.shuffle_vector(one, nothing, zeros)
                builder.store(builder.call(fma, [same, row, builder.load(sums[r])]), sums[r])
        for r in range(ROWS):
            builder.store(builder.load(sums[r]), at[r], align=4)
        return context.get_dummy_value()

    return types.void(left, types.intp, right, types.intp, types.intp, sums), codegen


@njit(nogil=True, cache=True)
def _pack(a, top, rows, first, depth, width, out):
    # panels of ``width`` rows, each column by column, read along memory; the last one is padded with zeros
    whole = rows - rows % width
    if a.strides[0] <= a.strides[1]:
        for k in range(depth):
            for i in range(0, whole, width):
                at = i * depth + k * width
                for j in range(width):
                    out[at + j] = a[top + i + j, first + k]
    else:
        for i in range(0, whole, width):
            for j in range(width):
                for k in range(depth):
                    out[i * depth + k * width + j] = a[top + i + j, first + k]
    if whole < rows:
        for k in range(depth):
            for j in range(width):
                out[whole * depth + k * width + j] = a[top + whole + j, first + k] if whole + j < rows else 0.0


@njit(nogil=True, cache=True)
def _multiply(a, b, width, out):
    # b is transposed
    (m, n), depth = out.shape, a.shape[1]
    deep, high, wide = min(depth, DEPTH), min(m + ROWS, HEIGHT), min(n + width, WIDTH)
    left, right = np.empty(high * deep, out.dtype), np.empty(wide * deep, out.dtype)
    sums = np.empty(ROWS * width, out.dtype)
    for side in range(0, n, WIDTH):
        columns = min(WIDTH, n - side)
        for first in range(0, depth, DEPTH):
            size = min(DEPTH, depth - first)
            _pack(b, side, columns, first, size, width, right)
            for top in range(0, m, HEIGHT):
                rows = min(HEIGHT, m - top)
                _pack(a, top, rows, first, size, ROWS, left)
                for j in range(0, columns, width):
                    for i in range(0, rows, ROWS):
                        part = out[top + i : min(top + i + ROWS, top + rows), side + j : side + min(j + width, columns)]
                        _add_tile(left, i * size, right, j * size, size, width, sums, first == 0, part)


@njit(inline="always")
def _add_tile(left, i, right, j, depth, width, sums, anew, part):
    if anew:
        sums[:] = 0.0
    else:
        for r in range(part.shape[0]):
            for c in range(part.shape[1]):
                sums[r * width + c] = part[r, c]
    _tile(left, i, right, j, depth, sums)
    for r in range(part.shape[0]):
        for c in range(part.shape[1]):
            part[r, c] = sums[r * width + c]


@njit(nogil=True, cache=True)
def _multiply_stack(a, b, width, out):
    for s in range(len(out)):
        _multiply(a[s], b[s], width, out[s])


@njit(nogil=True, cache=True)
def _multiply_small(a, b, out):
    # stacks of matrices; the same chains as above
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            row = out[s, i]
            row[:] = 0.0
            for k in range(a.shape[2]):
                times, other = a[s, i, k], b[s, k]
                for j in range(len(row)):
                    row[j] = fused(times, other[j], row[j])


def fixed_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a @ b`` of two matrices ``(m, p)`` and ``(p, n)`` or two stacks of them, float64 or both float32.

    The bits are a function of the numbers alone.
    """
    kind = np.float32 if a.dtype == b.dtype == np.float32 else np.float64
    a, b = np.asarray(a, kind), np.asarray(b, kind)
    lead, (m, depth), n = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2:], b.shape[-1]
    out = np.empty((*lead, m, n), kind)
    if out.size == 0 or depth == 0:
        out[...] = 0.0
        return out
    if not lead and (m * n * depth > SIMPLE and n > 1):
        _multiply(a, b.T, LINE // out.itemsize, out)
        return out
    a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]) for x in (a, b))
    if m * n * depth > 8 * SIMPLE and n > 1:
        _multiply_stack(a, b.transpose(0, 2, 1), LINE // out.itemsize, out.reshape(-1, m, n))
    else:
        _multiply_small(np.ascontiguousarray(a), np.ascontiguousarray(b), out.reshape(-1, m, n))
    return out


# -- of libraries, or in a fixed order ----------------------------------------------------------------------------
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


# -- random numbers whose logarithms are needed -------------------------------------------------------------------
def log_gammas(shape: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(shape, 1) variates, in the shape of ``shape``.

    Below one, ``G(a) = G(a + 1) u^(1 / a)`` (Marsaglia & Tsang 2000).
    """
    small = shape < 1.0
    out = log(rng.standard_gamma(np.where(small, shape + 1.0, shape)))
    out[small] += log(1.0 - rng.random(int(small.sum()))) / shape[small]
    return out


def log_shares(logs: np.ndarray) -> np.ndarray:
    """Logarithms of masses ``(K, V)`` minus the log of the row sum: a Dirichlet draw if the masses are Gamma draws."""
    top = logs.max(axis=1, keepdims=True)
    return logs - (top + log(exp(logs - top).sum(axis=1, keepdims=True)))
