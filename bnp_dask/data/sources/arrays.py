"""Arrays: in this process's memory, in .npy and .npz files, dense or scipy.sparse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from scipy import sparse

from bnp_dask.core import Batch, Location, Words
from bnp_dask.data.base import (
    PIECE_BYTES,
    Span,
    Stored,
    batch_rows,
    check_dtype,
    check_matrix,
    fingerprint_of_content,
    fingerprint_of_files,
    float_rows,
    spans,
    sparse_spans,
)
from bnp_dask.data.sources.columns import array_of_numbers, tell_of_row_numbers
from bnp_dask.errors import DataError
from bnp_dask.inputs import as_counts, is_exact, plain, require_exact


# -- .npy files, read with seeks: a reader holds its batch and one small piece of the file -------------------------
@dataclass(frozen=True)
class NpyFile:
    """Layout of a two-dimensional array in a file.

    Parameters
    ----------
    location
        The file.
    shape
        ``(n, D)``.
    dtype
        Stored dtype (any byte order).
    offset
        Bytes before the first number.
    fortran
        Whether columns are contiguous.
    """

    location: Location
    shape: tuple[int, int]
    dtype: np.dtype
    offset: int
    fortran: bool = False

    @staticmethod
    def open(location: Location, vector: bool = False, texts: bool = False) -> NpyFile:
        """Read the header.  With ``vector`` the file holds ``(n,)`` numbers, taken as one column; with ``texts`` it may
        hold texts of one width.
        """
        name = location.name
        with location.open() as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(file)
            except ValueError as error:
                raise DataError(f"{name}: not a .npy file, or a damaged one ({error})") from error
            offset = file.tell()
        if not (texts and dtype.kind == "U"):
            check_dtype(dtype, name)
        if vector and len(shape) != 1:
            raise DataError(f"{name} has shape {shape}; needs one axis, (n,)")
        full = check_matrix((shape[0], 1) if vector else shape, name)
        needed, found = offset + full[0] * full[1] * dtype.itemsize, location.size()
        if found < needed:
            raise DataError(f"{name}: cut short, {found} bytes of the {needed} that its header announces")
        return NpyFile(location, full, dtype, offset, fortran)

    def read(self, span: Span, dtype: np.dtype) -> np.ndarray:
        """Rows ``span`` as C-contiguous ``dtype``, ``(n, D)``; DataError if that would round a whole number."""
        out = np.empty((span[1] - span[0], self.shape[1]), dtype)
        with self.location.open() as file:
            if self.fortran and self.shape[1] > 1:
                for column in range(self.shape[1]):
                    first = column * self.shape[0] + span[0]
                    out[:, column] = self._checked(self._numbers(file, first, len(out)), dtype, span[0], column)
                return out
            rows = max(1, PIECE_BYTES // (self.shape[1] * self.dtype.itemsize))
            for start in range(0, len(out), rows):
                piece = out[start : start + rows]
                first = (span[0] + start) * self.shape[1]
                # no name for the piece read: it would stay in memory while the next is read
                piece[...] = self._checked(
                    self._numbers(file, first, piece.size).reshape(piece.shape), dtype, span[0] + start
                )
        return out

    def _checked(self, numbers: np.ndarray, dtype: np.dtype, row: int, column: int = 0) -> np.ndarray:
        if not is_exact(self.dtype, dtype):
            require_exact(numbers, self.location.name, row=row, column=column)
        return numbers

    def _numbers(self, file: IO[bytes], first: int, count: int) -> np.ndarray:
        file.seek(self.offset + first * self.dtype.itemsize)
        data = file.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise DataError(f"{self.location.name}: cut short at number {first + len(data) // self.dtype.itemsize}")
        return np.frombuffer(data, self.dtype)


@dataclass(frozen=True)
class NpyReader:
    """Reads some rows of a .npy file."""

    file: NpyFile
    span: Span
    name: str

    def load(self, dtype: np.dtype) -> tuple[np.ndarray, None]:
        """Rows in the wanted dtype; weights are None."""
        return self.file.read(self.span, dtype), None

    def __call__(self) -> Batch:
        return Batch(self.load(np.dtype(np.float64))[0], None, self.name)


@dataclass(frozen=True, repr=False)
class NpySource(Stored):
    """Rows of a .npy file."""

    name: str
    file: NpyFile
    spans: tuple[Span, ...]

    @staticmethod
    def of(location: Location, batch_size: int | None = None) -> NpySource:
        """Read the header and cut the rows into batches."""
        file = NpyFile.open(location)
        return NpySource(location.name, file, tuple(spans(file.shape[0], batch_rows(file.shape[1], batch_size))))

    @property
    def kind(self) -> str:
        return "npy"

    @property
    def n_features(self) -> int:
        return self.file.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Dtype in the file."""
        return self.file.dtype

    def block(self, index: int, name: str) -> NpyReader:
        return NpyReader(self.file, self.spans[index], name)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.file.location])

    def facts(self) -> dict[str, Any]:
        return {"dtype": str(self.file.dtype)}


