"""Topics by Gibbs sampling of a part of the corpus that fits in memory (Griffiths & Steyvers 2004)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Summary, Survey, register
from bnp_dask.errors import DataError, SettingError, warn
from bnp_dask.initialize.anchors import MEMORY, as_summary, require_words
from bnp_dask.initialize.base import (
    InitContext,
    child_rng,
    choose_atoms,
    gather,
    new_root,
    submit_atoms,
)
from bnp_dask.inputs import MOST, as_a, hold, of_two_names, positive_mass, whole_number
from bnp_dask.kernels import add_counts, contrast, cumulate, matmul, rising_sums, sample_pass, seat_whole
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial

ROOT_TOKENS, ROOT_DOCUMENTS = 1.0 / 4.0, 5.0
"""Topics per square root of the number of tokens, and most per square root of documents, by default.

A quarter in place of a sixth raised objective and held-out score (nats per token) of KOS by 3,028 and .012, of 6,000
stories of Reuters by 2,338 and .005, of 3,000 posts of 20 Newsgroups by 920 and .017; one seed, 6 to 8 laps without
moves.  The bound by documents acts on corpora of long documents, such as NIPS.
"""

PASSES = 200
"""Default passes of the sampler; topics are averaged over the last half of them.

200 in place of 100, of which 20 averaged, raised objective and held-out score (nats per token) of KOS by 6,961 and
.013, of 6,000 stories of Reuters by 6,584 and .023, of 3,000 posts of 20 Newsgroups by 4,112 and .014; one seed, 6 to 8
laps without moves.  On KOS 3,118 and .012 of that were more passes, and the rest the longer average.
"""

SEED = 0.1
"""Weight of the counts of topics that are resampled, in the first pass, beside tokens placed one by one.

KOS from one topic of all its words, one seed, 200 passes for 152 topics, then 8 laps without moves: at 1 the objective
was -3,140,003 and the held-out score (nats per token, by ``bnp.score``) -7.3568, at .1 -3,136,567 and -7.3484, at .01
-3,135,796 and -7.3574; sampled without any topic before, -3,136,842 after as many laps.
"""

TOP = 10.0
"""Pseudo-documents shared out evenly among topics when their weights are estimated."""

SPLITS = (10, 20, 30, 40)
"""Passes before which mixed topics are split, unless they are averaged.

Chosen on documents of ``VirtualTopics`` alone: 3,370 of 70,000 words from 20 topics, 43 asked for, and 2,112 of 35,000
words from 50 topics, 108 asked for; 60 passes.  Without splits 16 to 20 and 36 topics were found (cosine above 0.9, 40
passes), with them 20 and 48 to 50.  Before passes 20 and 30 nearly all splits are made, and later next to none.
Checked on texts, which hardly change: held-out scores (nats per token) of 2,500 documents of KOS by +.006 and +.001 and
of 2,500 posts of 20 Newsgroups by +.004 and -.007 (100 passes; two seeds differ by .002 to .033).  A text of 300,000
tokens takes .2 s for each, and .04 s for a pass.
"""

LEADING = 30
"""Most frequent words of a topic by which it shows whether it is two in one.

On the documents that chose ``SPLITS`` 30, 60, 100 and 200 words told mixed topics of 3,000 to 15,000 tokens from others
alike; of smaller ones only 30 did.
"""

APART = 2.5
"""Least eigenvalue of a mixed topic (:func:`~bnp_dask.kernels.contrast`), as a multiple of that of noise.

