"""Document completion: fold in one part of each held-out document, predict the other (thesis (5.59), and Ch. 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from bnp_dask.allocation import DocumentStep
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.inputs.protocols import as_a
from bnp_dask.inputs.settings import hold, number_between, one_of, whole_number
from bnp_dask.kernels.numeric.arithmetic import log, log_sum_exp, matmul
from bnp_dask.kernels.topics.completion import log_word_shares, mix
from bnp_dask.model import Posterior
from bnp_dask.observation import Multinomial
from bnp_dask.structure.answers.density import log_predictives, unseen_cluster
from bnp_dask.structure.answers.documents import TILE_NUMBERS, DocumentTopics, check_documents, find_topics
from bnp_dask.structure.tokens import lay_out

FOLD_IN = DocumentStep(start="cold", sweeps=200, tolerance=1e-3, restarts=0)
"""Dense and without restarts (Ch. 7), for any settings of training: scores compare topics, not settings."""

SHARES = {"types": 0.2, "tokens": 0.5}


@dataclass(frozen=True)
class Completion:
    """Choice of the held-out words of a document.

    Parameters
    ----------
    split
        ``"types"``: all tokens of some of the distinct words (thesis Ch. 7, after Wang et al. 2011).  ``"tokens"``:
        some of the tokens (thesis (5.59), after Bryant and Sudderth 2012), so that one word may be on both sides.
        Groups of dense atoms have no words: both hold out atoms.
    share
        Held-out share of each document's words, or tokens, rounded, but at least one and not all.
        Default: 0.2 for types, 0.5 for tokens, as in the thesis.
    seed
        Seed of the split, which depends on the seed and the document's own words only.
    """

    split: Literal["types", "tokens"] = "types"
    share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("split", self.split, tuple(SHARES))
        if self.share is not None:
            hold(self, "share", number_between("share", self.share, 0.0, 1.0, "a share of the words"))
        hold(self, "seed", whole_number("seed", self.seed))

    @property
    def held_out(self) -> float:
        """The share that is held out."""
        return SHARES[self.split] if self.share is None else float(self.share)


@dataclass(frozen=True)
class CompletionScore:
    """Result of :func:`bnp_dask.completion_score`.

    Parameters
    ----------
    score
        Mean log probability of a held-out token, nats.
    n_tokens
        Held-out tokens; with weights of documents, their sum.
    n_documents
        Documents that were scored.
    n_skipped
        Documents that cannot be split: fewer than two tokens, or fewer than two distinct words for ``"types"``.
    completion
        Choice of held-out words.
    """

    score: float
    n_tokens: float
    n_documents: int
    n_skipped: int
    completion: Completion

    @property
    def perplexity(self) -> float:
        """exp(-score)."""
        return math.exp(-self.score)


@dataclass(frozen=True, eq=False)
class BatchScore:
    """Sum of log probabilities (nats), held-out tokens, and weight of each document of a batch, ``(G,)`` each."""

    value: np.ndarray
    tokens: np.ndarray
    times: np.ndarray


def combine_scores(parts: list[BatchScore], completion: Completion, name: str) -> CompletionScore:
    """The mean over all held-out tokens."""
    used = [p.tokens * p.times > 0 for p in parts]
    tokens = math.fsum(float(matmul(p.tokens[u], p.times[u])) for p, u in zip(parts, used, strict=True))
    n_documents = sum(int(u.sum()) for u in used)
    n_skipped = sum(int((p.tokens == 0).sum()) for p in parts)
    if tokens <= 0:
        raise DataError(
            f"{name}: none of {n_documents + n_skipped} documents can be split for completion; each needs two "
            f"{'distinct words' if completion.split == 'types' else 'tokens'} of the vocabulary or more"
        )
    value = math.fsum(v for p, u in zip(parts, used, strict=True) for v in p.value[u] * p.times[u])
    return CompletionScore(value / tokens, tokens, n_documents, n_skipped, completion)


def complete_batch(posterior: Posterior, batch: Batch, completion: Completion) -> BatchScore:
    """Completion of the documents of a batch in memory."""
    check_documents(posterior.model, batch)
    x = batch.x
    if isinstance(x, np.ndarray):
        return complete_held(posterior, batch, split_atoms(x, batch.group_offsets, completion))
    return complete_held(posterior, batch, split_counts(x, completion))


def complete_held(posterior: Posterior, batch: Batch, held: np.ndarray) -> BatchScore:
    """Completion of documents with a given held-out part.

    Given the other part, the probabilities of a held-out token sum to one over all words, and the densities of a
    held-out atom integrate to one.

    Parameters
    ----------
    posterior
        Topics.
    batch
        Documents that the model takes.
    held
        Held-out part of each stored count, ``(m,)``; or for dense atoms whether each is held out, ``(n,)`` bool.
    """
    x = batch.x
    if isinstance(x, np.ndarray):
        offsets = batch.group_offsets
        weight = held * (np.ones(batch.n_atoms) if batch.weights is None else batch.weights)
        value = _sums(held_densities(posterior, batch, held) * weight, offsets)
        return BatchScore(value, _sums(weight, offsets), np.ones(batch.n_groups))
    seen = sparse.csr_array((x.data - held, x.indices, x.indptr), shape=x.shape)
    times = np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)
    found = find_topics(posterior, Batch(_without_zeros(seen), None, batch.name), FOLD_IN)
    laid = lay_out(replace(batch, weights=None))
    table, base = _word_tables(posterior, laid.words, found)
    value = np.zeros(batch.n_atoms)
    tokens = laid.tokens
    log_word_shares(
        tokens.offsets, tokens.row, held, (found.offsets, found.position), found.count, table, base, found.total, value
    )
    return BatchScore(value, _sums(held, x.indptr), times)


def _word_tables(posterior: Posterior, words: Any, found: DocumentTopics) -> tuple[np.ndarray, np.ndarray]:
    """E[phi] of some words, ``(R, K)``, and their probability from the prior mass of all topics, ``(R,)``.

    Topics not met yet predict words by the prior.
    """
    lam = posterior.observation.lam
    table = np.ascontiguousarray((lam / lam.sum(axis=1, keepdims=True))[:, words].T)
    prior_lam = np.asarray(as_a(posterior.model.observation, Multinomial).lam)
    return table, matmul(table, found.prior) + found.rest * (prior_lam / prior_lam.sum())[words]


def held_densities(posterior: Posterior, batch: Batch, held: np.ndarray) -> np.ndarray:
    """Log density of each held-out dense atom given the others of its group, ``(n,)`` nats; zero for the others."""
    offsets = batch.group_offsets
    lengths = np.concatenate([[0], np.cumsum(~held)])[offsets].astype(np.int64)
    seen = replace(batch.take(np.flatnonzero(~held)), groups=lengths)
    found = find_topics(posterior, seen, FOLD_IN)
    model = posterior.model
    unseen = unseen_cluster(model) if found.has_rest else None
    density = np.zeros(batch.n_atoms)
    owner = np.repeat(np.arange(batch.n_groups), np.diff(offsets))
    rows = np.flatnonzero(held)
    size = max(1, TILE_NUMBERS // (posterior.n_clusters + 1))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        atoms = batch.take(part)
        first, last = int(owner[part[0]]), int(owner[part[-1]]) + 1
        shares = found.shares(first, last)[owner[part] - first]
        terms = log_predictives(model, posterior, unseen, atoms)
        with np.errstate(divide="ignore"):
            density[part] = log_sum_exp(terms + log(shares))
    return density


# -- splits ---------------------------------------------------------------------------------------------------
def split_counts(x: sparse.csr_array, completion: Completion) -> np.ndarray:
    """Held-out part of each stored count, ``(m,)``; all zero for documents that cannot be split."""
    whole = x.data == np.floor(x.data)
    word, count = x.indices.astype(np.uint64), np.where(whole, x.data, 0.0).astype(np.uint64)
    if not whole.all():
        if completion.split == "tokens":
            raise DataError(
                'Completion("tokens") holds out single words, but counts are fractions; use Completion("types")'
            )
        count[~whole] = np.asarray(x.data, np.float64)[~whole].view(np.uint64)
    document = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    key = _document_keys(_marks(word, count), x.indptr, completion.seed)
    if completion.split == "types":
        some = np.flatnonzero(count > 0)
        chosen = _choose(mix(key[document[some]] + word[some]), document[some], x.shape[0], completion)
        held = np.zeros(len(count))
        held[some] = np.where(chosen, x.data[some], 0.0)
        return held
    entry = np.repeat(np.arange(len(count)), x.data.astype(np.int64))
    first = np.concatenate([[0], np.cumsum(x.data.astype(np.int64))])[entry]
    copy = (np.arange(len(entry)) - first).astype(np.uint64)
    owner = document[entry]
    chosen = _choose(mix(mix(key[owner] + word[entry]) + copy), owner, x.shape[0], completion)
    return np.bincount(entry[chosen], minlength=len(count)).astype(np.float64)


def split_atoms(x: np.ndarray, offsets: np.ndarray, completion: Completion) -> np.ndarray:
    """Whether each dense atom is held out, ``(n,)``."""
    bits = np.ascontiguousarray(x, np.float64).view(np.uint64)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    place = (np.arange(len(x)) - offsets[:-1][owner]).astype(np.uint64)
    marks = mix(mix(bits + np.arange(x.shape[1], dtype=np.uint64)).sum(axis=1, dtype=np.uint64) + place)
    key = _document_keys(marks, offsets, completion.seed)
    return _choose(mix(key[owner] + place), owner, len(offsets) - 1, completion)


def document_keys(word: np.ndarray, count: np.ndarray, offsets: np.ndarray, seed: int) -> np.ndarray:
    """A number for each document made of its words and whole counts ``(m,)`` in any order, and the seed."""
    return _document_keys(_marks(word.astype(np.uint64), count.astype(np.uint64)), offsets, seed)


def _marks(word: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Numbers made of words and their counts, ``(m,)``."""
    return mix(word * np.uint64(0x10001) + mix(count))


