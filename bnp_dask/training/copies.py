"""Copies of rows: found by the survey, told, and counted once together.

Twenty equal rows of continuous values are evidence of a cluster of width zero, to any model of such values: twelve
clusters of 100 rows, each row 20 times, end as hundreds of clusters.  Two draws from a density are never equal, so
equal rows are copies: of a table joined with another, or of rows drawn with replacement.  Only the first of them counts
then, unless the caller says that they are observations: ``Model(..., copies="count")``, or weights.

Documents are copies if they have the same words equally often, and so many words that this cannot be chance: of a
corpus whose documents occur twice the words are evidence of more topics than the documents have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import gammaln

from bnp_dask.core import Batch, Survey, grain_of, row_hashes
from bnp_dask.data import CountedSource, Reader, Source, View, batch_reader, fingerprint_of, read_or_why
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial, RoundedObservation, unlabelled
from bnp_dask.training.callbacks import logger

LEAST_SHARE = 0.1
"""Share of the rows that must be copies beyond the first of each, and of distinct rows that must have any.

Of a bootstrap sample 37 % are copies; iris has 1 in 150, with rounded values.  Chosen on 12 Gaussians, each of whose
rows occurs 20 times.
"""

LEAST_DISTINCT = 30
"""Distinct rows that must be known: fewer may be the levels of a category."""

OWN_COLUMNS = 2
"""Columns in which a row must have a value of its own before a second row like it is taken for a copy."""

COPY_NATS = 50.0
"""Log of the number of sets of words, as large as that of a document, above which a second such document is a copy.

