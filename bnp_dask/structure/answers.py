"""Answers of a posterior that depend on the structure.

Posterior and new data -> labels, shares of topics, densities that integrate to one; posterior -> random data,
probabilities of states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from scipy import sparse
from scipy.special import psi

from bnp_dask.core import Batch, require_finite_rows
from bnp_dask.errors import SettingError
from bnp_dask.inputs import as_a, whole_number
from bnp_dask.kernels import exp, is_fixed, log, log_sum_exp, log_sums, resp_from_weights
from bnp_dask.kernels.hmm import forward_backward
from bnp_dask.kernels.topics import document_step as kernel
from bnp_dask.observation import DrawingObservation, DrawingSteps, DrawingWords, Multinomial
from bnp_dask.structure.protocols import (
    LOWEST,
    Beliefs,
    ChainedAllocation,
    GroupedAllocation,
    LocalStep,
    Tokens,
    WholeModel,
)
from bnp_dask.structure.sequences import sequence_offsets, shifted, shifted_potentials
from bnp_dask.structure.tokens import check_tokens, lay_out


# -- probabilities of states --------------------------------------------------------------------------------------
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


# -- topics of documents ------------------------------------------------------------------------------------------
# Found from scratch, each document on its own: they depend only on its words and on the posterior, not on other
# documents, nor on how the data are cut or where they are read.
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


# -- labels -------------------------------------------------------------------------------------------------------
# As columns for :func:`bnp_dask.predict`: ``soft`` requests all responsibilities or shares, ``top`` the largest;
# without both, labels are returned.
NO_PLACES = np.zeros((0, 2), np.int64)

Columns = dict[str, np.ndarray]


class Labelling(Protocol):
    """Structure whose atoms have labels of their own."""

    def labels(self, model: WholeModel, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Tiles with the positions of the most probable clusters of their atoms."""
        ...

    def steps(
        self, model: WholeModel, posterior: Beliefs, batch: Batch, places: np.ndarray
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step tile by tile."""
        ...


def label_rows(structure: Labelling, posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
    """Labels ``label (n,)``, responsibilities ``resp (n, K)``, or both of the ``top`` largest ``(n, L)``.

    Holds at most a tile of the ``(n, K)`` matrix unless ``soft`` requests all of it.
    """
    posterior.model.observation.check(batch)
    # responsibilities are needed, not responsibilities times weights
    batch, n, start = replace(batch, weights=None), batch.n_atoms, 0
    if not soft and top is None:
        label = np.empty(n, np.int64)
        for tile, place in structure.labels(posterior.model, posterior, batch):
            label[start : start + tile.n_atoms] = posterior.ids[place]
            start += tile.n_atoms
        return {"label": label}
    width = posterior.n_clusters if top is None else min(top, posterior.n_clusters)
    label, resp = np.empty((0 if top is None else n, width), np.int64), np.empty((n, width))
    for tile, dense in resp_of_rows(structure, posterior, batch):
        require_finite_rows(dense, tile, "responsibilities")
        rows = slice(start, start + tile.n_atoms)
        if top is not None:
            order = np.argsort(-dense, axis=1, kind="stable")[:, :top]
            label[rows] = posterior.ids[order]
            resp[rows] = np.take_along_axis(dense, order, axis=1)
        else:
            resp[rows] = dense
        start += tile.n_atoms
    return {"resp": resp} if top is None else {"label": label, "resp": resp}


def resp_of_rows(structure: Labelling, posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
    """Tiles of a batch with their responsibilities, ``(n, K)``."""
    for tile, step in structure.steps(posterior.model, posterior, batch, NO_PLACES):
        yield tile, step.resp if isinstance(step.resp, np.ndarray) else step.resp.to_dense()


def label_documents(posterior: Beliefs, batch: Batch, soft: bool, top: int | None) -> Columns:
    """Topics of the documents of a batch in memory, as named columns.

    ``label (G,)``: the topic with the largest expected share of each document; of dense atoms ``(n,)``, the most
    probable topic of each atom given its group.  ``soft``: ``resp (G, K)``, or ``(G, K + 1)``, the expected shares.
    ``top``: ``label (G, L)`` and ``resp (G, L)``, the largest shares.
    """
    model, k = posterior.model, posterior.n_clusters
    batch = as_documents(model, replace(batch, weights=None))
    check_documents(model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    if not soft and top is None and not batch.is_sparse:
        return {"label": posterior.ids[atom_labels(posterior, batch, found)]}
    g = found.n_documents
    width = k if top is None else min(top, k)
    label = np.empty((g, width) if top is not None else (g,), np.int64)
    resp = np.empty((g, k + found.has_rest if top is None else width))
    for start, stop in found.tiles():
        rows, shares = slice(start, stop), found.shares(start, stop)
        if soft:
            resp[rows] = shares
        elif top is None:
            label[rows] = posterior.ids[shares[:, :k].argmax(axis=1)]
        else:
            order = np.argsort(-shares[:, :k], axis=1, kind="stable")[:, :width]
            label[rows] = posterior.ids[order]
            resp[rows] = np.take_along_axis(shares, order, axis=1)
    if top is not None:
        return {"label": label, "resp": resp}
    return {"resp": resp} if soft else {"label": label}


def resp_in_groups(posterior: Beliefs, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
    """Atoms of groups with their responsibilities, given shares of the groups found from scratch."""
    check_documents(posterior.model, batch)
    yield batch, atom_resp(posterior, batch, find_topics(posterior, batch, own_step(posterior)))


# -- predictive densities -----------------------------------------------------------------------------------------
# Unseen clusters have a share of the prior mass and predict as the prior does, in mixtures, topics and sequences alike.
# No mass is lost: the densities of all possible observations sum to one.
UNSEEN_MASS = 1e-12
"""Prior mass below which unseen clusters are ignored: it is rounding of weights that sum to one."""


def unseen_cluster(model: WholeModel) -> Any:
    """Likelihood parameters of one cluster without atoms."""
    return model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))


def log_predictives(model: WholeModel, posterior: Beliefs, unseen: Any | None, batch: Batch) -> np.ndarray:
    """Log predictive densities of atoms in each cluster, ``(n, K)`` nats; ``(n, K + 1)`` with an unseen one last."""
    terms = model.observation.log_predictive(posterior.observation, batch)
    if unseen is None:
        return terms
    return np.concatenate([terms, model.observation.log_predictive(unseen, batch)], axis=1)


def mixture_density(model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
    """Log of the mixture of the clusters' predictive densities at each atom, ``(n,)`` nats."""
    weights = posterior.weights
    rest = 1.0 - float(np.sum(weights))
    unseen = unseen_cluster(model) if rest > UNSEEN_MASS else None
    with np.errstate(divide="ignore"):
        log_weights = log(weights if unseen is None else np.append(weights, rest))
    out = np.empty(batch.n_atoms)
    start = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters + 1):
        terms = log_predictives(model, posterior, unseen, tile)
        part = out[start : start + tile.n_atoms]
        if is_fixed():
            part[...] = log_sum_exp(terms + log_weights)
        else:
            log_sums(np.ascontiguousarray(terms), log_weights, part)
        start += tile.n_atoms
    require_finite_rows(out, batch, "log density")
    return out


