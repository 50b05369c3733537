"""Hidden Markov chains: lags, forward-backward, its restriction to some states, unions of states, and the top level."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.mixture import TINY, exp_block
from bnp_dask.kernels.numeric.arithmetic import exp, matmul
from bnp_dask.kernels.numeric.quasi_newton import MEMORY, direction, dot
from bnp_dask.kernels.numeric.simd import aligned, aligned_zeros, fill, fused, load, padded, store, total, where_above
from bnp_dask.kernels.numeric.special import _psi_gamma, trigamma
from bnp_dask.kernels.options import INNER, copy_into, njit

# =====================================================================================================================
# Sequences whose steps follow from those before: rows that hold a step and its predecessors, and back again.
# =====================================================================================================================


def lagged_rows(offsets: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with ``lags`` steps of their sequence before them, ``(n',)``, and their offsets ``(G + 1,)``."""
    lengths = np.diff(offsets)
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    kept = np.concatenate([[0], np.cumsum(np.maximum(lengths - lags, 0))])
    return np.flatnonzero(place >= lags), kept.astype(np.int64)


def with_lags(x: np.ndarray, index: np.ndarray, lags: int) -> np.ndarray:
    """Rows ``[x_t, x_{t-1}, ..., x_{t-lags}]`` for the steps t in ``index (n',)``, ``(n', (1 + lags) D)``."""
    return np.hstack([x[index - j] for j in range(lags + 1)])


def spread(values: np.ndarray, offsets: np.ndarray, lags: int, alone: np.ndarray) -> np.ndarray:
    """Values of lagged rows for each recorded step, ``(n, ...)``.

    The first ``lags`` steps of a sequence have the value of the step after them, and the steps of a sequence without
    lagged rows the value ``alone``.
    """
    lengths = np.diff(offsets)
    kept = np.concatenate([[0], np.cumsum(np.maximum(lengths - lags, 0))])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    source = np.repeat(kept[:-1], lengths) + np.maximum(place - lags, 0)
    known = np.repeat(lengths > lags, lengths)
    out = np.empty((len(place), *values.shape[1:]), values.dtype)
    out[known] = values[source[known]]
    out[~known] = alone
    return out


# =====================================================================================================================
# Forward-backward for hidden Markov chains: posteriors of the state at each step, and expected transitions.
#
# Probabilities are scaled, not logarithms: one vector-matrix product per step and direction, and no exponentials
# except for the likelihoods.  Sums over pairs of steps come from the stored results of both directions, because the
# pair posterior is ``s_t[k, l] = alpha_t[k] A[k, l] grow_{t+1}[l]``.  The entropy needs no pairs: it is the log
# normaliser minus expectations of the terms of the posterior.  States with no probability at a step contribute nothing
# to its backward message (:func:`back`).  A sequence whose likelihoods double precision cannot scale (at some step,
# every state reached so far makes the data impossible) is done again with logarithms.
# =====================================================================================================================


# -- one step of a sweep ------------------------------------------------------------------------------------------
# Rows of states are ``(W,)``: K states and zeros up to a multiple of eight (:mod:`bnp_dask.kernels.numeric.simd`).
LOWEST = -690.0
"""Least log: smaller log likelihoods are raised to it, and smaller log potentials become log 0.  Its exponential is far
from denormal numbers, and below the filtered probabilities that :data:`NOTHING` keeps."""

NOTHING = 1e-200
"""Threshold below which filtered probabilities are set to zero."""

EXP_BLOCK = 1024

SAFE = 1e-100
"""Least normaliser of a step for which scaling is trusted; probabilities below :data:`NOTHING` are negligible beside
it."""


class Transitions(NamedTuple):
    """Potentials of the start ``(W,)`` and of steps from state to state ``(K, W)``, and these flipped."""

    start: np.ndarray
    trans: np.ndarray
    flipped: np.ndarray

    @staticmethod
    def of(log_start: np.ndarray, log_trans: np.ndarray) -> Transitions:
        """From their logs ``(K,)`` and ``(K, K)``, the largest about zero."""
        n = len(log_start)
        width = padded(n)
        out = Transitions(aligned_zeros(width), aligned_zeros(n, width), aligned_zeros(n, width))
        out.start[:n] = exponentials(log_start)
        out.trans[:, :n] = exponentials(log_trans)
        out.flipped[:, :n] = out.trans[:, :n].T
        return out


def exponentials(logs: np.ndarray) -> np.ndarray:
    """``exp``, zero below :data:`LOWEST`."""
    return np.where(logs > LOWEST, exp(np.maximum(logs, LOWEST)), 0.0)