On the documents that chose ``SPLITS`` topics of which the second part was a fifth or more had 3.4 to 11, all others at
most 2.1.  Most topics of texts are above, so that they may be split; but so are their unions, which must be below.  If
they need not, 35 of 145 topics of KOS change places each time, the joint gains 9,000 nats and the held-out score loses
.015 to .04.
"""

SCANS = 2
"""Times that each document of a mixed topic is put into the half of the topic that it fits better."""


MOST_PASSES = 10**6
"""Most passes that a setting allows: all are one task."""

MOST_TOKENS = MEMORY // 16
"""Most tokens of the documents drawn: each takes 16 bytes, and a document is never cut."""


@register
@dataclass(frozen=True, init=False)
class SampledTopics:
    """Topics of a corpus by collapsed Gibbs sampling, from which variational training continues.

    A sampler moves single tokens at random, and so leaves poor optima in which a variational method stays from its
    first lap on.  Pass by pass, each token gets a topic in proportion to the topic's share in its document and in its
    word, given all other tokens; the counts of words by topic are averaged over the last passes.  Words have the prior
    of the model.  Topics without tokens are not started.  Topics are numbered from the largest.

    Moves of single tokens never divide two topics in one: such topics are split during the first passes, each into the
    place of one of two other topics that are united, if that raises the joint probability of words and topics.

    Moves remove copies of topics (of 100 on documents with 50 true topics these 50 stayed), but on a small corpus about
    as many stay as were sampled: K is then the user's choice.

    All of it is one task on one worker, so the answer does not depend on how many there are.  A pass takes about 0.1
    to 0.2 seconds for a million tokens.

    Parameters
    ----------
    n_clusters, n_topics
        Most topics to start with, K: two names of one setting.  Default: a quarter of the square root of the number
        of tokens that are sampled, ``max_tokens`` at most, and no more than five times the square root of the number
        of documents (see :func:`topics_for`).
    passes
        Passes over the documents.  Default 200.
    averaged
        Number of last passes that are averaged.  Default: half of them.
    concentration
        Sum of the prior weights of the topics of one document.  The sampler moves more freely with a large one, so
        it is not the ``alpha`` of the model.
    max_tokens
        Tokens sampled of larger corpora, in documents drawn uniformly.

    References
    ----------
    Griffiths & Steyvers (2004), "Finding scientific topics".  Weights of topics are estimated from the numbers of
    documents that have them.  The split of the probabilities in a part of the document's own topics and a rest
    follows Yao, Mimno & McCallum (2009), "Efficient methods for topic model inference on streaming document
    collections".
    """

    n_clusters: int | None = None
    passes: int | None = None
    averaged: int | None = None
    concentration: float = 10.0
    max_tokens: int = 3_000_000

    def __init__(
        self,
        n_clusters: int | None = None,
        passes: int | None = None,
        averaged: int | None = None,
        concentration: float = 10.0,
        max_tokens: int = 3_000_000,
        *,
        n_topics: int | None = None,
    ) -> None:
        name, value = of_two_names("n_clusters", n_clusters, "n_topics", n_topics)
        hold(self, "n_clusters", None if value is None else whole_number(name, value, 1, MOST))
        hold(self, "passes", None if passes is None else whole_number("passes", passes, 1, MOST_PASSES))
        hold(self, "averaged", None if averaged is None else whole_number("averaged", averaged, 1, MOST))
        hold(self, "max_tokens", whole_number("max_tokens", max_tokens, 1, MOST))
        turns, last = _turns(self)
        if last > turns:
            raise SettingError(f"averaged={last}: there are only passes={turns}")
        hold(self, "concentration", positive_mass("concentration", concentration, "prior mass"))

    @property
    def n_topics(self) -> int | None:
        """Most topics to start with; None if their number is set from the data."""
        return self.n_clusters

    def start(self, context: InitContext) -> Summary:
        """Expected counts of words by topic, scaled to the tokens of the whole corpus.

        Raises
        ------
        SettingError
            The model is no topic model of word counts, or the tables would take more than 2 GB.
        DataError
            The documents that were drawn have no words.
        """
        require_words(context, "SampledTopics")
        n_words, survey = context.source.n_features, context.survey
        n_clusters = topics_for(context, self.max_tokens) if self.n_clusters is None else self.n_clusters
        size = 16 * n_words * n_clusters
        if size > MEMORY:
            raise SettingError(
                f"SampledTopics: {n_words} words times n_clusters={n_clusters}, with a table of averages, are "
                f"{size / 2**30:.1f} GB on one worker; at most {MEMORY / 2**30:.0f} GB. Ask for "
                f"{MEMORY // (16 * n_words)} topics or fewer, ingest with a smaller vocabulary, or start from "
                "RandomExamples"
            )
        length = float(survey.mean.sum())
        wanted = max(1, int(min(survey.n_atoms, self.max_tokens / length))) if length > 0 else survey.n_atoms
        executor = context.executor
        model = executor.share("init-model", context.model)
        parts = submit_atoms(context, model, choose_atoms(context, wanted))
        settings = replace(self, n_clusters=n_clusters)
        task = executor.submit("init-sampled", _sample, settings, model, new_root(context.rng), *parts)
        counts = executor.result(task)
        if self.n_clusters is not None and counts.shape[1] < self.n_clusters:
            warn(
                f"starting with {counts.shape[1]} topics instead of {self.n_clusters}: the sampler left the others "
                "without a token"
            )
        return as_summary(context.model, counts * (length * survey.total_weight / counts.sum()))


def topics_for(context: InitContext, max_tokens: float) -> int:
    """Number of topics to start with, from the numbers of documents, tokens and words alone.

    Moves go up and down from there.  Of a large corpus only ``max_tokens`` are sampled, which show no more topics than
    a corpus of that size; a thousand topics in three million tokens would be parts and copies of fewer.
    """
    survey = context.survey
    tokens = min(float(survey.mean.sum()) * survey.total_weight, max_tokens)
    return max(1, min(topics_of_tokens(tokens, documents_counted(survey)), MEMORY // (16 * context.source.n_features)))


def documents_counted(survey: Survey) -> float:
    """Number of documents that count: none of weight zero, such as copies, and at most all."""
    return min(survey.total_weight, float(survey.n_atoms))


def topics_of_tokens(tokens: float, n_documents: float) -> int:
    """Number of topics that a corpus may show, by a rule of thumb from its tokens and documents."""
    return max(1, int(min(ROOT_TOKENS * np.sqrt(tokens), ROOT_DOCUMENTS * np.sqrt(n_documents))))


def _turns(settings: SampledTopics) -> tuple[int, int]:
    """Passes over the documents, and number of averaged passes."""
    passes = PASSES if settings.passes is None else settings.passes
    return passes, max(1, passes // 2) if settings.averaged is None else settings.averaged


def _whole(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts as whole numbers of tokens: fractions are rounded at random, with unchanged means.

    Counts below one on average are first multiplied: the result is scaled to the corpus anyway.
    """
    low = np.floor(counts)
    if np.array_equal(low, counts):
        return counts.astype(np.int64)
    scaled = counts * max(1.0, 1.0 / float(counts[counts > 0].mean()))
    low = np.floor(scaled)
    return (low + (rng.random(len(counts)) < scaled - low)).astype(np.int64)


