"""Topics of documents outside a training run: found from scratch, each document on its own.

The topics of a document depend only on its words and on the posterior: not on other documents, nor on how the data are
cut or where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from scipy import sparse
from scipy.special import psi

from bnp_dask.core.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.mixture.resp import resp_from_weights
from bnp_dask.kernels.numeric.arithmetic import exp
from bnp_dask.kernels.topics import document_step as kernel
from bnp_dask.observation import Multinomial
from bnp_dask.structure.asking import Beliefs, WholeModel
from bnp_dask.structure.steps import LOWEST, Tokens
from bnp_dask.structure.tokens import check_tokens, lay_out
from bnp_dask.structure.verbs import GroupedAllocation

TILE_NUMBERS = 2**19
"""Most numbers in a dense (documents, topics) tile (4 MB)."""


def counts_words(model: WholeModel) -> bool:
    """Whether the model is a topic model of words."""
    return model.structure.takes_words(model) and isinstance(model.observation, Multinomial)


def prior_mass(posterior: Beliefs) -> tuple[np.ndarray, float]:
    """Prior mass ``alpha pi_k (K,)``, and ``alpha pi_{>K}`` for all unseen topics (0 for LDA)."""
    model = posterior.model
    if not isinstance(model.allocation, GroupedAllocation):
        raise SettingError(
            f"{type(model.allocation).__name__} gives no document weights of its own; this needs a topic model, such "
            "as HDPTopics() or LDA()"
        )
    return model.allocation.prior_mass(posterior.allocation)


@dataclass(frozen=True, eq=False)
class DocumentTopics:
    """q(pi_d) = Dirichlet(theta_d) of G documents; theta_dk = N_dk + alpha pi_k.

    Parameters
    ----------
    offsets, position, count
        Expected tokens ``N_dk > 0``: offsets ``(G + 1,)``, positions of topics ``(S,)``, counts ``(S,)``.
    prior, rest
        Prior mass ``alpha pi_k (K,)``, ``alpha pi_{>K}``.
    length
        Tokens of each document, ``(G,)``.
    has_rest
        Whether unseen topics have a share, the last column of :meth:`shares`.
    """

    offsets: np.ndarray
    position: np.ndarray
    count: np.ndarray
    prior: np.ndarray
    rest: float
    length: np.ndarray
    has_rest: bool

    @property
    def n_documents(self) -> int:
        """Number of documents G."""
        return len(self.offsets) - 1

    @property
    def total(self) -> np.ndarray:
        """Sum of theta_d over all topics, ``(G,)``."""
        return self.length + (self.prior.sum() + self.rest)

    def theta(self, start: int, stop: int) -> np.ndarray:
        """theta_dk of the documents ``start:stop``, ``(g, K)``, without the rest."""
        out = np.tile(self.prior, (stop - start, 1))
        span = slice(int(self.offsets[start]), int(self.offsets[stop]))
        rows = np.repeat(np.arange(stop - start), np.diff(self.offsets[start : stop + 1]))
        out[rows, self.position[span]] += self.count[span]
        return out

    def shares(self, start: int, stop: int) -> np.ndarray:
        """E[pi_d] of the documents ``start:stop``, ``(g, K)``, or ``(g, K + 1)`` with a rest; rows sum to one."""
        theta = self.theta(start, stop)
        if self.has_rest:
            theta = np.concatenate([theta, np.full((stop - start, 1), self.rest)], axis=1)
        return theta / theta.sum(axis=1, keepdims=True)

    def tiles(self) -> list[tuple[int, int]]:
        """Runs of documents whose dense tile fits the limit."""
        size = max(1, TILE_NUMBERS // (len(self.prior) + 1))
        return [(a, min(a + size, self.n_documents)) for a in range(0, self.n_documents, size)]

    def counts(self) -> sparse.csr_array:
        """N_dk as sparse rows, ``(G, K)``."""
        shape = (self.n_documents, len(self.prior))
        return sparse.csr_array((self.count, self.position, self.offsets), shape=shape)


class FoldIn(Protocol):
    """Settings of a document step, such as :class:`bnp_dask.DocumentStep`."""

    def rules(self, warm: bool) -> kernel.Rules:
        """Settings for the kernel; ``warm`` if there are states to start from."""
        ...


@runtime_checkable
class SteppingAllocation(Protocol):
    """Allocation model whose documents are visited by a local step with settings."""

    @property
    def step(self) -> FoldIn:
        """The local step."""
        ...


def own_step(posterior: Beliefs) -> FoldIn:
    """Document step of the model, used for prediction."""
    return as_a(posterior.model.allocation, SteppingAllocation).step


def as_documents(model: WholeModel, batch: Batch) -> Batch:
    """Batch in groups: dense rows of counts become sparse documents; other dense rows need groups."""
    if counts_words(model) and isinstance(batch.x, np.ndarray) and batch.groups is None:
        return Batch(sparse.csr_array(batch.x), batch.weights, batch.name)
    return batch


def check_documents(model: WholeModel, batch: Batch) -> None:
    """Let the likelihood check a batch; documents without words are allowed, and their topics follow the prior.

    Raises
    ------
    DataError
        Values or columns that the likelihood cannot have produced; dense atoms without groups.
    """
    check_tokens(model, batch)
    _ = batch.group_offsets
    model.check(batch)


def find_topics(posterior: Beliefs, batch: Batch, step: FoldIn) -> DocumentTopics:
    """Topics of the documents (groups) of a batch in memory, each from scratch."""
    prior, rest = prior_mass(posterior)
    laid = lay_out(batch)
    tokens = laid.tokens
    length = tokens.length
    if len(tokens.row) == 0:
        none = np.zeros(0, np.int64)
        found = (np.zeros(len(length) + 1, np.int64), none, np.zeros(0))
    else:
        log_lik = laid.log_lik(posterior.model.observation, posterior.observation)
        found = _fold_in(step, prior, rest, tokens, log_lik)
    has_rest = posterior.model.allocation.nonparametric
    return DocumentTopics(found[0], found[1].astype(np.int64), found[2], prior, rest, length, has_rest)


def shares_of(posterior: Beliefs, batch: Batch) -> tuple[np.ndarray, np.ndarray, Batch]:
    """Shares of topics ``(G, K)``, without unseen topics, tokens ``(G,)``, and the documents themselves.

    Rows sum to one; weights of documents do not matter.
    """
    batch = as_documents(posterior.model, replace(batch, weights=None))
    check_documents(posterior.model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    tiles = [found.theta(start, stop) for start, stop in found.tiles()]
    return normalized(np.concatenate([np.zeros((0, posterior.n_clusters)), *tiles])), found.length, batch


def normalized(rows: np.ndarray) -> np.ndarray:
    """Rows scaled to sum to one, up to rounding."""
    return rows / rows.sum(axis=1, keepdims=True)


def _fold_in(
    step: FoldIn, prior: np.ndarray, rest: float, tokens: Tokens, log_lik: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Offsets, topics and expected counts of each document, from the kernel; ``log_lik`` is overwritten."""
    n_rows, k = log_lik.shape
    log_lik -= log_lik.max(axis=1, keepdims=True)
    np.maximum(log_lik, LOWEST, out=log_lik)
    theta = tokens.length + (prior.sum() + rest)
    groups = kernel.Groups(
        tokens.offsets, tokens.row, tokens.weight, tokens.log_share, tokens.times, theta, exp(log_lik), log_lik
    )
    no_pairs, no_sets = np.zeros((0, 2), np.int64), np.zeros((0, k), np.bool_)
    shapes = (n_rows, k), (4, k), (4, 0), (len(tokens.row), 0)
    found = kernel.Found(*(np.zeros(shape) for shape in shapes))
    rules, begin = step.rules(False), prior / prior.sum()
    return kernel.fit_groups(groups, rules, prior, begin, kernel.NO_MEMORY, no_pairs, no_sets, True, found, None)


