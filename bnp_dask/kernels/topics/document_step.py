"""Document step of topic models: topics of the tokens of each group (thesis 5.3.3-5.3.5).

A group (document) is a run of tokens.  A token names a row of a table of likelihoods, and counts ``weight`` times:
distinct words of a document with their counts, or single atoms with a row of their own.  The inner loops have no
exponential: the table is exponentiated once per batch, ``exp(E[log pi])`` once per sweep, and a sweep is two passes
over a small matrix that fits the cache.  Rows of topics that a document no longer uses are not read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from bnp_dask.kernels.mixture import TINY, exp_block
from bnp_dask.kernels.numeric.simd import fill, fused, load, store, total
from bnp_dask.kernels.numeric.special import exp_psi, log_positive, psi_gamma_block, psi_one
from bnp_dask.kernels.options import INNER, copy_into, njit

# =====================================================================================================================
# Pull of observed responses on the topics of a document, within its coordinate ascent; and sums over documents.
#
# Tokens of a document keep responsibilities in proportion to likelihood times a factor of each topic, which a response
# changes: so that all code beside the factors is as for documents without.
# =====================================================================================================================

FARTHEST = 60.0
"""Largest change of a topic's log factor by a response, nats, which keeps products of factors within normal numbers."""


@njit(**INNER)
def _slopes(topic, held, width, total, pull, d):
    """Put the slope of the term per token, for each of ``width`` topics, into ``pull.slope``; return its mean."""
    n, z, slope = max(total, 1.0), pull.share, pull.slope
    for k in range(width):
        z[k] = held[k] / total
    mean = 0.0
    for k in range(width):
        j = topic[k]
        value = 0.0
        for i in range(width):
            value += pull.second[j, topic[i]] * z[i]
        slope[k] = (pull.first[d, j] - (1.0 - 1.0 / n) * value - 0.5 / n * pull.second[j, j]) / total
        mean += z[k] * slope[k]
    return mean


@njit(**INNER)
def tilt(space, slot, width, pull, d, is_first):
    """Multiply the factors ``exp(E[log pi_dk])`` in ``slot`` by the pull of a response at the present counts.

    The term is concave in the shares z, and relative to their entropy its curvature is at most ``4 steep``.  So it is
    above its tangent at z0 minus ``steep KL(z, z0)``, and by convexity above the tangent minus ``steep / N`` times
    the sum of the tokens' divergences from their present responsibilities.  The maximum of this bound with the rest of
    the objective has log factors that go ``1 / (1 + steep / N)`` of the way: no sweep lowers the objective.  The first
    sweep goes all of it, since no factors are known yet.
    """
    if pull is None:
        return
    if not pull.on[d]:
        return
    topic, held, share = space.topic[slot], space.held[slot], space.share[slot]
    total = pull.size[d]
    mean = _slopes(topic, held, width, total, pull, d)
    part = 1.0 if is_first else 1.0 / (1.0 + pull.steep / total)
    for k in range(width):
        if not share[k] > 0.0:
            continue
        j = topic[k]
        new = math.log(share[k]) + min(max(pull.slope[k] - mean, -FARTHEST), FARTHEST)
        if not is_first:
            new = part * new + (1.0 - part) * pull.last[j]
        pull.last[j] = new
        share[k] = math.exp(new)


@njit(**INNER)
def pulled(space, slot, width, pull, d):
    """The term of a response at the counts in ``slot``, nats."""
    if pull is None:
        return 0.0
    if not pull.on[d]:
        return 0.0
    topic, held = space.topic[slot], space.held[slot]
    total = pull.size[d]
    n, value = max(total, 1.0), 0.0
    for k in range(width):
        j, z, inner = topic[k], held[k] / total, 0.0
        for i in range(width):
            inner += pull.second[j, topic[i]] * held[i] / total
        value += z * (pull.first[d, j] - 0.5 * (1.0 - 1.0 / n) * inner - 0.5 / n * pull.second[j, j])
    return value


@njit(nogil=True, cache=True)
def share_sums(offsets, position, count, length, times, target, out_zz, out_z):
    """Add ``E[z z^T]`` and ``target z`` of documents to ``out_zz (K, K)`` and ``out_z (K, R)``.

    Parameters
    ----------
    offsets, position, count
        Expected tokens of topics in documents, as in :class:`~bnp_dask.kernels.topics.document_step.Memory`.
    length, times
        Tokens of each document, and how often it counts, ``(G,)``; documents that count zero times are left out.
    target
        Factors of ``out_z``, ``(G, R)``.
    """
    for d in range(len(offsets) - 1):
        first, last = offsets[d], offsets[d + 1]
        if times[d] == 0.0 or not length[d] > 0.0:
            continue
        n = max(length[d], 1.0)
        for s in range(first, last):
            a, z = position[s], count[s] / length[d]
            out_zz[a, a] += times[d] * z / n
            factor = times[d] * (1.0 - 1.0 / n) * z
            for t in range(first, last):
                out_zz[a, position[t]] += factor * count[t] / length[d]
            for r in range(target.shape[1]):
                out_z[a, r] += times[d] * target[d, r] * z


