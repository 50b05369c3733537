"""Mixtures: from log weights of clusters to responsibilities, and what is computed from these.

In this order: exponentials of log weights; atoms with a list of clusters each; responsibilities, dense and sparse, with
their sums and entropies; clusters drawn from them; the weights of clusters in strata.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from bnp_dask.kernels.numeric.arithmetic import fused, matmul
from bnp_dask.kernels.numeric.special import LN2_HIGH, LN2_LOW, LOG2_E, ROUND, _psi_gamma, exp_near_zero, trigamma
from bnp_dask.kernels.options import INNER, njit

# =====================================================================================================================
# Normalised exponentials of rows of log weights, a block of rows at a time.
#
# exp is written out because numba's calls a scalar library function, and numpy's is only fast on some machines: 2**z
# from its bits, times a polynomial.  Its loop has no branch and
# runs over all numbers of a block, so that it compiles to vector code however short the rows are.
# =====================================================================================================================

TINY = 2.0**-53
"""Responsibilities below it are set to zero."""

LOG_NOTHING = -40.0  # so far below log(TINY) that numbers cut there change no row's sum
LOG_LEAST = -690.0  # exp of it is lost beside one, however many there are
LOG_NEVER = -1e300  # stands for -inf, so that zero times a log is zero
BLOCK = 1024  # numbers


@njit(nogil=True, cache=True)
def exp_block(d, lowest, power, out):
    """exp(d) of numbers; numbers below ``lowest`` (above -700) count as ``lowest``; ``power`` is overwritten."""
    bits = power.view(np.int64)
    for k in range(len(d)):
        c = lowest if d[k] < lowest else d[k]  # NaN stays
        t = c * LOG2_E + ROUND
        power[k] = t
        z = t - ROUND
        r = (c - z * LN2_HIGH) - z * LN2_LOW
        out[k] = exp_near_zero(r)
    for k in range(len(d)):
        bits[k] = (bits[k] + 1023) << 52
    for k in range(len(d)):
        out[k] *= power[k]


@njit(inline="always")  # calls with rows of a matrix cost more than short rows take
def _less_the_top(row, shift, out):
    # row + shift minus its maximum: all NaN if the maximum is not finite, and NaN stays
    top = -np.inf
    for k in range(len(row)):
        out[k] = row[k] + shift[k]
    for k in range(len(row)):
        top = out[k] if out[k] > top else top
    for k in range(len(row)):
        d = out[k] - top
        out[k] = LOG_NEVER if d < LOG_NEVER else d


@njit(inline="always")
def _sum(row):
    # four partial sums in a fixed order: the same bits on every machine, unlike a compiler's reduction
    whole = len(row) - len(row) % 4
    s0 = s1 = s2 = s3 = 0.0
    for k in range(0, whole, 4):
        s0 += row[k]
        s1 += row[k + 1]
        s2 += row[k + 2]
        s3 += row[k + 3]
    for k in range(whole, len(row)):
        s0 += row[k]
    return (s0 + s1) + (s2 + s3)


@njit(nogil=True, cache=True)
def softmax_rows(log_weights, shift, resp, log_resp, counts, entropy):
    """Responsibilities of rows of ``log_weights + shift (K,)``; NaN if a row has no finite maximum.

    ``resp`` may be ``log_weights`` itself.  ``log_resp`` may have no rows: it is then left out, and ``entropy (K,)``
    gets minus the sum of count r log r, with ``counts (n,)``.
    """
    n, n_clusters = log_weights.shape
    rows = max(1, BLOCK // n_clusters)
    logs, powers = np.empty((rows, n_clusters)), np.empty((rows, n_clusters))
    space = np.empty(rows * n_clusters)
    for first in range(0, n, rows):
        size = min(rows, n - first)
        for i in range(size):
            _less_the_top(log_weights[first + i], shift, logs[i])
        numbers = size * n_clusters
        exp_block(logs.reshape(-1)[:numbers], LOG_NOTHING, space[:numbers], powers.reshape(-1)[:numbers])
        for i in range(size):
            power, log, out = powers[i], logs[i], resp[first + i]
            total = _sum(power)
            part, normaliser = 1.0 / total, np.log(total)
            if len(log_resp):
                to = log_resp[first + i]
                for k in range(n_clusters):
                    share = power[k] * part
                    out[k] = 0.0 if share < TINY else share
                    to[k] = log[k] - normaliser
            else:
                count = counts[first + i]
                for k in range(n_clusters):
                    share = power[k] * part
                    share = 0.0 if share < TINY else share
                    out[k] = share
                    entropy[k] -= (count * share) * (log[k] - normaliser)


@njit(nogil=True, cache=True)
def log_sums(log_weights, shift, out):
    """``log(sum(exp(row)))`` of rows of ``log_weights + shift (K,)``, into ``out (n,)``.

    NaN for rows with NaN or infinity; minus infinity for rows of only minus infinity.
    """
    n, n_clusters = log_weights.shape
    rows = max(1, BLOCK // n_clusters)
    logs, powers = np.empty((rows, n_clusters)), np.empty((rows, n_clusters))
    space = np.empty(rows * n_clusters)
    for first in range(0, n, rows):
        size = min(rows, n - first)
        for i in range(size):
            _less_the_top(log_weights[first + i], shift, logs[i])
        numbers = size * n_clusters
        exp_block(logs.reshape(-1)[:numbers], LOG_LEAST, space[:numbers], powers.reshape(-1)[:numbers])
        for i in range(size):
            top, has_nothing = -np.inf, True
            for k in range(n_clusters):
                number = log_weights[first + i, k] + shift[k]
                top = number if number > top else top
                has_nothing &= number == -np.inf
            out[first + i] = -np.inf if has_nothing else top + np.log(_sum(powers[i]))


# =====================================================================================================================
# Lists of clusters per atom, of any length: loops over the pairs (atom, cluster) that matter.
#
# Pairs lie atom by atom, as in a CSR matrix: atom n has the pairs ``offsets[n]:offsets[n + 1]``, clusters ascending.
# For sums by cluster, pairs are first brought into the order of clusters (atoms ascending in each), which fixes the
# order of additions.  A *tail* ``(n, K)`` float32 may hold the values of clusters that are not listed; it is zero for
# the others.
# =====================================================================================================================

NOTHING_32 = np.float32(-40.0)
ROUND_32 = np.float32(1.5 * 2.0**23)
LOG2_E_32 = np.float32(1.44269504)
LN2_HIGH_32 = np.float32(0.693359375)
LN2_LOW_32 = np.float32(-2.12194440e-4)

ROWS = 128
"""Number of pairs of one cluster processed together: they and their products stay in cache."""


@njit(nogil=True, cache=True)
def by_cluster(offsets, index, n_clusters):
    """Atoms and places of all pairs in the order of clusters, and where each cluster starts ``(K + 1,)``."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for i in range(offsets[0], offsets[-1]):
        starts[index[i] + 1] += 1
    for k in range(n_clusters):
        starts[k + 1] += starts[k]
    at = starts[:-1].copy()
    atoms = np.empty(len(index), np.int64)
    places = np.empty(len(index), np.int64)
    for n in range(len(offsets) - 1):
        for i in range(offsets[n], offsets[n + 1]):
            j = at[index[i]]
            at[index[i]] = j + 1
            atoms[j] = n
            places[j] = i
    return atoms, places, starts


