"""A source of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Columns, few
from bnp_dask.core.table import Table
from bnp_dask.errors import DataError, redacted
from bnp_dask.execute.prefetch import Load
from bnp_dask.inputs.sparse_rows import as_counts

Reader = Callable[[], Batch]
"""Reads one batch; small and picklable, so that it can travel to a worker, which reads the data itself."""


@runtime_checkable
class Source(Protocol):
    """A data set cut into batches that never change.

    ``name`` is the path or URL that the user passed, or the kind of object ("array").
    """

    @property
    def name(self) -> str:
        """Name in messages: path, URL, or the kind of object that the user passed."""
        ...

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        ...

    @property
    def n_features(self) -> int:
        """Number of columns D, or words V."""
        ...

    @property
    def is_sparse(self) -> bool:
        """Whether batches are sparse counts."""
        ...

    @property
    def n_atoms(self) -> int | None:
        """Number of atoms, or None if it is known only after reading."""
        ...

    def reader(self, index: int) -> Reader:
        """Reader of batch ``index``."""
        ...

    def describe(self) -> dict[str, Any]:
        """Identity of the data, JSON-able: kind, path, sizes; compared when a run is resumed."""
        ...


def source_line(source: Source) -> str:
    """A source in one line: its class, name, and sizes."""
    return redacted(f"{type(source).__name__}({source.name}: {_sizes(source)})")


def source_html(source: Source) -> str:
    """A source as a small table for notebooks."""
    facts = {"data": redacted(source.name), "size": _sizes(source), "read by": type(source).__name__}
    names = columns_of(source)
    if names is not None and names.shown is not None:
        facts["columns"] = few(names.shown)
    return Table((), list(facts.items()), left=(0, 1))._repr_html_()


def _sizes(source: Source) -> str:
    rows = "an unknown number of" if source.n_atoms is None else f"{source.n_atoms:,}"
    columns = f"{source.n_features:,} columns{' of counts' if source.is_sparse else ''}"
    return f"{rows} rows, {columns}, {source.n_batches:,} batch{'es' if source.n_batches != 1 else ''}"


T = TypeVar("T", bound=type)


def shows_itself(cls: T) -> T:
    """Class decorator: the source prints as one line, and notebooks show it as a small table; its data are not read."""
    cls.__repr__ = source_line  # type: ignore[attr-defined,method-assign,assignment]
    cls._repr_html_ = source_html  # type: ignore[attr-defined]
    return cls


@runtime_checkable
class CutSource(Protocol):
    """Source that may know the length of its batches before they are read."""

    @property
    def spans(self) -> Sequence[tuple[int, int]] | None:
        """First atom of each batch and one past its last; None if known only after reading."""
        ...


def spans_of(source: Source) -> Sequence[tuple[int, int]] | None:
    """Range of atoms of each batch; None if known only after reading."""
    return source.spans if isinstance(source, CutSource) else None


@runtime_checkable
class NamedSource(Protocol):
    """Source whose features may have names; its batches carry these names too."""

    @property
    def columns(self) -> Columns | None:
        """The columns of its features; None for features without names."""
        ...


def columns_of(source: Source) -> Columns | None:
    """Columns of a source; None for sources without names, and for foreign sources without this property."""
    return source.columns if isinstance(source, NamedSource) else None


@dataclass(frozen=True)
class NamedReader(Load[Batch]):
    """A reader whose errors name the data and the batch that it could not read.

    ``name`` holds the name of the data and the number of the batch.
    """

    reader: Reader
    name: str

    @property
    def key(self) -> str:
        """Name of the data and number of the batch."""
        return self.name

    def fetch(self) -> Batch:
        """Read the batch, here and now."""
        with naming_batch(self.name):
            batch = self.reader()
            if not isinstance(batch, Batch):
                raise DataError(f"{self.name}: its reader gives a {type(batch).__name__}; needs a Batch")
            return sound(batch)


def sound(batch: Batch) -> Batch:
    """The batch with counts checked and normalised by :func:`~bnp_dask.inputs.sparse_rows.as_counts`."""
    return batch if isinstance(batch.x, np.ndarray) else replace(batch, x=as_counts(batch.x, batch.name))


def batch_reader(source: Source, index: int) -> NamedReader:
    """Reader of batch ``index`` for a task."""
    return NamedReader(source.reader(index), f"{source.name} batch {index}")


@contextmanager
def naming_batch(name: str) -> Iterator[None]:
    """Add the name of the batch to errors raised inside: to the message of a DataError, to a note of any other."""
    try:
        yield
    except Exception as error:
        if name in str(error) or any(name in note for note in getattr(error, "__notes__", ())):
            raise
        if type(error) is DataError:
            raise DataError(f"{name}: {error}") from error
        error.add_note(f"in {name}")
        raise