@njit(nogil=True, cache=True)
def share_products(offsets, position, count, other_offsets, other_position, other_count, length, times, out):
    """Add ``E[z y^T]`` of the same documents' shares z and y of disjoint sets of topics to ``out (J, R)``.

    Arguments are as in :func:`share_sums`, of two sets.
    """
    for d in range(len(offsets) - 1):
        if times[d] == 0.0 or not length[d] > 0.0:
            continue
        factor = times[d] * (1.0 - 1.0 / max(length[d], 1.0)) / length[d] / length[d]
        for s in range(offsets[d], offsets[d + 1]):
            for t in range(other_offsets[d], other_offsets[d + 1]):
                out[position[s], other_position[t]] += factor * count[s] * other_count[t]


# -- inputs, results and scratch ----------------------------------------------------------------------------------
COLD, WARM = 1, 2
"""Ways to start a document, added up in :attr:`Rules.start`."""


class Rules(NamedTuple):
    """Settings of the document step; numbers only, so that compiled code can take them.

    ``tolerance`` is in tokens; ``restarts`` are trials of Alg. 5.2 with ``restart_sweeps`` each, on topics with
    more than ``restart_above`` tokens; ``top`` is L of Alg. 7.4, or None for all; ``start`` is COLD, WARM or both.
    """

    sweeps: int
    tolerance: float
    shrink: bool
    restarts: int
    restart_sweeps: int
    restart_above: float
    top: int | None
    start: int


class Groups(NamedTuple):
    """Tokens of G groups.

    ``offsets (G + 1,)`` int64 into ``row (T,)`` int64, ``weight (T,)`` and ``log_share (T,)`` (log of the share of
    the token that is assigned here: zero except in trials, then it may be empty); ``times (G,)`` the weight of each
    group; ``length (G,)`` the sum of theta over all topics, used and unused; ``table`` and ``log_table (R, K)``.
    """

    offsets: np.ndarray
    row: np.ndarray
    weight: np.ndarray
    log_share: np.ndarray
    times: np.ndarray
    length: np.ndarray
    table: np.ndarray
    log_table: np.ndarray


class Memory(NamedTuple):
    """Counts N_dk of earlier visits: ``offsets (G + 1,)``, positions of topics ``(S,)`` int64, ``counts (S,)``."""

    offsets: np.ndarray
    position: np.ndarray
    counts: np.ndarray


NO_MEMORY = Memory(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0))
"""Memory of groups without an earlier visit."""


class Pull(NamedTuple):
    """Term of the objective by which observed responses pull on the shares z_d = N_d / N_d. of topics in a group.

    It is ``first_d . z - ((1 - 1/n) z . second z + (1/n) diag(second) . z) / 2`` with ``n = max(N_d., 1)``: see
    :mod:`bnp_dask.allocation.response`.  ``first (G, K)``, ``second (K, K)``, positive semidefinite.  ``on (G,)`` bool
    says in which groups, and ``size (G,)`` are all tokens N_d. of a group, also tokens that are not assigned here.
    ``steep`` bounds the term's curvature: a quarter of the largest ``second_kk + second_ll - 2 second_kl``.  Scratch:
    ``last (K,)``, the log of the factors of topics in the last sweep,
    and ``share (K,)``, ``slope (K,)``.
    """

    first: np.ndarray
    second: np.ndarray
    on: np.ndarray
    size: np.ndarray
    steep: float
    last: np.ndarray
    share: np.ndarray
    slope: np.ndarray


class Found(NamedTuple):
    """Sums over groups, times their weights.

    ``sums (R, K)``: weight times responsibility by row of the table.  ``stats (4, K)`` for groups that use topic k:
    their number, sum of psi(theta), of log Gamma(theta), and the part of the entropy that is linear in N.
    ``pairs (4, M)``: statistics of unions, the last the entropy of the two minus the union's entropy.
    ``mass (T, J)``: weight times responsibility of each token in each of J sets of topics.
    """

    sums: np.ndarray
    stats: np.ndarray
    pairs: np.ndarray
    mass: np.ndarray


class Space(NamedTuple):
    """Scratch: likelihoods ``(topics, tokens)``, laid flat, and three states of a document (now, trial, warm).

    ``live`` are the rows of the likelihoods, ascending, of the topics in use; ``weight`` are the tokens' weights, and
    zeros up to the length of a row.
    """

    lik: np.ndarray
    live: np.ndarray
    weight: np.ndarray
    topic: np.ndarray
    prior: np.ndarray
    share: np.ndarray
    held: np.ndarray
    grow: np.ndarray
    total: np.ndarray
    ratio: np.ndarray
    logs: np.ndarray
    log_bits: np.ndarray
    bits: np.ndarray
    power: np.ndarray
    work: np.ndarray
    work_bits: np.ndarray


@njit(**INNER)
def matrix_of(space, width, n):
    """The likelihoods of ``n`` tokens under ``width`` topics."""
    long = padded(n)
    return space.lik[: width * long].reshape((width, long))


@njit(**INNER)
def space_for(longest, n_topics):
    long = padded(longest)
    bits, ratio, work = np.empty(n_topics, np.int64), np.empty(long), np.empty((7, n_topics))
    return Space(
        np.empty(long * n_topics), np.empty(n_topics, np.int64), np.empty(long), np.empty((3, n_topics), np.int64),
        np.empty((3, n_topics)), np.empty((3, n_topics)), np.empty((3, n_topics)), np.empty(n_topics), np.empty(long),
        ratio, np.empty(long), ratio.view(np.int64), bits, bits.view(np.float64), work, work.view(np.int64),
    )  # fmt: skip


