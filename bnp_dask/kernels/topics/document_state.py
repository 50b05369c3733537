"""Inputs (groups of tokens), results and scratch of the document step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnp_dask.kernels.options import INNER, njit
from bnp_dask.kernels.topics.document_pass import padded

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
