"""Document step of topic models: topics of the tokens of each group (thesis 5.3.3-5.3.5).

A group (document) is a run of tokens.  A token names a row of a table of likelihoods, and counts ``weight`` times:
distinct words of a document with their counts, or single atoms with a row of their own.  The inner loops have no
exponential: the table is exponentiated once per batch, ``exp(E[log pi])`` once per sweep, and a sweep is two passes
over a small matrix that fits the cache.  Rows of topics that a document no longer uses are not read.
"""

from __future__ import annotations

import math

import numpy as np

from bnp_dask.kernels.numeric.copying import copy_into
from bnp_dask.kernels.numeric.special import exp_psi, log_positive
from bnp_dask.kernels.options import INNER, njit
from bnp_dask.kernels.topics.document_pass import gather_all, gather_some, padded, row_totals, sweep
from bnp_dask.kernels.topics.document_state import COLD, WARM, matrix_of, space_for
from bnp_dask.kernels.topics.document_sums import assign, group_stats, pair_sums, spread
from bnp_dask.kernels.topics.response import pulled, tilt
from bnp_dask.kernels.topics.top_pass import keep_top, places_for, same_sweep, top_sweep

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