@njit(**INNER)
def _upper_product(rows, upper, out):
    # rows (n, D) times an upper triangle (D, D), each number one chain in the order of kernels/numeric/arithmetic.py
    d = upper.shape[0]
    out[:] = 0.0
    whole = len(rows) - len(rows) % 4
    for i in range(0, whole, 4):
        a, b, c, e = out[i], out[i + 1], out[i + 2], out[i + 3]
        for j in range(d):
            other = upper[j]
            w, x, y, z = rows[i, j], rows[i + 1, j], rows[i + 2, j], rows[i + 3, j]
            for k in range(j, d):
                a[k] = fused(w, other[k], a[k])
                b[k] = fused(x, other[k], b[k])
                c[k] = fused(y, other[k], c[k])
                e[k] = fused(z, other[k], e[k])
    for i in range(whole, len(rows)):
        for j in range(d):
            for k in range(j, d):
                out[i, k] = fused(rows[i, j], upper[j, k], out[i, k])


@njit(**INNER)
def _upper_squares(left, right, out):
    # the upper triangle of left.T (D, n) times right (n, D), each number one chain over the rows
    n, d = left.shape
    out[:] = 0.0
    whole = n - n % 4
    for a in range(d):
        to = out[a]
        for i in range(0, whole, 4):
            w, x, y, z = left[i, a], left[i + 1, a], left[i + 2, a], left[i + 3, a]
            p, q, r, s = right[i], right[i + 1], right[i + 2], right[i + 3]
            for b in range(a, d):
                to[b] = fused(z, s[b], fused(y, r[b], fused(x, q[b], fused(w, p[b], to[b]))))
        for i in range(whole, n):
            for b in range(a, d):
                to[b] = fused(left[i, a], right[i, b], to[b])


@njit(nogil=True, cache=True)
def whitened_pairs(y, atoms, places, starts, shift, roots, nu, level, fixed, out):
    """``level_k - nu_k / 2 |(y_n - shift_k) roots_k|**2`` of all pairs, put at their places of ``out``.

    ``roots (K, D, D)`` are transposed inverse Cholesky factors; the pairs are in the order of clusters.  ``fixed`` is
    for products without BLAS, in the order of :mod:`bnp_dask.kernels.numeric.arithmetic`.
    """
    d = y.shape[1]
    away = np.empty((ROWS, d))
    white = np.empty((ROWS, d))
    for k in range(len(nu)):
        for start in range(starts[k], starts[k + 1], ROWS):
            size = min(ROWS, starts[k + 1] - start)
            for i in range(size):
                row = y[atoms[start + i]]
                for j in range(d):
                    away[i, j] = row[j] - shift[k, j]
            if fixed:
                _upper_product(away[:size], roots[k], white[:size])
            else:
                np.dot(away[:size], roots[k], white[:size])
            for i in range(size):
                s0 = s1 = s2 = s3 = 0.0
                for j in range(0, d - d % 4, 4):
                    s0 += white[i, j] * white[i, j]
                    s1 += white[i, j + 1] * white[i, j + 1]
                    s2 += white[i, j + 2] * white[i, j + 2]
                    s3 += white[i, j + 3] * white[i, j + 3]
                for j in range(d - d % 4, d):
                    s0 += white[i, j] * white[i, j]
                out[places[start + i]] = level[k] - 0.5 * nu[k] * ((s0 + s1) + (s2 + s3))


