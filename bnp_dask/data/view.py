"""Views: sources with the batches of another source, read in another way.

A view has the name, batches and features of its source.  Each class states its change: weights, the order and names of
columns, atoms that count, or batches that are left out.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Columns, Location, Survey, check_weights, checksum
from bnp_dask.data.base import (
    Reader,
    Source,
    Span,
    columns_of,
    fingerprint_of,
    fingerprint_of_files,
    shows_itself,
    sound,
    spans_of,
)
from bnp_dask.errors import DataError
from bnp_dask.execute import DEFAULT_RETRIES, may_pass, plain_interrupts
from bnp_dask.inputs import Codes, as_counts


@dataclass(frozen=True, eq=False)
class Changed:
    """Reader of a batch that is changed after reading, by a function that travels with it."""

    reader: Reader
    change: Callable[[Batch], Batch]

    def __call__(self) -> Batch:
        return self.change(self.reader())


@shows_itself
@dataclass(frozen=True, eq=False, repr=False)
class View:
    """A source with the batches of ``whole``, read in another way."""

    whole: Source

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def n_batches(self) -> int:
        return self.whole.n_batches

    @property
    def n_features(self) -> int:
        return self.whole.n_features

    @property
    def n_atoms(self) -> int | None:
        return self.whole.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.whole.is_sparse

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.whole)

    def reader(self, index: int) -> Reader:
        """Reader of batch ``index``."""
        return self.whole.reader(index)

    def fingerprint(self) -> Any:
        """Fingerprint of the data beneath."""
        return fingerprint_of(self.whole)

    def describe(self) -> dict[str, Any]:
        """Identity of the data beneath."""
        return self.whole.describe()

    def letting_miss(self) -> Self:
        """The view of data in which NaN is a missing entry."""
        return replace(self, whole=letting_miss(self.whole))


def letting_miss(source: Source) -> Source:
    """The data with NaN allowed in groups of rows."""
    return source.letting_miss() if isinstance(source, View) else source


# -- weights stored apart from the atoms -------------------------------------------------------------------------------
@runtime_checkable
class StoredWeights(Protocol):
    """Weights ``(n, 1)`` in a file."""

    @property
    def location(self) -> Location:
        """The file."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """``(n, 1)``."""
        ...

    def read(self, span: Span, dtype: np.dtype) -> np.ndarray:
        """Weights of the atoms ``span``, ``(m, 1)``."""
        ...


Weights = np.ndarray | StoredWeights
"""Weights ``(n,)`` in memory, or in a file."""


@dataclass(frozen=True, eq=False, repr=False)
class WeightedSource(View):
    """A source whose atoms carry weights ``(n,)`` from an array or a .npy file."""

    spans: tuple[Span, ...]
    weights: Weights

    def reader(self, index: int) -> Reader:
        span, weights = self.spans[index], self.weights
        held = weights[span[0] : span[1]] if isinstance(weights, np.ndarray) else weights
        return Changed(self.whole.reader(index), partial(_weighted, weights=held, span=span))

    def fingerprint(self) -> Any:
        own = None if isinstance(self.weights, np.ndarray) else fingerprint_of_files([self.weights.location])
        return [fingerprint_of(self.whole), own]

    def describe(self) -> dict[str, Any]:
        if isinstance(self.weights, np.ndarray):
            return {**self.whole.describe(), "weights": f"crc32 {zlib.crc32(self.weights.tobytes())}"}
        return {**self.whole.describe(), "weights": self.weights.location.name}


def _weighted(batch: Batch, weights: Weights, span: Span) -> Batch:
    """The batch with its weights; a file of weights is read now."""
    held = weights if isinstance(weights, np.ndarray) else weights.read(span, np.dtype(np.float64))[:, 0]
    return replace(batch, weights=check_weights(held, batch.n_atoms, batch.name))


def with_weights(source: Source, source_spans: tuple[Span, ...], weights: Weights) -> WeightedSource:
    """Attach one weight per atom; DataError if their number or values are wrong."""
    n = source_spans[-1][1]
    if isinstance(weights, np.ndarray):
        return WeightedSource(source, source_spans, check_weights(weights, n, source.name))
    if weights.shape != (n, 1):
        raise DataError(f"{weights.location.name}: {weights.shape[0]} weights for the {n} atoms of {source.name}")
    return WeightedSource(source, source_spans, weights)


# -- columns -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False, repr=False)
class OrderedSource(View):
    """A source with named features, taken from the positions ``index (D,)`` of another, or in the same order.

    ``codes`` convert features to positions of levels, None for other features; empty if no feature is converted.
    """

    names: Columns
    index: np.ndarray | None
    codes: tuple[Codes | None, ...] = ()

    @property
    def columns(self) -> Columns:
        return self.names

    @property
    def n_features(self) -> int:
        return self.names.n_features

    @property
    def spans(self) -> Sequence[Span] | None:
        return spans_of(self.whole)

    def reader(self, index: int) -> Reader:
        change = partial(_ordered, names=self.names.features, index=self.index, codes=self.codes)
        return Changed(self.whole.reader(index), change)

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "n_features": self.n_features, "columns": list(self.names.names)}


def _ordered(batch: Batch, names: tuple[str, ...], index: np.ndarray | None, codes: tuple[Codes | None, ...]) -> Batch:
    if index is not None:
        x = batch.x[:, index]
        # contiguous, so that products round as for a batch that was read in this order
        batch = replace(batch, x=np.ascontiguousarray(x) if isinstance(x, np.ndarray) else as_counts(x, batch.name))
    if codes:
        batch = replace(batch, x=coded_rows(batch, codes))
    return replace(batch, names=names)


def coded_rows(batch: Batch, codes: Sequence[Codes | None]) -> np.ndarray:
    """The rows of a batch with positions of levels in some columns."""
    if not isinstance(batch.x, np.ndarray):
        raise DataError(f"{batch.name}: sparse counts, but columns of levels need dense rows")
    x = np.array(batch.x, np.float64)
    for i, own in enumerate(codes):
        if own is not None:
            x[:, i] = own.apply(x[:, i], batch.name)
    return x


LEFT_OUT = -1
"""Position of a column that is left out."""


@dataclass(frozen=True, eq=False, repr=False)
class PlacedSource(View):
    """A source of counts, ``width`` wide, with column v of another at ``place[v]``; None keeps the order."""

    width: int
    place: np.ndarray | None = None

    @property
    def columns(self) -> None:
        return None

    @property
    def n_features(self) -> int:
        return self.width

    @property
    def spans(self) -> Sequence[Span] | None:
        return spans_of(self.whole)

    def reader(self, index: int) -> Reader:
        return Changed(self.whole.reader(index), partial(_placed, width=self.width, place=self.place))

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "n_features": self.width}


def reordered(source: Source, width: int, place: np.ndarray | None) -> Source:
    """The source with its columns at positions ``place (V,)`` among ``width``; the source itself if nothing moves."""
    if place is not None and np.array_equal(place, np.arange(len(place))):
        place = None
    return source if place is None and source.n_features == width else PlacedSource(source, width, place)


def _placed(batch: Batch, width: int, place: np.ndarray | None) -> Batch:
    if place is None:
        return batch.widened(width)
    kept, read_width = place != LEFT_OUT, batch.n_features
    x: Any = batch.x
    if isinstance(x, np.ndarray):
        out: Any = np.zeros((x.shape[0], width))
        out[:, place[kept]] = x[:, kept]
        read_width = int(place.max(initial=LEFT_OUT)) + 1
    else:
        out = _placed_counts(x, place, width)
    return replace(batch, x=out, names=None, read_width=read_width)


def _placed_counts(x: sparse.csr_array, place: np.ndarray, width: int) -> sparse.csr_array:
    index = place[x.indices]
    held = index != LEFT_OUT
    before = np.concatenate([[0], np.cumsum(held)])
    out = sparse.csr_array((x.data[held], index[held], before[x.indptr]), shape=(x.shape[0], width))
    out.sort_indices()
    return out


# -- atoms that count --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False, repr=False)
class CountedSource(View):
    """A source without the atoms of weight zero.

    They enter no survey, start or statistic, and change no bit of the posterior.

    Parameters
    ----------
    whole
        The source.
    counted
        Function that keeps the atoms, or sequences, of a batch with positive weight: ``model.structure.counted``.
    """

    counted: Callable[[Batch], Batch]

    def reader(self, index: int) -> Reader:
        return Changed(self.whole.reader(index), self.counted)


SHARE = 1.0 - math.exp(-1.0)
"""Share of the units that a bootstrap sample holds at least once, 63.2 %."""

PURPOSE = b"resample"
"""Key of these random numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class ResampledSource(View):
    """A source with the distinct units of a bootstrap sample: atoms, documents, or sequences.

    If n of n units are drawn with replacement, the number of times that a unit is drawn tends to a Poisson(1) variable,
    independent of the others, so that no pass and no shuffle is needed: a unit is drawn at all with probability
    ``1 - 1/e``.  Its weight is then kept, however often it is drawn, and is zero else.  Copies would count as
    observations of their own, and mixtures with an unbounded number of clusters find clusters for copies: with counts,
    samples of 400 rows of five clusters had 9 to 13, and of 300 documents of six topics 7 to 8.

    Draws depend on the seed and the number of the batch alone: they are the same on any number of workers, at every
    visit.

    Parameters
    ----------
    whole
        The source.
    seed
        Seed of the sample.
    by_group
        Whether groups of dense atoms (sequences, images) are drawn as wholes.

    References
    ----------
    Oza & Russell (2001), "Online bagging and boosting"; Hennig (2007), "Cluster-wise assessment of cluster stability",
    2.2, about copies.
    """

    seed: int
    by_group: bool

    def reader(self, index: int) -> Reader:
        change = partial(_resampled, seed=self.seed, index=index, by_group=self.by_group)
        return Changed(self.whole.reader(index), change)

    def fingerprint(self) -> Any:
        return [fingerprint_of(self.whole), "resampled", self.seed, self.by_group]

    def describe(self) -> dict[str, Any]:
        return {**self.whole.describe(), "resampled": self.seed}