Fifty nats leave no chance of two equal draws among any number of documents.  22 of 100 equally frequent words, or
7 of 5,000, have as many; twenty yes-no columns, or sessions of 30 kinds of events, whose counts do repeat, never have.
"""

MOST_ROWS = 2**24
"""Rows up to which all are compared: their hashes take 128 MB."""

WINDOW = 16
"""Batches that are read at a time."""


KEPT, SIZES = "copies_kept", "copies_sizes"
"""Names in a manifest of the rows that count, packed to bits, and of the number of rows of each batch."""


@dataclass(frozen=True, eq=False)
class OnceReader:
    """A batch whose rows have ``weights`` of one or zero."""

    reader: Reader
    kept: np.ndarray

    def __call__(self) -> Batch:
        return replace(self.reader(), weights=self.kept.astype(np.float64))


@dataclass(frozen=True, eq=False)
class OnceSource(View):
    """A source of which the first of equal rows weighs one, and the others nothing.

    Parameters
    ----------
    whole
        The source.
    kept
        Rows of each batch that count, ``(n,)`` bool each; of length 0 for a batch that could not be read.
    """

    kept: tuple[np.ndarray, ...] = ()

    def reader(self, index: int) -> Reader:
        reader, kept = self.whole.reader(index), self.kept[index]
        return OnceReader(reader, kept) if len(kept) else reader

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), "copies once"]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "copies": "once"}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """The rows that count, for a manifest."""
        sizes = np.array([len(own) for own in self.kept], np.int64)
        return {KEPT: np.packbits(np.concatenate([np.zeros(0, np.bool_), *self.kept])), SIZES: sizes}


def kept_in(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...] | None:
    """The rows of each batch that count, in the arrays of a manifest; None if all do."""
    if KEPT not in arrays:
        return None
    sizes = np.asarray(arrays[SIZES])
    packed = np.asarray(arrays[KEPT])
    if sizes.dtype.kind not in "iu" or sizes.ndim != 1 or (sizes < 0).any() or len(packed) != -(-sizes.sum() // 8):
        raise ValueError(f"{KEPT} does not tell of the rows of {SIZES}")
    whole = np.unpackbits(packed, count=int(sizes.sum())).astype(np.bool_)
    return tuple(np.split(whole, np.cumsum(sizes)[:-1]))


def once_of(source: Source) -> OnceSource | None:
    """The source in which copies count once behind a source, if there is one."""
    inner = source.whole if isinstance(source, CountedSource) else source
    return inner if isinstance(inner, OnceSource) else None


def with_kept(source: Source, kept: tuple[np.ndarray, ...]) -> Source:
    """The source in which only the rows ``kept`` count."""
    if isinstance(source, CountedSource):
        return CountedSource(OnceSource(source.whole, kept), source.counted)
    return OnceSource(source, kept)


def share_of_copies(survey: Survey) -> float:
    """Share of the rows that are copies beyond the first of each, by the sample of distinct rows.

    A row counts only if it cannot have been drawn twice: it has a value that no other distinct row of the sample has,
    in each of :data:`OWN_COLUMNS` columns without grain.  Values that many rows share, such as zeros, and rounded
    values may repeat by themselves; and in one column, rows with equal values are equal, so that copies cannot be told
    from values of which there are few, such as logarithms of counts.  A document counts only if it has so many words
    that it cannot have been drawn twice.
    """
    counts, rows = survey.copies.counts, survey.copies.rows
    extra = counts - 1
    if len(counts) < LEAST_DISTINCT or not extra.sum() >= LEAST_SHARE * counts.sum():
        return 0.0
    unlikely = rows[:, 0] >= least_words(survey) if survey.is_sparse else _own(survey, rows) >= OWN_COLUMNS
    repeats = unlikely & (extra > 0)
    # a single row with most of the copies stands for nothing observed, such as zeros everywhere
    return float(extra[repeats].sum() / counts.sum()) if repeats.mean() >= LEAST_SHARE else 0.0


def _own(survey: Survey, rows: np.ndarray) -> np.ndarray:
    """Number of columns without grain in which each row has a value that no other has, ``(M,)``."""
    n_own = np.zeros(len(rows), np.int64)
    for j in np.flatnonzero(grain_of(survey) == 0.0):
        _, place, times = np.unique(rows[:, j], return_inverse=True, return_counts=True, equal_nan=True)
        n_own += (times[place.ravel()] == 1) & ~np.isnan(rows[:, j])
    return n_own


def least_words(survey: Survey) -> float:
    """Distinct words from which on a second equal document is a copy, by :data:`COPY_NATS`; infinite if never.

    Sets are counted among as many equally frequent words as have the entropy of the corpus.
    """
    mean = survey.mean[survey.mean > 0.0]
    share = mean / mean.sum()
    n_equal = float(np.exp(-(share * np.log(share)).sum()))
    size = np.arange(int(n_equal / 2.0) + 1)  # beyond the half, larger sets are fewer
    nats = gammaln(n_equal + 1.0) - gammaln(size + 1.0) - gammaln(n_equal - size + 1.0)
    return float(np.searchsorted(nats, COPY_NATS)) if nats[-1] >= COPY_NATS else np.inf


def counts_copies_once(model: Model, is_sparse: bool) -> bool:
    """Whether copies count once: rows of continuous values that do not depend on one another, and documents."""
    kind, is_tied = unlabelled(model.observation), model.structure.is_tied
    if model.copies == "count" or model.lags:
        return False
    if is_sparse:
        return isinstance(kind, Multinomial) and (not is_tied or model.structure.takes_words(model))
    return isinstance(kind, RoundedObservation) and not is_tied


def once_each(
    model: Model,
    source: Source,
    survey: Survey | None,
    executor: Executor,
    known: Callable[[Source], Mapping[str, np.ndarray]] = lambda source: {},
) -> Source:
    """The source in which copies count once; the source itself if it has none, or if they are to count.

    Parameters
    ----------
    model, source, survey
        The model, and data with their survey.
    executor
        Where the rows are compared, which reads all batches.
    known
        Returns the notes of an earlier call on the data: arrays of their manifest.
    """
    if survey is None or once_of(source) is not None or not counts_copies_once(model, survey.is_sparse):
        return source
    share = share_of_copies(survey)
    if share < LEAST_SHARE:
        return source
    rows, counted = ("documents", "documents") if survey.is_sparse else ("rows", "distinct rows")
    told = f"about {share:.0%} of the {rows} of {source.name} are copies of other {rows}"
    if survey.n_atoms > MOST_ROWS:
        logger.warning(
            "%s, and each counts as an observation of its own, for there are too many rows to compare all of them. "
            'To let each count once: bnp.ingest(..., deduplicate="once")',
            told,
        )
        return source
    kept = kept_in(known(with_kept(source, ())))
    if kept is None:
        least = least_words(survey) if survey.is_sparse else 0.0
        tasks = ((f"copies-batch{b}", _hashes, (batch_reader(source, b), least)) for b in range(source.n_batches))
        found = list(in_order(executor, tasks, WINDOW, slight=True))
        first = firsts([hashes for hashes, _, _ in found], [labels for _, labels, _ in found])
        kept = tuple(own | short for own, (_, _, short) in zip(first, found, strict=True))
    logger.warning(
        "%s, equal to the last %s: %s %s count once each. If copies are observations: "
        'Model(..., copies="count"), or give weights',
        told,
        "word" if survey.is_sparse else "digit",
        f"{sum(int(own.sum()) for own in kept):,}",
        counted,
    )
    return with_kept(source, kept)


def firsts(hashes: Sequence[np.ndarray], labels: Sequence[np.ndarray] | None = None) -> tuple[np.ndarray, ...]:
    """Whether each row is the first with its hash, by batch, ``(n,)`` bool each.

    With known ``labels``, -1 for none: the first of each label, or the first at all if none of its copies has a label.
    """
    whole = np.concatenate(hashes)
    known = np.full(len(whole), -1) if labels is None else np.concatenate(labels)
    found = np.zeros(len(whole), np.bool_)
    has = np.flatnonzero(known >= 0)
    pairs = np.stack([whole[has], known[has].astype(np.uint64)], axis=1)
    found[has[np.unique(pairs, axis=0, return_index=True)[1]]] = True
    rest = np.flatnonzero(~np.isin(whole, whole[has]))
    found[rest[np.unique(whole[rest], return_index=True)[1]]] = True
    return tuple(np.split(found, np.cumsum([len(own) for own in hashes])[:-1]))


MIXER = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor that spreads numbers of groups over 64 bits (Knuth's multiplicative hashing)."""


def _hashes(reader: Reader, least: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Task: hashes of the rows of a batch, their labels, -1 for none, and which are documents of fewer words than
    ``least``, so that each counts; no rows if the batch cannot be read."""
    batch = read_or_why(reader)
    if isinstance(batch, str):
        return np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.bool_)
    hashes = row_hashes(batch.x)
    if batch.links is not None:  # equal rows of two groups are two observations: each says something of its group
        hashes = hashes ^ ((batch.links + 1).astype(np.uint64) * MIXER)
    labels = np.full(len(hashes), -1) if batch.labels is None else batch.labels
    short = np.zeros(len(hashes), np.bool_) if isinstance(batch.x, np.ndarray) else np.diff(batch.x.indptr) < least
    return hashes, labels, short