@njit(nogil=True, cache=True)
def moments_of_pairs(x, center, atoms, values, starts, fixed, first, second):
    """Add r y to ``first (K, D)`` and r y y' to ``second (K, D (D + 1) / 2)``; pairs in the order of clusters."""
    d = x.shape[1]
    rows = np.empty((ROWS, d))
    scaled = np.empty((ROWS, d))
    square = np.empty((d, d))
    total = np.empty((d, d))
    for k in range(len(starts) - 1):
        if starts[k] == starts[k + 1]:
            continue
        total[:] = 0.0
        for start in range(starts[k], starts[k + 1], ROWS):
            size = min(ROWS, starts[k + 1] - start)
            for i in range(size):
                row, r = x[atoms[start + i]], values[start + i]
                for j in range(d):
                    value = row[j] - center[j]
                    rows[i, j] = value
                    scaled[i, j] = r * value
                    first[k, j] += r * value
            if size < 8:  # not worth a matrix product
                for a in range(d):
                    to = total[a]
                    for i in range(size):
                        value, row = scaled[i, a], rows[i]
                        for b in range(a, d):
                            to[b] += value * row[b]
            else:
                if fixed:
                    _upper_squares(scaled[:size], rows[:size], square)
                else:
                    np.dot(scaled[:size].T, rows[:size], square)
                for a in range(d):
                    for b in range(a, d):
                        total[a, b] += square[a, b]
        at = 0
        for a in range(d):
            for b in range(a, d):
                second[k, at] += total[a, b]
                at += 1


@njit(nogil=True, cache=True)
def softmax_of_lists(offsets, index, weights):
    """Normalised exponentials of lists of log weights; values below TINY are left out.

    Returns offsets, index, responsibilities and their logs.  A list without a finite number gives NaN.
    """
    n = len(offsets) - 1
    kept = np.empty(n + 1, np.int64)
    where = np.empty(len(index), np.int64)
    value = np.empty(len(index))
    logs = np.empty(len(index))
    at = 0
    kept[0] = 0
    for row in range(n):
        start, end = offsets[row], offsets[row + 1]
        top = -np.inf
        broken = start == end
        for i in range(start, end):
            broken |= np.isnan(weights[i])
            if weights[i] > top:
                top = weights[i]
        total = 0.0
        if end - start == 1 and np.isfinite(top):
            total = 1.0
        else:
            for i in range(start, end):
                total += np.exp(weights[i] - top)
        broken |= not total > 0.0
        shift = np.log(total)
        for i in range(start, end):
            share = np.exp(weights[i] - top) / total if end - start > 1 else 1.0
            if broken:
                share = np.nan
            if not share < TINY:
                where[at] = index[i]
                value[at] = share
                logs[at] = (weights[i] - top) - shift
                at += 1
        kept[row + 1] = at
    return kept, where[:at].copy(), value[:at].copy(), logs[:at].copy()


@njit(**INNER)
def _exp_tail(row, top, power, out):
    # exp(row - top) in float32 to about 1e-7, zero below LOG_NOTHING; no branch, so that it compiles to vector code
    bits = power.view(np.int32)
    for k in range(len(row)):
        d = np.float32(np.float64(row[k]) - top)
        c = d if d > NOTHING_32 else NOTHING_32
        z = (c * LOG2_E_32 + ROUND_32) - ROUND_32
        bits[k] = (np.int32(z) + np.int32(127)) << np.int32(23)
        r = (c - z * LN2_HIGH_32) - z * LN2_LOW_32
        p = np.float32(1.0 / 720.0)
        p = p * r + np.float32(1.0 / 120.0)
        p = p * r + np.float32(1.0 / 24.0)
        p = p * r + np.float32(1.0 / 6.0)
        p = p * r + np.float32(0.5)
        p = p * (r * r) + r
        out[k] = p + np.float32(1.0) if d > NOTHING_32 else np.float32(0.0)
    for k in range(len(row)):
        out[k] *= power[k]


@njit(nogil=True, cache=True)
def softmax_with_tail(offsets, weights, tail, counts, value, logs, entropy):
    """Softmax of lists; ``tail (n, K)`` float32 holds log weights of the clusters not listed, and is overwritten.

    ``counts (n,)`` are the atoms' own weights, and ``entropy (K,)`` gets minus the sum of count r log r of the tail.
    """
    n_clusters = tail.shape[1]
    power = np.empty(n_clusters, np.float32)
    shares = np.empty(n_clusters, np.float32)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        top = -np.inf
        for i in range(start, end):
            if weights[i] > top:
                top = weights[i]
        # the highest weight is always listed
        _exp_tail(tail[row], top, power, shares)
        total = 0.0
        for i in range(start, end):
            value[i] = np.exp(weights[i] - top)
            total += value[i]
        for k in range(n_clusters):
            total += np.float64(shares[k])
        shift = np.log(total)
        for i in range(start, end):
            share = value[i] / total
            value[i] = 0.0 if share < TINY else share
            logs[i] = (weights[i] - top) - shift
        for k in range(n_clusters):
            share = np.float64(shares[k]) / total
            share = 0.0 if share < TINY else share
            log_share = np.float64(tail[row, k]) - (top + shift)
            log_share = log_share if share > 0.0 else 0.0
            entropy[k] -= counts[row] * share * log_share
            tail[row, k] = np.float32(share)


@njit(nogil=True, cache=True)
def top_of_lists(offsets, index, weights, width, n_clusters, where, best):
    """The ``width`` largest of each list, clusters ascending; shorter lists are filled with clusters of weight -inf."""
    taken = np.zeros(n_clusters, np.bool_)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        found = min(width, end - start)
        order = np.argsort(-weights[start:end], kind="mergesort")[:found]
        for i in order:
            taken[index[start + i]] = True
        missing = width - found
        k = 0
        while missing > 0:
            if not taken[k]:
                taken[k] = True
                missing -= 1
            k += 1
        place = 0
        for k in range(n_clusters):
            if taken[k]:
                taken[k] = False
                where[row, place] = k
                best[row, place] = -np.inf
                place += 1
        for i in order:
            best[row, np.searchsorted(where[row], index[start + i])] = weights[start + i]


