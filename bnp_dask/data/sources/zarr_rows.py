"""Dense rows in Zarr: any two-dimensional array, or a store that ``ingest`` wrote (a group with array ``x``)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.core.batch import Batch, check_weights
from bnp_dask.core.columns import Columns
from bnp_dask.core.location import Location
from bnp_dask.data.base import Reader, shows_itself
from bnp_dask.data.batching import (
    BATCH_BYTES,
    PIECE_BYTES,
    Span,
    batch_name,
    check_batch_size,
    check_dtype,
    check_index,
    check_matrix,
    spans,
)
from bnp_dask.data.identity import fingerprint_of_files
from bnp_dask.data.sources.containers.zarr_store import Place
from bnp_dask.data.sources.zarr_here import can_read_here, read_here
from bnp_dask.errors import DataError
from bnp_dask.execute.passing import may_pass
from bnp_dask.inputs.arrays import is_exact, require_exact

if TYPE_CHECKING:
    import zarr

ATTRIBUTE = "bnp_dask"
"""Attribute of a group that ``ingest`` wrote: format version, kind and sizes."""

FORMAT_VERSION = 1


def open_zarr(location: Place) -> zarr.Array | zarr.Group:
    """The array or group at a location; DataError if there is neither."""
    import zarr

    try:
        return zarr.open(location.zarr_path(), mode="r")
    except Exception as error:  # damaged metadata make zarr raise nearly any error
        raise DataError(
            f"{location.name}: no Zarr array or group, or one whose writing was cut short ({error})"
        ) from error


@dataclass(frozen=True)
class ZarrArray:
    """One array of a store, in which a missing or damaged chunk is an error and never a row of zeros.

    Parameters
    ----------
    location
        Folder of the array.
    shape, dtype
        Shape and dtype as stored.
    grid
        Shape of a file of the store: of a shard, if there are any, or of a chunk.
    metadata
        Metadata of the array from zarr; they travel with readers, so that they are not read again for every batch.
    """

    location: Place
    shape: tuple[int, ...]
    dtype: np.dtype
    grid: tuple[int, ...]
    metadata: Any

    @staticmethod
    def open(location: Place) -> ZarrArray:
        """Read the metadata of an array."""
        import zarr

        node = open_zarr(location)
        if not isinstance(node, zarr.Array):
            raise DataError(f"{location.name} is a Zarr group; needs an array")
        return ZarrArray.of(location, node)

    @staticmethod
    def of(location: Place, array: zarr.Array) -> ZarrArray:
        """Take over the metadata of an open array; DataError if its chunks are pickles, which would run code."""
        if array.metadata.zarr_format == 2:
            codecs = [*(array.metadata.filters or ()), array.metadata.compressor]
            if any(getattr(codec, "codec_id", None) == "pickle" for codec in codecs):
                raise DataError(f"{location.name} holds pickles, which would run code; write it again as numbers")
        return ZarrArray(
            location, tuple(array.shape), np.dtype(array.dtype), array.shards or array.chunks, array.metadata
        )

    @property
    def chunk_rows(self) -> int:
        """Rows of a file of the store."""
        return int(self.grid[0]) if self.grid else 1

    def read(self, span: Span, dtype: np.dtype) -> np.ndarray:
        """Rows ``span`` as C-contiguous ``dtype``, ``(n, ...)``.

        DataError names a missing or damaged chunk, and whole numbers that the dtype would round.
        """
        if not 0 <= span[0] <= span[1] <= self.shape[0]:
            raise DataError(f"{self.location.name}: rows {span[0]}-{span[1] - 1} of {self.shape[0]}; write it again")
        import zarr

        out = np.empty((span[1] - span[0], *self.shape[1:]), dtype)
        array = zarr.AsyncArray(self.metadata, self.location.zarr_path())
        row_bytes = max(1, int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize)
        rows = self.chunk_rows * max(1, PIECE_BYTES // (self.chunk_rows * row_bytes))
        # pieces end where chunks end, so that no chunk is decoded twice
        edges = [span[0], *range((span[0] // rows + 1) * rows, span[1], rows), span[1]]
        for start, stop in itertools.pairwise(edges):
            if start == stop:
                continue
            piece = out[start - span[0] : stop - span[0]]
            if is_exact(self.dtype, out.dtype):
                self._piece(array, start, stop, piece)
                continue
            whole = np.empty(piece.shape, self.dtype)
            self._piece(array, start, stop, whole)
            require_exact(whole, self.location.name, row=start)
            piece[...] = whole
        return out

    def fingerprint(self) -> Any:
        """Sizes and times of its files; None for an array in an open store, which does not report them."""
        return fingerprint_of_files([self.location]) if isinstance(self.location, Location) else None

    def _piece(self, array: zarr.AsyncArray[Any], start: int, stop: int, out: np.ndarray) -> None:
        import zarr
        from zarr.core.buffer.cpu import NDBuffer

        keys = self._chunk_keys(start, stop)
        for key in keys:
            size = self.location.child(key).size_if_any()
            if size == 0:
                # zarr reads an empty shard as one without chunks, and returns fill values
                raise DataError(
                    f"{self.location.name}: chunk {key} (rows {start}-{stop - 1}) is truncated or damaged (0 bytes); "
                    "write it again"
                )
            if size is None:
                raise DataError(
                    f"{self.location.name}: chunk {key} (rows {start}-{stop - 1}) is missing. If it was left out on "
                    f"purpose because all its values are {self.metadata.fill_value}, read it with "
                    "dask.array.from_zarr, or write it with zarr's write_empty_chunks"
                )
        try:
            if self.location.is_local and out.nbytes <= PIECE_BYTES and can_read_here():
                out[...] = read_here(array, start, stop)
            elif out.dtype == self.dtype and out.size:  # decoded in place, without a second array
                zarr.Array(array).get_basic_selection(slice(start, stop), out=NDBuffer.from_numpy_array(out))
            else:
                out[...] = zarr.Array(array)[start:stop]
        except Exception as error:  # every codec has its own errors
            if len(keys) > 1:
                for row in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
                    first, last = max(start, row * self.chunk_rows), min(stop, (row + 1) * self.chunk_rows)
                    if last - first < stop - start:
                        self._piece(array, first, last, out[first - start : last - start])
            what = "cannot be read just now" if may_pass(error) else "is truncated or damaged; write it again"
            raise DataError(
                f"{self.location.name}: chunk {' or '.join(keys)} (rows {start}-{stop - 1}) {what} "
                f"({type(error).__name__}: {error})"
            ) from error

    def _chunk_keys(self, start: int, stop: int) -> list[str]:
        rows = range(start // self.grid[0], -(-stop // self.grid[0]))
        rest = [range(-(-size // chunk)) for size, chunk in zip(self.shape[1:], self.grid[1:], strict=True)]
        return [self.metadata.encode_chunk_key(place) for place in itertools.product(rows, *rest)]


@dataclass(frozen=True)
class ZarrRowsReader:
    """Reads some rows of a Zarr array, and their weights."""

    x: ZarrArray
    weights: ZarrArray | None
    span: Span
    name: str
    names: tuple[str, ...] | None = None

    def load(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows in the wanted dtype, and weights."""
        weights = None
        if self.weights is not None:
            weights = self.weights.read(self.span, np.dtype(np.float64))
            weights = check_weights(weights, self.span[1] - self.span[0], self.name)
        return self.x.read(self.span, dtype), weights

    def __call__(self) -> Batch:
        x, weights = self.load(np.dtype(np.float64))
        return Batch(x, weights, self.name, names=self.names)