# -- the table of likelihoods that the documents of a batch share -------------------------------------------------
@njit(nogil=True, cache=True)
def _less_the_top(row, lowest):
    # row minus its maximum, cut below; NaN stays
    t0 = t1 = t2 = t3 = -np.inf
    n = len(row)
    for k in range(0, n - n % 4, 4):
        t0 = row[k] if row[k] > t0 else t0
        t1 = row[k + 1] if row[k + 1] > t1 else t1
        t2 = row[k + 2] if row[k + 2] > t2 else t2
        t3 = row[k + 3] if row[k + 3] > t3 else t3
    for k in range(n - n % 4, n):
        t0 = row[k] if row[k] > t0 else t0
    top = max(max(t0, t1), max(t2, t3))
    for k in range(n):
        d = row[k] - top
        row[k] = lowest if d < lowest else d


@njit(nogil=True, cache=True)
def table_of(log_lik, lowest, table):
    """``exp(log_lik)`` by rows ``(R, K)``, each up to a factor of its own, in ``table``.

    ``log_lik`` is adjusted: its rows get a maximum of zero, and numbers below ``lowest`` (nats, above -700, so that
    all are normal numbers) are cut there.
    """
    power = np.empty(log_lik.shape[1])
    for i in range(len(log_lik)):
        _less_the_top(log_lik[i], lowest)
        exp_block(log_lik[i], lowest, power, table[i])


# -- sums over a document, given the topics of its tokens ---------------------------------------------------------
@njit(nogil=True, cache=True, error_model="numpy")
def assign(lik, live, width, share, weight, log_share, totals, work, bits, logs, count, linear):
    """Final responsibilities times weights of one document, in ``lik``; sets ``count`` and the entropy's part.

    Rows of the ``width`` topics, ``live`` in ascending order, move to the front.  ``weight`` is zero in the padding of
    a row.  ``totals (n,)``, ``work (n,)`` with its integer view ``bits``, and ``logs (n,)`` are scratch.
    """
    n = lik.shape[1]
    for i in range(n):
        totals[i] = 0.0
    for k in range(width):
        row, to, e = lik[live[k]], lik[k], share[k]
        for i in range(n):
            r = row[i] * e
            to[i] = r
            totals[i] += r
    for i in range(n):
        work[i] = totals[i]
        totals[i] = 1.0 / totals[i]
    log_positive(work, bits, n, logs)
    for i in range(len(log_share)):
        logs[i] -= log_share[i]
    for k in range(width):
        row = lik[k]
        for i in range(n):
            r = row[i] * totals[i]
            row[i] = 0.0 if r < TINY else r * weight[i]
        held = part = fill(0.0)
        for i in range(0, n, 8):
            r = load(row, i)
            held, part = held + r, fused(r, load(logs, i), part)
        count[k], linear[k] = total(held), total(part)


@njit(nogil=True, cache=True)
def spread(lik, times, rows, index, sums):
    """Add the final responsibilities of one document to the rows of its tokens, a cache line of tokens at a time.

    ``sums (R, K)``: topic k of ``lik (topics, tokens or more)`` is column ``index[k]``.
    """
    width, n = lik.shape[0], len(rows)
    for i in range(0, n - n % 8, 8):
        a, b, c, d = sums[rows[i]], sums[rows[i + 1]], sums[rows[i + 2]], sums[rows[i + 3]]
        e, f, g, h = sums[rows[i + 4]], sums[rows[i + 5]], sums[rows[i + 6]], sums[rows[i + 7]]
        for k in range(width):
            r, j = lik[k, i : i + 8], index[k]
            a[j] += times * r[0]
            b[j] += times * r[1]
            c[j] += times * r[2]
            d[j] += times * r[3]
            e[j] += times * r[4]
            f[j] += times * r[5]
            g[j] += times * r[6]
            h[j] += times * r[7]
    for i in range(n - n % 8, n):
        a = sums[rows[i]]
        for k in range(width):
            a[index[k]] += times * lik[k, i]


@njit(nogil=True, cache=True)
def pair_sums(pairs, place, lik, prior, count, times, out):
    """Adds one document's share of each pair's statistics; ``place`` is -1 for topics that it does not use."""
    n = lik.shape[1]
    for m in range(len(pairs)):
        a, b = place[pairs[m, 0]], place[pairs[m, 1]]
        if a < 0 and b < 0:
            continue
        both = (count[a] if a >= 0 else 0.0) + (count[b] if b >= 0 else 0.0)
        theta = both + (prior[pairs[m, 0]] + prior[pairs[m, 1]])
        out[0, m] += times
        out[1, m] += times * psi_one(theta)
        out[2, m] += times * math.lgamma(theta)
        if a < 0 or b < 0:
            continue
        lost = 0.0
        for i in range(n):
            ra, rb = lik[a, i], lik[b, i]
            if ra > 0.0 and rb > 0.0:
                lost += ra * math.log1p(rb / ra) + rb * math.log1p(ra / rb)
        out[3, m] += times * lost