# -- sequences -----------------------------------------------------------------------------------------------------
def chain_density(model: WholeModel, posterior: Beliefs, batch: Batch) -> np.ndarray:
    """Log density of each sequence under expected transitions, spread evenly over its steps, ``(n,)`` nats.

    It sums over all paths, including paths through unseen states, which are one state of the expected chain.
    """
    allocation = as_a(model.allocation, ChainedAllocation)
    start, trans = allocation.expected_chain(posterior.allocation)
    unseen = unseen_cluster(model) if len(start) > posterior.n_clusters else None
    rows = [np.zeros(0)]
    for tile in model.allocation.tiles(batch, len(start)):
        value = _sequences(start, trans, log_predictives(model, posterior, unseen, tile), tile)
        lengths = np.diff(sequence_offsets(tile))
        rows.append(np.repeat(value / np.maximum(lengths, 1), lengths))
    return np.concatenate(rows)


def _sequences(start: np.ndarray, trans: np.ndarray, log_lik: np.ndarray, batch: Batch) -> np.ndarray:
    """Log density of each sequence, ``(G,)`` nats; ``log_lik (n, W)`` is overwritten."""
    offsets = sequence_offsets(batch)
    lengths = np.diff(offsets)
    with np.errstate(divide="ignore"):
        log_start, log_trans = log(start), log(trans)
    log_lik, top = shifted(log_lik, batch)
    weights = np.ones(len(lengths))
    chains = forward_backward(*shifted_potentials(log_start, log_trans), log_lik, offsets, weights)
    # the shift of the potentials counts once for the start and once for each step after it
    norm = chains.log_norm + log_start.max() + (lengths - 1) * log_trans.max()
    # each sequence by itself: an outlying sequence must not cause rounding in the others' densities
    some = lengths > 0
    norm[some] += np.add.reduceat(top, offsets[:-1][some])
    return np.where(some, norm, 0.0)


