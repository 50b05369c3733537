"""Data that exist nowhere: each batch is computed from its number and a seed when it is read.

Two kinds: rows of a Gaussian mixture, and documents of a topic model.  Both serve runs of any size without a disk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bnp_dask.core import Batch, register
from bnp_dask.data.base import (
    BATCH_BYTES,
    ENTRY_BYTES,
    Reader,
    Span,
    Stored,
    batch_name,
    batch_rows,
    build_csr,
    check_batch_size,
    check_index,
    check_width,
    spans,
)
from bnp_dask.errors import SettingError
from bnp_dask.inputs import MOST, SEEDS, hold, number_from, whole_number

NARROWEST, WIDEST = 0.5, 1.5
"""Range of the standard deviations of a cluster along the columns."""

MEANS, LABELS, NOISE = 0, 1, 2
"""Purposes of random numbers of rows."""

TOPICS, LENGTHS, CHOICES, SHARES, TOKENS, WORDS = 3, 4, 5, 6, 7, 8
"""Purposes of random numbers of documents."""

LEAST, TINIEST = 1e-3, 1e-300
"""Least concentration of shares, and a number that is added to gamma numbers."""

PER_DOCUMENT = 8
"""Topics that a document draws; some are drawn twice, and most of its tokens come from two or three."""

SHIFT = 2.7
"""Shift of ranks in the law of word frequencies (Mandelbrot 1953: rank plus 2.7, for English)."""


class Virtual(Stored):
    """Base of virtual sources: a kind says how many rows a batch has, and makes a batch from its number alone."""

    n_rows: int
    seed: int

    @property
    def spans(self) -> list[Span]:  # type: ignore[override]
        """First row of each batch and one past its last."""
        return spans(self.n_rows, self._size)

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return -(-self.n_rows // self._size)

    @property
    def n_atoms(self) -> int:
        """Rows in all."""
        return self.n_rows

    def reader(self, index: int) -> Reader:
        """Reader of batch ``index``."""
        check_index(index, self.n_batches, self.name)
        return self.block(index, batch_name(self.name, index, self._span(index)))

    def block(self, index: int, name: str) -> Reader:
        """Reader of batch ``index``, which messages call ``name``."""
        return partial(self._made, index, name)

    @property
    def _size(self) -> int:
        raise NotImplementedError

    def _made(self, index: int, name: str) -> Batch:
        raise NotImplementedError

    def _check(self, counts: tuple[str, ...], batch_size: int | None) -> None:
        """Check the settings that are counts, and those that all kinds have."""
        for setting in counts:
            hold(self, setting, whole_number(setting, getattr(self, setting), 1, MOST))
        hold(self, "seed", whole_number("seed", self.seed, 0, SEEDS - 1))
        if batch_size is not None:
            hold(self, "batch_size", check_batch_size(batch_size))

    def _span(self, index: int) -> Span:
        return index * self._size, min((index + 1) * self._size, self.n_rows)

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self.seed, spawn_key=key)))


@register
@dataclass(frozen=True, repr=False)
class VirtualMixture(Virtual):
    """Rows of a Gaussian mixture, computed when they are read: data of any size for runs without a disk.

    Cluster k is equally likely as all others.  Its mean is normal around zero with standard deviation ``spread`` in
    each column; its columns are independent, with standard deviations uniform on 0.5 to 1.5.  The rows of a batch
    depend on the seed, the settings and the number of the batch alone, so that every reading gives the same bits.

    Parameters
    ----------
    n_rows
        Rows in all.
    n_columns
        Columns D.
    n_clusters
        True clusters.
    spread
        Standard deviation of the clusters' means: 4 separates them in 16 columns, 0.5 lets them overlap.
    seed
        Seed of all random numbers, 0 to 2**128 - 1.
    batch_size
        Rows of a batch; default: batches of about 32 MB.

    Examples
    --------
    >>> import bnp_dask as bnp
    >>> data = bnp.VirtualMixture(1_000_000_000, 16, 64)
    >>> data
    VirtualMixture(virtual mixture: 1,000,000,000 rows, 16 columns, 3,815 batches)
    >>> data.reader(3814)().x.shape
    (182784, 16)
    """

    n_rows: int
    n_columns: int
    n_clusters: int
    spread: float = 4.0
    seed: int = 0
    batch_size: int | None = None
    name = "virtual mixture"
    kind = "virtual mixture"

    def __post_init__(self) -> None:
        self._check(("n_rows", "n_columns", "n_clusters"), self.batch_size)
        hold(self, "spread", number_from("spread", self.spread, 0.0))
        check_width(self.n_columns, "n_columns")
        if self.n_clusters > self.n_rows:
            raise SettingError(f"n_clusters={self.n_clusters}: there are only n_rows={self.n_rows}")

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.n_columns

    def facts(self) -> dict[str, Any]:
        """Settings that the rows depend on."""
        return {"n_clusters": self.n_clusters, "spread": self.spread, "seed": self.seed, "batch_size": self._size}

    @property
    def means(self) -> np.ndarray:
        """Means of the true clusters, ``(K, D)``."""
        return self._clusters()[0]

    def labels(self, index: int) -> np.ndarray:
        """True cluster of each row of batch ``index``, ``(n,)``."""
        start, stop = self._span(index)
        return self._rng(LABELS, index).integers(self.n_clusters, size=stop - start)

    @property
    def _size(self) -> int:
        return batch_rows(self.n_columns, self.batch_size)

    def _clusters(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the clusters, both ``(K, D)``."""
        rng, shape = self._rng(MEANS), (self.n_clusters, self.n_columns)
        return self.spread * rng.standard_normal(shape), rng.uniform(NARROWEST, WIDEST, shape)

    def _made(self, index: int, name: str) -> Batch:
        """The rows of one batch."""
        label = self.labels(index)
        means, scale = self._clusters()
        x = self._rng(NOISE, index).standard_normal((len(label), self.n_columns))
        for start in range(0, len(label), 8192):  # so that little is held beside the rows
            own, rows = label[start : start + 8192], x[start : start + 8192]
            rows *= scale[own]
            rows += means[own]
        return Batch(x, name=name)