@njit(nogil=True, cache=True)
def group_stats(index, prior, share, counts, linear, width, times, work, bits, psi, gamma, stats):
    """Adds one document's share of the statistics of each topic that it uses.

    ``work (5, K)``, ``bits``, the integer view of its first two rows, ``psi (K,)`` and ``gamma (K,)`` are scratch.
    """
    for k in range(width):
        work[2, k] = counts[k] + prior[k]
    psi_gamma_block(work[2], width, work[0], bits[0], work[1], bits[1], work[3], work[4], psi, gamma)
    for k in range(width):
        work[0, k] = share[k]
    log_positive(work[0], bits[0], width, work[3])
    for k in range(width):
        count = counts[k]
        if count == 0.0:
            continue
        j = index[k]
        stats[0, j] += times
        stats[1, j] += times * psi[k]
        stats[2, j] += times * gamma[k]
        stats[3, j] += times * (linear[k] - count * work[3, k])


# -- one sweep over tokens that keep L topics each (thesis 7.3.2, Alg. 7.2, 7.4) ----------------------------------
# In ties the first topic is kept.  Sums are taken in the order of tokens on every processor.
BLOCK = 8
"""Tokens whose products are laid out together: a cache line of each topic's likelihoods."""


@njit(nogil=True, cache=True)
def _products(lik, live, width, share, first, n, out):
    """Put ``lik_ki share_k`` of up to BLOCK tokens from ``first`` on in the rows of ``out (BLOCK, K)``."""
    last = min(first + BLOCK, n)
    for k in range(width):
        row, e = lik[live[k]], share[k]
        for i in range(first, last):
            out[i - first, k] = row[i] * e


@njit(nogil=True, cache=True)
def _choose(product, width, value, place):
    """Put the L largest of a token's products in ``value``, falling, and their topics in ``place``; L < width."""
    top, filled = len(value), 0
    for k in range(width):
        new = product[k]
        if filled == top and not new > value[top - 1]:
            continue
        filled = min(filled + 1, top)
        j = filled - 1
        while j > 0 and value[j - 1] < new:
            value[j], place[j] = value[j - 1], place[j - 1]
            j -= 1
        value[j], place[j] = new, k


@njit(nogil=True, cache=True, error_model="numpy")
def top_sweep(lik, live, width, share, weight, chosen, total, grow):
    """total_i = sum over the L best k of lik_ki share_k, and grow_k = sum over their i of weight_i lik_ki / total_i.

    The arguments are as in :func:`bnp_dask.kernels.topics.document_step.sweep`; ``chosen (n, L)`` is set to the topics
    of each token.
    """
    n, top = chosen.shape
    value, product = np.empty(top), np.empty((BLOCK, width))
    for i in range(n):
        if i % BLOCK == 0:
            _products(lik, live, width, share, i, n, product)
        _choose(product[i % BLOCK], width, value, chosen[i])
    same_sweep(lik, live, width, share, weight, chosen, total, grow)


@njit(nogil=True, cache=True, error_model="numpy")
def same_sweep(lik, live, width, share, weight, chosen, total, grow):
    """:func:`top_sweep` among the topics that an earlier one chose."""
    n, top = chosen.shape
    grow[:width] = 0.0
    for i in range(n):
        place = chosen[i]
        held = 0.0
        for j in range(top):
            held += lik[live[place[j]], i] * share[place[j]]
        total[i], ratio = held, weight[i] / held
        for j in range(top):
            grow[place[j]] += lik[live[place[j]], i] * ratio


@njit(nogil=True, cache=True)
def keep_top(lik, live, width, chosen):
    """Set the likelihoods of each token to zero under all topics except the chosen ones."""
    n, top = chosen.shape
    kept = np.empty((n, top))
    for i in range(n):
        for j in range(top):
            kept[i, j] = lik[live[chosen[i, j]], i]
    for k in range(width):
        lik[live[k], :n] = 0.0
    for i in range(n):
        for j in range(top):
            lik[live[chosen[i, j]], i] = kept[i, j]


def places_for(n, rules):
    """Places for the topics that ``n`` tokens keep, ``(n, L)``; None if they keep all."""
    raise NotImplementedError("compiled code only")


@overload(places_for, inline="always")
def _places_for(n, rules):
    # by the type of ``top``: code that tokens with all topics never run is not compiled
    if isinstance(rules[rules.fields.index("top")], types.NoneType):
        return lambda n, rules: None
    return lambda n, rules: np.empty((n, rules.top), np.int32)


# -- one sweep over the tokens of a document ----------------------------------------------------------------------
# Likelihoods of a document are a contiguous matrix ``(topics, tokens)``: tokens are the long axis of nearly every
# document once its unused topics are dropped; their rows are then not read.  Rows are padded with tokens of weight zero
# whose likelihoods are one: their totals are at least as large as the totals of other tokens.
#
# Every sum has an order that is written out.  An order left to the compiler depends on the width of the processor's
# vectors and on the code optimised together with a kernel: a process that compiles then has other last bits than one
# that loads compiled code.  Explicit vectors take as long (KOS, 20 and 100 topics: .94 and 1.03 of the time).
LANES = 16
"""Multiple to which tokens of a document are padded: vector code would process the remainder one by one."""


@njit(nogil=True, cache=True)
def padded(n):
    """Places for ``n`` tokens in a row of a document's matrix."""
    return (n + LANES - 1) // LANES * LANES


