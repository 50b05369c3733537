"""A source of batches: its protocol, how batches are cut, and how data are recognised as unchanged.

Data appear unchanged by the sizes and times of their files; then they are not read to verify it.  An undetected change
is found by the checksum of each batch at its visit.
"""

from __future__ import annotations

import errno
import glob
import math
import os
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Columns, Location, Table, checksum
from bnp_dask.core.columns import few
from bnp_dask.errors import BnpDaskError, DataError, SettingError, redacted
from bnp_dask.execute import Load
from bnp_dask.inputs import as_counts, require_compressed, require_real, shown, to_float, whole_number

# -- how batches are cut, and which values may enter one -----------------------------------------------------------
BATCH_BYTES = 32 * 2**20
"""Default size of a batch in memory: its task takes about a tenth of a second with a typical model."""

PIECE_BYTES = 4 * 2**20
"""Approximate size of the pieces in which files are read and converted, so that little is held beside the batch."""

NUMBERS_PER_COLUMN = 16
"""Approximate numbers held per column while data are surveyed and a single cluster is described."""

MOST_NAMES = 2**20
"""Most names of columns in one argument: an iterator may have no end."""

Span = tuple[int, int]
"""First atom and one past the last."""


def batch_rows(n_features: int, batch_size: int | None, batch_bytes: int = BATCH_BYTES) -> int:
    """Atoms per batch: ``batch_size``, or as many float64 rows as fit ``batch_bytes``."""
    if batch_size is None:
        return max(1, batch_bytes // (8 * max(1, n_features)))
    return check_batch_size(batch_size)


def check_batch_size(batch_size: int) -> int:
    """The batch size; SettingError unless it is a positive whole number."""
    return whole_number("batch_size", batch_size, 1, what="None, or a whole number of atoms")


def check_names(columns: object, others: Mapping[str, object]) -> list[Any] | None:
    """The names of columns as a list; SettingError if one is repeated, or an ``others`` is not one name or None."""
    names = None
    if columns is not None:
        if isinstance(columns, (str, Mapping)) or not isinstance(columns, Iterable):
            raise SettingError(f"columns={shown(columns)}: needs a list of names, such as ['height', 'weight']")
        named = np.atleast_1d(columns).tolist() if isinstance(columns, np.ndarray) else columns
        names = list(islice(named, MOST_NAMES + 1))
        if len(names) > MOST_NAMES:
            raise SettingError(f"columns={shown(columns)}: goes on after {MOST_NAMES:,} names; needs a list that ends")
        wrong = [name for name in names if not isinstance(name, Hashable)]
        if wrong:
            raise SettingError(f"columns={shown(columns)}: {shown(wrong[0])} is no name of a column")
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise SettingError(f"columns={shown(columns)}: {shown(twice)} is named twice; a column is one feature")
    for argument, name in others.items():
        if name is not None and not isinstance(name, str):
            raise SettingError(f"{argument}={shown(name)}: needs the name of a column, as text, or None")
    return names


def spans(n_atoms: int, size: int) -> list[Span]:
    """Cut ``n_atoms`` into spans of ``size`` (the last may be shorter)."""
    return [(a, min(a + size, n_atoms)) for a in range(0, n_atoms, size)]


def sparse_spans(
    indptr: np.ndarray, n_words: int, batch_size: int | None, batch_bytes: int = BATCH_BYTES
) -> list[Span]:
    """Cut documents into spans of ``batch_size``, or of about ``batch_bytes`` of entries.

    ``indptr (n + 1,)`` are the row pointers of a CSR matrix.
    """
    n = len(indptr) - 1
    if batch_size is not None:
        return spans(n, check_batch_size(batch_size))
    entries = max(1, batch_bytes // ENTRY_BYTES)
    out: list[Span] = []
    start = 0
    while start < n:
        # entries plus rows: documents without words take memory too
        cost = (indptr[start + 1 :] - indptr[start]) + np.arange(1, n - start + 1)
        stop = start + max(1, int(np.searchsorted(cost, entries, side="right")))
        out.append((start, stop))
        start = stop
    return out


ENTRY_BYTES = 12
"""Bytes of one entry of a float64 CSR batch with 32-bit column numbers."""


def batch_name(name: str, index: int, span: Span | None) -> str:
    """Name of a batch in error messages: ``"patches.zarr batch 7 (rows 7000-7999)"``."""
    if span is None:
        return f"{name} batch {index}"
    return f"{name} batch {index} (rows {span[0]}-{span[1] - 1})"


def check_index(index: int, n_batches: int, name: str) -> int:
    """The index; IndexError unless ``0 <= index < n_batches``."""
    if not 0 <= index < n_batches:
        raise IndexError(f"{name} has batches 0 to {n_batches - 1}, not {index}")
    return index


def check_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """The dtype; DataError unless its values are real numbers."""
    dtype = np.dtype(dtype)
    require_real(dtype, name)
    return dtype


def check_matrix(shape: Sequence[int], name: str) -> tuple[int, int]:
    """The shape as (n, D); DataError unless there are two axes and at least one of each."""
    if len(shape) != 2:
        fix = "x.reshape(-1, 1) if it is one feature, x.reshape(1, -1) if it is one row"
        if len(shape) == 3:
            fix = "x.reshape(len(x), -1); sequences (G, T, D) are given as an array in memory, np.load(path)"
        elif len(shape) > 3:
            fix = "x.reshape(len(x), -1)"
        raise DataError(f"{name} has shape {tuple(shape)}; needs two axes, one row per atom: {fix}")
    n, d = int(shape[0]), int(shape[1])
    if n == 0:
        raise DataError(f"{name} has no rows (shape {tuple(shape)})")
    if d == 0:
        raise DataError(f"{name} has no columns (shape {tuple(shape)})")
    check_width(d, name)
    return n, d


def check_width(n_features: int, name: str) -> None:
    """DataError unless a few numbers for each column (word) fit into the memory of this machine."""
    held = memory_bytes()
    if n_features < 1 or NUMBERS_PER_COLUMN * 8 * n_features > held:
        raise DataError(
            f"{name}: {n_features:,} columns (words); needs at least 1, and some {NUMBERS_PER_COLUMN} numbers for each "
            f"must fit memory, {held / 2**30:,.1f} GB here. Number words from 0, without gaps"
        )


def memory_bytes() -> int:
    """Main memory of this machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # systems that do not report it
        return 2**62


def float_rows(x: np.ndarray, name: str) -> np.ndarray:
    """Rows as C-contiguous float64 in native byte order; not copied when they already are.

    DataError for values that are not real numbers, or that float64 would round.
    """
    return np.ascontiguousarray(to_float(x, name))


def build_csr(lengths: np.ndarray, words: np.ndarray, counts: np.ndarray, n_words: int, name: str) -> sparse.csr_array:
    """CSR documents ``(n, V)`` from entries per document ``(n,)``, and word and count of each entry ``(m,)``.

    DataError, with the ``name`` of the data, if these do not match.
    """
    indptr = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    small = max(n_words, int(indptr[-1])) < 2**31
    require_compressed(counts, words, indptr, (len(lengths), n_words), name, "word")
    kind = np.int32 if small else np.int64
    out = sparse.csr_array((counts, words.astype(kind, copy=False), indptr.astype(kind)), shape=(len(lengths), n_words))
    out.sum_duplicates()
    return out


@contextmanager
def parsed(name: str) -> Iterator[None]:
    """Turn errors of other libraries' parsers on damaged bytes, raised inside, into a DataError that names the file."""
    try:
        yield
    except (BnpDaskError, ImportError, MemoryError):
        raise
    except Exception as error:
        if type(error) is UserWarning:  # the package's own warning, turned into an error by the user
            raise
        # a damaged table of contents makes parsers seek to invalid offsets
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DataError(f"{name}: damaged, or misnamed ({type(error).__name__}: {error})") from error


# -- sources and readers -------------------------------------------------------------------------------------------
Reader = Callable[[], Batch]
"""Reads one batch; small and picklable, so that it can travel to a worker, which reads the data itself."""


@runtime_checkable
class Source(Protocol):
    """A data set cut into batches that never change.

    :func:`bnp_dask.as_source` makes one of paths, arrays and tables; a class of your own with these members serves in
    every call that takes data.  ``name`` is the path or URL that the user passed, or the kind of object ("array").
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


class Stored(ABC):
    """Base of sources that are one storage: rows in ``spans``, each of which is a batch.

    A storage says its ``name`` and ``spans`` (None if they are known only after reading), its kind and number of
    features, and gives a reader of a batch (:meth:`block`).  How batches are numbered, counted, named and described
    follows here, for all storages alike.
    """

    name: str
    spans: Sequence[Span] | None

    @property
    @abstractmethod
    def kind(self) -> str:
        """Kind of storage, in its description."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of columns D, or words V."""

    @abstractmethod
    def block(self, index: int, name: str) -> Reader:
        """Reader of batch ``index``, which messages call ``name``."""

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return len(self.spans or ())

    @property
    def n_atoms(self) -> int | None:
        """Number of atoms, or None if it is known only after reading."""
        return None if self.spans is None else self.spans[-1][1]

    @property
    def is_sparse(self) -> bool:
        """Whether batches are sparse counts."""
        return False

    def reader(self, index: int) -> Reader:
        """Reader of batch ``index``."""
        check_index(index, self.n_batches, self.name)
        return self.block(index, batch_name(self.name, index, None if self.spans is None else self.spans[index]))

    def describe(self) -> dict[str, Any]:
        """Identity of the data, JSON-able: kind, path, sizes; compared when a run is resumed."""
        sizes = {"n_atoms": self.n_atoms, "n_features": self.n_features, "n_batches": self.n_batches}
        return {"kind": self.kind, "path": self.name, **sizes, **self.facts()}

    def facts(self) -> dict[str, Any]:
        """Facts of this kind of storage for its description."""
        return {}

    def __repr__(self) -> str:
        return source_line(self)

    def _repr_html_(self) -> str:
        return source_html(self)


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
    """The batch with counts checked and normalised by :func:`~bnp_dask.inputs.arrays.as_counts`."""
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


# -- identity of data ----------------------------------------------------------------------------------------------
@runtime_checkable
class Fingerprinted(Protocol):
    """A source that can identify its data beyond its description."""

    def fingerprint(self) -> Any:
        """JSON-able fingerprint, which differs when the data may have changed; None if unknown."""
        ...


def fingerprint_of(source: Source) -> Any:
    """The fingerprint of any source; None if only its description is known."""
    return source.fingerprint() if isinstance(source, Fingerprinted) else None


def identity_of(source: Source) -> dict[str, Any]:
    """Identity of the data of a source, as far as it is known without reading them; JSON-able."""
    return {"data": source.describe(), "fingerprint": fingerprint_of(source)}


def fingerprint_of_files(places: Iterable[Location]) -> dict[str, int] | None:
    """Number, bytes, and a checksum of names, sizes and times of all files at some places; None if one is unknown."""
    count = total = crc = 0
    try:
        for place in {place.url: place for place in places}.values():
            for name, size, time in place.stamps():
                count, total = count + 1, total + size
                crc = zlib.crc32(f"{name}\0{size}\0{time}\n".encode(), crc)
    except (OSError, ValueError, NotImplementedError, DataError):  # a store that cannot be listed
        return None
    return {"files": count, "bytes": total, "crc32": crc}


FROM = "_from"
"""Attribute of sources that :func:`keep_place` was told of."""


def keep_place(source: Source, path: str | os.PathLike[str], batch_size: int | None, weights: Any) -> None:
    """Let :func:`opened_as` know that these arguments, with the columns of the source, open it again.

    Places are kept so that they do not depend on the working directory.
    """
    place = Location.of(path, None, "data").place
    object.__setattr__(source, FROM, (place, batch_size, place_of_weights(weights)))  # sources are frozen


def place_of_weights(weights: Any) -> Any:
    """Weights that open from any working directory: the place of a .npy file; columns and arrays are unchanged."""
    is_file = isinstance(weights, (str, os.PathLike)) and os.fspath(weights).endswith(".npy")
    return Location.of(os.fspath(weights)).place if is_file else weights


def opened_as(
    data: Any,
    source: Source,
    batch_size: int | None,
    weights: Any,
    labels: Any = None,
    responses: Any = None,
    links: Any = None,
) -> dict[str, Any] | None:
    """Facts to reopen data in another process and recognise them; JSON-able, None for data in memory.

    A source counts as its path if that, with the columns that the posterior keeps, opens it again.  For a folder or a
    pattern it lists the files, so that later files can be told apart.
    """
    places = (str, os.PathLike)
    if batch_size is None and weights is None:
        data, batch_size, weights = getattr(data, FROM, (data, None, None))
    beside = (weights, labels, responses, links)
    if not isinstance(data, places) or not all(a is None or isinstance(a, places) for a in beside):
        return None
    place = Location.of(data, None, "data")
    text = None if weights is None else os.fspath(place_of_weights(weights))
    found: dict[str, Any] = {"place": place.place, "batch_size": batch_size, "weights": text}
    if labels is not None:
        found["labels"] = {"place": Location.of(os.fspath(labels)).place, "names": None}
    if responses is not None:
        found["responses"] = Location.of(os.fspath(responses)).place
    if links is not None:
        found["links"] = Location.of(os.fspath(links)).place
    found["fingerprint"] = fingerprint_of(source)
    if place.is_local and glob.has_magic(place.url) and not place.exists():
        return {**found, "files": sorted(glob.glob(place.url))}
    if not place.is_local or not place.is_dir() or {"zarr.json", ".zarray", ".zgroup"} & set(place.names()):
        return found
    return {**found, "files": [name.lstrip("/") for name, _, _ in place.stamps()]}


def fingerprint_of_content(source: Source) -> dict[str, int] | None:
    """A checksum of data in memory; None if they cannot be read."""
    crc = 0
    try:
        for batch in range(source.n_batches):
            crc = zlib.crc32(f"{checksum(source.reader(batch)())}\n".encode(), crc)
    except DataError:
        return None
    return {"crc32": crc}


# -- small batches that one task reads together --------------------------------------------------------------------
SMALL_BYTES = 2**21
"""Bytes of a batch above which a task must not hold two, one of them being read."""

TOGETHER = 8
"""Most small batches that one task reads."""

ROUNDS = 4
"""Least tasks of each worker thread, so that all threads end at about the same time."""


def n_together(n_batches: int, nbytes: float, n_workers: int) -> int:
    """Number of batches that one task should read in a pass over the data with little computation.

    Parameters
    ----------
    n_batches, nbytes
        Number of batches and bytes of the data.
    n_workers
        Number of worker threads.
    """
    if nbytes > SMALL_BYTES * n_batches:
        return 1
    return max(1, min(TOGETHER, n_batches // (ROUNDS * max(1, n_workers))))


def bytes_told(source: Source) -> float:
    """Bytes of the data in memory; infinity for sparse counts, or if known only after reading."""
    if source.is_sparse or source.n_atoms is None:
        return math.inf
    return 8.0 * source.n_atoms * source.n_features


def in_words(batches: Sequence[int]) -> str:
    """Numbers of batches as text, for the name of the task that reads them."""
    return f"batch{batches[0]}" if len(batches) == 1 else f"batch{batches[0]}-to-{batches[-1]}"
