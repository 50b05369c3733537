"""Arrays of mostly zeros as their other numbers: counts of topics and words of a batch are few beside K times V."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from bnp_dask.core.summary import Field
from bnp_dask.core.totals import WORDS
from bnp_dask.inputs.sparse_rows import from_parts, require_compressed
from bnp_dask.kernels.numeric.sparse_sums import SparseSum

MARK = ".csr."
PARTS = ("data", "indices", "indptr")


def pack_sparse(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays to keep; matrices of which this takes fewer bytes as three arrays each.  Nothing is rounded."""
    out: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype != np.float64 or 12 * np.count_nonzero(array) >= 0.9 * array.nbytes:
            out[name] = array
            continue
        held = sparse.csr_array(array)
        out[f"{name}{MARK}data"] = held.data
        out[f"{name}{MARK}indices"] = held.indices.astype(np.int32)
        out[f"{name}{MARK}indptr"] = held.indptr.astype(np.int64)
        out[f"{name}{MARK}width"] = np.array(array.shape[1])
    return out


def unpack_sparse(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inverse of :func:`pack_sparse`."""
    out: dict[str, np.ndarray] = {}
    for key, array in arrays.items():
        name, mark, part = key.partition(MARK)
        if not mark:
            out[key] = array
        elif part == "width":
            data, indices, indptr = (arrays[f"{name}{MARK}{p}"] for p in PARTS)
            out[name] = from_parts(data, indices, indptr, (len(indptr) - 1, int(array)), key).toarray()
    return out


def packed_words(arrays: Mapping[str, np.ndarray], fields: Mapping[str, Field]) -> dict[str, SparseSum]:
    """Of a summary's arrays the words of topics that are packed, as they are held in differences; by field."""
    out = {}
    for name, declared in fields.items():
        key = f"value.{name}{MARK}"
        if declared.dims == WORDS and f"{key}width" in arrays:
            data, indices, indptr = (arrays[key + part] for part in PARTS)
            require_compressed(data, indices, indptr, (len(indptr) - 1, int(arrays[f"{key}width"])), key, "column")
            out[name] = SparseSum.of_csr(data, indices, indptr, int(arrays[f"{key}width"]))
    return out
