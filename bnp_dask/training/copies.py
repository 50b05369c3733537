"""Copies of rows: found by the survey, told, and counted once together.

Twenty equal rows of continuous values are evidence of a cluster of width zero, to any model of such values: twelve
clusters of 100 rows, each row 20 times, end as hundreds of clusters.  Two draws from a density are never equal, so
equal rows are copies: of a table joined with another, or of rows drawn with replacement.  Only the first of them counts
then, unless the caller says that they are observations: ``Model(..., copies="count")``, or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.bulk import grain_of
from bnp_dask.core.survey import Survey
from bnp_dask.core.survey.copies import row_hashes
from bnp_dask.data.base import Reader, Source, batch_reader, fingerprint_of
from bnp_dask.data.view import CountedSource, View, read_or_why
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.model import Model
from bnp_dask.observation.base import RoundedObservation
from bnp_dask.training.callbacks import logger

LEAST_SHARE = 0.1
"""Share of the rows that must be copies beyond the first of each, and of distinct rows that must have any.

Of a bootstrap sample 37 % are copies; iris has 1 in 150, with rounded values.  Chosen on 12 Gaussians, each of whose
rows occurs 20 times.
"""

LEAST_DISTINCT = 30
"""Distinct rows that must be known: fewer may be the levels of a category."""

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
    whole = np.unpackbits(np.asarray(arrays[KEPT]), count=int(sizes.sum())).astype(np.bool_)
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
    in a column without grain.  Values that many rows share, such as zeros, and rounded values may repeat by themselves.
    """
    counts, rows = survey.copies.counts, survey.copies.rows
    extra = counts - 1
    if len(counts) < LEAST_DISTINCT or not extra.sum() >= LEAST_SHARE * counts.sum():
        return 0.0
    own = np.zeros(len(rows), np.bool_)
    for j in np.flatnonzero(grain_of(survey) == 0.0):
        _, place, times = np.unique(rows[:, j], return_inverse=True, return_counts=True, equal_nan=True)
        own |= (times[place.ravel()] == 1) & ~np.isnan(rows[:, j])
    repeats = own & (extra > 0)
    # a single row with most of the copies stands for nothing observed, such as zeros everywhere
    return float(extra[repeats].sum() / counts.sum()) if repeats.mean() >= LEAST_SHARE else 0.0


def counts_copies_once(model: Model) -> bool:
    """Whether copies count once: rows of continuous values that do not depend on one another."""
    is_continuous = isinstance(model.observation, RoundedObservation)
    return model.copies != "count" and is_continuous and not model.structure.is_tied and not model.lags


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
    if survey is None or once_of(source) is not None or not counts_copies_once(model):
        return source
    share = share_of_copies(survey)
    if share < LEAST_SHARE:
        return source
    told = f"about {share:.0%} of the rows of {source.name} are copies of other rows"
    if survey.n_atoms > MOST_ROWS:
        logger.warning(
            "%s, and each counts as an observation of its own, for there are too many rows to compare all of them. "
            'To let each count once: bnp.ingest(..., deduplicate="once")',
            told,
        )
        return source
    kept = kept_in(known(with_kept(source, ())))
    if kept is None:
        tasks = ((f"copies-batch{b}", _hashes, (batch_reader(source, b),)) for b in range(source.n_batches))
        kept = firsts(list(in_order(executor, tasks, WINDOW, slight=True)))
    logger.warning(
        "%s, equal to the last digit: %s distinct rows count once each. If copies are observations: "
        'Model(..., copies="count"), or give weights',
        told,
        f"{sum(int(own.sum()) for own in kept):,}",
    )
    return with_kept(source, kept)


def firsts(hashes: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Whether each row is the first with its hash, by batch, ``(n,)`` bool each."""
    whole = np.concatenate(hashes)
    found = np.zeros(len(whole), np.bool_)
    found[np.unique(whole, return_index=True)[1]] = True
    return tuple(np.split(found, np.cumsum([len(own) for own in hashes])[:-1]))


def _hashes(reader: Reader) -> np.ndarray:
    """Task: hashes of the rows of a batch; none if it cannot be read."""
    batch = read_or_why(reader)
    return np.zeros(0, np.uint64) if isinstance(batch, str) else row_hashes(np.asarray(batch.x))
