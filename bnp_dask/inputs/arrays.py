"""Arrays from users as plain NumPy arrays: real numbers only, none masked and none rounded."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import sparse

from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import shown

REPEATED = 2**33
"""Most bytes of a broadcast array: a larger one is refused, since it is read as slowly as an array of distinct rows."""

EXACT = 2**53
"""Largest size up to which float64 holds every whole number; beyond, it holds only some."""


def plain(value: Any, name: str) -> np.ndarray:
    """Array-like data as an array; DataError if an entry is masked, or rows differ in length."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        place = np.argwhere(np.ma.getmaskarray(value))[0].tolist()
        raise DataError(
            f"{name}: masked values (the first at {_place(place)}); fill them with x.filled(...), or leave them out"
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        what = f"a {type(value).__name__} that is no array of numbers{_as_recordings(value, name)}"
        raise DataError(f"{name}: {what}: {error}") from error
    require_held(array, name)
    return array


def _as_recordings(value: Any, name: str) -> str:
    """The call, for a message, that makes sequences of lists of different lengths; empty for anything else."""
    lists = (list, tuple, np.ndarray)
    if not isinstance(value, lists) or not all(isinstance(x, lists) for x in value):
        return ""
    is_rows = any(isinstance(x[0], lists) for x in value if len(x))
    call = "numpy.array(x)" if is_rows else "numpy.reshape(x, (-1, 1))"
    return f"; if each of the {len(value)} is a sequence, give [{call} for x in {name}] to a model of sequences"


def require_held(array: np.ndarray, name: str) -> None:
    """DataError for a broadcast array of more than :data:`REPEATED` bytes, whose entries lie in memory only once."""
    if array.nbytes > REPEATED and 0 in array.strides:
        raise DataError(
            f"{name}: an array of shape {array.shape} whose entries are the same few numbers again and again (it was "
            "broadcast); give each distinct row once, and weights= how often it counts"
        )


def require_real(dtype: np.dtype, name: str) -> None:
    """DataError unless values of this dtype are real numbers."""
    if dtype.kind not in "biuf":
        what = {"c": "complex numbers", "O": "Python objects", "M": "dates", "m": "time spans"}.get(dtype.kind, "text")
        advice = {
            "c": "Give real and imaginary parts as columns of their own: np.column_stack([x.real, x.imag])",
            "M": "Choose numeric columns, or count from the first: (x - x.min()) / np.timedelta64(1, 'D')",
            "m": "Choose numeric columns, or count in a unit: x / np.timedelta64(1, 's')",
        }.get(dtype.kind, "Convert with .astype(float), or choose numeric columns")
        raise DataError(f"{name} holds {what} (dtype {dtype}); needs real numbers: bool, integer or float. {advice}")


def is_exact(stored: np.dtype, wanted: np.dtype) -> bool:
    """Whether dtype ``wanted`` holds every whole number of dtype ``stored`` without rounding."""
    return wanted.kind != "f" or stored.kind not in "iu" or stored.itemsize < 8


def require_exact(x: np.ndarray, name: str, what: str = "", row: int = 0, column: int | str = 0) -> None:
    """DataError if float64 would round a whole number of 64 bits.

    Parameters
    ----------
    x
        Whole numbers, of one axis (a column) or two; other dtypes pass.
    name, what
        Names of the data and of the kind of number, for the message.
    row, column
        Position of the first number, for the message.
    """
    if is_exact(x.dtype, np.dtype(np.float64)) or x.size == 0:
        return
    if int(x.min()) >= -EXACT and int(x.max()) <= EXACT:
        return
    wrong = np.argwhere(_is_rounded(x))
    if len(wrong) == 0:
        return
    place = wrong[0].tolist()
    value = int(x[tuple(place)])
    at = f"row {row + place[0]}"
    if not what:
        at += f", column {column + place[1] if x.ndim > 1 and isinstance(column, int) else repr(column)}"
    raise DataError(
        f"{name}: {what}{' of ' if what else ''}{at} is {value}, which float64 would round to {int(float(value))} "
        f"({len(wrong)} such numbers here); needs whole numbers up to 2**53. Ids and times are no features: leave them "
        "out, or take the smallest value from all"
    )


def _is_rounded(x: np.ndarray) -> np.ndarray:
    """Mask of whole numbers that float64 cannot hold: more than 53 bits from the first set bit to the last."""
    size = np.where(x < 0, np.negative(x), x).astype(np.uint64) if x.dtype.kind == "i" else x
    lowest = size & (~size + np.uint64(1))
    return (size > EXACT) & (size // np.maximum(lowest, np.uint64(1)) >= np.uint64(EXACT))


def to_float(x: np.ndarray, name: str, what: str = "") -> np.ndarray:
    """Real numbers as float64, without a copy if they are; DataError for others, or if a number would be rounded."""
    require_real(x.dtype, name)
    require_exact(x, name, what)
    return x.astype(np.float64, copy=False)


def real_setting(name: str, value: Any) -> np.ndarray:
    """A setting that is a number or an array of numbers, as float64; SettingError for anything else.

    True, False, text, masked values, NaN and infinity are refused.
    """
    try:
        array = plain(value, name)
        if array.dtype.kind not in "iuf" or array.dtype == np.bool_:
            raise DataError(f"{name}: values of type {array.dtype}")
        array = to_float(array, name, "value")
    except DataError as error:
        raise SettingError(f"{name}={shown(value)}: needs a number, or an array of numbers ({error})") from None
    if not np.isfinite(array).all():
        raise SettingError(f"{name}={shown(value)}: needs finite values")
    return array


def _place(index: list[int]) -> str:
    if len(index) == 2:
        return f"row {index[0]}, column {index[1]}"
    return f"position {index[0] if len(index) == 1 else tuple(index)}"


# -- Sparse matrices from any source: checked by NumPy alone, before compiled code follows their pointers ---------
# SciPy accepts the arrays of a sparse matrix unchecked, also from files, and its compiled loops follow its pointers:
# a wrong one ends the process, or returns foreign memory as counts.


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


# -- Arrays and tables of other libraries: recognised by their type, or else by their Arrow C stream --------------


@runtime_checkable
class ArrowStream(Protocol):
    """A table that exports an Arrow C stream: of polars, DuckDB, Ibis, nanoarrow."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A PyCapsule of an ArrowArrayStream."""
        ...


KNOWN = frozenset(("anndata", "dask", "dask_expr", "numpy", "pandas", "scipy", "xarray", "zarr"))
"""Libraries whose arrays and tables are recognised by type, since their streams may have another shape."""


def is_stream(data: Any) -> bool:
    """Whether data are recognised by their Arrow C stream."""
    return isinstance(data, ArrowStream) and library(data) not in KNOWN


def library(data: Any) -> str:
    """Name of the package that defines the type of the data."""
    return type(data).__module__.split(".")[0]


def unlabelled(data: Any, in_order: bool = False) -> tuple[Any, tuple[str, ...] | None]:
    """The array within an xarray DataArray, or the matrix within an AnnData, and the names of its columns.

    Names are None if columns have no names, or no distinct ones.  Anything else is returned unchanged.  Axes of a
    DataArray are first put :func:`in_order_of_time` if there are three, or for models of sequences (``in_order``).
    """
    what = library(data), type(data).__name__
    if what == ("xarray", "DataArray"):
        data = in_order_of_time(data) if in_order or data.ndim == 3 else data
        last = data.dims[-1] if data.dims else None
        return data.data, _names(data.coords[last].values) if last in data.coords else None
    if what == ("anndata", "AnnData"):
        return data.X, _names(data.var_names)
    return data, None


TIMES = frozenset(("frame", "step", "t", "time", "times", "timestamp"))
"""Names of an axis of time; an axis whose coordinates are dates is one under any name."""


def in_order_of_time(data: Any) -> Any:
    """A DataArray whose axis of time, if it has one, is the last but one, so that the array holds sequences; a single
    axis gets a second one.  Anything else is returned unchanged."""
    if (library(data), type(data).__name__) != ("xarray", "DataArray"):
        return data
    dates = [d for d in data.dims if d in data.coords and data.coords[d].dtype.kind in "Mm"]
    time = next(iter([*dates, *(d for d in data.dims if str(d).lower() in TIMES)]), None)
    if time is None:
        return data
    others = [d for d in data.dims if d != time]
    return data.transpose(*others[:-1], time, others[-1]) if others else data.expand_dims("value", 1)


def _names(labels: Any) -> tuple[str, ...] | None:
    listed = list(labels)
    is_named = bool(listed) and all(isinstance(label, str) and label for label in listed)
    return tuple(map(str, listed)) if is_named and len(set(listed)) == len(listed) else None


def read(data: Any) -> Any:
    """A ``RecordBatchReader`` of the table behind a stream; DataError for a stream of something else."""
    import pyarrow as pa

    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"data is a {type(data).__name__}, whose Arrow stream holds no table ({error}); needs a table, such as "
            "the frame that it is a column of"
        ) from error


def streamed(data: Any) -> Any:
    """The Arrow Table behind a stream; a Table, and anything else, is returned unchanged."""
    import pyarrow as pa

    return read(data).read_all() if is_stream(data) and not isinstance(data, pa.Table) else data


def as_frame(data: Any) -> Any:
    """Return a pandas DataFrame for an Arrow Table or stream, also for each in a list, and for labelled data whose
    columns have names; else the array of labelled data.  Anything else is returned unchanged.

    The index of an AnnData's rows is ``obs_names``, so that results can become a column of ``obs``.
    """
    x, names = unlabelled(data)
    if names is not None and isinstance(x, np.ndarray) and x.ndim == 2 and _has_pandas():
        import pandas as pd

        index = data.obs_names if library(data) == "anndata" else None
        return pd.DataFrame(x, columns=list(names), index=index)
    if isinstance(x, (list, tuple)):
        return [as_frame(part) for part in x] if len(x) and is_stream(x[0]) else x
    if not is_stream(x):
        return x
    try:
        return streamed(x).to_pandas()
    except ImportError as error:
        raise SettingError(
            f"a {type(x).__name__} needs pandas here: pip install 'bnp-dask[dataframe]', or give an array"
        ) from error


def _has_pandas() -> bool:
    return importlib.util.find_spec("pandas") is not None


@contextmanager
def as_file(data: Any) -> Iterator[Any]:
    """Path of a temporary Parquet file with the rows of a stream, which is read once, a piece at a time.

    Anything else is yielded unchanged.
    """
    if not is_stream(data):
        yield data
        return
    from pyarrow import parquet

    with TemporaryDirectory(prefix="bnp-dask-") as folder, read(data) as reader:
        path = Path(folder) / f"{type(data).__name__}.parquet"
        with parquet.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
        yield path