@njit(nogil=True, cache=True, error_model="numpy")
def sweep(lik, live, width, share, weight, totals, ratio, grow):
    """total_i = sum_k lik_ki share_k, and grow_k = sum_i weight_i lik_ki / total_i: N_k is share_k grow_k.

    Topic k of the ``width`` topics has row ``live[k]`` of ``lik (topics, n)``; ``weight``, ``totals`` and ``ratio`` are
    at least as long as its rows.
    """
    n = lik.shape[1]
    pairs, fours = width - width % 2, width - width % 4
    for i in range(0, n, 16):
        a = b = c = d = fill(0.0)
        for k in range(0, pairs, 2):  # topics with even and odd numbers apart: each sum waits for itself
            x, y, first, second = fill(share[k]), fill(share[k + 1]), lik[live[k]], lik[live[k + 1]]
            a, b = fused(x, load(first, i), a), fused(x, load(first, i + 8), b)
            c, d = fused(y, load(second, i), c), fused(y, load(second, i + 8), d)
        if pairs < width:
            x, first = fill(share[pairs]), lik[live[pairs]]
            a, b = fused(x, load(first, i), a), fused(x, load(first, i + 8), b)
        store(totals, i, a + c)
        store(totals, i + 8, b + d)
    for i in range(n):
        ratio[i] = weight[i] / totals[i]
    for k in range(0, fours, 4):
        one, two, three, four = lik[live[k]], lik[live[k + 1]], lik[live[k + 2]], lik[live[k + 3]]
        a = b = c = d = fill(0.0)
        for i in range(0, n, 8):
            r = load(ratio, i)
            a, b = fused(load(one, i), r, a), fused(load(two, i), r, b)
            c, d = fused(load(three, i), r, c), fused(load(four, i), r, d)
        grow[k], grow[k + 1], grow[k + 2], grow[k + 3] = total(a), total(b), total(c), total(d)
    for k in range(fours, width):
        grow[k] = _product(lik[live[k]], ratio, n)


@njit(**INNER, error_model="numpy")
def _product(x, y, n):
    # n is a multiple of eight
    held = fill(0.0)
    for i in range(0, n, 8):
        held = fused(load(x, i), load(y, i), held)
    return total(held)


@njit(nogil=True, cache=True, error_model="numpy")
def row_totals(table, share):
    """Totals of a first sweep from shares common to all documents: sum_k table_rk share_k, ``(R,)``."""
    out = np.empty(len(table))
    whole = len(share) - len(share) % 8
    for r in range(len(table)):
        row = table[r]
        value = _product(row, share, whole)
        for k in range(whole, len(share)):
            value += row[k] * share[k]
        out[r] = value
    return out


@njit(nogil=True, cache=True)
def gather_all(table, rows, lik, ratio, grow):
    """Likelihoods ``(K, n)`` of some rows of the table ``(R, K)`` under all topics; the padding of a row is one.

    They are read from distant memory, so half of the first sweep is done meanwhile: ``grow_k = sum_i ratio_i lik_ki``.
    """
    width, n = lik.shape[0], len(rows)
    grow[:width] = 0.0
    for i in range(0, n - n % 8, 8):  # a cache line of the result at a time
        a, b, c, d = table[rows[i]], table[rows[i + 1]], table[rows[i + 2]], table[rows[i + 3]]
        e, f, g, h = table[rows[i + 4]], table[rows[i + 5]], table[rows[i + 6]], table[rows[i + 7]]
        ra, rb, rc, rd = ratio[i], ratio[i + 1], ratio[i + 2], ratio[i + 3]
        re, rf, rg, rh = ratio[i + 4], ratio[i + 5], ratio[i + 6], ratio[i + 7]
        for k in range(width):
            to = lik[k, i : i + 8]
            va, vb, vc, vd, ve, vf, vg, vh = a[k], b[k], c[k], d[k], e[k], f[k], g[k], h[k]
            to[0], to[1], to[2], to[3], to[4], to[5], to[6], to[7] = va, vb, vc, vd, ve, vf, vg, vh
            left = (ra * va + rb * vb) + (rc * vc + rd * vd)
            grow[k] += left + ((re * ve + rf * vf) + (rg * vg + rh * vh))
    for i in range(n - n % 8, n):
        a, ra = table[rows[i]], ratio[i]
        for k in range(width):
            lik[k, i] = a[k]
            grow[k] += ra * a[k]
    lik[:, n:] = 1.0


@njit(nogil=True, cache=True)
def gather_some(table, rows, index, lik):
    """Likelihoods of a document under some topics: row k is topic ``index[k]``."""
    width, n = lik.shape[0], len(rows)
    for i in range(0, n - n % 8, 8):
        a, b, c, d = table[rows[i]], table[rows[i + 1]], table[rows[i + 2]], table[rows[i + 3]]
        e, f, g, h = table[rows[i + 4]], table[rows[i + 5]], table[rows[i + 6]], table[rows[i + 7]]
        for k in range(width):
            to, j = lik[k, i : i + 8], index[k]
            va, vb, vc, vd, ve, vf, vg, vh = a[j], b[j], c[j], d[j], e[j], f[j], g[j], h[j]
            to[0], to[1], to[2], to[3], to[4], to[5], to[6], to[7] = va, vb, vc, vd, ve, vf, vg, vh
    for i in range(n - n % 8, n):
        a = table[rows[i]]
        for k in range(width):
            lik[k, i] = a[index[k]]
    lik[:, n:] = 1.0


