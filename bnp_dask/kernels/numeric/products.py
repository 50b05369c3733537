"""Products of matrices whose bits depend on neither processor, nor library, nor threads.

Each number of the result is one chain of fused multiplications and additions, over the common index in ascending
order.  A fused operation is rounded once, the same everywhere, and vectors lie across numbers of the result, never
along a sum.  So width of vectors, blocks for the cache and shapes of tiles leave the bits alone.  See Goto & van de
Geijn, "Anatomy of high-performance matrix multiplication" (2008), for the blocks.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from bnp_dask.kernels.options import njit

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