@shows_itself
@dataclass(frozen=True)
class ZarrRowsSource:
    """Rows of a Zarr array ``(n, D)``, with optional weights ``(n,)``, and names if ``ingest`` stored them."""

    name: str
    x: ZarrArray
    weights: ZarrArray | None
    spans: tuple[Span, ...]
    columns: Columns | None = None

    @staticmethod
    def of_array(
        location: Place,
        x: ZarrArray,
        weights: ZarrArray | None = None,
        batch_size: int | None = None,
        usual: int | None = None,
    ) -> ZarrRowsSource:
        """Check the array and cut it: ``batch_size`` rows, else ``usual``, else whole chunks up to 32 MB."""
        name = location.name
        check_dtype(x.dtype, name)
        n, d = check_matrix(x.shape, name)
        if weights is not None and weights.shape != (n,):
            raise DataError(f"{name}: array weights has shape {weights.shape}; needs one per row of x, ({n},)")
        if batch_size is not None:
            size = check_batch_size(batch_size)
        elif usual is not None:
            size = usual
        else:
            size = x.chunk_rows * max(1, BATCH_BYTES // (8 * d * x.chunk_rows))
        return ZarrRowsSource(name, x, weights, tuple(spans(n, size)))

    @property
    def n_batches(self) -> int:
        return len(self.spans)

    @property
    def n_features(self) -> int:
        return self.x.shape[1]

    @property
    def n_atoms(self) -> int:
        return self.x.shape[0]

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def dtype(self) -> np.dtype:
        """Dtype in the store."""
        return self.x.dtype

    def load_reader(self, index: int) -> ZarrRowsReader:
        """Reader that can also give the stored dtype."""
        span = self.spans[check_index(index, self.n_batches, self.name)]
        names = None if self.columns is None else self.columns.features
        return ZarrRowsReader(self.x, self.weights, span, batch_name(self.name, index, span), names)

    def reader(self, index: int) -> Reader:
        return self.load_reader(index)

    def fingerprint(self) -> Any:
        places = [array.location for array in (self.x, self.weights) if array is not None]
        files = [place for place in places if isinstance(place, Location)]
        # an open store does not report times of writing
        return fingerprint_of_files(files) if len(files) == len(places) else None

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "zarr",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "dtype": str(self.x.dtype),
            "weights": None if self.weights is None else self.weights.location.basename,
            # runs of earlier versions, which did not record names, stay comparable
            **({} if self.columns is None else {"columns": list(self.columns.names)}),
        }