# -- collapsed Gibbs sampling of the topics of tokens -------------------------------------------------------------
@njit(**INNER)
def _one_sweep(row, table, prior, stays, uniform, topic, held, reached):
    """Draw the topic of each token of a document once; ``held (K,)`` are its tokens by topic, kept up to date."""
    n_topics = len(prior)
    for t in range(len(row)):
        if stays[t]:
            continue
        if topic[t] >= 0:
            held[topic[t]] -= 1.0
        total = 0.0
        for k in range(n_topics):
            total += (held[k] + prior[k]) * table[row[t], k]
            reached[k] = total
        level, chosen = uniform[t] * total, n_topics - 1
        for k in range(n_topics):
            if reached[k] > level:
                chosen = k
                break
        topic[t] = chosen
        held[chosen] += 1.0


@njit(nogil=True, cache=True)
def sweep_documents(offsets, row, table, prior, stays, uniform, topic):
    """Draw the topic of each token once, given all other tokens of its document.

    Parameters
    ----------
    offsets
        Tokens of each document, ``(G + 1,)``.
    row, table, prior
        As in :func:`sample_document`; columns of ``table`` may have any positive factors.
    stays
        Whether a token keeps its topic, ``(T,)``.
    uniform
        Numbers in [0, 1), ``(T,)``.
    topic
        Topic of each token, ``(T,)``; overwritten.  -1: it has none yet, and does not count.
    """
    held, reached = np.empty(len(prior)), np.empty(len(prior))
    for d in range(len(offsets) - 1):
        first, last = offsets[d], offsets[d + 1]
        held[:] = 0.0
        for t in range(first, last):
            if topic[t] >= 0:
                held[topic[t]] += 1.0
        _one_sweep(
            row[first:last], table, prior, stays[first:last], uniform[first:last], topic[first:last], held, reached
        )


@njit(nogil=True, cache=True)
def sample_document(row, table, prior, uniform, out):
    """Draw the topic of each token given the topics of all others, sweep by sweep.

    Parameters
    ----------
    row
        Row of each token's word in ``table``, ``(T,)``.
    table
        Probability of words in topics, ``(R, K)``.
    prior
        Mass of each topic before any token, ``(K,)``.
    uniform
        Numbers in [0, 1), ``(sweeps, T)``; in the first sweep tokens are seated given the tokens before them.
    out
        Filled with the tokens of each topic after each of the last sweeps, ``(samples, K)``.
    """
    held, reached = np.zeros(len(prior)), np.empty(len(prior))
    topic, stays = np.full(len(row), -1), np.zeros(len(row), np.bool_)
    first = len(uniform) - len(out)
    for sweep in range(len(uniform)):
        _one_sweep(row, table, prior, stays, uniform[sweep], topic, held, reached)
        if sweep >= first:
            out[sweep - first] = held


# -- the step -----------------------------------------------------------------------------------------------------
NOTHING = 1e-14
"""Expected tokens of a document below which a topic is dropped: exp(psi) falls by more at each further sweep."""

ALWAYS, SELDOM = 5, 10
"""Sweeps in which tokens that keep L topics choose them: the first ALWAYS, then one of SELDOM (thesis 7.3.2)."""

FEW = 0.04
"""Share of a document's topics that may be empty before they are dropped."""


@njit(**INNER)
def _drop_dead(space, slot, width):
    """Drop empty topics, in order, once there are enough of them; return the new width."""
    index, prior, live = space.topic[slot], space.prior[slot], space.live
    share, count, grow = space.share[slot], space.held[slot], space.grow
    dead = 0
    for k in range(width):
        dead += share[k] * grow[k] < NOTHING  # NaN stays
    if dead <= FEW * width or dead == width:
        return width
    kept = 0
    for k in range(width):
        index[kept], prior[kept], live[kept] = index[k], prior[k], live[k]
        share[kept], count[kept] = share[k], count[k]
        kept += not share[k] * grow[k] < NOTHING
    return kept


@njit(inline="always")
def _sweep(space, lik, width, share):
    sweep(lik, space.live, width, share, space.weight, space.total, space.ratio, space.grow)


@njit(**INNER)
def _pass(space, slot, lik, width, chosen, choose):
    """One sweep with the shares in ``slot``; tokens keep L topics, ``chosen (n, L)``, or all if None or L too many."""
    share = space.share[slot]
    if chosen is None:  # the code below is then not compiled
        _sweep(space, lik, width, share)
        return
    if chosen.shape[1] >= width:
        _sweep(space, lik, width, share)
    elif choose:
        top_sweep(lik, space.live, width, share, space.weight, chosen, space.total, space.grow)
    else:
        same_sweep(lik, space.live, width, share, space.weight, chosen, space.total, space.grow)


@njit(**INNER)
def _climb(space, slot, lik, width, chosen, sweeps, tolerance, shrink, pull, d, is_new):
    """Coordinate ascent from the counts in ``slot`` (Alg. 5.1 lines 6-14, Alg. 7.4); returns the number of topics left.

    ``shrink`` must be false unless ``space.grow`` belongs to these counts.  Tokens choose their topics again whenever
    one was dropped, and in the last sweep.
    """
    share, count, grow = space.share[slot], space.held[slot], space.grow
    is_last = False
    for s in range(sweeps):
        before = width
        exp_psi(count, space.prior[slot], width, share, space.bits, space.power)
        tilt(space, slot, width, pull, d, s == 0 and is_new)
        if shrink:
            width = _drop_dead(space, slot, width)
        choose = is_last or s < ALWAYS or s % SELDOM == 0 or width < before or s == sweeps - 1
        _pass(space, slot, lik, width, chosen, choose)
        moving = 0
        for k in range(width):
            new = share[k] * grow[k]
            moving += abs(new - count[k]) >= tolerance
            count[k] = new
        is_last = not moving
        if chosen is None:
            choose = True
        if is_last and choose:
            break
    return width


