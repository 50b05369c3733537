"""Topics in new documents: held-out scores, topics for prediction, and predicted responses.

Completion folds in one part of each document and predicts the other (thesis (5.59), and Ch. 7).  The probability of
whole documents has no closed form and is sampled (Wang & Blei 2012, section S.3).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pyarrow as pa
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.allocation import DocumentStep
from bnp_dask.analysis.base import WINDOW, for_batches, open_for, require_posterior, runner_for
from bnp_dask.core import Batch, Summary
from bnp_dask.data import Layout, Outputs, Reader, Source, batch_reader
from bnp_dask.data.output import write
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.execute import Executor, in_order
from bnp_dask.inputs import as_a, hold, number_between, one_of, whole_number
from bnp_dask.kernels import (
    collapsed_counts,
    exp,
    log,
    log_gammas,
    log_shares,
    log_sum_exp,
    log_word_shares,
    matmul,
    mix,
    sample_document,
)
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Multinomial, WideningObservation, as_csr
from bnp_dask.structure import (
    TILE_NUMBERS,
    DocumentTopics,
    MixtureAllocation,
    ResponseModel,
    as_documents,
    check_documents,
    counts_words,
    find_topics,
    lay_out,
    log_predictives,
    own_step,
    prior_mass,
    response_of,
    unseen_cluster,
)

if TYPE_CHECKING:
    from distributed import Client


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


@answering
def word_score(
    posterior: Posterior,
    data: Any,
    *,
    samples: int = 20,
    burn_in: int = 20,
    seed: int = 0,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> float:
    """Log probability of whole documents in the order of their words, mean per word, nats; larger is better.

    Over all documents of a length, in all orders, these probabilities sum to one; the multinomial coefficient,
    which :func:`bnp_dask.score` of a mixture has, is the number of orders of one document.

    Weights and words of clusters, or topics, have their expected values, and the weight of unseen clusters is divided
    among these. With a mixture there is a closed form. With topics the shares of each document are integrated over
    by importance sampling: its tokens' topics are drawn by collapsed Gibbs sampling, shares from their Dirichlet
    distribution given each draw, and the probability of the document given these is weighted by their prior density
    over the density with which all draws together propose them. Few samples underestimate the result, but still rank
    models (Wallach et al. 2009).

    :func:`bnp_dask.score` instead holds out words of each document, and is less noisy.

    Parameters
    ----------
    posterior
        Mixture of :class:`~bnp_dask.observation.Multinomial`, or topics of words.
    data
        Held-out documents: counts, whole numbers.  Weights weigh the mean.
    samples
        Draws of each document's topics; mixtures need none.
    burn_in
        Sweeps before these.
    seed
        Seed; with the words of a document it determines its draws, so the score does not depend on the batches.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Returns
    -------
    float
        Nats per word, weighted by the documents' weights.

    Raises
    ------
    SettingError
        Another kind of model.
    DataError
        As for :func:`bnp_dask.score`, or no word at all.

    References
    ----------
    Wang & Blei 2012, section S.3.
    """
    posterior = require_posterior(posterior)
    model = posterior.model
    topics, words = counts_words(model), isinstance(model.observation, WideningObservation)
    mixture = words and not topics and isinstance(model.allocation, MixtureAllocation)
    if not (mixture or topics):
        raise SettingError(
            f"word_score: {type(model.allocation).__name__} of {type(model.observation).__name__} has no documents of "
            "words; needs a mixture of Multinomial, HDPTopics or LDA"
        )
    settings = _Whole(
        whole_number("samples", samples, 1), whole_number("burn_in", burn_in), whole_number("seed", seed), mixture
    )
    source = open_for(posterior, data, batch_size, weights=True)
    parts = for_batches(posterior.for_scores(), source, client, settings, "word-score")
    n_words = math.fsum(n for _, n in parts)
    if n_words <= 0:
        raise DataError(f"{source.name}: the documents have no words that count; a mean needs one")
    return math.fsum(value for value, _ in parts) / n_words


@dataclass(frozen=True)
class _Whole:
    """Task: weighted sum of log probabilities of the documents of a batch, nats, and of their words."""

    samples: int
    burn_in: int
    seed: int
    is_mixture: bool

    def __call__(self, posterior: Posterior, reader: Reader) -> tuple[float, float]:
        batch = as_documents(posterior.model, reader())
        if self.is_mixture:
            posterior.model.observation.check(batch)
        else:
            check_documents(posterior.model, batch)
        x = as_csr(batch)
        times = np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)
        value = _of_mixture(posterior, x) if self.is_mixture else self._of_topics(posterior, x)
        return math.fsum(value * times), math.fsum(np.asarray(x.sum(axis=1)).ravel() * times)

    def _of_topics(self, posterior: Posterior, x: sparse.csr_array) -> np.ndarray:
        """Log probability of each document, ``(D,)``."""
        prior, rest = prior_mass(posterior)
        prior = np.maximum(prior * (1.0 + rest / prior.sum()), np.finfo(float).tiny)
        table = np.ascontiguousarray(np.exp(_log_words(posterior)).T)
        out = np.zeros(x.shape[0])
        for d, key in enumerate(document_keys(x.indices, x.data, x.indptr, self.seed)):
            own = slice(x.indptr[d], x.indptr[d + 1])
            words, counts = x.indices[own], x.data[own].astype(np.int64)
            if counts.sum():
                rng = np.random.default_rng(np.random.SeedSequence(int(key)))
                out[d] = self._of_document(counts, np.ascontiguousarray(table[words]), prior, rng)
        return out

    def _of_document(self, counts: np.ndarray, table: np.ndarray, prior: np.ndarray, rng: np.random.Generator) -> float:
        """Log probability of a document with ``counts (R,)`` of words whose probabilities are ``table (R, K)``."""
        row = np.repeat(np.arange(len(counts)), counts)
        held = np.zeros((self.samples, len(prior)))
        sample_document(row, table, prior, rng.random((self.burn_in + self.samples, len(row))), held)
        theta = prior + held
        share = log_shares(log_gammas(theta, rng))
        words = matmul(log(matmul(exp(share), table.T)), counts.astype(np.float64))
        each = (gammaln(prior) - gammaln(theta)).sum(axis=1) + gammaln(prior.sum() + len(row)) - gammaln(prior.sum())
        proposal = log_sum_exp(matmul(share, held.T) + each)  # of all draws over the prior, as a sum
        return float(log_sum_exp((words - proposal)[None])[0])


def _log_words(posterior: Posterior) -> np.ndarray:
    """Log of expected probabilities of words, ``(K, V)``."""
    lam = posterior.observation.lam
    found: np.ndarray = log(lam) - log(lam.sum(axis=1, keepdims=True))
    return found


def _of_mixture(posterior: Posterior, x: sparse.csr_array) -> np.ndarray:
    """Log probability of each document, ``(D,)``."""
    weights = posterior.weights
    logs = x @ _log_words(posterior).T + log(np.maximum(weights / weights.sum(), np.finfo(float).tiny))
    found: np.ndarray = log_sum_exp(logs)
    return found


# -- Topics for prediction: word counts in which no document confirms itself (CVB0) -------------------------------


BEGIN = DocumentStep(start="cold", sweeps=200, tolerance=1e-2, restarts=0)
"""Document step that finds the topics of a document before the first pass; only these take part in all passes."""

PASSES = 4
"""Updates of each document: chosen on KOS, see :func:`collapsed_topics`."""

MOST_PASSES = 100
"""Most passes: each keeps a table of the corpus on every worker."""


@answering
def collapsed_topics(
    posterior: Posterior,
    data: Any,
    *,
    passes: int = PASSES,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> Posterior:
    """Posterior of the same topics for prediction: word counts are recomputed without each document's own counts.

    Variational training counts a document among the evidence for the topics by which it is then assigned.  A rare word
    confirms its first topic, responsibilities sharpen lap by lap, and while the exact objective rises, held-out words
    are predicted worse.  The collapsed update finds the topic of a word from all other documents, and from the other
    words of its document.

    The posterior has the same ids, number and weights of topics, and is used like any other (:func:`score`,
    :func:`predict`, :func:`top_words`, :func:`save`).  It is not a maximum of the objective: continue training from the
    original posterior.  Its summary is like a start's, with expected tokens and without terms of the objective.

    :func:`bnp_dask.train` finds these words at its end (``collapsed=``) and stores them in ``posterior.predictive``,
    which :func:`bnp_dask.score`, :func:`bnp_dask.completion_score` and :func:`bnp_dask.word_score` use.  This
    function finds them for posteriors that have none, such as updated ones, and for predictions and tables.

    Parameters
    ----------
    posterior
        Topics of words: :class:`~bnp_dask.HDPTopics` or :class:`~bnp_dask.LDA` with
        :class:`~bnp_dask.Multinomial`.
    data
        The documents it was trained on; all counts are taken from them.
    passes
        Updates of each document, >= 1.  Data are read once more than that.  Nothing is kept of a document: pass p
        repeats the passes before it, on tables of p K V numbers on each worker.
    batch_size, client
        As in :func:`bnp_dask.predict`.  Results depend on the batches only by rounding, and not on the workers.

    Returns
    -------
    Posterior
        The same topics with recomputed counts of words; its own ``predictive`` is None.

    Raises
    ------
    SettingError
        Not a model of topics of words, or ``passes`` out of range.
    DataError
        As for :func:`bnp_dask.predict`.

    Notes
    -----
    A sweep sets ``r_nk`` in proportion to ``(N_dk - r_nk + alpha pi_k) (N_kv - own + lam_v) / (N_k - own + lam.)``,
    where the counts of the corpus are from the pass before and ``own`` is the document's part of them.  Only topics
    that the document uses at first take part.

    Document completion, nats per held-out token, after the first lap and after the last: with topics of training KOS
    -7.353, -7.379, with these -7.347, -7.350; parts of Reuters -6.732, -6.731 and -6.725, -6.720; of 20 Newsgroups
    -7.764, -7.773 and -7.759, -7.761; of IMDB -8.009, -8.026 and -8.008, -8.010; of NIPS -7.906, -7.920 and -7.892,
    -7.896.  Four passes were chosen on KOS alone (one -7.357 at the end, two -7.355); eight gain nothing on Reuters.

    References
    ----------
    Asuncion, Welling, Smyth & Teh (2009), "On smoothing and inference for topic models", CVB0.  They update the counts
    of the corpus after every token; here they stay for a pass, so that batches can be visited side by side.
    """
    posterior = require_posterior(posterior)
    model = posterior.model
    require_own(model, "collapsed_topics")
    passes = whole_number("passes", passes, 1, MOST_PASSES)
    source = open_for(posterior, data, batch_size, weights=True)
    with runner_for(posterior, client) as runner:
        summary = collapsed_summary(posterior, source, runner, passes)
        found = model.observation.global_step(summary)
    return replace(posterior, observation=found, summary=summary, predictive=None)


def require_own(model: Model, asked: str) -> None:
    """Raise SettingError, which names ``asked``, unless the model has topics of words that can be recomputed."""
    if not counts_words(model):
        raise SettingError(
            f"{asked}: {type(model.allocation).__name__} of {type(model.observation).__name__} is no topic model of "
            "words; needs HDPTopics or LDA with Multinomial"
        )


def collapsed_summary(posterior: Posterior, source: Source, runner: Executor, passes: int) -> Summary:
    """Summary of the expected tokens of all documents; see :func:`collapsed_topics`."""
    model, tables = posterior.model, list[np.ndarray]()
    shared = runner.share("posterior", posterior.light())
    for number in range(passes + 1):
        known = runner.share(f"collapsed{number}", tuple(tables))
        tasks = (
            (f"collapse{number}-batch{i}", count_batch, (shared, known, batch_reader(source, i)))
            for i in range(source.n_batches)
        )
        counts = np.zeros((posterior.observation.lam.shape[1], posterior.n_clusters))
        for part in in_order(runner, tasks, WINDOW):
            counts[part.words] += part.counts
        tables.append(counts)
    x = np.ascontiguousarray(tables[-1].T)
    summary = model.empty_summary(posterior.ids)
    return replace(summary, values={**summary.values, "N": x.sum(axis=1), "x": x})


def bytes_of_passes(posterior: Posterior, passes: int) -> int:
    """Bytes that a worker holds for all tables, beside the posterior."""
    return 8 * (passes + 2) * int(posterior.observation.lam.size)


@dataclass(frozen=True, eq=False)
class WordCounts:
    """Expected tokens ``(R, K)`` of the words ``(R,)`` of a batch."""

    words: np.ndarray
    counts: np.ndarray


def count_batch(posterior: Posterior, tables: tuple[np.ndarray, ...], reader: Reader) -> WordCounts:
    """Task: expected tokens of a batch by word and topic, after a sweep at each of the tables ``(V, K)``."""
    batch = as_documents(posterior.model, reader())
    check_documents(posterior.model, batch)
    found = find_topics(posterior, replace(batch, weights=None), BEGIN)
    laid = lay_out(batch)
    tokens, words = laid.tokens, laid.words
    assert words is not None, "documents of counts have words"
    lam = posterior.observation.lam
    phi = np.ascontiguousarray((lam / lam.sum(axis=1, keepdims=True))[:, words].T)
    prior = np.asarray(as_a(posterior.model.observation, Multinomial).lam, np.float64)
    shape = (len(tables), *phi.shape)
    known = np.ascontiguousarray([table[words] for table in tables]).reshape(shape)
    totals = np.array([table.sum(axis=0) for table in tables]).reshape(shape[0], shape[2])
    out = np.zeros(phi.shape)
    collapsed_counts(
        (tokens.offsets, tokens.row, np.asarray(tokens.weight, np.float64), tokens.times),
        (found.offsets, found.position, found.count),
        found.prior, phi, known, totals, prior[words], float(prior.sum()), out,
    )  # fmt: skip
    return WordCounts(words, out)


# -- Responses of documents, predicted from their topics ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ResponsePrediction:
    """Predicted responses of documents.

    Parameters
    ----------
    mean
        Expected response, ``(n,)``, in its units; or the probability of each class, ``(n, C)``, whose rows sum to one.
    variance
        Variance of a response, ``(n,)``, in squared units: noise, and uncertainty of coefficients and of shares; or of
        the indicator of each class, ``(n, C)``.
    classes
        Names of the classes, ``(C,)``; None for numbers.
    """

    mean: np.ndarray
    variance: np.ndarray
    classes: np.ndarray | None = None

    @property
    def best(self) -> np.ndarray:
        """The expected number, or the name of the most probable class, ``(n,)``."""
        return self.mean if self.classes is None else self.classes[self.mean.argmax(axis=1)]


@overload
def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> ResponsePrediction: ...


@overload
def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str],
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> None: ...


@answering
def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> ResponsePrediction | None:
    """Responses of documents, from a topic model that was trained with ``responses=``.

    Parameters
    ----------
    posterior
        Topics, with coefficients of the response.
    data
        Documents, as for :func:`bnp_dask.predict`; their own responses, if any, are not looked at.
    out
        Path or URL ending with ``.zarr``, ``.parquet`` or ``.csv``: predictions are written there batch by batch, in
        the order of the documents.  Numbers have the columns ``mean`` and ``variance``.  Classes have ``class``, the
        most probable one (not in Zarr, whose attribute ``classes`` names them), and ``probability``, in CSV files
        ``probability_NAME`` for each class.
    batch_size, client
        As for :func:`bnp_dask.predict`.

    Returns
    -------
    ResponsePrediction or None
        Mean and variance for each document, or probabilities of classes.  Shares of topics are found from the words
        alone.  A document without a word of the vocabulary has the expected shares of any document.  None when ``out``
        is given.

    Raises
    ------
    SettingError
        A posterior without responses.
    DataError
        As for :func:`bnp_dask.predict`.
    StoreError
        ``out`` exists already.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, bnp_dask as bnp
    >>> x = scipy.sparse.csr_array(np.repeat([[4., 4, 0, 0], [0, 0, 4, 4]], 20, axis=0))
    >>> model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    >>> run = bnp.train(model, x, init=bnp.SampledTopics(2), responses=np.repeat([1.0, 3.0], 20))
    >>> bnp.predict_response(run.posterior, x[[0, 39]]).mean.round(1)
    array([1., 3.])
    """
    posterior = require_posterior(posterior)
    response, params = regression_of(posterior)
    classes = None if response.classes is None else np.array(response.classes)
    source = open_for(posterior, data, batch_size)
    readers = [batch_reader(source, i) for i in range(source.n_batches)]
    with runner_for(posterior, client) as runner:
        if out is not None:
            facts = {"source": source.name} | ({} if classes is None else {"classes": classes.tolist()})
            layouts = _layouts(classes, os.fspath(out).endswith((".parquet", ".csv")))
            write(out, layouts, respond, posterior.light(), readers, runner, WINDOW, facts)
            return None
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"responses-batch{i}", respond, (shared, reader)) for i, reader in enumerate(readers))
        parts = list(in_order(runner, tasks, WINDOW))
    mean, variance = response.predict(params, np.zeros((0, posterior.n_clusters)), np.zeros(0))
    return ResponsePrediction(
        np.concatenate([mean, *(part["mean" if classes is None else "probability"] for part in parts)]),
        np.concatenate([variance, *(part["variance"] for part in parts)]),
        classes,
    )


def respond(posterior: Posterior, reader: Reader) -> Outputs:
    """Task: predictions for the documents of a batch, as named columns."""
    response, params = regression_of(posterior)
    mean, variance = response.predict(params, *token_shares(posterior, reader()))
    if response.classes is None:
        return {"mean": mean, "variance": variance}
    best = pa.array(np.array(response.classes)[mean.argmax(axis=1)])
    return {"class": best, "probability": mean, "variance": variance}


def _layouts(classes: np.ndarray | None, takes_names: bool) -> list[Layout]:
    """Columns of a file of predictions."""
    if classes is None:
        return [Layout("mean", "<f8", None), Layout("variance", "<f8", None)]
    names = tuple(f"probability_{name}" for name in classes.tolist())
    best = [Layout("class", "<i8", None)] if takes_names else []
    return [*best, Layout("probability", "<f8", len(names), names)]


def regression_of(posterior: Posterior) -> tuple[ResponseModel, Any]:
    """Model of responses and its coefficients; SettingError if the posterior was trained without."""
    response = response_of(posterior.model.allocation)
    if response is None or posterior.allocation.response is None or posterior.allocation.response.known <= 0.0:
        raise SettingError("the posterior was trained without responses; pass train(..., responses=y)")
    return response, posterior.allocation.response


def token_shares(posterior: Posterior, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Expected shares of topics in the tokens of documents ``(G, K)``, and their tokens ``(G,)``."""
    model = posterior.model
    batch = as_documents(model, replace(batch, weights=None, responses=None))
    check_documents(model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    weights = posterior.weights / posterior.weights.sum()
    out = np.zeros((found.n_documents, posterior.n_clusters))
    owner = np.repeat(np.arange(found.n_documents), np.diff(found.offsets))
    out[owner, found.position] = found.count
    some = found.length > 0
    out[some] /= found.length[some, None]
    out[~some] = weights
    return out, found.length