@njit(nogil=True, cache=True)
def columns_of_lists(offsets, index, value, place, out):
    """Add the values of some clusters to their columns of ``out (n, J)``; ``place (K,)`` is -1 for the others."""
    for row in range(len(offsets) - 1):
        for i in range(offsets[row], offsets[row + 1]):
            if place[index[i]] >= 0:
                out[row, place[index[i]]] += value[i]


@njit(nogil=True, cache=True)
def pair_entropy_of_lists(offsets, index, value, tail, counts, pairs, n_clusters, out):
    """Minus the sum of count (ra + rb) log(ra + rb) of pairs of clusters ``(M, 2)``; ``tail`` may have no columns."""
    row = np.zeros(n_clusters)
    for n in range(len(offsets) - 1):
        for k in range(tail.shape[1]):
            row[k] = tail[n, k]
        for i in range(offsets[n], offsets[n + 1]):
            row[index[i]] += value[i]
        for m in range(len(pairs)):
            both = row[pairs[m, 0]] + row[pairs[m, 1]]
            if both != 0.0:
                out[m] -= counts[n] * both * np.log(both)
        for i in range(offsets[n], offsets[n + 1]):
            row[index[i]] = 0.0


# =====================================================================================================================
# Responsibilities: from log weights to probabilities, dense or L-sparse, and sums weighted by them.
#
# A dense responsibility is an ``(n, K)`` float64 array.  An L-sparse one (thesis 7.1) is a :class:`SparseResp`.
# Values below 2**-53 are set to exact zero: they change no sum, and denormal numbers are slow.
# =====================================================================================================================


@dataclass(frozen=True, eq=False)
class SparseResp:
    """At most L clusters per atom.

    Parameters
    ----------
    index
        Positions of the clusters, ``(n, L)`` int64, ascending in each row.
    value
        Their responsibilities, ``(n, L)`` float64.
    n_clusters
        K.
    """

    index: np.ndarray
    value: np.ndarray
    n_clusters: int

    @property
    def shape(self) -> tuple[int, int]:
        """n and K."""
        return len(self.index), self.n_clusters

    def to_dense(self) -> np.ndarray:
        """Responsibilities as an ``(n, K)`` array."""
        dense = np.zeros((len(self.index), self.n_clusters))
        np.put_along_axis(dense, self.index, self.value, axis=1)
        return dense

    def to_csr(self) -> sparse.csr_array:
        """Responsibilities as an ``(n, K)`` sparse matrix."""
        n, width = self.index.shape
        indptr = np.arange(0, n * width + 1, width)
        return sparse.csr_array((self.value.ravel(), self.index.ravel(), indptr), shape=(n, self.n_clusters))


@dataclass(frozen=True, eq=False)
class WordResp:
    """Responsibilities of word tokens, summed by word, as all tokens of a word enter sums alike.

    Parameters
    ----------
    counts
        Expected tokens of each word in each cluster, ``(R, K)``.
    words
        Words of the rows, ``(R,)``; every other word has no token.
    """

    counts: np.ndarray
    words: np.ndarray

    def by_cluster(self, n_words: int) -> np.ndarray:
        """Counts of all words, ``(K, V)`` contiguous."""
        out = np.zeros((self.counts.shape[1], n_words))
        out[:, self.words] = self.counts.T
        return out


@dataclass(frozen=True, eq=False)
class RaggedResp:
    """Clusters with a non-zero responsibility for each atom, any number of them.

    Parameters
    ----------
    offsets
        The pairs (atom, cluster) of atom n are ``offsets[n]:offsets[n + 1]``, ``(n + 1,)`` int64.
    index
        Positions of the clusters, ascending for each atom, ``(M,)`` int64.
    value
        Their responsibilities, ``(M,)`` float64.
    n_clusters
        K.
    tail
        Responsibilities of the clusters that are not listed, all small, ``(n, K)`` float32; None for zero.
    """

    offsets: np.ndarray
    index: np.ndarray
    value: np.ndarray
    n_clusters: int
    tail: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """n and K."""
        return len(self.offsets) - 1, self.n_clusters

    def to_dense(self) -> np.ndarray:
        """Responsibilities as an ``(n, K)`` array."""
        n = len(self.offsets) - 1
        dense = np.zeros((n, self.n_clusters)) if self.tail is None else self.tail.astype(np.float64)
        dense[np.repeat(np.arange(n), np.diff(self.offsets)), self.index] = self.value
        return dense

    def to_csr(self) -> sparse.csr_array:
        """Responsibilities as an ``(n, K)`` sparse matrix."""
        if self.tail is not None:
            return sparse.csr_array(self.to_dense())
        return sparse.csr_array((self.value, self.index, self.offsets), shape=(len(self.offsets) - 1, self.n_clusters))


@dataclass(frozen=True, eq=False)
class ScreenedWeights:
    """Log weight plus log likelihood of the clusters that matter to each atom, laid out as in :class:`RaggedResp`.

    ``value (M,)`` nats; ``tail (n, K)`` float32 holds them for the other clusters and ``-inf`` for listed ones; without
    a tail the others have zero responsibility.  See :mod:`bnp_dask.kernels.gaussian.screen`.
    """

    offsets: np.ndarray
    index: np.ndarray
    value: np.ndarray
    n_clusters: int
    tail: np.ndarray | None = None


Resp = np.ndarray | SparseResp | RaggedResp

AnyResp = Resp | WordResp
"""Responsibilities of atoms one by one, or of word tokens by word."""


