"""Shares of topics in groups with observed responses: statistics that no model of the responses changes."""

from __future__ import annotations

import numpy as np

from bnp_dask.core.summary import GroupStates
from bnp_dask.kernels.topics.response import share_products
from bnp_dask.structure.steps import Tokens

SQUARES = "share_squares"
"""Field with two cluster axes: the sum of S_d, see :mod:`bnp_dask.allocation.response`."""


def responding(tokens: Tokens) -> np.ndarray:
    """Groups with tokens and an observed response, ``(G,)`` bool; the data must have responses."""
    assert tokens.response is not None
    return ~np.isnan(tokens.response) & (tokens.length > 0.0)


def share_links(tokens: Tokens, one: GroupStates, other: GroupStates, sizes: tuple[int, int]) -> np.ndarray:
    """Sums of S_d between two sets of topics, ``(J, R)``; counts of both are by position in their set, and those at -1
    are left out."""
    out = np.zeros(sizes)
    if tokens.response is not None:
        a, b = _present(one), _present(other)
        share_products(
            a.offsets, a.cluster, a.count.astype(np.float64), b.offsets, b.cluster, b.count.astype(np.float64),
            tokens.length, np.where(responding(tokens), tokens.times, 0.0), out,
        )  # fmt: skip
    return out


def _present(states: GroupStates) -> GroupStates:
    """Counts of topics in the set alone."""
    stay = states.cluster >= 0
    kept = np.concatenate([[0], np.cumsum(stay)])
    return GroupStates(kept[states.offsets].astype(np.int64), states.cluster[stay], states.count[stay])