def _sample(settings: SampledTopics, model: Model, root: int, *parts: Batch) -> np.ndarray:
    """Task: tokens by word and topic ``(V, K)``, largest topic first, on average over the last passes."""
    mean = sample_topics(model, gather(parts), settings, root)
    size = mean.sum(axis=0)
    order = np.argsort(-size, kind="stable")
    return mean[:, order[size[order] > 0]]


def sample_topics(
    model: Model,
    batch: Batch,
    settings: SampledTopics,
    root: int,
    known: np.ndarray | None = None,
    kept: bool = True,
) -> np.ndarray:
    """Tokens by word and topic, on average over the last passes, ``(V, K)``; DataError for documents without words.

    The counts ``known (V, J)`` of existing topics count beside the counts of the tokens: J topics come first, and the
    rest of the topics in the settings are new.  Known counts stay, or else only guide the first pass.
    """
    x, k = sparse.csr_array(batch.x), settings.n_clusters
    assert k is not None, "how many topics there are is found before any document is read"
    times = np.ones(x.shape[0]) if batch.weights is None else np.asarray(batch.weights, np.float64)
    if x.data.sum() > MOST_TOKENS:
        raise DataError(
            f"SampledTopics: the {x.shape[0]} documents that were drawn have {x.data.sum():.3g} tokens, which are "
            f"sampled one by one; at most {MOST_TOKENS:.2g}. Start from AnchorWords or RandomExamples, or divide counts"
        )
    repeats = _whole(x.data, child_rng(root, 1))
    words = np.repeat(x.indices.astype(np.int64), repeats)
    if len(words) == 0:
        raise DataError(f"SampledTopics: the {x.shape[0]} documents that were drawn have no words")
    offsets = np.concatenate([[0], np.cumsum(repeats)])[x.indptr]
    prior = np.asarray(as_a(model.observation, Multinomial).lam, np.float64)
    document = np.repeat(np.arange(x.shape[0]), np.diff(offsets))
    rng = child_rng(root)
    topics, weights = np.full(len(words), -1, np.int64), np.full(k, 1.0 / k)
    counts = np.zeros((x.shape[1], k), np.float32)
    if known is not None:
        counts[:, : known.shape[1]] = known if kept else SEED * known
        before = counts[:, : known.shape[1]].copy()
    totals = counts.sum(axis=0, dtype=np.float64)
    table, mean = np.empty(counts.shape, np.float32), np.zeros(counts.shape)
    state = rng.integers(1, 2**63, 1, dtype=np.uint64)
    passes, averaged = _turns(settings)
    for turn in range(passes):
        mass = settings.concentration * weights
        if turn in SPLITS and turn < passes - averaged and (known is None or not kept):
            split_mixed(document, words, topics, mass, prior, counts, totals)
        each = cumulate(counts, totals, mass, prior, table)
        documents = sample_pass(offsets, words, topics, prior, table, each, counts, totals, state)
        weights = (documents + TOP / k) / (documents.sum() + TOP)
        if known is not None and not kept and turn == 0:
            # float32 rounds: adding and subtracting may leave a small remainder, which must not be negative
            counts[:, : known.shape[1]] = np.maximum(counts[:, : known.shape[1]] - before, 0.0)
            totals = counts.sum(axis=0, dtype=np.float64)
        if turn >= passes - averaged:
            add_counts(offsets, words, topics, times, mean)
    mean /= averaged  # in place: a second table may be half a gigabyte
    return mean