def _resampled(batch: Batch, seed: int, index: int, by_group: bool) -> Batch:
    """The batch in which units that are not drawn have weight zero."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(index, *PURPOSE)))
    if by_group and batch.groups is not None:
        counts = np.repeat(rng.random(batch.n_groups) < SHARE, np.diff(batch.groups)).astype(np.float64)
    else:
        counts = (rng.random(batch.n_atoms) < SHARE).astype(np.float64)
    return replace(batch, weights=counts if batch.weights is None else counts * batch.weights)


# -- batches that are compared, or left out ----------------------------------------------------------------------------
def reason(error: BaseException) -> str:
    """Text of an error with its notes, in one line, kept as the reason why a batch is left out."""
    return " ".join(" ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]).split())


def read_or_why(reader: Reader) -> Batch | str:
    """A batch, or the reason why it cannot be read; temporary failures are retried as often as an executor would.

    A lack of memory is not the fault of the batch and is raised, as an interrupt is.
    """
    for left in range(DEFAULT_RETRIES, -1, -1):
        try:
            with plain_interrupts():
                return reader()
        except MemoryError:
            raise
        except Exception as error:
            if left == 0 or not may_pass(error):
                return reason(error)
    raise AssertionError


@dataclass(frozen=True)
class EmptyReader:
    """Reader of a batch without atoms, in place of one that cannot be read.

    ``n_features``, ``is_sparse`` and ``is_grouped`` are as for the other batches.
    """

    name: str
    n_features: int
    is_sparse: bool
    is_grouped: bool

    def __call__(self) -> Batch:
        shape = (0, self.n_features)
        x = sparse.csr_array(shape, dtype=np.float64) if self.is_sparse else np.zeros(shape)
        return Batch(x, None, self.name, np.zeros(1, np.int64) if self.is_grouped else None)


def stand_in(source: Source, survey: Survey, index: int) -> EmptyReader:
    """Reader used in place of batch ``index`` when that is left out."""
    is_grouped = not survey.is_sparse and survey.n_groups > 0
    return EmptyReader(f"{source.name} batch {index}", source.n_features, source.is_sparse, is_grouped)


@dataclass(frozen=True)
class ForgivingReader:
    """Reader of a batch that returns ``empty`` if it cannot be read; for tasks that can do without it."""

    reader: Reader
    empty: EmptyReader

    def __call__(self) -> Batch:
        found = read_or_why(self.reader)
        return self.empty() if isinstance(found, str) else found


@dataclass(frozen=True)
class CheckedReader:
    """Reader of a batch that raises DataError unless its CRC-32 is the same as when its run began."""

    reader: Reader
    checksum: int

    def __call__(self) -> Batch:
        batch = sound(self.reader())
        require_checksum(batch, self.checksum)
        return batch


def require_checksum(batch: Batch, expected: int) -> None:
    """DataError unless the CRC-32 of a batch is the same as when its run began."""
    found = checksum(batch)
    if found != expected:
        raise DataError(
            f"{batch.name}: the data changed, its content is not the same as when the run began (CRC-32 {found:08x}, "
            f"was {expected:08x}). Put it back as it was and call train(..., resume=True), or start a new run in "
            "another directory; data that every read computes anew have to be persisted, or written by ingest(), before"
        )


@dataclass(frozen=True, eq=False, repr=False)
class CheckedSource(View):
    """A source that compares batches with their checksums whenever they are read.

    Parameters
    ----------
    whole
        The source.
    checksums
        CRC-32 of every batch.
    """

    checksums: Sequence[int]

    def reader(self, index: int) -> Reader:
        return CheckedReader(self.whole.reader(index), int(self.checksums[index]))


@dataclass(frozen=True, repr=False)
class WithoutBatches(View):
    """A source with some batches left out: they keep their numbers, but have no atoms.

    Parameters
    ----------
    whole
        The source.
    bad
        Numbers of the batches to leave out, ascending, with reasons.
    is_grouped
        Whether its rows come in groups.
    doubtful
        Numbers of batches that could not be read just now, with their checksums: they are used only if unchanged.
    is_forgiving
        Whether other unreadable batches count as empty too.
    """

    bad: tuple[tuple[int, str], ...]
    is_grouped: bool = False
    doubtful: tuple[tuple[int, int], ...] = ()
    is_forgiving: bool = False

    @property
    def n_atoms(self) -> None:
        """Unknown, because an unreadable batch has an unknown number of atoms."""
        return None

    def reader(self, index: int) -> Reader:
        empty = EmptyReader(f"{self.name} batch {index}", self.n_features, self.is_sparse, self.is_grouped)
        if any(index == b for b, _ in self.bad):
            return empty
        reader = self.whole.reader(index)
        known = dict(self.doubtful)
        if index in known:
            reader = CheckedReader(reader, known[index])
        return ForgivingReader(reader, empty) if self.is_forgiving else reader