@njit(nogil=True, cache=True, error_model="numpy")
def exp_all(source, out):
    """``exp`` of any number of logs, through scratch that stays in cache; logs below :data:`LOWEST` count as it."""
    power = np.empty(EXP_BLOCK)
    for start in range(0, len(source), EXP_BLOCK):
        stop = min(start + EXP_BLOCK, len(source))
        exp_block(source[start:stop], LOWEST, power[: stop - start], out[start:stop])


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def which(row, index):
    """Write positions of the non-zeros of a row into ``index (W + 1,)``; return their number."""
    count = 0
    for k in range(len(row)):
        index[count] = k
        count += row[k] != 0.0
    return count


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def times(vector, matrix, out):
    """``vector (W,) @ matrix (K, W)``; the sums of up to four groups of columns stay in registers."""
    done = 0
    while done < len(out):
        left = len(out) - done
        a = b = c = d = fill(0.0)
        if left >= 32:
            for k in range(len(matrix)):
                x, row = fill(vector[k]), matrix[k]
                a = fused(x, load(row, done), a)
                b = fused(x, load(row, done + 8), b)
                c = fused(x, load(row, done + 16), c)
                d = fused(x, load(row, done + 24), d)
            store(out, done + 16, c)
            store(out, done + 24, d)
        elif left >= 16:
            for k in range(len(matrix)):
                x, row = fill(vector[k]), matrix[k]
                a = fused(x, load(row, done), a)
                b = fused(x, load(row, done + 8), b)
        else:
            for k in range(len(matrix)):
                a = fused(fill(vector[k]), load(matrix[k], done), a)
        store(out, done, a)
        if left >= 16:
            store(out, done + 8, b)
        done += 32 if left >= 32 else 16 if left >= 16 else 8


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def times_some(vector, index, matrix, out):
    """Product of a vector and the rows ``index`` of a matrix, four rows at a time."""
    for k in range(0, len(out), 8):
        store(out, k, fill(0.0))
    whole = len(index) - len(index) % 4
    for i in range(0, whole, 4):
        p, q, r, s = index[i], index[i + 1], index[i + 2], index[i + 3]
        a, b, c, d = fill(vector[p]), fill(vector[q]), fill(vector[r]), fill(vector[s])
        row_a, row_b, row_c, row_d = matrix[p], matrix[q], matrix[r], matrix[s]
        for k in range(0, len(out), 8):
            two = fused(b, load(row_b, k), fused(a, load(row_a, k), load(out, k)))
            store(out, k, fused(d, load(row_d, k), fused(c, load(row_c, k), two)))
    for i in range(whole, len(index)):
        a, row_a = fill(vector[index[i]]), matrix[index[i]]
        for k in range(0, len(out), 8):
            store(out, k, fused(a, load(row_a, k), load(out, k)))


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def forth(prior, lik, filtered):
    """One step forward: ``filtered`` from its prediction by the steps before (``prior``); the step's normaliser.

    Below :data:`SAFE` the normaliser is unreliable, and ``filtered`` is not normalised.
    """
    held = fill(0.0)
    for k in range(0, len(filtered), 8):
        x = load(prior, k) * load(lik, k)
        x = where_above(x, NOTHING, x)
        store(filtered, k, x)
        held = held + x
    norm = total(held)
    if norm > SAFE:
        share = fill(1.0 / norm)
        for k in range(0, len(filtered), 8):
            store(filtered, k, load(filtered, k) * share)
    return norm


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def back(flipped, lik, filtered, weight, later, here, space):
    """One step backward: ``here`` (not scaled yet) from ``later``, which is scaled, times ``weight``.

    Returns the normaliser, and the number of states with non-zero ``later``.

    ``space.held`` receives the step's responsibilities.
    Responsibilities up to 2**-53 become zero, as everywhere, and with them the states' part of the message to earlier
    steps: contributions of all states sum to one, so a sum loses no more than that.
    Below :data:`NOTHING` the normaliser is unreliable, and nothing is scaled.
    """
    beta, resp = space.prior, space.held
    count = which(later, space.places)
    if 2 * count > len(flipped):
        times(later, flipped, beta)
    else:
        times_some(later, space.places[:count], flipped, beta)
    held = fill(0.0)
    for k in range(0, len(resp), 8):
        x = load(filtered, k) * load(beta, k)
        store(resp, k, x)
        held = held + x
    norm = total(held)
    if norm > NOTHING:
        share, counted = fill(1.0 / norm), fill(weight / norm)
        for k in range(0, len(resp), 8):
            x = load(resp, k) * share
            store(resp, k, where_above(x, TINY, x))
            store(later, k, load(later, k) * counted)
            store(here, k, where_above(x, TINY, load(lik, k) * (load(beta, k) * share)))
    return norm, count


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def turn(lik, filtered, here, space):
    """Last step of a sequence, with the results that :func:`back` gives for other steps."""
    for k in range(0, len(here), 8):
        x = load(filtered, k)
        store(space.held, k, where_above(x, TINY, x))
        store(here, k, where_above(x, TINY, load(lik, k)))


# -- sweeps: piece by piece over long sequences, so that most results stay in cache -------------------------------
# The forward sweep visits all pieces of a tile and keeps two arrays, the log likelihoods ``(n, K)`` and the filtered
# probabilities ``(n, W)``; the backward sweep visits the pieces, last first, and yields each piece's part of all sums.
# One row passes from a piece to the next.  W numbers are K states and zeros, see :mod:`bnp_dask.kernels.numeric.simd`.
class Rows(NamedTuple):
    """Whether rows are the first and the last of their sequence, ``(n,)`` bool, and their weights, ``(n,)``."""

    begins: np.ndarray
    ends: np.ndarray
    weights: np.ndarray

    @staticmethod
    def of(offsets: np.ndarray, weights: np.ndarray) -> Rows:
        """Rows of sequences at ``offsets (G + 1,)``, each counted ``weights (G,)`` times."""
        begins, ends = np.zeros((2, offsets[-1]), np.bool_)
        some = np.diff(offsets) > 0
        begins[offsets[:-1][some]] = True
        ends[offsets[1:][some] - 1] = True
        return Rows(begins, ends, np.repeat(weights, np.diff(offsets)))

    def part(self, first: int, last: int) -> Rows:
        """The rows ``first:last``."""
        return Rows(self.begins[first:last], self.ends[first:last], self.weights[first:last])


class Kept(NamedTuple):
    """Rows of a piece as the forward sweep keeps them.

    ``log_lik (m, K)``: the largest of a row is zero.  ``filtered (m, W)``.
    """

    log_lik: np.ndarray
    filtered: np.ndarray

    @staticmethod
    def room(n: int, n_states: int) -> Kept:
        """Room for ``n`` rows of ``n_states`` states."""
        return Kept(np.empty((n, n_states)), aligned(n, padded(n_states)))

    def part(self, first: int, last: int) -> Kept:
        """The rows ``first:last``."""
        return Kept(self.log_lik[first:last], self.filtered[first:last])


class Space(NamedTuple):
    """Scratch for a step: ``prior (W,)``, ``held (W,)`` and ``places (W + 1,)``."""

    prior: np.ndarray
    held: np.ndarray
    places: np.ndarray

    @staticmethod
    def of(n_states: int) -> Space:
        """Scratch for ``n_states`` states."""
        width = padded(n_states)
        return Space(aligned_zeros(width), aligned_zeros(width), np.empty(width + 1, np.int64))


