"""Dask arrays: batches are their blocks, computed inside the task that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, naming_batch, shows_itself
from bnp_dask.data.batching import BATCH_BYTES, Span, batch_name, check_batch_size, check_dtype, check_index, float_rows
from bnp_dask.data.sources.dask_collections.graphs import compute_graph, small_graph
from bnp_dask.errors import DataError
from bnp_dask.inputs.arrays import plain
from bnp_dask.inputs.sparse_rows import as_counts, require_sound

if TYPE_CHECKING:
    # imported only when needed: it loads pandas, 80 MB in each worker that reads plain files
    import dask.array as da


@dataclass(frozen=True)
class BlockReader:
    """Reader that computes one block of a dask array.

    ``payload`` is the pickled graph: as bytes, so that no scheduler treats it as a collection.
    """

    payload: bytes
    n_features: int
    is_sparse: bool
    name: str

    def __call__(self) -> Batch:
        with naming_batch(self.name):
            block = compute_graph(self.payload)
            if np.ndim(block) != 2 or block.shape[1] != self.n_features or sparse.issparse(block) != self.is_sparse:
                raise DataError(f"{self.name}: computed {_shown(block)}; needs {self.n_features} columns")
            return Batch(block_rows(block, self.name), None, self.name)


def block_rows(block: Any, name: str) -> np.ndarray | sparse.csr_array:
    """A computed block as float64 rows, dense or sparse."""
    return as_counts(block, name) if sparse.issparse(block) else float_rows(plain(block, name), name)


def as_declared(x: da.Array) -> da.Array:
    """Array that raises an error if a chunk differs from its declaration.

    Dask itself trusts the declaration: a chunk of fewer rows makes a smaller result, and rows beyond the declared ones
    are lost when a chunk is cut.
    """
    import dask.array as da

    return da.map_blocks(_checked_chunk, x, declared=np.dtype(x.dtype), dtype=x.dtype, meta=x._meta)


def _checked_chunk(chunk: Any, declared: np.dtype, block_info: Any = None) -> Any:
    """A chunk; DataError if its shape, dtype or kind differs from the declaration of the array."""
    said = block_info[None]
    sizes, place = said["chunk-shape"], said["chunk-location"]
    found = np.shape(chunk)
    if len(found) != len(sizes) or any(not np.isnan(a) and a != b for a, b in zip(sizes, found, strict=True)):
        raise DataError(
            f"chunk {place} of the dask array has shape {found}, but the array says {tuple(sizes)}; give map_blocks or "
            "from_delayed the true chunks or shape, or unknown ones (nan), or call x.compute_chunk_sizes()"
        )
    if not np.can_cast(chunk.dtype, declared, "safe"):
        raise DataError(
            f"chunk {place} of the dask array has dtype {chunk.dtype}, but the array says {declared}; give map_blocks "
            "or from_delayed the true dtype, or end with .astype(float)"
        )
    if sparse.issparse(chunk):  # Dask cuts and joins them before a batch is made
        require_sound(chunk, f"chunk {place} of the dask array")
    return chunk


def _shown(block: Any) -> str:
    kind = "sparse counts" if sparse.issparse(block) else "rows"
    return f"{kind} of shape {np.shape(block)}"


@shows_itself
@dataclass(frozen=True, eq=False)
class DaskArraySource:
    """A dask array ``(n, D)`` chunked along rows; lengths of chunks need not be known."""

    name: str
    x: da.Array
    spans: tuple[Span, ...] | None
    is_sparse: bool

    @staticmethod
    def of(x: da.Array, batch_size: int | None = None) -> DaskArraySource:
        """Check the array; small chunks are joined, and ``batch_size`` cuts rows anew."""
        name = "dask array"
        if x.ndim != 2:
            raise DataError(f"{name} has shape {x.shape}; needs two axes: x.reshape(len(x), -1)")
        check_dtype(x.dtype, name)
        if np.isnan(x.shape[1]):
            raise DataError(f"{name} has an unknown number of columns (shape {x.shape}); call x.compute_chunk_sizes()")
        if len(x.chunks[1]) > 1:
            raise DataError(
                f"{name} is chunked along columns ({len(x.chunks[1])} chunks of a row); an atom must lie in one chunk: "
                "x.rechunk((rows, -1)), for example x.rechunk((10_000, -1))"
            )
        rows = x.chunks[0]
        x = as_declared(x)
        if np.isnan(rows).any():
            if batch_size is not None:
                raise DataError(
                    f"{name} has chunks of unknown length, so batch_size cannot cut it; call x.compute_chunk_sizes(), "
                    "or leave batch_size out: each chunk is a batch"
                )
            return DaskArraySource(name, x, None, sparse.issparse(x._meta))
        if not sum(rows) or not x.shape[1]:
            raise DataError(f"{name} has no {'columns' if sum(rows) else 'rows'} (shape {x.shape})")
        is_sparse = sparse.issparse(x._meta)
        if batch_size is not None:
            x = x.rechunk((check_batch_size(batch_size), -1))
        elif not is_sparse:
            x = x.rechunk((_grouped(rows, max(1, BATCH_BYTES // (8 * x.shape[1]))), -1))
        ends = np.cumsum(x.chunks[0]).tolist()
        return DaskArraySource(name, x, tuple(zip([0, *ends[:-1]], ends, strict=True)), is_sparse)

    def cut(self, spans: Sequence[Span]) -> DaskArraySource:
        """Source of these rows in the batches ``spans``."""
        sizes = tuple(stop - start for start, stop in spans)
        return replace(self, x=self.x.rechunk((sizes, -1)), spans=tuple(spans))

    @property
    def n_batches(self) -> int:
        return int(self.x.numblocks[0])

    @property
    def n_features(self) -> int:
        return int(self.x.shape[1])

    @property
    def n_atoms(self) -> int | None:
        return None if self.spans is None else self.spans[-1][1]

    def reader(self, index: int) -> Reader:
        check_index(index, self.n_batches, self.name)
        name = batch_name(self.name, index, None if self.spans is None else self.spans[index])
        payload = cloudpickle.dumps(small_graph(self.x.blocks[index], name))
        return BlockReader(payload, self.n_features, self.is_sparse, name)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "dask array",
            "path": self.name,
            "n_atoms": self.n_atoms,
            "n_features": self.n_features,
            "n_batches": self.n_batches,
            "dtype": str(self.x.dtype),
        }


def _grouped(rows: Sequence[int], most: int) -> tuple[int, ...]:
    """Rows of neighbouring chunks joined up to ``most`` rows; no chunk is cut."""
    out: list[int] = []
    for size in rows:
        if out and out[-1] + size <= most:
            out[-1] += int(size)
        else:
            out.append(int(size))
    return tuple(out)
