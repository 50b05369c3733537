"""Forward-backward for hidden Markov chains: posteriors of the state at each step, and expected transitions.

Probabilities are scaled, not logarithms: one vector-matrix product per step and direction, and no exponentials except
for the likelihoods.  Sums over pairs of steps come from the stored results of both directions, because the pair
posterior is ``s_t[k, l] = alpha_t[k] A[k, l] grow_{t+1}[l]``.  The entropy needs no pairs: it is the log normaliser
minus expectations of the terms of the posterior.  States with no probability at a step contribute nothing to its
backward message (:func:`back`).  A sequence whose likelihoods double precision cannot scale
(at some step, every state reached so far makes the data impossible) is done again with logarithms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.mixture.softmax import TINY, exp_block
from bnp_dask.kernels.numeric.arithmetic import exp, matmul
from bnp_dask.kernels.numeric.simd import aligned, aligned_zeros, fill, fused, load, padded, store, total, where_above
from bnp_dask.kernels.options import njit

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
    :data:`~bnp_dask.kernels.hmm.forward_backward.NOTHING` and ``TINY``.  So if the forward sweep did not fail, this one
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
    :mod:`~bnp_dask.kernels.hmm.forward_backward`.  The last state is drawn from them, and each state before it in
    proportion to ``filtered[t, k] trans[k, z_{t + 1}]``.

    Parameters
    ----------
    log_start, log_trans, log_lik, offsets
        As in :func:`~bnp_dask.kernels.hmm.forward_backward.forward_backward`.
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
