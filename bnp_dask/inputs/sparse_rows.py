"""Sparse matrices from any source: checked by NumPy alone, before compiled code follows their pointers.

SciPy accepts the arrays of a sparse matrix unchecked, also from files, and its compiled loops follow its
pointers: a wrong one ends the process, or returns foreign memory as counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import is_exact, plain, require_exact, require_real

ADVICE = "Build it with the right shape=(documents, words), or write it again"


def require_sound(x: Any, name: str) -> None:
    """DataError unless the arrays of a sparse matrix fit one another and its shape, and float64 holds its values.

    Parameters
    ----------
    x
        Any scipy.sparse matrix or array.
    name
        Name of the data, for the message.
    """
    require_real(np.dtype(x.dtype), name)
    if len(x.shape) != 2:
        return  # code that needs rows raises its own error
    if x.format in ("csr", "csc"):
        rows = x.format == "csr"
        n, width = x.shape if rows else x.shape[::-1]
        require_compressed(x.data, x.indices, x.indptr, (n, width), name, "column (word)" if rows else "row")
    elif x.format == "bsr":
        _check_blocks(x, name)
    elif x.format == "coo":
        _check_coordinates(x, name)
    elif x.format == "dia":
        _check_diagonals(x, name)
    elif x.format == "lil":
        _check_lists(x, name)
    if not is_exact(np.dtype(x.dtype), np.dtype(np.float64)):
        values = x.tocoo().data if x.format in ("dok", "lil") else x.data
        require_exact(plain(values, name), name, "value")


def require_compressed(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], name: str, what: str
) -> None:
    """DataError unless the arrays of compressed rows form a matrix of this shape.

    Parameters
    ----------
    data, indices
        Value and column of each entry, ``(m,)``; entries beyond the last pointer are ignored.
    indptr
        Start of each row, ``(n + 1,)``.
    shape
        Number of rows n, and of columns.
    name, what
        Names of the data and of a column, for the message.
    """
    n, width = shape
    for part, array in (("indptr", indptr), ("indices", indices)):
        _check_vector(array, part, name)
    if not isinstance(data, np.ndarray) or data.ndim == 0:
        raise DataError(f"{name}: data of the sparse matrix is a {type(data).__name__}; needs an array. {ADVICE}")
    if len(indptr) != n + 1:
        raise DataError(f"{name}: indptr of the sparse matrix has {len(indptr)} entries; needs {n + 1}. {ADVICE}")
    if len(data) != len(indices):
        raise DataError(
            f"{name}: the sparse matrix has {len(data)} values (data), but {len(indices)} indices; needs as many. "
            f"{ADVICE}"
        )
    if indptr[0] != 0:
        raise DataError(f"{name}: indptr of the sparse matrix begins with {indptr[0]}; needs 0. {ADVICE}")
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if int(indptr.max()) > len(indices) or len(falls):
        beyond = np.flatnonzero(indptr > len(indices))
        row = int(beyond[0]) if len(beyond) else int(falls[0]) + 1
        raise DataError(
            f"{name}: indptr[{row}] of the sparse matrix is {indptr[row]}; needs numbers that never fall, from 0 to at "
            f"most {len(indices)}, the number of its indices. {ADVICE}"
        )
    used = indices[: int(indptr[-1])]
    if len(used):
        low, high = int(used.min()), int(used.max())
        if low < 0 or high >= width:
            wrong = low if low < 0 else high
            raise DataError(
                f"{name}: {what} {wrong}, but they are 0 to {width - 1}; the indices of the sparse matrix do not fit "
                f"its shape. {ADVICE}"
            )


def from_parts(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int], name: str
) -> sparse.csr_array:
    """Rows from arrays of a file, checked as in :func:`require_compressed`."""
    require_compressed(data, indices, indptr, shape, name, "column")
    return sparse.csr_array((data, indices, indptr), shape=shape)


def as_counts(x: Any, name: str) -> sparse.csr_array:
    """Any scipy.sparse matrix as float64 CSR with sorted columns, duplicates summed, and no zeros stored.

    A stored zero means the same as one that is not stored, so it must change nothing.  The input is not modified.

    Raises
    ------
    DataError
        Arrays that do not fit the shape, values that are not real numbers or that float64 would round.
    """
    require_sound(x, name)
    # converted to float64 before entries are added: bytes would overflow
    rows = sparse.csr_array(x.astype(np.float64, copy=False) if x.format != "csr" else x)
    stop = int(rows.indptr[-1])
    # a new matrix, so that SciPy checks the order of its entries itself: flags of the given one may be out of date
    parts = (rows.data[:stop].astype(np.float64, copy=False), rows.indices[:stop], rows.indptr)
    out = sparse.csr_array(parts, shape=rows.shape)
    if out.has_sorted_indices and out.has_canonical_format and out.data.all():
        return out
    out = out.copy()
    out.sum_duplicates()
    out.eliminate_zeros()
    return out


def _check_vector(array: Any, part: str, name: str) -> None:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        kind = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise DataError(f"{name}: {part} of the sparse matrix is {kind}; needs a vector of whole numbers. {ADVICE}")


def _check_blocks(x: Any, name: str) -> None:
    shape = np.shape(x.data)
    if len(shape) != 3 or 0 in shape[1:] or x.shape[0] % shape[1] or x.shape[1] % shape[2]:
        raise DataError(f"{name}: blocks of shape {shape[1:]} do not cut a sparse matrix of shape {x.shape}. {ADVICE}")
    block = (x.shape[0] // shape[1], x.shape[1] // shape[2])
    require_compressed(x.data, x.indices, x.indptr, block, name, "block")


def _check_coordinates(x: Any, name: str) -> None:
    for axis, what in enumerate(("row", "column (word)")):
        index = x.coords[axis]
        _check_vector(index, "coords", name)
        if len(index) != len(x.data):
            raise DataError(
                f"{name}: {len(x.data)} values and {len(index)} places of them in a sparse matrix. {ADVICE}"
            )
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= x.shape[axis]):
            wrong = int(index.min()) if int(index.min()) < 0 else int(index.max())
            raise DataError(f"{name}: {what} {wrong}, but they are 0 to {x.shape[axis] - 1}. {ADVICE}")


def _check_diagonals(x: Any, name: str) -> None:
    _check_vector(x.offsets, "offsets", name)
    if np.ndim(x.data) != 2 or len(x.data) != len(x.offsets) or len(np.unique(x.offsets)) < len(x.offsets):
        raise DataError(
            f"{name}: {len(x.offsets)} offsets of diagonals and values of shape {np.shape(x.data)}; needs a row of "
            f"values for each, and no diagonal twice. {ADVICE}"
        )


def _check_lists(x: Any, name: str) -> None:
    if len(x.rows) != x.shape[0] or len(x.data) != x.shape[0]:
        raise DataError(f"{name}: lists of {len(x.rows)} rows in a sparse matrix of {x.shape[0]}. {ADVICE}")
    for row, (columns, values) in enumerate(zip(x.rows, x.data, strict=True)):
        if len(columns) != len(values):
            raise DataError(f"{name}: row {row} has {len(columns)} columns and {len(values)} values. {ADVICE}")
        if len(columns) and (min(columns) < 0 or max(columns) >= x.shape[1]):
            raise DataError(f"{name}: row {row} has columns beyond the {x.shape[1]} of the matrix. {ADVICE}")


def is_corpus(value: Any) -> bool:
    """Whether this is a list of documents, each a list of pairs ``(word, count)``, as in gensim."""
    if not isinstance(value, list) or not all(isinstance(one, list) for one in value):
        return False
    pairs = next((one for one in value if one), None)
    return pairs is not None and isinstance(pairs[0], tuple) and len(pairs[0]) == 2


def counts_of_corpus(corpus: list[list[tuple[int, float]]], width: int | None = None) -> sparse.csr_array:
    """Counts ``(n, V)`` of documents that are lists of pairs ``(word, count)``.

    ``width`` is the number V of words; if None, V is one more than the largest number of a word.

    Raises
    ------
    DataError
        A document holds anything but pairs of a number of a word, from 0, and a count.
    """
    ids: list[Any] = []
    counts: list[Any] = []
    for d, document in enumerate(corpus):
        for pair in document:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise DataError(
                    f"document {d} holds {pair!r}; needs pairs (word, count), as gensim's doc2bow gives them"
                )
            ids.append(pair[0])
            counts.append(pair[1])
    columns, values = plain(ids, "numbers of words"), plain(counts, "counts")
    if len(columns) and (columns.dtype.kind not in "iu" or columns.min() < 0):
        wrong = ids[0] if columns.dtype.kind not in "iu" else int(columns.min())
        raise DataError(f"numbers of words hold {wrong!r}; needs whole numbers from 0")
    require_real(values.dtype, "counts of the documents")
    most = int(columns.max(initial=-1)) + 1
    if width is not None and most > width:
        raise DataError(f"a document has word {most - 1}, but there are {width} words")
    indptr = np.concatenate([[0], np.cumsum([len(document) for document in corpus])])
    shape = (len(corpus), most if width is None else width)
    return sparse.csr_array((values.astype(np.float64), columns.astype(np.int64), indptr), shape=shape)
