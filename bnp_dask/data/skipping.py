"""Sources that leave out unreadable batches while all others are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns
from bnp_dask.core.survey import Survey, checksum
from bnp_dask.data.base import Reader, Source, columns_of, sound
from bnp_dask.data.identity import fingerprint_of
from bnp_dask.errors import DataError
from bnp_dask.execute.base import DEFAULT_RETRIES, plain_interrupts
from bnp_dask.execute.passing import may_pass


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
            f"{batch.name}: the data changed, its content is not what it was when the run began (CRC-32 {found:08x}, "
            f"was {expected:08x}). Put it back as it was and call train(..., resume=True), or start a new run in "
            "another directory; data that every read computes anew have to be persisted, or written by ingest(), before"
        )


@dataclass(frozen=True, eq=False)
class ReadOtherwise:
    """A source with the batches of another, ``whole``, that are read in another way."""

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
    def is_sparse(self) -> bool:
        return self.whole.is_sparse

    @property
    def n_atoms(self) -> int | None:
        return self.whole.n_atoms

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.whole)

    def describe(self) -> dict[str, Any]:
        return self.whole.describe()


@dataclass(frozen=True, eq=False)
class CheckedSource(ReadOtherwise):
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


@dataclass(frozen=True, eq=False)
class CountedReader:
    """A batch without the atoms of weight zero; ``counted`` leaves them out."""

    reader: Reader
    counted: Callable[[Batch], Batch]

    def __call__(self) -> Batch:
        return self.counted(self.reader())


@dataclass(frozen=True, eq=False)
class CountedSource(ReadOtherwise):
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
        return CountedReader(self.whole.reader(index), self.counted)

    def fingerprint(self) -> Any:
        return fingerprint_of(self.whole)


@dataclass(frozen=True)
class WithoutBatches:
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

    whole: Source
    bad: tuple[tuple[int, str], ...]
    is_grouped: bool = False
    doubtful: tuple[tuple[int, int], ...] = ()
    is_forgiving: bool = False

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
    def is_sparse(self) -> bool:
        return self.whole.is_sparse

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.whole)

    @property
    def n_atoms(self) -> int | None:
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

    def fingerprint(self) -> Any:
        return fingerprint_of(self.whole)

    def describe(self) -> dict[str, Any]:
        return self.whole.describe()
