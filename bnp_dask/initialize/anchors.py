"""Topics from anchor words: word co-occurrence gathered out of core (Arora et al. 2013)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Summary, register
from bnp_dask.data import Reader, batch_reader
from bnp_dask.errors import DataError, SettingError, warn
from bnp_dask.execute import Handle
from bnp_dask.initialize.base import (
    InitContext,
    child_rng,
    each_batch,
    new_root,
    read_checked,
    starts_from_words,
)
from bnp_dask.inputs import hold, number_from, of_two_names, whole_number
from bnp_dask.kernels import convex_weights, farthest_points, matmul, projected_pairs
from bnp_dask.model import Model

MEMORY = 2 * 2**30
"""Most bytes of the tables of a start from words; a task holds co-occurrence tables once, the caller twice."""


@register
@dataclass(frozen=True, init=False)
class AnchorWords:
    """Topics of a corpus in one pass: words that belong to one topic alone, and words that co-occur with them.

    How often words occur together in documents is a table Q ``(V, V)`` whose rows, normalised, are mixtures of the
    rows of anchor words (words of one topic only).  Anchors are the corners of that cloud of rows; the weights with
    which corners mix to the row of a word are p(topic | word).  Tasks gather Q times a random matrix, ``(V,
    projection)``, so memory does not grow with the square of the vocabulary.

    The returned statistics share out each word's tokens to the topics in these proportions, so they sum to the
    tokens of the corpus.  Topics are numbered from the largest.

    The two halves of the documents are counted apart.  Their errors are independent, so they show how far a word is
    from the span of the anchors so far, and how far it would be by chance.  If no word is farther than by chance,
    co-occurrence can tell apart no more topics, and no more are started.

    Parameters
    ----------
    n_clusters, n_topics
        Most topics to start with, K: two names of one setting.
    min_documents
        Words of fewer documents are no anchors: the rows of rare words are noise.  Default: one document in 50, or
        fewer if fewer than ten words per topic would be left.
    noise
        A word is no anchor if its squared distance from the span of the anchors so far is less than this many squared
        errors (of its row, and on average of theirs).  There may be fewer topics than requested, with a warning.
        0: as many as requested, for a model with a fixed number of topics.
    projection
        Columns of the random matrix; a vocabulary of no more words is not projected.

    Notes
    -----
    Each document gives (h h' - diag(h)) / (n (n - 1)) to Q, an unbiased estimate of the co-occurrence of two of its n
    tokens.  Documents of one token have none, and count only in the sizes of topics.  Parts of documents that belong
    to one topic, with expected counts, count in the same way: see
    :func:`~bnp_dask.kernels.topics.anchors.projected_pairs`.

    References
    ----------
    Arora, Ge, Halpern, Mimno, Moitra, Sontag, Wu & Zhu (2013), "A practical algorithm for topic modeling with provable
    guarantees": Algorithm 4 (anchors) and RecoverL2.
    """

    n_clusters: int
    min_documents: int | None = None
    projection: int = 400
    noise: float = 1.0

    def __init__(
        self,
        n_clusters: int | None = None,
        min_documents: int | None = None,
        projection: int = 400,
        noise: float = 1.0,
        *,
        n_topics: int | None = None,
    ) -> None:
        name, value = of_two_names("n_clusters", n_clusters, "n_topics", n_topics)
        least = None if min_documents is None else whole_number("min_documents", min_documents, 1)
        hold(self, "n_clusters", whole_number(name, value, 1))
        hold(self, "min_documents", least)
        hold(self, "projection", whole_number("projection", projection, 2))
        hold(self, "noise", number_from("noise", noise, 0.0))

    @property
    def n_topics(self) -> int:
        """Most topics to start with."""
        return self.n_clusters

    def start(self, context: InitContext) -> Summary:
        """Return the statistics of the topics found.

        Raises
        ------
        SettingError
            The model is no topic model of word counts, or Q R would take more than 2 GB.
        DataError
            No word is in enough documents.
        """
        n_words = context.source.n_features
        require_words(context, "AnchorWords")
        columns = min(self.projection, n_words)
        size = 16 * n_words * columns
        if size > MEMORY:
            raise SettingError(
                f"AnchorWords: {n_words} words times projection={columns}, twice, are {size / 2**30:.1f} GB, "
                f"and each task sends them; at most {MEMORY / 2**30:.0f} GB. Give projection="
                f"{max(2, MEMORY // (16 * n_words))} or less, ingest with a smaller vocabulary, or start from "
                "RandomExamples"
            )
        root = new_root(context.rng)
        found = self._gather(context, columns, root)
        summary = self._recover(context.model, found)
        if summary.n_clusters < self.n_clusters:
            warn(
                f"starting with {summary.n_clusters} topics instead of {self.n_clusters}: the co-occurrence of words "
                "in enough documents tells no more topics apart (noise=0 takes as many as words span)"
            )
        return summary

    def of_batch(self, model: Model, batch: Batch, root: int) -> Summary:
        """Topics of the documents of one batch, such as a sample; counts may be expected counts, not integers."""
        return self._recover(model, count_together(batch, min(self.projection, batch.n_features), root))

    def _gather(self, context: InitContext, columns: int, root: int) -> Cooccurrence:
        executor, source, atoms = context.executor, context.source, context.survey.batch_atoms
        model = executor.share("init-model", context.model)

        def submit(b: int) -> Handle:
            return executor.submit(
                f"init-words-batch{b}", _count_together, batch_reader(source, b), model, atoms[b], columns, root
            )

        total: Cooccurrence | None = None
        for part in each_batch(context, submit):
            total = part if total is None else total.plus(part)
        assert total is not None  # an empty data set was refused by the survey
        return total

    def _recover(self, model: Model, found: Cooccurrence) -> Summary:
        candidates = self._candidates(found)
        anchors = farthest_points(found.halves(), candidates, self.n_clusters, self.noise)
        rows = found.rows()
        corners = rows[anchors]
        share = convex_weights(matmul(corners, corners.T), matmul(rows, corners.T))
        seen = found.seen
        together = seen > 0
        prior = matmul(seen, share) / seen.sum()
        share[~together] = prior
        counts = found.tokens[:, None] * share
        order = np.argsort(-counts.sum(axis=0), kind="stable")
        return as_summary(model, counts[:, order])

    def _candidates(self, found: Cooccurrence) -> np.ndarray:
        """Words that may be anchors."""
        together = (found.share > 0).all(axis=0) if (found.share.sum(axis=1) > 0).all() else found.seen > 0
        present = found.documents[together]
        if len(present) == 0:
            raise DataError("AnchorWords: no document has two tokens, so no words occur together")
        least = self.min_documents
        if least is None:
            wanted = min(10 * self.n_clusters, len(present))
            least = min(found.n_documents / 50, np.sort(present)[-wanted])
        candidates = np.flatnonzero((found.documents >= least) & together)
        if len(candidates) == 0:
            raise DataError(
                f"AnchorWords(min_documents={self.min_documents}): no word is in so many documents; the most frequent "
                f"is in {found.documents.max():.0f}"
            )
        return candidates


def require_words(context: InitContext, called: str) -> None:
    """Raise SettingError unless the model is a topic model of word counts."""
    model = context.model
    if not starts_from_words(context):
        kind = "sparse counts" if context.source.is_sparse else "dense rows"
        raise SettingError(
            f"{called} starts topic models of words: HDPTopics() or LDA() of Multinomial() on sparse counts, not "
            f"{type(model.allocation).__name__} of {type(model.observation).__name__} on {kind}; start from "
            "BregmanKMeans or RandomExamples"
        )


@dataclass(frozen=True, eq=False)
class Cooccurrence:
    """Cooccurrence of words in documents; additive.

    ``table (2, V, p)`` is Q R of each half of the documents; ``share (2, V)`` the exact row sums of Q: the expected
    share of the word in a document; then ``documents`` with the word and ``tokens`` of it, both ``(V,)``, and the
    number of documents.
    """

    table: np.ndarray
    share: np.ndarray
    documents: np.ndarray
    tokens: np.ndarray
    n_documents: float

    def plus(self, other: Cooccurrence) -> Cooccurrence:
        """Sum of both; the table of the first is overwritten."""
        np.add(self.table, other.table, out=self.table)
        return replace(
            self,
            share=self.share + other.share,
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            n_documents=self.n_documents + other.n_documents,
        )

    @property
    def seen(self) -> np.ndarray:
        """Row sums of Q over all documents, ``(V,)``."""
        return self.share.sum(axis=0)

    def rows(self) -> np.ndarray:
        """Rows of Q R, with rows of Q normalised to sum to one, ``(V, p)``."""
        return _normalised(self.table.sum(axis=0), self.seen)

    def halves(self) -> np.ndarray:
        """Rows of Q R of each half of the documents, ``(2, V, p)``; for a single document, the rows of all twice."""
        if not (self.share.sum(axis=1) > 0).all():
            return np.stack([self.rows()] * 2)
        return np.stack([_normalised(t, s) for t, s in zip(self.table, self.share, strict=True)])


def _normalised(table: np.ndarray, share: np.ndarray) -> np.ndarray:
    out = np.zeros_like(table)
    np.divide(table, share[:, None], out=out, where=share[:, None] > 0)
    return out


def _count_together(reader: Reader, model: Model, expected: int, columns: int, root: int) -> Cooccurrence:
    """Task: co-occurrence of the words of one batch."""
    return count_together(read_checked(reader, model, expected), columns, root)


def count_together(batch: Batch, columns: int, root: int) -> Cooccurrence:
    """Co-occurrence of the words of a batch, projected on ``columns``; not projected if there are no more words."""
    x = sparse.csr_array(batch.x)
    times = np.ones(x.shape[0]) if batch.weights is None else batch.weights
    basis = projection(x.shape[1], columns, root)
    sides = [np.arange(side, x.shape[0], 2) for side in (0, 1)]
    pairs = [projected_pairs(sparse.csr_array(x[side]), times[side], basis) for side in sides]
    table, share = np.stack([table for table, _ in pairs]), np.stack([share for _, share in pairs])
    present = sparse.csr_array((np.minimum(x.data, 1.0), x.indices, x.indptr), shape=x.shape)
    return Cooccurrence(table, share, matmul(times, present), matmul(times, x), float(times.sum()))


def projection(n_words: int, columns: int, root: int) -> np.ndarray:
    """Random matrix ``(V, p)`` that keeps distances, the same in every task; the identity if p is V."""
    if columns == n_words:
        return np.eye(n_words)
    return child_rng(root).standard_normal((n_words, columns)) / np.sqrt(columns)


def as_summary(model: Model, counts: np.ndarray) -> Summary:
    """Summary of topics with these expected tokens ``(V, K)``; entropies count as zero."""
    empty = model.empty_summary(np.arange(counts.shape[1]))
    x = np.ascontiguousarray(counts.T)
    return replace(empty, values={**empty.values, "N": x.sum(axis=1), "x": x})