def _document_keys(marks: np.ndarray, offsets: np.ndarray, seed: int) -> np.ndarray:
    """A number for each document made of its words' marks ``(m,)`` in any order, and the seed."""
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(marks, dtype=np.uint64)])
    return mix((running[offsets[1:]] - running[offsets[:-1]]) ^ mix(np.array([seed % 2**64], np.uint64)))


def _choose(lots: np.ndarray, owner: np.ndarray, n_documents: int, completion: Completion) -> np.ndarray:
    """Whether words ``(m,)`` have the lowest lots of their document, for as many as are to be held out."""
    lengths = np.bincount(owner, minlength=n_documents)
    wanted = np.clip(np.floor(completion.held_out * lengths + 0.5), 1, np.maximum(lengths - 1, 0))
    wanted = np.where(lengths < 2, 0, wanted)
    order = np.lexsort((lots, owner))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rank = np.arange(len(lots)) - starts[owner[order]]
    chosen = np.zeros(len(lots), np.bool_)
    chosen[order] = rank < wanted[owner[order]]
    return chosen


def _without_zeros(x: sparse.csr_array) -> sparse.csr_array:
    out = x.copy()
    out.eliminate_zeros()
    return out


def _sums(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum of the values of each document, ``(G,)``."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.bincount(owner, weights=values, minlength=len(offsets) - 1)