# -- in memory -----------------------------------------------------------------------------------------------------
READ_WHOLE = 256 * 2**20
"""Largest size of a text file that may be read into memory (for packed files, four times the packed size)."""


@dataclass(frozen=True, eq=False)
class HeldReader:
    """Some rows of an array in memory; pickled, it carries only these rows."""

    x: np.ndarray | sparse.csr_array
    name: str

    def __call__(self) -> Batch:
        x = float_rows(self.x, self.name) if isinstance(self.x, np.ndarray) else as_counts(self.x, self.name)
        return Batch(x, None, self.name)


@dataclass(frozen=True, eq=False, repr=False)
class ArraySource(Stored):
    """A NumPy array ``(n, D)`` or a CSR array of counts ``(n, V)``, cut into batches.

    ``words`` are the words of the columns of counts that were made from documents in memory.
    """

    name: str
    x: np.ndarray | sparse.csr_array
    spans: tuple[Span, ...]
    kind: str = "array"
    words: Words | None = None

    @staticmethod
    def of(x: Any, batch_size: int | None = None, name: str = "array", kind: str = "array") -> ArraySource:
        """Check an array or scipy.sparse matrix and cut it; dense input is not copied."""
        if sparse.issparse(x):
            check_matrix(x.shape, name)
            counts = as_counts(x, name)
            return ArraySource(name, counts, tuple(sparse_spans(counts.indptr, x.shape[1], batch_size)), kind)
        array = array_of_numbers(plain(x, name), name)
        check_dtype(array.dtype, name)
        n, d = check_matrix(array.shape, name)
        tell_of_row_numbers(array, name)
        return ArraySource(name, array, tuple(spans(n, batch_rows(d, batch_size))), kind)

    @property
    def n_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.x, np.ndarray)

    def block(self, index: int, name: str) -> HeldReader:
        start, stop = self.spans[index]
        return HeldReader(self.x[start:stop], name)

    def fingerprint(self) -> Any:
        mapped = _file_behind(self.x)
        return fingerprint_of_content(self) if mapped is None else fingerprint_of_files([Location.of(mapped)])

    def facts(self) -> dict[str, Any]:
        return {"dtype": str(self.x.dtype), "sparse": self.is_sparse}


def _file_behind(x: np.ndarray | sparse.csr_array) -> str | None:
    """The file to which an array, or the base of a view, is mapped; None for an array in memory."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap) and x.filename is not None:
            return str(x.filename)
        x = x.base
    return None


# -- files that are read whole --------------------------------------------------------------------------------------
def open_npz(location: Location, batch_size: int | None) -> ArraySource:
    """Source of an .npz file, read whole as it is packed: a scipy.sparse matrix, its only array, or its array x."""
    check_small(location, "npz")
    try:
        return _npz_source(location, batch_size)
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib, NumPy and SciPy raise nearly any error on damaged bytes
        raise DataError(
            f"{location.name}: no .npz file of numbers, or a damaged one ({type(error).__name__}: {error})"
        ) from error


def _npz_source(location: Location, batch_size: int | None) -> ArraySource:
    with location.open() as file, np.load(file, allow_pickle=False) as members:
        if "format" in members.files and "shape" in members.files:
            file.seek(0)
            return ArraySource.of(sparse.load_npz(file), batch_size, location.name, "npz")
        names = members.files
        wanted = "x" if "x" in names else names[0] if len(names) == 1 else None
        if wanted is None:
            raise DataError(
                f"{location.name} has arrays {', '.join(names) or 'none'}; needs one, or one named x. Pass the array "
                f"itself: np.load({location.name!r})[{names[0] if names else 'x'!r}]"
            )
        return ArraySource.of(members[wanted], batch_size, location.name, "npz")


def check_small(location: Location, kind: str) -> None:
    """DataError for a file too large to be read whole, and for images."""
    import fsspec

    if kind == "images":
        raise DataError(
            f"{location.name}: images are cut into patches first: bnp-dask ingest {location.name} OUT.zarr --patch 8"
        )
    packed = 1 if fsspec.utils.infer_compression(location.url) is None and kind != "npz" else 4
    size = location.size()
    if size * packed > READ_WHOLE:
        raise DataError(
            f"{location.name}: {size / 2**20:.0f} MB of {kind} can only be read from front to back; turn it into a "
            f"batched store first: bnp-dask ingest {location.name} OUT.zarr"
        )