@register
@dataclass(frozen=True, repr=False)
class VirtualTopics(Virtual):
    """Documents of a topic model, computed when they are read: texts of any size for runs without a disk.

    Topic k has a weight proportional to ``1 / (1 + 10 k / K)``, so that the first has eleven times that of the last.
    Its words follow the law of Zipf and Mandelbrot: the word of rank r = 0, 1, ... has a probability proportional to
    ``1 / (r + 2.7)``, and ranks are spread over the vocabulary by ``(a_k r + b_k) mod V`` with random a_k and b_k, so
    that each topic has frequent words of its own and every word occurs in all.  A document has 1 plus a Poisson number
    of tokens; it draws eight topics by their weights, and their shares from a Dirichlet distribution.  The documents of
    a batch depend on the seed, the settings and the number of the batch alone, so that every reading gives the same
    bits.

    Parameters
    ----------
    n_rows
        Documents in all.
    n_words
        Words of the vocabulary V.
    n_topics
        True topics K.
    length
        Mean number of tokens of a document, at least 1.
    concentration
        Concentration of the Dirichlet distribution of a document's eight shares, each.
    seed
        Seed of all random numbers, 0 to 2**128 - 1.
    batch_size
        Documents of a batch; default: batches of about 32 MB.

    Examples
    --------
    >>> import bnp_dask as bnp
    >>> data = bnp.VirtualTopics(8_200_000, 140_000, 200)
    >>> data
    VirtualTopics(virtual topics: 8,200,000 rows, 140,000 columns of counts, 264 batches)
    >>> bool(data.topic(0).argmax() == data.word(0, 0))
    True
    """

    n_rows: int
    n_words: int
    n_topics: int
    length: float = 89.0
    concentration: float = 0.25
    seed: int = 0
    batch_size: int | None = None
    name = "virtual topics"
    kind = "virtual topics"

    def __post_init__(self) -> None:
        self._check(("n_rows", "n_words", "n_topics"), self.batch_size)
        hold(self, "length", number_from("length", self.length, 1.0))
        hold(self, "concentration", number_from("concentration", self.concentration, LEAST))
        check_width(self.n_words, "n_words")

    @property
    def n_features(self) -> int:
        """Number of words V."""
        return self.n_words

    @property
    def is_sparse(self) -> bool:
        """Whether batches are sparse counts: they are."""
        return True

    def facts(self) -> dict[str, Any]:
        """Settings that the documents depend on."""
        own = {"n_topics": self.n_topics, "length": self.length, "concentration": self.concentration}
        return {**own, "seed": self.seed, "batch_size": self._size}

    @property
    def weights(self) -> np.ndarray:
        """Shares of the true topics in all tokens, ``(K,)``."""
        weight = 1.0 / (1.0 + 10.0 * np.arange(self.n_topics) / self.n_topics)
        return weight / weight.sum()

    def topic(self, k: int) -> np.ndarray:
        """Probabilities of all words in true topic ``k``, ``(V,)``."""
        out, rank = np.empty(self.n_words), np.arange(self.n_words)
        out[self.word(np.full(self.n_words, k), rank)] = np.diff(self._ranks(), prepend=0.0)
        return out

    def word(self, topic: Any, rank: Any) -> Any:
        """Words at ranks of topics; any shape."""
        times, more = self._orders()
        return (times[topic] * rank + more[topic]) % self.n_words

    @property
    def _size(self) -> int:
        if self.batch_size is not None:
            return self.batch_size
        return max(1, int(BATCH_BYTES / (ENTRY_BYTES * (1.0 + self.length))))

    def _ranks(self) -> np.ndarray:
        """Probability of each rank and all before it, ``(V,)``."""
        sums = np.cumsum(1.0 / (np.arange(self.n_words) + SHIFT))
        return np.asarray(sums / sums[-1])

    def _orders(self) -> tuple[np.ndarray, np.ndarray]:
        """Factor and first word of each topic's order of words, both ``(K,)``; factors have no divisor of V."""
        rng, v = self._rng(TOPICS), self.n_words
        times = rng.integers(1, max(v, 2), self.n_topics)
        for k in range(self.n_topics):
            while math.gcd(int(times[k]), v) > 1:
                times[k] = times[k] % v + 1
        return times, rng.integers(v, size=self.n_topics)

    def _made(self, index: int, name: str) -> Batch:
        """The documents of one batch."""
        start, stop = self._span(index)
        n = stop - start
        length = 1 + self._rng(LENGTHS, index).poisson(self.length - 1.0, n)
        chosen = np.searchsorted(np.cumsum(self.weights)[:-1], self._rng(CHOICES, index).random((n, PER_DOCUMENT)))
        # a gamma number of 0 is one too small for float64; a document needs one that is not
        gammas = self._rng(SHARES, index).standard_gamma(self.concentration, (n, PER_DOCUMENT)) + TINIEST
        ends = np.cumsum(gammas, axis=1)
        document = np.repeat(np.arange(n), length)
        place = self._rng(TOKENS, index).random(len(document)) * ends[document, -1]
        which = np.zeros(len(document), np.int64)
        for j in range(PER_DOCUMENT - 1):
            which += place > ends[document, j]
        rank = np.searchsorted(self._ranks()[:-1], self._rng(WORDS, index).random(len(document)), side="right")
        words = self.word(chosen[document, which], rank)
        return Batch(build_csr(length, words, np.ones(len(words)), self.n_words, name), name=name)