@njit(**INNER)
def _objective(space, slot, weight, width, pull, d):
    """The document's own part of the objective (5.40), up to a constant; needs the totals of the last pass."""
    n = len(weight)
    for i in range(n):
        space.ratio[i] = space.total[i]
    log_positive(space.ratio, space.log_bits, n, space.logs)
    value = 0.0
    for i in range(n):
        value += weight[i] * space.logs[i]
    share, count, prior = space.share[slot], space.held[slot], space.prior[slot]
    for k in range(width):
        if count[k] > 0.0:
            value -= count[k] * math.log(share[k])
            value += math.lgamma(count[k] + prior[k]) - math.lgamma(prior[k])
    return value + pulled(space, slot, width, pull, d)


@njit(**INNER)
def _copy_slot(topic, prior, share, held, source, target, width):
    for k in range(width):
        topic[target, k] = topic[source, k]
        prior[target, k] = prior[source, k]
        share[target, k] = share[source, k]
        held[target, k] = held[source, k]


@njit(inline="always")
def _copy_state(space, source, target, width):
    # calls that pass the whole scratch take seconds to compile
    _copy_slot(space.topic, space.prior, space.share, space.held, source, target, width)


@njit(**INNER)
def _restart(space, lik, weight, width, chosen, rules, pull, d):
    """Sparsity-promoting restarts (Alg. 5.2) of the state in slot 0, smallest topics first."""
    count = space.held[0]
    used = 0
    for k in range(width):
        used += count[k] > rules.restart_above
    if used < 2:
        return
    trials = min(rules.restarts, used - 1)
    order = np.argsort(count[:width])
    best = _objective(space, 0, weight, width, pull, d)
    for place in range(width - used, width - used + trials):
        if used < 2:
            break
        _copy_state(space, 0, 1, width)
        space.held[1, order[place]] = 0.0
        _climb(space, 1, lik, width, chosen, rules.restart_sweeps, -1.0, False, pull, d, True)
        value = _objective(space, 1, weight, width, pull, d)
        if value > best:
            _copy_state(space, 1, 0, width)
            best = value
            used -= 1


@njit(**INNER)
def _keep_top(space, lik, width, chosen):
    """Keep only the best topics of each token of the state in slot 0, and sum over these."""
    if chosen is None:
        return
    if chosen.shape[1] >= width:
        return
    _pass(space, 0, lik, width, chosen, True)
    keep_top(lik, space.live, width, chosen)
    _sweep(space, lik, width, space.share[0])
    for k in range(width):
        space.held[0, k] = space.share[0, k] * space.grow[k]


@njit(**INNER)
def _lay_some(space, groups, rows, width):
    """The matrix of a document under the topics of slot 0."""
    lik = matrix_of(space, width, len(rows))
    gather_some(groups.table, rows, space.topic[0], lik)
    for k in range(width):
        space.live[k] = k
    return lik


@njit(**INNER, error_model="numpy")
def _lay_all(space, groups, rows, prior, begin, begin_total):
    """Matrix of a document under all topics; slot 0 gets the topics with their counts at the first shares."""
    n_topics = len(prior)
    lik = matrix_of(space, n_topics, len(rows))
    for i in range(len(rows)):
        space.ratio[i] = space.weight[i] / begin_total[rows[i]]
    gather_all(groups.table, rows, lik, space.ratio, space.grow)
    for k in range(n_topics):
        space.live[k] = k
        space.topic[0, k], space.prior[0, k] = k, prior[k]
        space.held[0, k] = begin[k] * space.grow[k]
    return lik


@njit(**INNER)
def _begin_top(space, lik, begin, chosen):
    """The first counts of a document whose tokens keep L topics each (Alg. 7.4 lines 2-6)."""
    if chosen is None:
        return
    width = len(begin)
    for k in range(width):
        space.share[0, k] = begin[k]
    _pass(space, 0, lik, width, chosen, True)
    for k in range(width):
        space.held[0, k] = begin[k] * space.grow[k]


@njit(**INNER)
def _remember(space, prior, memory, d):
    """Put the remembered counts of a document in slot 0; return the number of its topics."""
    known = 0
    for s in range(memory.offsets[d], memory.offsets[d + 1]):
        k = memory.position[s]
        if k >= 0:
            space.topic[0, known], space.prior[0, known] = k, prior[k]
            space.held[0, known] = memory.counts[s]
            known += 1
    return known