def path_densities(model: WholeModel, posterior: Beliefs, batch: Batch, path: np.ndarray) -> np.ndarray:
    """Log joint density of each sequence and its path ``(n,)`` of states in use, ``(G,)`` nats.

    Sequences without steps have none.  Its exponential is one term of the sum over all paths, whose logarithm is
    :func:`chain_density`.
    """
    allocation = as_a(model.allocation, ChainedAllocation)
    start, trans = allocation.expected_chain(posterior.allocation)
    out = []
    done = 0
    for tile in model.allocation.tiles(batch, posterior.n_clusters):
        log_lik = model.observation.log_predictive(posterior.observation, tile)
        own = path[done : done + tile.n_atoms]
        done += tile.n_atoms
        offsets = sequence_offsets(tile)
        first = offsets[:-1][np.diff(offsets) > 0]
        moves = np.append(1.0, trans[own[:-1], own[1:]])
        moves[first] = start[own[first]]
        with np.errstate(divide="ignore"):
            terms = log_lik[np.arange(tile.n_atoms), own] + log(moves)
        out.append(np.add.reduceat(terms, first))
    return np.concatenate([np.zeros(0), *out])


# -- random data --------------------------------------------------------------------------------------------------
Drawn = tuple[Any, np.ndarray]
"""Atoms ``(n, D)``, or documents as sparse counts, and the positions of their clusters."""


def draw_rows(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Atoms, each from an independently drawn cluster, or documents of ``length`` words of one topic."""
    observation = posterior.model.observation
    words = _required(posterior, length, isinstance(observation, DrawingWords))
    place = _choose(posterior.weights, n, rng)
    if isinstance(observation, DrawingWords):
        return sparse.csr_array(observation.draw_words(posterior.observation, place, words, rng)), place
    return drawn_atoms(posterior, place, rng), place


def draw_groups(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Documents, or groups of dense atoms, each with shares of topics of its own."""
    size = _required(posterior, length, True)
    prior, _ = as_a(posterior.model.allocation, GroupedAllocation).prior_mass(posterior.allocation)
    shares = rng.dirichlet(np.maximum(prior, 1e-300), n)
    shares = np.nan_to_num(shares, nan=1.0 / len(prior))  # masses so small that all draws were zero
    if not isinstance(posterior.model.observation, Multinomial):
        place = np.concatenate([_choose(row, size, rng) for row in shares])
        return drawn_atoms(posterior, place, rng), place
    lam = posterior.observation.lam
    phi = lam / lam.sum(axis=1, keepdims=True)
    words = shares @ phi
    counts = rng.multinomial(size, words / words.sum(axis=1, keepdims=True)).astype(np.float64)
    return sparse.csr_array(counts), shares.argmax(axis=1)


def draw_path(posterior: Beliefs, n: int, length: int | None, rng: np.random.Generator) -> Drawn:
    """Path of states, and a step from each."""
    observation = posterior.model.observation
    _required(posterior, length, isinstance(observation, DrawingWords))
    found, place = chances_of(posterior), np.empty(n, np.int64)
    place[0] = _choose(found.start, 1, rng)[0]
    for t in range(1, n):
        place[t] = _choose(found.matrix[place[t - 1]], 1, rng)[0]
    if not isinstance(observation, DrawingSteps):
        return drawn_atoms(posterior, place, rng), place
    before = max(posterior.model.lags, 1)
    rows = np.zeros((n + before, len(posterior.observation.B[0])))
    for t, k in enumerate(place.tolist()):
        rows[t + before] = observation.draw_step(posterior.observation, k, rows[t : t + before][::-1].ravel(), rng)
    return rows[before:], place


def _required(posterior: Beliefs, length: int | None, is_needed: bool) -> int:
    """Words of a document or atoms of a group, zero if there are neither; SettingError if ``length`` is invalid."""
    if is_needed != (length is not None):
        need = "needs length=, the words of a document or atoms of a group" if length is None else "has no length"
        raise SettingError(
            f"length={length!r}: {type(posterior.model.allocation).__name__} of {_name(posterior)} {need}"
        )
    return 0 if length is None else whole_number("length", length, 1, what="a whole number of words or atoms")


def _choose(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn in proportion to weights ``(K,)``, ``(n,)``."""
    return rng.choice(len(weights), n, p=weights / weights.sum())


def _name(posterior: Beliefs) -> str:
    return type(posterior.model.observation).__name__


def drawn_atoms(posterior: Beliefs, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An atom of each of some clusters, at the positions ``place (n,)``."""
    observation = posterior.model.observation
    if not isinstance(observation, DrawingObservation):
        raise SettingError(f"{_name(posterior)} says not how to draw atoms; it needs a method draw(params, place, rng)")
    return observation.draw(posterior.observation, place, rng)