# -- Topics that are two in one ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """Tokens of one topic.

    ``at (T,)`` are their places among all tokens.  They are in ``documents (G,)`` from ``offsets (G + 1,)``, each a
    word ``row (T,)`` of ``words (R,)``.
    """

    at: np.ndarray
    documents: np.ndarray
    offsets: np.ndarray
    words: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, at: np.ndarray, document: np.ndarray, words: np.ndarray) -> _Part:
        own, first = np.unique(document[at], return_index=True)
        return cls(at, own, np.append(first, len(at)), *np.unique(words[at], return_inverse=True))

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens in each document, ``(G,)``."""
        return np.diff(self.offsets)

    @cached_property
    def counts(self) -> np.ndarray:
        """Tokens of each word, ``(R,)``."""
        return np.bincount(self.row, minlength=len(self.words))

    @cached_property
    def leading(self) -> np.ndarray:
        """Positions of the most frequent words, among its own words."""
        return np.argsort(-self.counts, kind="stable")[:LEADING]

    def contrast(self) -> tuple[float, np.ndarray]:
        """How clearly it is two in one, and each document's place between the two, ``(G,)``."""
        places = np.full(len(self.words), -1)
        places[self.leading] = np.arange(len(self.leading))
        return contrast(self.offsets, places[self.row], LEADING)

    def log_joint(self, mass: float, prior: np.ndarray) -> float:
        """Part of the topic in the log joint of words and topics, with prior ``mass`` in each document."""
        tokens = np.array([len(self.at)])
        in_documents = _rise(self.lengths, np.full(len(self.lengths), mass))
        return in_documents + _rise(self.counts, prior[self.words]) - _rise(tokens, prior.sum(keepdims=True))