@njit(**INNER)
def _solve(space, groups, rules, prior, begin, begin_total, memory, pull, d):
    """Find the responsibilities of one document, with its state in slot 0; return its matrix and number of topics."""
    first, last = groups.offsets[d], groups.offsets[d + 1]
    rows, weight = groups.row[first:last], groups.weight[first:last]
    n = last - first
    copy_into(space.weight, weight)
    space.weight[n : padded(n)] = 0.0
    lik, chosen = matrix_of(space, 0, n), places_for(n, rules)
    best = -np.inf
    both = False
    width = known = _remember(space, prior, memory, d) if rules.start & WARM else 0
    if known > 0:
        lik = _lay_some(space, groups, rows, known)
        width = _climb(space, 0, lik, known, chosen, 1, -1.0, False, pull, d, True)
        width = _climb(space, 0, lik, width, chosen, rules.sweeps - 1, rules.tolerance, rules.shrink, pull, d, False)
        both = (rules.start & COLD) != 0
        if both:
            best = _objective(space, 0, weight, width, pull, d)
            _copy_state(space, 0, 2, width)
            known = width
    if known == 0 or both:
        lik = _lay_all(space, groups, rows, prior, begin, begin_total)
        _begin_top(space, lik, begin, chosen)
        width = _climb(space, 0, lik, len(prior), chosen, rules.sweeps, rules.tolerance, rules.shrink, pull, d, True)
        if both and not _objective(space, 0, weight, width, pull, d) > best:
            width = known
            _copy_state(space, 2, 0, width)
            lik = _lay_some(space, groups, rows, width)
            _pass(space, 0, lik, width, chosen, True)
    if rules.restarts > 0:
        _restart(space, lik, weight, width, chosen, rules, pull, d)
    _keep_top(space, lik, width, chosen)
    return lik, width


@njit(**INNER)
def _grown(array, size):
    out = np.empty(max(size, 2 * len(array)), array.dtype)
    copy_into(out, array)
    return out


@njit(**INNER)
def _longest(offsets):
    most = 0
    for d in range(len(offsets) - 1):
        most = max(most, offsets[d + 1] - offsets[d])
    return most


@njit(nogil=True, cache=True)
def fit_groups(groups, rules, prior, begin, memory, pairs, members, keep, found, pull):
    """The document step on all groups.

    Parameters
    ----------
    groups, rules, memory
        See :class:`Groups`, :class:`Rules`, :class:`Memory`; ``memory`` is read only for warm starts.
    prior, begin
        ``alpha pi_k``, and the shares that a cold start uses in place of ``exp(E[log pi_dk])``, ``(K,)``.
    pairs
        Positions of tracked pairs, ``(M, 2)``.
    members
        Whether each topic belongs to each of J sets, ``(J, K)`` bool.
    keep
        Whether to return the counts of each group.
    found
        Sums to add to, zeros at first.
    pull
        See :class:`Pull`; None without responses.

    Returns
    -------
    offsets, position, count
        Counts N_dk > 0 of each group, as in :class:`Memory`; empty unless ``keep``.
    """
    n_groups, n_topics = len(groups.offsets) - 1, len(prior)
    space = space_for(_longest(groups.offsets), n_topics)
    begin_total = row_totals(groups.table, begin)
    place = np.full(n_topics, -1)
    offsets = np.zeros(n_groups + 1 if keep else 1, np.int64)
    position, value = np.empty(0, np.int32), np.empty(0)
    size = 0
    for d in range(n_groups):
        if groups.offsets[d] < groups.offsets[d + 1]:
            lik, width = _solve(space, groups, rules, prior, begin, begin_total, memory, pull, d)
            _add_up(space, groups, prior, pairs, members, place, lik, width, d, found)
            if keep:
                if size + width > len(position):
                    position, value = _grown(position, size + width), _grown(value, size + width)
                for k in range(width):
                    if space.held[0, k] > 0.0:
                        position[size], value[size] = space.topic[0, k], space.held[0, k]
                        size += 1
        if keep:
            offsets[d + 1] = size
    return offsets, position[:size], value[:size]


@njit(**INNER)
def _add_up(space, groups, prior, pairs, members, place, lik, width, d, found):
    """Add the statistics of the document in slot 0 to ``found``; ``place`` is scratch, all -1."""
    first, last = groups.offsets[d], groups.offsets[d + 1]
    n, times = last - first, groups.times[d]
    index, share, count, linear = space.topic[0], space.share[0], space.held[0], space.grow
    log_share = groups.log_share[first:last] if len(groups.log_share) else groups.log_share
    assign(lik, space.live, width, share, space.weight, log_share, space.total, space.ratio, space.log_bits, space.logs,
           count, linear)  # fmt: skip
    lik = lik[:width]
    spread(lik, times, groups.row[first:last], index, found.sums)
    group_stats(index, space.prior[0], share, count, linear, width, times, space.work, space.work_bits,
                space.work[5], space.work[6], found.stats)  # fmt: skip
    if len(pairs):
        for k in range(width):
            place[index[k]] = k if count[k] > 0.0 else -1
        pair_sums(pairs, place, lik, prior, count, times, found.pairs)
        for k in range(width):
            place[index[k]] = -1
    for j in range(len(members)):
        for k in range(width):
            if members[j, index[k]]:
                for i in range(n):
                    found.mass[first + i, j] += lik[k, i]


@njit(nogil=True, cache=True)
def group_sums(offsets, values):
    """Sum of the values of each group, ``(G,)``."""
    out = np.zeros(len(offsets) - 1)
    for d in range(len(out)):
        for i in range(offsets[d], offsets[d + 1]):
            out[d] += values[i]
    return out
