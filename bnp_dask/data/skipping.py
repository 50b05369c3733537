"""Batches that cannot be read are left out, and everything else goes on."""

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
    """Text of an error, with its notes, in one line: kept as why a batch is left out."""
    return " ".join(" ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]).split())


def read_or_why(reader: Reader) -> Batch | str:
    """A batch, or why it cannot be read; tried as often as an executor would, where the failure may pass.

    A lack of memory says nothing about the batch and is raised, as an interrupt is.
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
    """Gives a batch without atoms, in place of one that cannot be read.

    ``n_features``, ``is_sparse`` and ``is_grouped`` are those of the other batches.
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
    """Batch that is read in place of batch ``index`` when that is left out."""
    is_grouped = not survey.is_sparse and survey.n_groups > 0
    return EmptyReader(f"{source.name} batch {index}", source.n_features, source.is_sparse, is_grouped)


@dataclass(frozen=True)
class ForgivingReader:
    """Reads a batch, or gives ``empty`` where it cannot be read; for tasks that may do without it."""

    reader: Reader
    empty: EmptyReader

    def __call__(self) -> Batch:
        found = read_or_why(self.reader)
        return self.empty() if isinstance(found, str) else found


@dataclass(frozen=True)
class CheckedReader:
    """Reads a batch and raises DataError unless it has the CRC-32 that it had when its run began."""

    reader: Reader
    checksum: int

    def __call__(self) -> Batch:
        batch = sound(self.reader())
        require_checksum(batch, self.checksum)
        return batch


def require_checksum(batch: Batch, expected: int) -> None:
    """DataError unless a batch has the CRC-32 that it had when its run began."""
    found = checksum(batch)
    if found != expected:
        raise DataError(
            f"{batch.name}: the data changed, its content is not what it was when the run began (CRC-32 {found:08x}, "
            f"was {expected:08x}). Put it back as it was, or start a new run in another directory"
        )


@dataclass(frozen=True, eq=False)
class ReadOtherwise:
    """A source whose batches are those of another, ``whole``, and are read in another way."""

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
    """A source of which some batches are compared with their checksums whenever they are read.

    Parameters
    ----------
    whole
        The source.
    checksums
        CRC-32 of every batch.
    chosen
        Which batches are compared, ``(B,)`` bool.
    """

    checksums: Sequence[int]
    chosen: np.ndarray

    def reader(self, index: int) -> Reader:
        reader = self.whole.reader(index)
        return CheckedReader(reader, int(self.checksums[index])) if self.chosen[index] else reader


@dataclass(frozen=True, eq=False)
class CountedReader:
    """A batch without the atoms that count nothing; ``counted`` leaves them out."""

    reader: Reader
    counted: Callable[[Batch], Batch]

    def __call__(self) -> Batch:
        return self.counted(self.reader())


@dataclass(frozen=True, eq=False)
class CountedSource(ReadOtherwise):
    """A source without the atoms that count nothing: those of weight zero.

    So they are in no survey, no start and no statistic, and change no bit of what is learned.

    Parameters
    ----------
    whole
        The source.
    counted
        The atoms, or sequences, of a batch that count at least a little: ``model.structure.counted``.
    """

    counted: Callable[[Batch], Batch]

    def reader(self, index: int) -> Reader:
        return CountedReader(self.whole.reader(index), self.counted)

    def fingerprint(self) -> Any:
        return fingerprint_of(self.whole)


@dataclass(frozen=True)
class WithoutBatches:
    """A source of which some batches are left out: they keep their numbers, and have no atoms.

    Parameters
    ----------
    whole
        The source.
    bad
        Numbers of the batches to leave out, and why: ascending.
    is_grouped
        Whether its rows come in groups.
    doubtful
        Numbers of batches that could not be read just now, and their checksums: they are used only if they are as
        they were.
    is_forgiving
        Whether other batches that cannot be read are taken for empty too.
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
        """Unknown: nobody can say how many atoms a batch has that cannot be read."""
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