def split_mixed(
    document: np.ndarray,
    words: np.ndarray,
    topics: np.ndarray,
    mass: np.ndarray,
    prior: np.ndarray,
    counts: np.ndarray,
    totals: np.ndarray,
) -> float:
    """Split topics that are two in one, each into the place of one of two other topics, which are united.

    The sampler moves single tokens, and a token of either of two topics in one fits nowhere better.  Leading words tell
    such a topic: its documents have those of the one or of the other.  Documents are shared out by them, and then by
    all their words of the topic.  A split and a union are made together if that raises the joint probability of words
    and topics: the halves share the mass of the topic in proportion to their documents, a united topic has the mass of
    both.  So there are never more topics.  A topic takes part in one change at a time.

    Parameters
    ----------
    document, words
        Document and word of each token, ``(T,)``, by document.
    topics
        Topic of each token, ``(T,)``; overwritten.
    mass
        Prior mass of each topic in a document, ``(K,)``; overwritten.
    prior
        Pseudo-counts of words, ``(V,)``.
    counts, totals
        Tokens by word and topic, ``(V, K)``, and by topic, ``(K,)``; kept up to date.

    Returns
    -------
    Gain of the log of the joint.
    """
    order = np.argsort(topics, kind="stable")
    ends = np.cumsum(np.bincount(topics, minlength=len(mass)))
    parts = [_Part.of(at, document, words) for at in np.split(order, ends[:-1])]
    mixed = []
    for t, part in enumerate(parts):
        strength, score = part.contrast()
        if strength > APART:
            mixed.append((strength, t, (score < 0.0).astype(np.int64)))
    if not mixed or len(mass) < 3:
        return 0.0
    own = np.array([part.log_joint(m, prior) for part, m in zip(parts, mass, strict=True)])
    unions = _unions(parts, own, mass, prior, counts, document, words)
    used, total = np.zeros(len(mass), np.bool_), 0.0
    for _, t, side in sorted(mixed, key=lambda one: -one[0]):
        left = [(gain, a, b) for gain, a, b in unions if not (used[[a, b]].any() or t in (a, b))]
        if used[t] or not left:
            continue
        part, (gain, keep, place) = parts[t], left[0]
        seat_whole(part.offsets, part.row, prior[part.words], float(prior.sum()), side, SCANS)
        halves = [_Part.of(part.at[np.repeat(side == h, part.lengths)], document, words) for h in (0, 1)]
        masses = mass[t] * np.array([len(half.documents) for half in halves]) / len(side)
        if not masses.all():
            continue
        gain += sum(half.log_joint(m, prior) for half, m in zip(halves, masses, strict=True)) - own[t]
        if gain <= 0.0:
            continue
        used[[t, keep, place]], total = True, total + gain
        topics[parts[place].at] = keep
        topics[halves[1].at] = place
        mass[keep] += mass[place]
        mass[[t, place]] = masses
        counts[:, keep] += counts[:, place]
        counts[:, [t, place]] = 0.0
        for to, half in zip((t, place), halves, strict=True):
            counts[half.words, to] = half.counts
        totals[[t, keep, place]] = counts[:, [t, keep, place]].sum(axis=0, dtype=np.float64)
    return total


def _unions(
    parts: list[_Part],
    own: np.ndarray,
    mass: np.ndarray,
    prior: np.ndarray,
    counts: np.ndarray,
    document: np.ndarray,
    words: np.ndarray,
) -> list[tuple[float, int, int]]:
    """Each topic with the one whose leading words are most like its own: gain of a union, larger and smaller topic.

    An empty topic is with the smallest.  A union that is two in one is none.  The best come first.
    """
    heads = np.unique(np.concatenate([part.words[part.leading] for part in parts]))
    table = counts[heads].astype(np.float64)
    table /= np.maximum(np.sqrt((table * table).sum(axis=0)), 1.0)
    alike, size = matmul(table.T, table), np.array([len(part.at) for part in parts])
    alike[size == 0] = -size
    np.fill_diagonal(alike, -np.inf)
    pairs = {tuple(sorted(pair)) for pair in enumerate(alike.argmax(axis=1).tolist())}
    out = []
    for pair in sorted(pairs):
        a, b = sorted(pair, key=lambda t: -len(parts[t].at))
        both = _Part.of(np.sort(np.concatenate([parts[a].at, parts[b].at])), document, words)
        if both.contrast()[0] <= APART:
            out.append((both.log_joint(mass[a] + mass[b], prior) - own[a] - own[b], a, b))
    return sorted(out, reverse=True)


def _rise(x: np.ndarray, base: np.ndarray) -> float:
    """Sum of ``log Gamma(base + x) - log Gamma(base)``."""
    return float(rising_sums(sparse.csr_array(x[None].astype(np.float64)), base[None])[0, 0])