@njit(nogil=True, cache=True, error_model="numpy")
def likelihoods(log_lik, space, lik):
    """``exp(log_lik (m, K))`` into ``lik (m, W)``."""
    m, n_states = log_lik.shape
    flat = lik.ravel()
    exp_all(log_lik.ravel(), flat)
    if n_states == lik.shape[1]:
        return
    for t in range(m - 1, -1, -1):  # rows move by their padding, the last first
        row, first = lik[t], t * n_states
        for k in range(n_states):
            space.held[k] = flat[first + k]
        for k in range(n_states):
            row[k] = space.held[k]
        for k in range(n_states, len(row)):
            row[k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def sweep_forth(rows, moves, lik, before, filtered, space):
    """Filter one piece; the sum of its steps' log normalisers times weights, nats, or NaN when scaling fails.

    The largest number of each row of ``lik (m, W)`` is one, ``before (W,)`` is the filtered row before the piece, and
    ``filtered (m, W)`` is written.
    """
    norm, product, weight = 0.0, 1.0, 1.0
    for t in range(len(lik)):
        if rows.begins[t]:
            norm += weight * math.log(product)
            product = 1.0
            total = forth(moves.start, lik[t], filtered[t])
        else:
            last = before if t == 0 else filtered[t - 1]
            times(last, moves.trans, space.prior)
            total = forth(space.prior, lik[t], filtered[t])
        if not total > SAFE:
            return np.nan
        weight = rows.weights[t]
        # a log per few steps instead of one per step
        product *= total
        if product < 1e-150 or product > 1e150:
            norm += weight * math.log(product)
            product = 1.0
    return norm + weight * math.log(product)


@njit(nogil=True, cache=True, error_model="numpy")
def sweep_back(rows, moves, lik, filtered, grow, resp, space):
    """Responsibilities of one piece, without weights, into ``resp (m, K)``.

    Returns the number of non-zeros of ``grow``; -1 on failure.

    The last row of ``grow (m + 1, W)`` belongs to the row after the piece: the first row that the call for the next
    piece left.  The others may be the memory of ``lik (m, W)``.  Afterwards ``filtered[t, k] trans[k, l] grow[t + 1,
    l]`` is the pair posterior of the rows t and t + 1, times its weight; zero if t is the last of its sequence.

    The sum of ``filtered[t] * (flipped @ grow[t + 1])`` is the normaliser of step t + 1, except for numbers below
    :data:`~bnp_dask.kernels.hmm.NOTHING` and ``TINY``.  So if the forward sweep did not fail, this one
    does not.
    """
    n_states, found = resp.shape[1], 0
    whole = n_states - n_states % 8
    for t in range(len(resp) - 1, -1, -1):
        alpha, later = filtered[t], grow[t + 1]
        if rows.ends[t]:
            for k in range(len(later)):
                later[k] = 0.0
            turn(lik[t], alpha, grow[t], space)
        else:
            norm, count = back(moves.flipped, lik[t], alpha, rows.weights[t], later, grow[t], space)
            if not norm > NOTHING:
                return -1
            found += count
        row = resp[t]
        for k in range(0, whole, 8):
            store(row, k, load(space.held, k))
        for k in range(whole, n_states):
            row[k] = space.held[k]
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def add_pairs(filtered, grow, index, out):
    """Add ``grow[t + 1, l] filtered[t, k]`` of all rows t of a piece to ``out (K, W)``, at ``[l, k]``.

    Few states have a non-zero ``grow`` at a step, and only these are visited; ``index (W + 1,)`` is scratch.
    """
    for t in range(len(filtered)):
        later, alpha = grow[t + 1], filtered[t]
        for place in index[: which(later, index)]:
            x, row = fill(later[place]), out[place]
            for k in range(0, len(alpha), 8):
                store(row, k, fused(x, load(alpha, k), load(row, k)))


# -- posteriors of states -----------------------------------------------------------------------------------------
FEW = 0.35
"""Largest share of active states per step for which sums over pairs visit only these; above, a matrix product is
faster."""

NEVER = -1e200
"""Stands for log 0, so that zero times it is zero."""


class Chains(NamedTuple):
    """Posterior of the states of all sequences of a tile.

    ``filtered (n, W)`` (alpha), ``grow (n, W)`` and ``trans (K, K)`` (A) give pair posteriors: of the steps t and
    t + 1 of a sequence ``filtered[t, k] * trans[k, l] * grow[t + 1, l]``, times the sequence's weight; their rows are
    zero after K numbers.  ``resp (n, K)`` are the posteriors of single steps, without weights.  ``grow`` of a first
    step is zero.  ``scaled (G,)`` marks the sequences done by scaling; for the others, which were done with logarithms,
    ``filtered`` and ``grow`` are zero, and their pair sums are in ``extra (K, K)``.  ``log_norm (G,)`` is the log
    normaliser of each, nats, and ``found (G,)`` the number of non-zeros of its ``grow``.
    """

    resp: np.ndarray
    filtered: np.ndarray
    grow: np.ndarray
    trans: np.ndarray
    scaled: np.ndarray
    log_norm: np.ndarray
    extra: np.ndarray
    found: np.ndarray

    def pair_sums(self) -> np.ndarray:
        """Expected steps from state k to state l, times weights, ``(K, K)``."""
        if len(self.resp) < 2:
            return self.extra.copy()
        return pair_sums(self.trans, self.filtered[:-1], self.grow, int(self.found.sum())) + self.extra


@njit(nogil=True, cache=True, error_model="numpy")
def _shift_rows(values, top):
    n, width = values.shape
    for i in range(n):
        row = values[i]
        high = row[0]
        unknown = False
        for k in range(width):
            x = row[k]
            unknown |= x != x
            high = x if x > high else high
        top[i] = np.nan if unknown else high
        for k in range(width):
            x = row[k] - high
            row[k] = x if x > NEVER else NEVER


def shift_rows(values: np.ndarray) -> np.ndarray:
    """Subtract the maximum of each row, in place in C-contiguous float64 ``(n, K)``, and return it, ``(n,)``.

    Numbers are cut at :data:`NEVER`, which times zero is zero.  A row with NaN gives NaN.
    """
    top = np.empty(len(values))
    _shift_rows(values, top)
    return top


@njit(nogil=True, cache=True, error_model="numpy")
def _log_sum(values):
    top = values.max()
    if not top > NEVER:
        return top
    total = 0.0
    for value in values:
        total += math.exp(value - top)
    return top + math.log(total)


@njit(nogil=True, cache=True, error_model="numpy")
def _logarithmic(log_start, log_trans, log_lik, filtered, grow, resp, pairs):
    """Forward-backward pass with logarithms: of alpha in ``filtered``, of beta in ``grow``; pair sums in ``pairs``."""
    n, width = log_lik.shape
    terms = np.empty(width)
    for k in range(width):
        filtered[0, k] = log_start[k] + log_lik[0, k]
        grow[n - 1, k] = 0.0
    for t in range(1, n):
        for j in range(width):
            for k in range(width):
                terms[k] = filtered[t - 1, k] + log_trans[k, j]
            filtered[t, j] = max(_log_sum(terms) + log_lik[t, j], NEVER)
    for t in range(n - 2, -1, -1):
        for k in range(width):
            for j in range(width):
                terms[j] = log_trans[k, j] + log_lik[t + 1, j] + grow[t + 1, j]
            grow[t, k] = max(_log_sum(terms), NEVER)
    log_norm = _log_sum(filtered[n - 1])
    for t in range(n):
        for k in range(width):
            resp[t, k] = math.exp(filtered[t, k] + grow[t, k] - log_norm)
            if t + 1 < n:
                for j in range(width):
                    rest = log_trans[k, j] + log_lik[t + 1, j] + grow[t + 1, j] - log_norm
                    pairs[k, j] += math.exp(filtered[t, k] + rest)
    return log_norm


@njit(nogil=True, cache=True, error_model="numpy")
def _all_sequences(offsets, rows, moves, log_start, log_trans, log_lik, grow, space, out):
    """Forward-backward pass of all sequences; ``grow (n + 1, W)`` holds the likelihoods and is replaced by ``grow``."""
    n_states = log_lik.shape[1]
    once = np.ones(len(log_lik))
    for g in range(len(offsets) - 2, -1, -1):  # the last first: each ends the pairs at the start of the next
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        begins, ends, resp = rows.begins[first:last], rows.ends[first:last], out.resp[first:last]
        lik, alpha = grow[first:last], out.filtered[first:last]
        norm = sweep_forth(Rows(begins, ends, once[first:last]), moves, lik, moves.start, alpha, space)
        counted = Rows(begins, ends, rows.weights[first:last])
        found = -1 if norm != norm else sweep_back(counted, moves, lik, alpha, grow[first : last + 1], resp, space)
        if found >= 0:
            out.found[g] = found
        else:
            out.scaled[g] = False
            logs, pairs = np.empty((2, last - first, n_states)), np.zeros((n_states, n_states))
            norm = _logarithmic(log_start, log_trans, log_lik[first:last], logs[0], logs[1], resp, pairs)
            alpha[:] = 0.0
            lik[:] = 0.0
            for k in range(n_states):
                for j in range(n_states):
                    out.extra[k, j] += rows.weights[first] * pairs[k, j]
        grow[first] = 0.0
        out.log_norm[g] = norm


def forward_backward(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray, weights: np.ndarray
) -> Chains:
    """Posterior of the states of independent sequences.

    Parameters
    ----------
    log_start, log_trans
        Log potentials of the first state ``(K,)`` and of each step from state to state ``(K, K)``, nats; they need not
        be normalised.  Not above zero by much: the largest should be about zero.
    log_lik
        Log likelihoods of each step, ``(n, K)`` nats, the largest of a row zero, none below :data:`NEVER`.
    offsets
        Offsets of the steps of each sequence, ``(G + 1,)`` int64.
    weights
        Weight of each sequence, ``(G,)``.
    """
    n, n_states = log_lik.shape
    groups = len(offsets) - 1
    moves, space = Transitions.of(log_start, log_trans), Space.of(n_states)
    filtered, grow = aligned(n, padded(n_states)), aligned(n + 1, padded(n_states))
    out = Chains(
        np.empty((n, n_states)), filtered, grow[:n], np.ascontiguousarray(moves.trans[:, :n_states]),
        np.ones(groups, np.bool_), np.zeros(groups), np.zeros((n_states, n_states)),
        np.zeros(groups, np.int64),
    )  # fmt: skip
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    likelihoods(log_lik, space, grow[:n])
    _all_sequences(offsets, Rows.of(offsets, weights), moves, log_start, log_trans, log_lik, grow, space, out)
    return out


def pair_sums(trans: np.ndarray, filtered: np.ndarray, grow: np.ndarray, found: int) -> np.ndarray:
    """Expected steps from state k to state l, times weights, ``(K, K)``.

    ``filtered (m, W)`` belongs to some rows, ``grow (m + 1, W)`` to the same rows and the next one; ``found`` numbers
    of ``grow`` are not zero.
    """
    n_states, width = len(trans), filtered.shape[1]
    if found > FEW * n_states * len(filtered):
        return trans * matmul(filtered[:, :n_states].T, grow[1:, :n_states])
    sums = aligned_zeros(n_states, width)
    add_pairs(filtered, grow, np.empty(width + 1, np.int64), sums)
    return trans * sums[:, :n_states].T


# -- the most likely path -------------------------------------------------------------------------------------
@njit(nogil=True, cache=True, error_model="numpy")
def _viterbi(offsets, log_start, log_trans, log_lik, path):
    width = log_lik.shape[1]
    best, new = np.empty(width), np.empty(width)
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        came = np.empty((last - first, width), np.int32)
        for k in range(width):
            best[k] = log_start[k] + log_lik[first, k]
        for t in range(first + 1, last):
            source = came[t - first]
            for j in range(width):
                new[j] = best[0] + log_trans[0, j]
                source[j] = 0
            for k in range(1, width):
                row, value = log_trans[k], best[k]
                for j in range(width):
                    x = value + row[j]
                    source[j] = k if x > new[j] else source[j]
                    new[j] = x if x > new[j] else new[j]
            top = new.max()  # keeps sums small over long sequences
            for j in range(width):
                best[j] = new[j] - top + log_lik[t, j]
        path[last - 1] = np.argmax(best)
        for t in range(last - 1, first, -1):
            path[t - 1] = came[t - first, path[t]]


def viterbi(log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Jointly most likely states of each sequence, ``(n,)`` int64; the first in ties."""
    path = np.zeros(len(log_lik), np.int64)
    _viterbi(offsets, log_start, np.ascontiguousarray(log_trans), np.ascontiguousarray(log_lik, np.float64), path)
    return path


# -- random paths: filtered forward, drawn backward (Chib 1996) ---------------------------------------------------
@njit(nogil=True, cache=True, error_model="numpy")
def _log_filtered(log_start, log_trans, log_lik, filtered):
    """Logarithms of filtered probabilities of one sequence, into ``filtered (m, W)``; the largest of a row is zero."""
    m, n_states = log_lik.shape
    now, before, terms = np.empty(n_states), np.empty(n_states), np.empty(n_states)
    for t in range(m):
        for k in range(n_states):
            now[k] = log_start[k]
            if t > 0:
                for j in range(n_states):
                    terms[j] = before[j] + log_trans[j, k]
                top = terms.max()
                total = 0.0
                for j in range(n_states):
                    total += math.exp(terms[j] - top)
                now[k] = top + math.log(total)
            now[k] += log_lik[t, k]
        top = now.max()
        for k in range(n_states):
            before[k] = now[k] - top
            filtered[t, k] = before[k]


@njit(nogil=True, cache=True, error_model="numpy")
def _draw_back(filtered, trans, uniform, path):
    """Draw the states of one sequence from the last to the first; ``trans (K, W)`` has a row for the later state."""
    m, n_states = len(path), len(trans)
    reached = np.empty(n_states)
    for t in range(m - 1, -1, -1):
        total = 0.0
        for k in range(n_states):
            total += filtered[t, k] * (1.0 if t == m - 1 else trans[path[t + 1], k])
            reached[k] = total
        level, chosen = uniform[t] * total, 0
        for k in range(n_states):
            if reached[k] > level:
                chosen = k
                break
        path[t] = chosen


@njit(nogil=True, cache=True, error_model="numpy")
def _draw_back_logs(filtered, log_trans, uniform, path):
    """As :func:`_draw_back`, from logarithms of filtered probabilities and of transitions."""
    m, n_states = len(path), len(log_trans)
    terms = np.empty(n_states)
    for t in range(m - 1, -1, -1):
        for k in range(n_states):
            terms[k] = filtered[t, k] + (0.0 if t == m - 1 else log_trans[k, path[t + 1]])
        top, total = terms.max(), 0.0
        for k in range(n_states):
            total += math.exp(terms[k] - top)
        level, reached, chosen = uniform[t] * total, 0.0, 0
        for k in range(n_states):
            reached += math.exp(terms[k] - top)
            if reached > level:
                chosen = k
                break
        path[t] = chosen


@njit(nogil=True, cache=True, error_model="numpy")
def _all_paths(offsets, rows, moves, log_start, log_trans, log_lik, lik, filtered, space, uniform, path):
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        if first == last:
            continue
        own = Rows(rows.begins[first:last], rows.ends[first:last], rows.weights[first:last])
        alpha, chance, drawn = filtered[first:last], uniform[first:last], path[first:last]
        norm = sweep_forth(own, moves, lik[first:last], moves.start, alpha, space)
        if norm == norm:
            _draw_back(alpha, moves.flipped, chance, drawn)
        else:
            _log_filtered(log_start, log_trans, log_lik[first:last], alpha)
            _draw_back_logs(alpha, log_trans, chance, drawn)


def draw_paths(
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray, offsets: np.ndarray, uniform: np.ndarray
) -> np.ndarray:
    """A path of each sequence, drawn from its posterior, positions of states ``(n,)`` int64.

    The filtered probabilities of a step are those of the forward pass of
    :mod:`~bnp_dask.kernels.hmm`.  The last state is drawn from them, and each state before it in
    proportion to ``filtered[t, k] trans[k, z_{t + 1}]``.

    Parameters
    ----------
    log_start, log_trans, log_lik, offsets
        As in :func:`~bnp_dask.kernels.hmm.forward_backward`.
    uniform
        Numbers in [0, 1), ``(n,)``.
    """
    n, n_states = log_lik.shape
    moves, space = Transitions.of(log_start, log_trans), Space.of(n_states)
    filtered, lik = aligned(n, padded(n_states)), aligned(n, padded(n_states))
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    likelihoods(log_lik, space, lik)
    rows, path = Rows.of(offsets, np.ones(len(offsets) - 1)), np.empty(n, np.int64)
    _all_paths(offsets, rows, moves, log_start, log_trans, log_lik, lik, filtered, space, uniform, path)
    return path


# =====================================================================================================================
# Redistributes the responsibilities of some states (donors) at each step of a sequence among others (receivers).
#
# The donors are first taken as one state, the block; the posterior of being in the block, and of all states outside,
# stays unchanged.  Inside, the new state is a chain: drawn from ``enter_t`` when the block is entered at step t, from
# ``follow_t[j]`` when the step before was in the block too, and leaving the block does not depend on it.  Since the
# block is a function of the new states, these are a Markov chain again, with pair posteriors in closed form.  The best
# chain of this kind is found by one backward sweep (the value of later steps) and one forward sweep.
# =====================================================================================================================

LEAST = 1e-250
"""Mass of a block below which a step contributes nothing."""

NEXT_TO_NOTHING = 1e-13
"""Probability of the block below which it is taken to be zero, so that most steps of long sequences are skipped.  The
loss of all counts is less than this per step."""


class Block(NamedTuple):
    """Donors as one state, at each step; none of it times weights.

    ``mass (n,)``: probability of the block.  ``stay (n,)``: of the block at this step and the next.  At the steps
    ``steps (m,)``, where there is any: ``enter (m, K)``: of the state before, outside the block, and the block now;
    ``leave (m, K)``: of the block now and the state after, outside.
    """

    steps: np.ndarray
    mass: np.ndarray
    stay: np.ndarray
    enter: np.ndarray
    leave: np.ndarray

    def entered_from(self, states: np.ndarray) -> np.ndarray:
        """Probability of the block now and of some states (positions) outside it before, ``(n,)``."""
        out = np.zeros(len(self.mass))
        out[self.steps] = self.enter[:, states].sum(axis=1)
        return out


class Shares(NamedTuple):
    """Shares of the receivers.

    ``mass (n, J)``: probability of each.  ``first (n, J)``: probability of each as the first in the block.
    ``pairs (J, J)``: expected steps between them, times weights.  ``gain ()``: entropy beyond the block's entropy.
    """

    mass: np.ndarray
    first: np.ndarray
    pairs: np.ndarray
    gain: np.ndarray


def find_block(
    chains: Chains, offsets: np.ndarray, weights: np.ndarray, donors: np.ndarray,
    log_start: np.ndarray, log_trans: np.ndarray, log_lik: np.ndarray,
) -> Block:  # fmt: skip
    """Pair posteriors of the donors as one state, ``donors`` (positions) with all others."""
    n, width = chains.resp.shape
    filtered, grow = chains.filtered[:, :width], chains.grow[:, :width]
    mass = chains.resp[:, donors].sum(axis=1)
    index = np.flatnonzero(mass > NEXT_TO_NOTHING)
    enter, leave = np.zeros((len(index), width)), np.zeros((len(index), width))
    safe = np.repeat(np.where(weights > 0.0, weights, 1.0), np.diff(offsets))[:, None]
    later = index > 0  # the first step of a sequence has no grow, so nothing comes from the sequence before
    now = index[later]
    enter[later] = filtered[now - 1] * matmul(grow[np.ix_(now, donors)] / safe[now], chains.trans[:, donors].T)
    sooner = index + 1 < n
    now = index[sooner]
    leave[sooner] = matmul(filtered[np.ix_(now, donors)], chains.trans[donors]) * (grow[now + 1] / safe[now])
    inside = np.zeros(width, np.bool_)
    inside[donors] = True
    place = np.full(n, -1)
    place[index] = np.arange(len(index))
    _logarithmic_blocks(chains.scaled, offsets, inside, log_start, log_trans, log_lik, place, enter, leave)
    stay, kept = np.zeros(n), np.zeros(n)
    stay[index] = leave[:, donors].sum(axis=1)
    kept[index] = mass[index]
    enter[:, donors] = 0.0
    leave[:, donors] = 0.0
    return Block(index, kept, stay, enter, leave)


@njit(nogil=True, cache=True, error_model="numpy")
def _logarithmic_blocks(scaled, offsets, inside, log_start, log_trans, log_lik, place, enter, leave):
    """Blocks of the sequences for which scaling failed, with logarithms."""
    width = len(inside)
    for g in range(len(scaled)):
        first, last = offsets[g], offsets[g + 1]
        if scaled[g] or first == last:
            continue
        size = last - first
        alpha, beta, resp = np.empty((size, width)), np.empty((size, width)), np.empty((size, width))
        pairs = np.zeros((width, width))
        own = log_lik[first:last]
        norm = _logarithmic(log_start, log_trans, own, alpha, beta, resp, pairs)
        for t in range(size - 1):
            for k in range(width):
                for j in range(width):
                    if inside[k] or inside[j]:
                        x = math.exp(alpha[t, k] + log_trans[k, j] + own[t + 1, j] + beta[t + 1, j] - norm)
                        if inside[k] and place[first + t] >= 0:
                            leave[place[first + t], j] += x
                        if inside[j] and place[first + t + 1] >= 0:
                            enter[place[first + t + 1], k] += x


@njit(**INNER, error_model="numpy")
def _log_sum_into(scores, out):
    """Write normalised exponentials of ``scores`` into ``out``; return the log normaliser."""
    top = scores.max()
    total = 0.0
    for j in range(len(scores)):
        out[j] = math.exp(scores[j] - top)
        total += out[j]
    for j in range(len(scores)):
        out[j] /= total
    return top + math.log(total)


@njit(nogil=True, cache=True, error_model="numpy")
def _entropy(shares):
    value = 0.0
    for p in shares:
        if p > 0.0:
            value -= p * math.log(p)
    return value


@njit(nogil=True, cache=True, error_model="numpy")
def _share(offsets, weights, mass, stay, log_lik, going, coming, log_inner, worth, out):
    width = log_lik.shape[1]
    scores, follow = np.empty(width), np.empty((width, width))
    for g in range(len(offsets) - 1):
        first, last = offsets[g], offsets[g + 1]
        for t in range(last - 1, first - 1, -1):
            if not mass[t] > LEAST:
                continue
            on = stay[t] / mass[t] if t + 1 < last else 0.0
            for j in range(width):
                worth[t, j] = log_lik[t, j] + going[t, j] / mass[t]
                if on > 0.0 and mass[t + 1] > LEAST:
                    for i in range(width):
                        scores[i] = log_inner[j, i] + worth[t + 1, i]
                    worth[t, j] += min(on, 1.0) * _log_sum_into(scores, follow[j])
        for t in range(first, last):
            if not mass[t] > LEAST:
                continue
            before = stay[t - 1] if t > first and mass[t - 1] > LEAST else 0.0
            new = max(mass[t] - before, 0.0)
            if new > 0.0:
                for j in range(width):
                    scores[j] = coming[t, j] / new + worth[t, j]
                _log_sum_into(scores, out.first[t])
                out.gain[0] += weights[g] * new * _entropy(out.first[t])
                for j in range(width):
                    out.mass[t, j] += new * out.first[t, j]
            if before > 0.0:
                for j in range(width):
                    held = out.mass[t - 1, j] * (before / mass[t - 1])
                    if held > 0.0:
                        for i in range(width):
                            scores[i] = log_inner[j, i] + worth[t, i]
                        _log_sum_into(scores, follow[j])
                        out.gain[0] += weights[g] * held * _entropy(follow[j])
                        for i in range(width):
                            out.mass[t, i] += held * follow[j, i]
                            out.pairs[j, i] += weights[g] * held * follow[j, i]


def share_block(
    offsets: np.ndarray, weights: np.ndarray, block: Block, log_lik: np.ndarray, log_start: np.ndarray,
    log_in: np.ndarray, log_out: np.ndarray, log_inner: np.ndarray,
) -> Shares:  # fmt: skip
    """Best chain of receivers inside the block.

    Parameters
    ----------
    offsets, weights
        Sequences.
    block
        Their posterior of being in the block.
    log_lik
        Of the steps ``block.steps`` under the receivers, ``(m, J)`` nats.
    log_start, log_in, log_out, log_inner
        Log potentials: of a receiver that starts a sequence ``(J,)``; from each state into it ``(K, J)``; from it to
        each state ``(J, K)``; among receivers ``(J, J)``.  Any numbers give valid shares; good ones give better ones.
    """
    n, width = len(block.mass), log_lik.shape[1]
    coming, going, own = np.zeros((n, width)), np.zeros((n, width)), np.zeros((n, width))
    coming[block.steps] = matmul(block.enter, np.maximum(log_in, NEVER))
    firsts = offsets[:-1][np.diff(offsets) > 0]
    coming[firsts] += block.mass[firsts, None] * log_start
    going[block.steps] = matmul(block.leave, np.maximum(log_out, NEVER).T)
    own[block.steps] = log_lik
    out = Shares(np.zeros((n, width)), np.zeros((n, width)), np.zeros((width, width)), np.zeros(1))
    log_inner = np.ascontiguousarray(np.maximum(log_inner, NEVER))
    worth = np.zeros((n, width))
    _share(offsets, weights, block.mass, block.stay, own, going, coming, log_inner, worth, out)
    return out


# =====================================================================================================================
# Entropy that is lost when states of chains become one.
#
# The pair posteriors of the merged chain are sums of the original ones (thesis 6.5.1), and the entropy of a chain is
# ``sum_t H(s_t) - sum_(inner t) H(r_t)``, so only terms of these states differ.
# =====================================================================================================================

SMALL = 1e-18
"""Probability below which merging with another loses no relevant entropy."""


@njit(**INNER, error_model="numpy")
def _apart(x, y):
    """``(x + y) log(x + y) - x log x - y log y``: entropy lost when two probabilities become one."""
    if not min(x, y) > SMALL:
        return 0.0
    low, high = min(x, y), max(x, y)
    return high * math.log1p(low / high) + low * math.log((x + y) / low)


@njit(**INNER, error_model="numpy")
def _many_apart(parts):
    """Entropy lost when any number of probabilities become one."""
    lost, total = 0.0, 0.0
    for x in parts:
        lost += _apart(total, x)
        total += x
    return lost


@njit(**INNER, error_model="numpy")
def _pair_loss(alpha, trans, grow, weight, members, inside, cells):
    """Entropy of a pair of two steps that is lost when the states ``members`` become one.

    Its posterior is ``alpha[k] trans[k, l] grow[l] / weight``.
    """
    count = len(members)
    lost = 0.0
    for k in range(len(inside)):
        if inside[k]:
            continue
        total = 0.0
        if grow[k] > 0.0:  # from the members to state k
            for i in range(count):
                x = alpha[members[i]] * trans[members[i], k] * grow[k] / weight
                lost += _apart(total, x)
                total += x
        total = 0.0
        if alpha[k] > 0.0:
            for i in range(count):
                x = alpha[k] * trans[k, members[i]] * grow[members[i]] / weight
                lost += _apart(total, x)
                total += x
    for i in range(count):
        for j in range(count):
            cells[i * count + j] = alpha[members[i]] * trans[members[i], members[j]] * grow[members[j]] / weight
    return lost + _many_apart(cells)


@njit(**INNER, error_model="numpy")
def _of_states(resp, members, own):
    for i in range(len(members)):
        own[i] = resp[members[i]]
    return _many_apart(own)


@njit(nogil=True, cache=True, error_model="numpy")
def _losses(rows, trans, filtered, grow, resp, after, members, starts, out):
    n, width = resp.shape
    for m in range(len(starts) - 1):
        who = members[starts[m] : starts[m + 1]]
        inside = np.zeros(width, np.bool_)
        for k in who:
            inside[k] = True
        own, cells = np.empty(len(who)), np.empty(len(who) * len(who))
        following = _of_states(after, who, own)
        for t in range(n - 1, -1, -1):
            here = _of_states(resp[t], who, own)
            weight = rows.weights[t]
            if weight > 0.0:
                if rows.begins[t] and rows.ends[t]:
                    out[m] += weight * here
                elif not (rows.begins[t] or rows.ends[t]):
                    out[m] -= weight * here
                if not rows.ends[t] and (here > 0.0 or following > 0.0):
                    out[m] += weight * _pair_loss(filtered[t], trans, grow[t + 1], weight, who, inside, cells)
            following = here


def piece_losses(
    rows: Rows, trans: np.ndarray, filtered: np.ndarray, grow: np.ndarray, resp: np.ndarray, after: np.ndarray,
    sets: list[np.ndarray],
) -> np.ndarray:  # fmt: skip
    """Entropy lost in one piece of a tile, times weights, ``(M,)`` nats: its steps, and the pairs that these begin.

    Parameters
    ----------
    rows
        Rows of the piece.
    trans, filtered, grow
        Pair posteriors of the steps t and t + 1, times weights: ``filtered[t, k] trans[k, l] grow[t + 1, l]``.
    resp
        Responsibilities of its steps, without weights, ``(m, K)``.
    after
        Responsibilities of the step after the piece, ``(K,)``; ignored if the piece ends a sequence.
    sets
        Positions of states that become one.
    """
    out = np.zeros(len(sets))
    if len(sets):
        members = np.concatenate([np.asarray(s, np.int64) for s in sets])
        starts = np.concatenate([[0], np.cumsum([len(s) for s in sets])]).astype(np.int64)
        _losses(rows, trans, filtered, grow, resp, after, members, starts, out)
    return out


def merge_losses(chains: Chains, offsets: np.ndarray, weights: np.ndarray, sets: list[np.ndarray]) -> np.ndarray:
    """Entropy lost when the states of each set become one, times weights, ``(M,)`` nats, not negative.

    For a sequence that was done with logarithms it is a bound from above, from single steps:
    ``sum_t (H(r_t) - H(r_t merged))``.
    """
    rows = Rows.of(offsets, weights)
    alone = np.repeat(~chains.scaled, np.diff(offsets))
    rows.begins[alone] = rows.ends[alone] = True
    after = np.zeros(chains.resp.shape[1])
    return piece_losses(rows, chains.trans, chains.filtered, chains.grow, chains.resp, after, sets)


# =====================================================================================================================
# Optimum of the HDP-HMM's top level, compiled: it scores many merges in every lap.
#
# A quasi-Newton method with limited memory (L-BFGS) on ``log a, log b (2K,)``; see ``allocation/hdp_hmm.py`` for
# the objective, and ``tests/chains/top_level.py`` for its twin in NumPy.
# =====================================================================================================================

LARGEST_LOG = 40.0
"""Bound of the logs of a and b."""

ENOUGH = 1e-9
"""Largest slope, per stick, at which the climb ends."""

LEVEL = 200
"""Successive steps without a rise in double precision, after which the history of slopes is cleared; after as many
again the climb ends.  Chosen on the climbs of one chain with 50 states: of 14, 13 took 53 to 116 steps in all, and one
3,000 on the spot."""


@njit(nogil=True, cache=True, error_model="numpy")
def value_and_slope(point, counts, alphas, ones, zeros, tilt, slope):
    """Objective at ``log a, log b`` and its gradient into ``slope (2K,)``.

    ``counts (K + 1, K + 1)`` are transitions from the start and from each state, with the sticky pseudo-counts, the
    last place for unused states; ``alphas (K + 1,)`` the concentration of each row.
    """
    k = len(ones)
    shares, rest = np.empty(k + 1), np.empty(k)
    left = 1.0
    for i in range(k):
        a, b = math.exp(point[i]), math.exp(point[k + i])
        shares[i] = left * a / (a + b)
        rest[i] = b / (a + b)
        left *= rest[i]
    shares[k] = left
    theta = np.empty((k + 1) * (k + 1) + 3 * k)
    for j in range(k + 1):
        for i in range(k + 1):
            theta[j * (k + 1) + i] = max(counts[j, i] + alphas[j] * shares[i], 1e-300)
    sticks = (k + 1) * (k + 1)
    for i in range(k):
        a, b = math.exp(point[i]), math.exp(point[k + i])
        theta[sticks + i], theta[sticks + k + i], theta[sticks + 2 * k + i] = a, b, a + b
    psi, gamma = np.empty(len(theta)), np.empty(len(theta))
    _psi_gamma(theta, psi, gamma)
    value = 0.0
    terms = np.zeros(k + 1)
    for j in range(k + 1):
        for i in range(k + 1):
            value += gamma[j * (k + 1) + i]
            terms[i] += alphas[j] * psi[j * (k + 1) + i]
    for i in range(k + 1):
        if i < k:
            terms[i] += tilt
            value += tilt * shares[i]
        terms[i] *= shares[i]
    after = 0.0
    for i in range(k - 1, -1, -1):
        after += terms[i + 1]
        a, b = theta[sticks + i], theta[sticks + k + i]
        pa, pb, pw = psi[sticks + i], psi[sticks + k + i], psi[sticks + 2 * k + i]
        value += gamma[sticks + i] + gamma[sticks + k + i] - gamma[sticks + 2 * k + i]
        value += (ones[i] - a) * (pa - pw) + (zeros[i] - b) * (pb - pw)
        shared = (ones[i] + zeros[i] - a - b) * trigamma(a + b)
        logit = terms[i] * rest[i] - after * (1.0 - rest[i])
        slope[i] = a * ((ones[i] - a) * trigamma(a) - shared) + logit
        slope[k + i] = b * ((zeros[i] - b) * trigamma(b) - shared) - logit
    return value


@njit(nogil=True, cache=True, error_model="numpy")
def climb(point, counts, alphas, ones, zeros, tilt, most):
    """Maximise from ``point``, which is overwritten; at most ``most`` steps.  The number of steps taken."""
    size = len(point)
    slope, new_slope, way, new = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    # turns are minus the change of slope, so that their products with uphill steps are positive
    steps, turns = np.empty((MEMORY, size)), np.empty((MEMORY, size))
    used = level = 0
    value = value_and_slope(point, counts, alphas, ones, zeros, tilt, slope)
    enough = ENOUGH * (len(ones) + 1.0)
    for taken in range(most):
        if np.abs(slope).max() < enough:
            return taken
        direction(slope, steps, turns, used, way)
        rise = dot(way, slope)
        if not rise > 0.0:
            used = 0
            length = math.sqrt(dot(slope, slope)) + 1.0
            for i in range(size):
                way[i] = slope[i] / length
            rise = dot(way, slope)
        length = min(1.0, 5.0 / (np.abs(way).max() + 1e-300))
        better = False
        for _ in range(40):
            for i in range(size):
                new[i] = min(max(point[i] + length * way[i], -LARGEST_LOG), LARGEST_LOG)
            found = value_and_slope(new, counts, alphas, ones, zeros, tilt, new_slope)
            if found >= value + 1e-4 * length * rise or (
                found >= value - 1e-13 * abs(value) and np.abs(new_slope).max() < np.abs(slope).max()
            ):
                better = True
                break
            # the top of the parabola through both values, within bounds
            top = 0.5 * length * length * rise / (value + length * rise - found)
            length = min(max(top, 0.1 * length), 0.5 * length) if top == top else 0.1 * length
        if not better:
            if used == 0:
                return taken
            used = 0  # once more without the history
            continue
        curve = 0.0
        for i in range(size):
            steps[used % MEMORY, i] = new[i] - point[i]
            turns[used % MEMORY, i] = slope[i] - new_slope[i]
            curve += steps[used % MEMORY, i] * turns[used % MEMORY, i]
        if curve > 1e-14 * dot(turns[used % MEMORY], turns[used % MEMORY]):
            used += 1
        level = 0 if found > value + 1e-13 * abs(value) else level + 1
        copy_into(point, new)
        copy_into(slope, new_slope)
        value = found
        if level == LEVEL:
            used = 0
        elif level >= 2 * LEVEL:
            return taken + 1
    return most
