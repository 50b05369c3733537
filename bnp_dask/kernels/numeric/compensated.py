"""Error-free accumulation: sums that do not drift, of arrays and of mostly zero matrices."""

from __future__ import annotations

from dataclasses import dataclass
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


# -- mostly zero matrices: a batch has few of all pairs of topics and words ---------------------------------------
@njit(nogil=True, cache=True)
def _count(x):
    found = 0
    for i in range(x.size):
        found += x[i] != 0.0  # NaN counts
    return found


@njit(nogil=True, cache=True)
def _find(x, place, value):
    at = 0
    for i in range(x.size):
        if x[i] != 0.0:
            place[at], value[at] = i, x[i]
            at += 1


@njit(nogil=True, cache=True)
def _add(high, low, b):
    # one step of Knuth's TwoSum, as in two_sum_into
    s = high + b
    t = s - high
    return s, low + ((high - (s - t)) + (b - t))


@njit(nogil=True, cache=True)
def _merge(place_a, high_a, low_a, place_b, high_b, low_b, sign, place, high, low):
    i = j = at = 0
    while i < len(place_a) or j < len(place_b):
        mine = i < len(place_a) and (j == len(place_b) or place_a[i] <= place_b[j])
        theirs = j < len(place_b) and (i == len(place_a) or place_b[j] <= place_a[i])
        h = low_h = 0.0
        if mine:
            place[at], h, low_h = place_a[i], high_a[i], low_a[i]
            i += 1
        if theirs:
            place[at] = place_b[j]
            h, low_h = _add(h, low_h, sign * high_b[j])
            h, low_h = _add(h, low_h, sign * low_b[j])
            j += 1
        high[at], low[at] = h, low_h
        at += h != 0.0 or low_h != 0.0
    return at


@njit(nogil=True, cache=True)
def _scatter(place, high, low, sign, to_high, to_low):
    for i in range(len(place)):
        j = place[i]
        h, rest = _add(to_high[j], to_low[j], sign * high[i])
        to_high[j], to_low[j] = _add(h, rest, sign * low[i])


@dataclass(frozen=True, eq=False)
class SparseSum:
    """The unevaluated sum of two doubles at some places of a matrix, zero at all others.

    Parameters
    ----------
    shape
        Rows and columns.
    place
        Positions in the flat matrix, ascending, ``(M,)`` int64, or int32 where all positions fit.
    high, low
        The two numbers at each, ``(M,)``.

    Notes
    -----
    Sums have the bits of :func:`~bnp_dask.kernels.numeric.compensated.two_sum_into` on whole matrices: adding zero to
    zero changes neither number.
    """

    shape: tuple[int, int]
    place: np.ndarray
    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, array: np.ndarray) -> SparseSum:
        """From a whole matrix."""
        flat = np.ascontiguousarray(array, np.float64).reshape(-1)
        found = _count(flat)
        place, high = np.empty(found, _place_type(array.shape)), np.empty(found)
        _find(flat, place, high)
        return cls((array.shape[0], array.shape[1]), place, high, np.zeros(found))

    @classmethod
    def of_csr(cls, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, width: int) -> SparseSum:
        """From sparse rows whose indices are sorted."""
        shape = (len(indptr) - 1, width)
        place = np.repeat(np.arange(shape[0], dtype=np.int64) * width, np.diff(indptr)) + indices
        return cls(shape, place.astype(_place_type(shape)), np.asarray(data, np.float64), np.zeros(len(data)))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.place.nbytes + self.high.nbytes + self.low.nbytes)

    def plus(self, other: SparseSum, sign: float = 1.0) -> SparseSum:
        """The sum of both, or with ``sign`` -1 the difference."""
        most = len(self.place) + len(other.place)
        place, high, low = np.empty(most, self.place.dtype), np.empty(most), np.empty(most)
        parts = (self.place, self.high, self.low, other.place, other.high, other.low)
        found = _merge(*parts, sign, place, high, low)
        return SparseSum(self.shape, place[:found].copy(), high[:found].copy(), low[:found].copy())

    def add_to(self, high: np.ndarray, low: np.ndarray, sign: float = 1.0) -> None:
        """Add it to the unevaluated sum ``high + low`` of two C-contiguous float64 matrices, in place."""
        if not (high.flags.c_contiguous and low.flags.c_contiguous) or not high.shape == low.shape == self.shape:
            raise ValueError(f"needs C-contiguous matrices of shape {self.shape}, got {high.shape} and {low.shape}")
        _scatter(self.place, self.high, self.low, sign, high.reshape(-1), low.reshape(-1))

    def with_rows(self, count: int) -> SparseSum:
        """Sums with ``count`` rows of zeros appended."""
        shape = (self.shape[0] + count, self.shape[1])
        return SparseSum(shape, self.place.astype(_place_type(shape), copy=False), self.high, self.low)

    def to_dense(self) -> tuple[np.ndarray, np.ndarray]:
        """Both numbers as whole matrices."""
        high, low = np.zeros(self.shape), np.zeros(self.shape)
        high.reshape(-1)[self.place] = self.high
        low.reshape(-1)[self.place] = self.low
        return high, low


def is_mostly_zero(array: np.ndarray, share: float) -> bool:
    """Whether at most this share of a matrix is not zero."""
    flat = np.ascontiguousarray(array, np.float64).reshape(-1)
    return bool(_count(flat) <= share * flat.size)


def _place_type(shape: tuple[int, ...]) -> type:
    return np.int32 if shape[0] * shape[1] < 2**31 else np.int64