def atom_labels(posterior: Beliefs, batch: Batch, found: DocumentTopics) -> np.ndarray:
    """Position of the most probable topic of each dense atom given the shares of its group, ``(n,)``."""
    out = np.empty(batch.n_atoms, np.int64)
    for rows, log_weight in _atom_tiles(posterior, batch, found):
        out[rows] = log_weight.argmax(axis=1)
    return out


def atom_resp(posterior: Beliefs, batch: Batch, found: DocumentTopics) -> np.ndarray:
    """Probability of each topic of each dense atom given the shares of its group, ``(n, K)``; rows sum to one."""
    out = np.empty((batch.n_atoms, len(found.prior)))
    for rows, log_weight in _atom_tiles(posterior, batch, found):
        out[rows] = resp_from_weights(log_weight)[0]
    return out


def _atom_tiles(posterior: Beliefs, batch: Batch, found: DocumentTopics) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of dense atoms, and their log weights ``(n, K)`` nats given the shares of their group."""
    offsets = batch.group_offsets
    for start, stop in found.tiles():
        part = batch.rows(int(offsets[start]), int(offsets[stop]))
        log_pi = psi(found.theta(start, stop))
        owner = np.repeat(np.arange(stop - start), np.diff(offsets[start : stop + 1]))
        size = max(1, TILE_NUMBERS // len(found.prior))
        for a in range(0, part.n_atoms, size):
            b = min(a + size, part.n_atoms)
            log_lik = posterior.model.observation.expected_log_lik(posterior.observation, part.rows(a, b))
            yield slice(int(offsets[start]) + a, int(offsets[start]) + b), log_lik + log_pi[owner[a:b]]
