"""Rules of all sources: how batches are cut, and which values may enter one."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.errors import BnpDaskError, DataError, SettingError
from bnp_dask.inputs.arrays import require_real, to_float
from bnp_dask.inputs.settings import shown, whole_number
from bnp_dask.inputs.sparse_rows import require_compressed

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
        fix = "x.reshape(-1, 1)"
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
        raise DataError(f"{name}: damaged, or not what its name says ({type(error).__name__}: {error})") from error
