"""Data in this process's memory: arrays, scipy.sparse matrices, tables."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import fsspec
import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.columns import Columns
from bnp_dask.core.location import Location
from bnp_dask.core.vocabulary import Words
from bnp_dask.data.base import Reader, Source, columns_of, shows_itself
from bnp_dask.data.batching import (
    Span,
    batch_name,
    batch_rows,
    check_dtype,
    check_index,
    check_matrix,
    float_rows,
    spans,
    sparse_spans,
)
from bnp_dask.data.identity import fingerprint_of, fingerprint_of_content, fingerprint_of_files
from bnp_dask.data.sources.choose import array_of_numbers, tell_of_row_numbers
from bnp_dask.data.sources.npy import NpyFile
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.sparse_rows import as_counts

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


@shows_itself
@dataclass(frozen=True, eq=False)
class ArraySource:
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
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def n_atoms(self) -> int:
        return int(self.x.shape[0])

    @property
    def is_sparse(self) -> bool:
        return not isinstance(self.x, np.ndarray)

    def reader(self, index: int) -> Reader:
        start, stop = self.spans[check_index(index, self.n_batches, self.name)]
        return HeldReader(self.x[start:stop], batch_name(self.name, index, (start, stop)))

    def fingerprint(self) -> Any:
        mapped = _file_behind(self.x)
        return fingerprint_of_content(self) if mapped is None else fingerprint_of_files([Location.of(mapped)])

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "dtype": str(self.x.dtype),
            "sparse": self.is_sparse,
        }


def _file_behind(x: np.ndarray | sparse.csr_array) -> str | None:
    """The file to which an array, or the base of a view, is mapped; None for an array in memory."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap) and x.filename is not None:
            return str(x.filename)
        x = x.base
    return None


# -- weights stored apart from the atoms ---------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class WeightedReader:
    """A batch of one source with weights from another place."""

    atoms: Reader
    weights: Callable[[], np.ndarray]

    def __call__(self) -> Batch:
        batch = self.atoms()
        return replace(batch, weights=check_weights(self.weights(), batch.n_atoms, batch.name))


@dataclass(frozen=True, eq=False)
class HeldWeights:
    """Weights of one batch, ``(n,)``."""

    values: np.ndarray

    def __call__(self) -> np.ndarray:
        return self.values


@dataclass(frozen=True, eq=False)
class FileWeights:
    """Weights of one batch in a .npy file."""

    file: NpyFile
    span: Span

    def __call__(self) -> np.ndarray:
        return self.file.read(self.span, np.dtype(np.float64))[:, 0]


@shows_itself
@dataclass(frozen=True, eq=False)
class WeightedSource:
    """A source whose atoms carry weights ``(n,)`` from an array or a .npy file."""

    atoms: Source
    spans: tuple[Span, ...]
    weights: np.ndarray | NpyFile

    @property
    def name(self) -> str:
        return self.atoms.name

    @property
    def n_batches(self) -> int:
        return self.atoms.n_batches

    @property
    def n_features(self) -> int:
        return self.atoms.n_features

    @property
    def n_atoms(self) -> int | None:
        return self.atoms.n_atoms

    @property
    def is_sparse(self) -> bool:
        return self.atoms.is_sparse

    @property
    def columns(self) -> Columns | None:
        return columns_of(self.atoms)

    def reader(self, index: int) -> Reader:
        inner = self.atoms.reader(index)
        span = self.spans[index]
        if isinstance(self.weights, NpyFile):
            return WeightedReader(inner, FileWeights(self.weights, span))
        return WeightedReader(inner, HeldWeights(self.weights[span[0] : span[1]]))

    def fingerprint(self) -> Any:
        weights = self.weights
        own = fingerprint_of_files([weights.location]) if isinstance(weights, NpyFile) else None
        return [fingerprint_of(self.atoms), own]

    def describe(self) -> dict[str, Any]:
        if isinstance(self.weights, NpyFile):
            return {**self.atoms.describe(), "weights": self.weights.location.name}
        return {**self.atoms.describe(), "weights": f"crc32 {zlib.crc32(self.weights.tobytes())}"}


def with_weights(source: Source, source_spans: tuple[Span, ...], weights: np.ndarray | NpyFile) -> WeightedSource:
    """Attach one weight per atom; DataError if their number or values are wrong."""
    n = source_spans[-1][1]
    if isinstance(weights, NpyFile):
        if weights.shape != (n, 1):
            raise DataError(f"{weights.location.name}: {weights.shape[0]} weights for the {n} atoms of {source.name}")
        return WeightedSource(source, source_spans, weights)
    return WeightedSource(source, source_spans, check_weights(weights, n, source.name))


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