def store_facts(group: zarr.Group, name: str) -> Mapping[str, Any]:
    """Facts that ``ingest`` recorded in a store; empty for stores of other origin."""
    facts = group.attrs.get(ATTRIBUTE, {})
    if not isinstance(facts, Mapping) or facts.get("format", FORMAT_VERSION) != FORMAT_VERSION:
        raise DataError(
            f"{name}: attribute {ATTRIBUTE!r} is {facts!r}; this version reads format {FORMAT_VERSION}. "
            "Ingest the data again, or install the version that wrote them"
        )
    return facts


def _such_as(location: Place, group: zarr.Group) -> str:
    """An array of rows in a group, for a message; empty if there is none."""
    found = [name for name, array in sorted(group.arrays()) if array.ndim == 2]
    return f", such as {location.child(found[0]).name}" if found else "; it has none with rows and columns"


def open_zarr_rows(location: Place, group: zarr.Group, batch_size: int | None) -> ZarrRowsSource:
    """Source of a group that holds rows as array ``x``, and optionally ``weights``."""
    members = sorted(group.array_keys())
    if "x" not in members and {"data", "indices", "indptr"} <= set(members):
        raise DataError(
            f"{location.name}: a Zarr group with the parts of a sparse matrix (data, indices, indptr) of which it does "
            "not say the format and shape; pass the matrix itself, such as scipy.sparse.csr_matrix((data, indices, "
            "indptr), shape=(rows, columns)), or the path of an AnnData store"
        )
    if "x" not in members:
        others = ", ".join(members[:10]) or "no arrays"
        raise DataError(
            f"{location.name}: a Zarr group without array 'x' (it has {others}); "
            f"pass the path of the array itself{_such_as(location, group)}"
        )
    x = ZarrArray.open(location.child("x"))
    weights = ZarrArray.open(location.child("weights")) if "weights" in members else None
    facts = store_facts(group, location.name)
    n, d = facts.get("n_atoms"), facts.get("n_features")
    if facts and x.shape != (n, d):
        raise DataError(f"{location.name}: array x has shape {x.shape}, but the store was written with ({n}, {d})")
    usual = int(facts["batch_rows"]) if facts else None
    source = ZarrRowsSource.of_array(location, x, weights, batch_size, usual)
    if "columns" not in facts:
        return source
    columns = Columns.from_json(facts["columns"])
    if columns.n_features != d:
        raise DataError(
            f"{location.name}: names of {columns.n_features} features, but array x has {d}; ingest it again"
        )
    return replace(source, columns=columns)
