"""Eight doubles at once in compiled code, for loops over a few dozen numbers that are run billions of times.

If a compiler vectorises loops over such short rows without knowing their length, they lose half their time to checks
for overlap and to remainders.  Here rows have the length :func:`padded`, their last numbers are neutral, and a loop
goes from lane group to lane group.  The order of sums is the same on every processor, and whether a product is rounded
before it is added is written out (:func:`fused`), not left to the compiler.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.extending import models, overload, register_model
from numba.extending import intrinsic

LANES = 8
"""Numbers in a group: 64 bytes, a line of cache."""

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INDEX = ir.IntType(32)


class LanesType(types.Type):  # type: ignore[misc]
    """Numba's type of eight doubles."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VECTOR)


def padded(n: int) -> int:
    """The least multiple of :data:`LANES` that is no less than ``n``, and one group at least."""
    return max(1, -(-n // LANES)) * LANES


def aligned(*shape: int) -> np.ndarray:
    """Memory for a shape, float64 in C order, aligned to a cache line."""
    size = int(np.prod(shape))
    room = np.empty(size + LANES)
    skip = -(room.ctypes.data // room.itemsize) % LANES
    return room[skip : skip + size].reshape(shape)


def aligned_zeros(*shape: int) -> np.ndarray:
    """Zeros, aligned for vectors of the processor."""
    out = aligned(*shape)
    out[...] = 0.0
    return out


def _constant(k: int) -> ir.Constant:
    return ir.Constant(_INDEX, k)


def _place(context: Any, builder: Any, row_type: Any, row: Any, k: Any) -> Any:
    """Pointer to the lanes of a row that begin at ``k``."""
    data = context.make_array(row_type)(context, builder, row).data
    return builder.bitcast(builder.gep(data, [k]), _VECTOR.as_pointer())


def _is_row(row: Any) -> bool:
    return isinstance(row, types.Array) and row.ndim == 1 and row.layout == "C" and row.dtype == types.float64


@intrinsic  # type: ignore[misc]
def load(typingctx, row, k):
    """Numbers ``k`` to ``k + 7`` of a contiguous row."""
    if not _is_row(row):
        return None

    def codegen(context, builder, signature, args):
        return builder.load(_place(context, builder, signature.args[0], *args), align=8)

    return lanes(row, types.intp), codegen


@intrinsic  # type: ignore[misc]
def store(typingctx, row, k, x):
    """Write eight numbers into a contiguous row from ``k`` on."""
    if not _is_row(row):
        return None

    def codegen(context, builder, signature, args):
        builder.store(args[2], _place(context, builder, signature.args[0], *args[:2]), align=8)
        return context.get_dummy_value()

    return types.void(row, types.intp, lanes), codegen


@intrinsic  # type: ignore[misc]
def fill(typingctx, a):
    """One number eight times."""

    def codegen(context, builder, signature, args):
        return _filled(builder, args[0])

    return lanes(types.float64), codegen


def _filled(builder: Any, a: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    one = builder.insert_element(nothing, a, _constant(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_INDEX, LANES), [0] * LANES))


@intrinsic  # type: ignore[misc]
def where_above(typingctx, test, floor, x):
    """``x`` in lanes in which ``test`` is above a number, and zero in the others, also for NaN."""

    def codegen(context, builder, signature, args):
        test, floor, x = args
        chosen = builder.fcmp_ordered(">", test, _filled(builder, floor))
        return builder.select(chosen, x, ir.Constant(_VECTOR, [0.0] * LANES))

    return lanes(lanes, types.float64, lanes), codegen


@intrinsic  # type: ignore[misc]
def total(typingctx, x):
    """The sum of the lanes, in the order ((0+4)+(2+6)) + ((1+5)+(3+7))."""

    def codegen(context, builder, signature, args):
        parts = [builder.extract_element(args[0], _constant(k)) for k in range(LANES)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [builder.fadd(parts[k], parts[k + half]) for k in range(half)]
        return parts[0]

    return types.float64(lanes), codegen


@intrinsic  # type: ignore[misc]
def fused(typingctx, x, y, z):
    """``x y + z``, rounded once."""

    def codegen(context, builder, signature, args):
        name = f"llvm.fma.v{LANES}f64"
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)

    return lanes(lanes, lanes, lanes), codegen


@intrinsic  # type: ignore[misc]
def _plus(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.fadd(*args)

    return lanes(lanes, lanes), codegen


@intrinsic  # type: ignore[misc]
def _times(typingctx, x, y):
    def codegen(context, builder, signature, args):
        return builder.fmul(*args)

    return lanes(lanes, lanes), codegen


@overload(operator.add)
def _add(x, y):
    if isinstance(x, LanesType) and isinstance(y, LanesType):
        return lambda x, y: _plus(x, y)
    return None


@overload(operator.mul)
def _multiply(x, y):
    if isinstance(x, LanesType) and isinstance(y, LanesType):
        return lambda x, y: _times(x, y)
    return None
