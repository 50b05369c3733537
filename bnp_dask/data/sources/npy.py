"""Dense rows in a .npy file, read with seeks: a reader holds its batch and one small piece of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import (
    PIECE_BYTES,
    Span,
    batch_name,
    batch_rows,
    check_dtype,
    check_index,
    check_matrix,
    spans,
)
from bnp_dask.data.identity import fingerprint_of_files
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import is_exact, require_exact


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
    def open(location: Location, vector: bool = False) -> NpyFile:
        """Read the header.  With ``vector`` the file holds ``(n,)`` numbers, taken as one column."""
        name = location.name
        with location.open() as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran, dtype = read(file)
            except ValueError as error:
                raise DataError(f"{name}: not a .npy file, or a damaged one ({error})") from error
            offset = file.tell()
        check_dtype(dtype, name)
        if vector and len(shape) != 1:
            raise DataError(f"{name} has shape {shape}; weights need one axis, (n,)")
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


@shows_itself
@dataclass(frozen=True)
class NpySource:
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
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return self.file.shape[1]

    @property
    def n_atoms(self) -> int:
        return self.file.shape[0]

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def dtype(self) -> np.dtype:
        """Dtype in the file."""
        return self.file.dtype

    def load_reader(self, index: int) -> NpyReader:
        """Reader that can also give the stored dtype."""
        span = self.spans[check_index(index, self.n_batches, self.name)]
        return NpyReader(self.file, span, batch_name(self.name, index, span))

    def reader(self, index: int) -> Reader:
        return self.load_reader(index)

    def fingerprint(self) -> Any:
        return fingerprint_of_files([self.file.location])

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "npy",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "dtype": str(self.file.dtype),
        }
