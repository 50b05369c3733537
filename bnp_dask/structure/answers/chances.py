"""Expected probabilities of the states of sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnp_dask.inputs.protocols import as_a
from bnp_dask.structure.asking import Beliefs
from bnp_dask.structure.verbs import ChainedAllocation


class Chances(NamedTuple):
    """Expected probabilities of states (thesis 6.40).

    Parameters
    ----------
    start
        Probabilities of the first step, E[pi_0k], ``(K,)``.
    matrix
        Probabilities of the step after a state, E[pi_kl], from row to column, ``(K, K)``.
    unused
        Rest of each row, for unseen states, ``(K,)``.
    """

    start: np.ndarray
    matrix: np.ndarray
    unused: np.ndarray


def chances_of(posterior: Beliefs) -> Chances:
    """Expected probabilities under a posterior of a Markov chain."""
    start, matrix = as_a(posterior.model.allocation, ChainedAllocation).expected_chain(posterior.allocation)
    k = posterior.n_clusters
    return Chances(start[:k], matrix[:k, :k], matrix[:k, k:].sum(axis=1))