def resp_from_weights(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row (thesis Alg. 7.1).

    Parameters
    ----------
    log_weights
        W, ``(n, K)``, nats.  ``-inf`` forbids a cluster; a row of ``-inf`` only, or with NaN, gives a row of NaN.

    Returns
    -------
    resp
        ``(n, K)``; each row sums to one.
    log_resp
        W minus the log normaliser of its row, ``(n, K)``: finite also where ``resp`` was set to zero.
    """
    log_weights = np.ascontiguousarray(log_weights, np.float64)
    n_clusters = log_weights.shape[1]
    resp, log_resp = np.empty(log_weights.shape), np.empty(log_weights.shape)
    softmax_rows(log_weights, np.zeros(n_clusters), resp, log_resp, np.empty(0), np.empty(0))
    return resp, log_resp


def resp_and_entropy(
    log_weights: np.ndarray, shift: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Normalised exponentials of each row of ``log_weights (n, K)`` + ``shift (K,)``, and their entropy.

    Parameters
    ----------
    log_weights
        Overwritten, and returned as the responsibilities if possible.
    shift
        Added to each row, nats.
    weights
        How often each atom counts in the entropy, ``(n,)``; None for once.

    Returns
    -------
    resp
        ``(n, K)``, not multiplied by the weights.
    entropy
        Minus the sum of weight r log r of each cluster, ``(K,)`` nats.
    """
    resp = np.ascontiguousarray(log_weights, np.float64)
    entropy = np.zeros(resp.shape[1])
    counts = np.ones(len(resp)) if weights is None else weights
    softmax_rows(resp, shift, resp, np.empty((0, 0)), counts, entropy)
    return resp, entropy


@njit(**INNER)
def _insert(best, where, size, w, k):
    # best[:size] is descending; equal weights stay in order of their position
    j = size
    while j > 0 and best[j - 1] < w:
        best[j] = best[j - 1]
        where[j] = where[j - 1]
        j -= 1
    best[j] = w
    where[j] = k


@njit(**INNER)
def _sort_by_position(where, best):
    for i in range(1, len(where)):
        k, w = where[i], best[i]
        j = i
        while j > 0 and where[j - 1] > k:
            where[j] = where[j - 1]
            best[j] = best[j - 1]
            j -= 1
        where[j] = k
        best[j] = w


@njit(nogil=True, cache=True)
def _select_top(log_weights, width, index, value):
    n, k_all = log_weights.shape
    for row in range(n):
        w = log_weights[row]
        best = value[row]
        where = index[row]
        broken = False
        for k in range(width):
            broken |= np.isnan(w[k])
            _insert(best, where, k, w[k], k)
        least = best[width - 1]
        for start in range(width, k_all, 4):
            # most are too small: one branch for four of them, also taken for NaN
            if start + 4 <= k_all and (
                (w[start] <= least) & (w[start + 1] <= least) & (w[start + 2] <= least) & (w[start + 3] <= least)
            ):
                continue
            for k in range(start, min(start + 4, k_all)):
                broken |= np.isnan(w[k])
                if w[k] > least:
                    _insert(best, where, width - 1, w[k], k)
                    least = best[width - 1]
        _sort_by_position(where, best)
        if broken:
            best[:] = np.nan


def top_resp_from_weights(log_weights: np.ndarray, top: int) -> tuple[SparseResp, np.ndarray]:
    """Keep the ``top`` largest weights of each row and normalise them (thesis Alg. 7.2).

    Ties go to the lower position; a row with NaN gives a row of NaN.  Returns the
    responsibilities and their logs, ``(n, L)``, L = min(top, K).
    """
    log_weights = np.ascontiguousarray(log_weights, np.float64)
    n, k = log_weights.shape
    width = min(top, k)
    index = np.empty((n, width), np.int64)
    value = np.empty((n, width))
    _select_top(log_weights, width, index, value)
    resp, log_resp = resp_from_weights(value)
    return SparseResp(index, resp, k), log_resp


def resp_from_screened(screened: ScreenedWeights, weights: np.ndarray | None) -> tuple[RaggedResp, np.ndarray]:
    """Normalised exponentials of screened log weights, and their entropy.

    Parameters
    ----------
    screened
        Its tail is overwritten.
    weights
        How often each atom counts in the entropy, ``(n,)``; None for once.

    Returns
    -------
    resp
        Not multiplied by the weights.
    entropy
        Minus the sum of weight r log r of each cluster, ``(K,)`` nats.
    """
    k = screened.n_clusters
    if screened.tail is None:
        offsets, index, value, logs = softmax_of_lists(screened.offsets, screened.index, screened.value)
        resp = RaggedResp(offsets, index, value, k)
        entropy = np.zeros(k)
    else:
        value, logs, entropy = np.empty(len(screened.value)), np.empty(len(screened.value)), np.zeros(k)
        counts = np.ones(len(screened.offsets) - 1) if weights is None else weights
        tail = screened.tail
        softmax_with_tail(screened.offsets, screened.value, tail, counts, value, logs, entropy)
        resp = RaggedResp(screened.offsets, screened.index, value, k, tail)
    return resp, entropy + cluster_entropy(scale_rows(replace(resp, tail=None), weights), logs)


def top_resp_from_screened(screened: ScreenedWeights, top: int) -> tuple[SparseResp, np.ndarray]:
    """The L largest responsibilities of each atom, as :func:`top_resp_from_weights`, from screened log weights, L <
    K."""
    if screened.tail is not None:
        dense = RaggedResp(screened.offsets, screened.index, screened.value, screened.n_clusters, screened.tail)
        return top_resp_from_weights(dense.to_dense(), top)
    n = len(screened.offsets) - 1
    index, value = np.empty((n, top), np.int64), np.empty((n, top))
    top_of_lists(screened.offsets, screened.index, screened.value, top, screened.n_clusters, index, value)
    resp, log_resp = resp_from_weights(value)
    return SparseResp(index, resp, screened.n_clusters), log_resp


def scale_rows(resp: Resp, weights: np.ndarray | None) -> Resp:
    """Responsibilities times one weight per atom, ``(n,)``."""
    if weights is None:
        return resp
    if isinstance(resp, RaggedResp):
        tail = None if resp.tail is None else resp.tail * weights[:, None].astype(np.float32)
        value = resp.value * np.repeat(weights, np.diff(resp.offsets))
        return replace(resp, value=value, tail=tail)
    if isinstance(resp, SparseResp):
        return SparseResp(resp.index, resp.value * weights[:, None], resp.n_clusters)
    return resp * weights[:, None]


def cluster_sums(resp: AnyResp, x: np.ndarray | None = None) -> np.ndarray:
    """Sum over atoms of responsibility times ``x``: ``(K,)`` for None, else ``(K, D)`` for ``(n, D)``."""
    if isinstance(resp, WordResp):
        if x is not None:
            raise TypeError("responsibilities summed by word know no atoms")
        return resp.counts.sum(axis=0)
    if isinstance(resp, SparseResp):
        if x is None:
            return np.bincount(resp.index.ravel(), resp.value.ravel(), minlength=resp.n_clusters)
        return np.asarray(matmul(resp.to_csr().T, x))
    if isinstance(resp, RaggedResp):
        if x is not None:
            return np.asarray(matmul(resp.to_csr().T, x))
        sums = np.bincount(resp.index, resp.value, minlength=resp.n_clusters)
        return sums if resp.tail is None else sums + resp.tail.sum(axis=0, dtype=np.float64)
    if x is None:
        return resp.sum(axis=0)
    return matmul(resp.T, x)


def columns_of(resp: Resp, columns: np.ndarray) -> np.ndarray:
    """Responsibilities of the clusters at the positions ``columns (J,)``, a new array ``(n, J)``."""
    if isinstance(resp, np.ndarray):
        return resp[:, columns]
    place = np.full(resp.n_clusters, -1)
    place[columns] = np.arange(len(columns))
    if isinstance(resp, SparseResp):
        out = np.zeros((len(resp.index), len(columns) + 1))
        np.put_along_axis(out, place[resp.index], resp.value, axis=1)  # clusters of no interest: the last column
        return out[:, :-1]
    n = len(resp.offsets) - 1
    out = np.zeros((n, len(columns))) if resp.tail is None else resp.tail[:, columns].astype(np.float64)
    columns_of_lists(resp.offsets, resp.index, resp.value, place, out)
    return out


def atom_sums(resp: Resp) -> np.ndarray:
    """Total responsibility of each atom, its weight, ``(n,)``."""
    if isinstance(resp, RaggedResp):
        atom = np.repeat(np.arange(len(resp.offsets) - 1), np.diff(resp.offsets))
        sums = np.bincount(atom, resp.value, minlength=len(resp.offsets) - 1)
        return sums if resp.tail is None else sums + resp.tail.sum(axis=1, dtype=np.float64)
    return (resp.value if isinstance(resp, SparseResp) else resp).sum(axis=1)


def cluster_entropy(weighted: Resp, log_resp: np.ndarray) -> np.ndarray:
    """Assignment entropy per cluster, ``(K,)`` nats: minus sum of w r log r (thesis eq. 3.29).

    ``weighted`` are the responsibilities times the atoms' weights, ``log_resp`` their unweighted logs.
    """
    if isinstance(weighted, SparseResp):
        terms = weighted.value * log_resp
        return -np.bincount(weighted.index.ravel(), terms.ravel(), minlength=weighted.n_clusters)
    if isinstance(weighted, RaggedResp):
        return -np.bincount(weighted.index, weighted.value * log_resp, minlength=weighted.n_clusters)
    return -np.einsum("nk,nk->k", weighted, log_resp)


# -- entropy of assignments, and of unions of two clusters --------------------------------------------------------
def resp_entropy(weighted: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Entropy per cluster, ``(K,)`` nats, of weighted responsibilities ``(n, K)`` with the weights in them."""
    return _resp_entropy(weighted, np.ones(len(weighted)) if weights is None else weights)


@njit(nogil=True, cache=True)
def _resp_entropy(weighted, weights):
    out = np.zeros(weighted.shape[1])
    for row in range(len(weighted)):
        for k in range(weighted.shape[1]):
            mass = weighted[row, k]
            if mass != 0.0:
                out[k] -= mass * np.log(mass / weights[row])
    return out


def pair_entropy(resp: Resp, weights: np.ndarray | None, pairs: np.ndarray) -> np.ndarray:
    """Entropy of the union of each pair of positions ``(M, 2)``: minus sum of w (ra+rb) log(ra+rb), ``(M,)``."""
    out = np.zeros(len(pairs))
    if len(pairs) == 0:
        return out
    if isinstance(resp, RaggedResp):
        counts = np.ones(len(resp.offsets) - 1) if weights is None else weights
        tail = np.zeros((len(counts), 0), np.float32) if resp.tail is None else resp.tail
        pairs = np.asarray(pairs, np.int64)
        pair_entropy_of_lists(resp.offsets, resp.index, resp.value, tail, counts, pairs, resp.n_clusters, out)
        return out
    dense = resp.to_dense() if isinstance(resp, SparseResp) else resp
    counts = np.ones(len(dense)) if weights is None else weights
    _pair_entropy(dense, counts, np.asarray(pairs, np.int64), out)
    return out


@njit(nogil=True, cache=True)
def _pair_entropy(resp, weights, pairs, out):
    # most atoms belong to neither cluster, and their logs are not computed
    for row in range(len(resp)):
        for m in range(len(pairs)):
            both = resp[row, pairs[m, 0]] + resp[row, pairs[m, 1]]
            if both != 0.0:
                out[m] -= weights[row] * both * np.log(both)


# =====================================================================================================================
# One cluster for each atom, drawn from its responsibilities.
# =====================================================================================================================

NEGLIGIBLE = 40.0
"""Nats below the best cluster at which a cluster is left out, as in screening."""

NOBODY = -1
"""Place of an atom for which no listed cluster could be drawn."""


def choose_among_all(log_lik: np.ndarray, log_weight: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A cluster for each atom, drawn in proportion to ``exp(log_lik + log_weight)``.

    Parameters
    ----------
    log_lik
        ``(n, K)`` nats; overwritten.
    log_weight
        ``(K,)`` nats.
    uniform
        Numbers from 0 to 1, ``(n,)``: the cluster is the first at which the cumulative responsibility exceeds them.

    Returns
    -------
    numpy.ndarray
        Places of clusters, ``(n,)`` int64; :data:`NOBODY` if no number is finite.
    """
    resp, _ = resp_and_entropy(np.ascontiguousarray(log_lik, np.float64), log_weight, None)
    out = np.empty(len(resp), np.int64)
    _invert(resp, uniform, out)
    return out


def choose_from_lists(screened: ScreenedWeights, uniform: np.ndarray) -> np.ndarray:
    """Choices from screened weights, whose values include the log weights; :data:`NOBODY` if none is finite."""
    out = np.empty(len(screened.offsets) - 1, np.int64)
    tail = np.zeros((0, screened.n_clusters), np.float32) if screened.tail is None else screened.tail
    _invert_lists(screened.offsets, screened.index, screened.value, tail, uniform, out)
    return out


@njit(nogil=True, cache=True)
def _invert(resp, uniform, out):
    n, n_clusters = resp.shape
    for i in range(n):
        total = 0.0
        for k in range(n_clusters):
            total += resp[i, k]
        level, place = uniform[i] * total, 0
        reached = 0.0
        for k in range(n_clusters):
            if resp[i, k] > 0.0:
                place = k
                reached += resp[i, k]
                if reached > level:
                    break
        out[i] = place if total > 0.0 else NOBODY


@njit(nogil=True, cache=True)
def _invert_lists(offsets, index, value, tail, uniform, out):
    has_tail, n_clusters = len(tail) > 0, tail.shape[1]
    longest = n_clusters
    for i in range(len(out)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    mass = np.empty(longest)
    for i in range(len(out)):
        start, stop = offsets[i], offsets[i + 1]
        top = -np.inf
        for j in range(start, stop):
            top = max(top, value[j])
        if not np.isfinite(top):
            out[i] = NOBODY
            continue
        total = 0.0
        for j in range(start, stop):
            d = value[j] - top
            mass[j - start] = np.exp(d) if d > -NEGLIGIBLE else 0.0
            total += mass[j - start]
        listed = total
        if has_tail:
            for k in range(n_clusters):
                d = tail[i, k] - top
                if d > -NEGLIGIBLE:
                    total += np.exp(d)
        level, reached, place = uniform[i] * total, 0.0, NOBODY
        if level < listed or not has_tail:
            for j in range(start, stop):
                if mass[j - start] > 0.0:
                    place = index[j]
                    reached += mass[j - start]
                    if reached > level:
                        break
        else:
            reached = listed
            for k in range(n_clusters):
                d = tail[i, k] - top
                if d > -NEGLIGIBLE:
                    place = k
                    reached += np.exp(d)
                    if reached > level:
                        break
        out[i] = place


# =====================================================================================================================
# Objective of the top level of a mixture in strata and its gradient, compiled: births, merges and deletes climb it
# hundreds of times in a lap.
#
# See ``allocation/strata.py`` for the objective, and ``tests/twins/strata_top_level.py`` for its twin in NumPy.
# =====================================================================================================================

LEAST = 1e-300


@njit(nogil=True, cache=True, error_model="numpy")
def value_and_slope(point, counts, gamma, alpha, slope):
    """Objective at ``log a, log b`` and the logs of theta of all parents; its gradient into ``slope``.

    ``counts (S, K)``.  Row p of the moments belongs to parent p: the sticks, then strata 0 to S - 2 of a chain.
    """
    n, k = counts.shape
    width = k + 1
    n_shares = (len(point) - 2 * k) // width
    n_parents = n_shares + 1
    # a, b, a + b, shares, their sums
    size = 3 * k + n_shares * width + n_shares
    given = np.empty(size)
    for i in range(k):
        given[i], given[k + i] = math.exp(point[i]), math.exp(point[k + i])
        given[2 * k + i] = given[i] + given[k + i]
    at, sums = 3 * k, 3 * k + n_shares * width
    for p in range(n_shares):
        total = 0.0
        for i in range(width):
            one = math.exp(point[2 * k + p * width + i])
            given[at + p * width + i] = one
            total += one
        given[sums + p] = total
    psi_given, gam_given = np.empty(size), np.empty(size)
    _psi_gamma(given, psi_given, gam_given)

    log_mean, mean_log = np.empty((n_parents, width)), np.empty((n_parents, width))
    tilted, mean = np.empty((n_parents, width)), np.empty((n_parents, width))
    passed, passed_log, passed_tilted = 0.0, 0.0, 0.0
    for i in range(k):
        a, b, both = given[i], given[k + i], given[2 * k + i]
        log_both, psi_both = math.log(both), psi_given[2 * k + i]
        log_mean[0, i] = passed + math.log(a) - log_both
        mean_log[0, i] = passed_log + psi_given[i] - psi_both
        tilted[0, i] = passed_tilted + psi_given[i] + 1.0 / a - psi_both - 1.0 / both
        passed += math.log(b) - log_both
        passed_log += psi_given[k + i] - psi_both
        passed_tilted += psi_given[k + i] + 1.0 / b - psi_both - 1.0 / both
    log_mean[0, k], mean_log[0, k], tilted[0, k] = passed, passed_log, passed_tilted
    for p in range(n_shares):
        log_total = math.log(given[sums + p])
        for i in range(width):
            one, whole = given[at + p * width + i], given[sums + p]
            log_mean[p + 1, i] = math.log(one) - log_total
            mean_log[p + 1, i] = psi_given[at + p * width + i] - psi_given[sums + p]
            tilted[p + 1, i] = mean_log[p + 1, i] + 1.0 / one - 1.0 / whole

    more = np.empty(n_parents * width)
    for p in range(n_parents):
        for i in range(width):
            mean[p, i] = max(math.exp(log_mean[p, i]), LEAST)
            more[p * width + i] = 1.0 + alpha * mean[p, i]
    psi_more, gam_more = np.empty(len(more)), np.empty(len(more))
    _psi_gamma(more, psi_more, gam_more)

    n_leaves = n - n_shares
    leaves = np.empty(n_leaves * width + n_leaves)
    for s in range(n_leaves):
        total = 0.0
        for i in range(width):
            own = counts[n_shares + s, i] if i < k else 0.0
            one = max(own + alpha * mean[n_shares, i], LEAST)
            leaves[s * width + i] = one
            total += one
        leaves[n_leaves * width + s] = total
    psi_leaves, gam_leaves = np.empty(len(leaves)), np.empty(len(leaves))
    _psi_gamma(leaves, psi_leaves, gam_leaves)

    value = n * math.lgamma(alpha) + k * math.log(gamma)  # -log B(1, gamma) = log gamma
    below = np.zeros((n_parents, width))
    for s in range(n_leaves):
        last = n_leaves * width + s
        value -= gam_leaves[last]
        for i in range(width):
            value += gam_leaves[s * width + i]
            below[n_shares, i] += psi_leaves[s * width + i] - psi_leaves[last]
    short = np.zeros((n_shares, width))
    for p in range(n_shares):
        value -= gam_given[sums + p]
        for i in range(width):
            own = counts[p, i] if i < k else 0.0
            short[p, i] = max(own + alpha * mean[p, i], LEAST) - given[at + p * width + i]
            value += short[p, i] * mean_log[p + 1, i] + gam_given[at + p * width + i]
            below[p, i] += mean_log[p + 1, i]
    for i in range(k):
        a, b, psi_both = given[i], given[k + i], psi_given[2 * k + i]
        value += gam_given[i] + gam_given[k + i] - gam_given[2 * k + i]
        value += (1.0 - a) * (psi_given[i] - psi_both) + (gamma - b) * (psi_given[k + i] - psi_both)

    log_alpha = math.log(alpha)
    by_mean, by_tilted = np.empty((n_parents, width)), np.empty((n_parents, width))
    for p in range(n_parents):
        children = float(n_leaves) if p == n_shares else 1.0
        for i in range(width):
            m, lift = mean[p, i], tilted[p, i] - log_mean[p, i]
            value += children * (log_alpha + mean_log[p, i] - gam_more[p * width + i] - alpha * m * lift)
            by_mean[p, i] = alpha * m * (below[p, i] + children * (1.0 - psi_more[p * width + i] - lift))
            by_tilted[p, i] = -alpha * children * m

    first = float(n_leaves) if n_shares == 0 else 1.0
    after_mean, after_log, after_tilted = by_mean[0, k], first, by_tilted[0, k]
    for i in range(k - 1, -1, -1):
        a, b, both = given[i], given[k + i], given[2 * k + i]
        tri_a, tri_b, tri_both = trigamma(a), trigamma(b), trigamma(both)
        shared = (by_mean[0, i] + after_mean) / both + (first + after_log) * tri_both
        shared += (by_tilted[0, i] + after_tilted) * (tri_both - 1.0 / (both * both))
        shared += (1.0 - a + gamma - b) * tri_both
        by_a = by_mean[0, i] / a + first * tri_a + by_tilted[0, i] * (tri_a - 1.0 / (a * a)) + (1.0 - a) * tri_a
        by_b = after_mean / b + after_log * tri_b + after_tilted * (tri_b - 1.0 / (b * b)) + (gamma - b) * tri_b
        slope[i], slope[k + i] = a * (by_a - shared), b * (by_b - shared)
        after_mean, after_log = after_mean + by_mean[0, i], after_log + first
        after_tilted += by_tilted[0, i]
    for p in range(n_shares):
        children = float(n_leaves) if p + 1 == n_shares else 1.0
        whole = given[sums + p]
        all_mean, all_log, all_tilted = 0.0, 0.0, 0.0
        for i in range(width):
            all_mean += by_mean[p + 1, i]
            all_log += children + short[p, i]
            all_tilted += by_tilted[p + 1, i]
        tri_whole = trigamma(whole)
        lost = all_mean / whole + all_log * tri_whole + all_tilted * (tri_whole - 1.0 / (whole * whole))
        for i in range(width):
            one = given[at + p * width + i]
            tri = trigamma(one)
            own = by_mean[p + 1, i] / one + (children + short[p, i]) * tri
            own += by_tilted[p + 1, i] * (tri - 1.0 / (one * one))
            slope[2 * k + p * width + i] = one * (own - lost)
    return value
