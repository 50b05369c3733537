"""Groups split into tokens, with likelihoods and statistics of the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.core import Batch, GroupStates
from bnp_dask.errors import SettingError
from bnp_dask.inputs import as_a
from bnp_dask.kernels import WordResp, share_products
from bnp_dask.observation import Observation, TokenObservation, completed
from bnp_dask.structure.protocols import Tokens, WholeModel


@dataclass(frozen=True, eq=False)
class Laid:
    """Tile split into tokens; ``words`` are the rows of the table of likelihoods, None for dense atoms."""

    batch: Batch
    tokens: Tokens
    words: np.ndarray | None

    def log_lik(self, observation: Observation, params: Any) -> np.ndarray:
        """Table of likelihoods, ``(R, K)`` nats."""
        if self.words is None:
            return observation.expected_log_lik(params, self.batch)
        return as_a(observation, TokenObservation).token_log_lik(params, self.words)

    def summarize(self, observation: Observation, params: Any, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Statistics of weighted responsibilities by row of the table, ``(R, K)``, whose clusters have ``params``."""
        if self.words is None:
            return completed(observation, params, self.batch, sums)
        return summarize_words(observation, self.batch, sums, self.words)


def summarize_words(
    observation: Observation, batch: Batch, counts: np.ndarray, words: np.ndarray
) -> dict[str, np.ndarray]:
    """Statistics of tokens that are already summed by word, ``counts (R, K)`` of the words ``(R,)``."""
    return as_a(observation, TokenObservation).summarize(batch, WordResp(counts, words))


def lay_out(batch: Batch) -> Laid:
    """Tokens of the groups of a batch.  Words absent from the batch are left out."""
    if not isinstance(batch.x, np.ndarray):
        x = batch.x
        used = np.zeros(x.shape[1], np.bool_)
        used[x.indices] = True
        place = np.cumsum(used) - 1
        times = np.ones(x.shape[0]) if batch.weights is None else np.asarray(batch.weights, np.float64)
        tokens = Tokens(x.indptr.astype(np.int64), place[x.indices], x.data, times, response=batch.responses)
        return Laid(batch, tokens, np.flatnonzero(used))
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    offsets = batch.group_offsets
    times = np.ones(len(offsets) - 1)
    tokens = Tokens(offsets, np.arange(batch.n_atoms), weights, times, response=batch.responses)
    return Laid(batch, tokens, None)


def check_tokens(model: WholeModel, batch: Batch) -> None:
    """Raise SettingError for sparse counts under a likelihood without tokens."""
    if batch.is_sparse and not callable(getattr(model.observation, "token_log_lik", None)):
        raise SettingError(
            f"{batch.name}: sparse counts in a topic model of {type(model.observation).__name__}, which cannot take a "
            "document apart into word tokens; use Multinomial(), or dense atoms with Batch.groups"
        )


# -- responses ----------------------------------------------------------------------------------------------------
# Shares of topics in groups with observed responses: statistics that no model of the responses changes.
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
