"""What all sources share: how batches are cut, and which values may enter one."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from scipy import sparse

from bnp_dask.batch import check_columns
from bnp_dask.errors import BnpDaskError, DataError, SettingError

BATCH_BYTES = 32 * 2**20
"""Size of a default batch in memory: a task of about a tenth of a second for a typical model."""

PIECE_BYTES = 4 * 2**20
"""Files are read and converted in pieces of about this size, so that little is held beside the batch."""

Span = tuple[int, int]
"""First atom and one past the last."""


def batch_rows(n_features: int, batch_size: int | None, batch_bytes: int = BATCH_BYTES) -> int:
    """Atoms per batch: ``batch_size``, or as many float64 rows as fit ``batch_bytes``."""
    if batch_size is None:
        return max(1, batch_bytes // (8 * max(1, n_features)))
    return check_batch_size(batch_size)


def check_batch_size(batch_size: int) -> int:
    """The batch size; SettingError unless it is a positive whole number."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise SettingError(f"batch_size={batch_size!r}: needs a whole number of atoms, at least 1, or None")
    return int(batch_size)


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
    """How error messages call a batch: ``"patches.zarr batch 7 (rows 7000-7999)"``."""
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
    if dtype.kind not in "biuf":
        what = {"c": "complex numbers", "O": "Python objects", "M": "dates", "m": "time spans"}.get(dtype.kind, "text")
        raise DataError(
            f"{name} holds {what} (dtype {dtype}); needs real numbers: bool, integer or float. "
            "Convert with .astype(float), or choose numeric columns"
        )
    return dtype


def check_matrix(shape: Sequence[int], name: str) -> tuple[int, int]:
    """The shape as (n, D); DataError unless there are two axes and at least one of each."""
    if len(shape) != 2:
        fix = "x.reshape(len(x), -1)" if len(shape) > 2 else "x.reshape(-1, 1)"
        raise DataError(f"{name} has shape {tuple(shape)}; needs two axes, one row per atom: {fix}")
    n, d = int(shape[0]), int(shape[1])
    if n == 0:
        raise DataError(f"{name} has no rows (shape {tuple(shape)})")
    if d == 0:
        raise DataError(f"{name} has no columns (shape {tuple(shape)})")
    return n, d


def float_rows(x: np.ndarray, name: str) -> np.ndarray:
    """Rows as C-contiguous float64 in native byte order; not copied when they already are."""
    check_dtype(x.dtype, name)
    return np.ascontiguousarray(x, np.float64)


def csr_counts(x: sparse.sparray | sparse.spmatrix, name: str) -> sparse.csr_array:
    """Any scipy.sparse matrix as float64 CSR with sorted columns and duplicates summed; the input is left alone."""
    check_dtype(x.dtype, name)
    check_columns(x, name)
    out = sparse.csr_array(x)
    canonical = out.has_sorted_indices and out.has_canonical_format
    if not canonical:
        out = out.copy()
        out.sum_duplicates()
    if out.dtype != np.float64:
        out = out.astype(np.float64)
    return out


def build_csr(lengths: np.ndarray, words: np.ndarray, counts: np.ndarray, n_words: int) -> sparse.csr_array:
    """CSR documents ``(n, V)`` from entries per document ``(n,)``, and word and count of each entry ``(m,)``."""
    indptr = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    small = max(n_words, int(indptr[-1])) < 2**31
    kind = np.int32 if small else np.int64
    out = sparse.csr_array((counts, words.astype(kind, copy=False), indptr.astype(kind)), shape=(len(lengths), n_words))
    out.sum_duplicates()
    return out


@contextmanager
def parsed(name: str) -> Iterator[None]:
    """Whatever parsers of others raise on damaged bytes, inside, becomes a DataError that names the file."""
    try:
        yield
    except (BnpDaskError, ImportError, MemoryError):
        raise
    except Exception as error:
        # a damaged table of contents makes parsers seek to places that no file has
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DataError(f"{name}: damaged, or not what its name says ({type(error).__name__}: {error})") from error
