"""One sweep over the tokens of a document that keep their L most probable topics each (thesis 7.3.2, Alg. 7.2, 7.4).

In ties the first topic is kept.  Sums are taken in the order of tokens on every processor.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from bnp_dask.kernels.options import njit

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

    The arguments are as in :func:`bnp_dask.kernels.topics.document_pass.sweep`; ``chosen (n, L)`` is set to the topics
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
