"""Redistributes the responsibilities of some states (donors) at each step of a sequence among others (receivers).

The donors are first taken as one state, the block; the posterior of being in the block, and of all states outside,
stays unchanged.  Inside, the new state is a chain: drawn from ``enter_t`` when the block is entered at step t, from
``follow_t[j]`` when the step before was in the block too, and leaving the block does not depend on it.  Since the
block is a function of the new states, these are a Markov chain again, with pair posteriors in closed form.  The best
chain of this kind is found by one backward sweep (the value of later steps) and one forward sweep.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.hmm.forward_backward import NEVER, Chains, _logarithmic
from bnp_dask.kernels.numeric.arithmetic import matmul
from bnp_dask.kernels.options import INNER, njit

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
