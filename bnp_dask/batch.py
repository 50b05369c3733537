"""A batch: the atoms that one task holds in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from bnp_dask.errors import DataError


@dataclass(frozen=True, eq=False)
class Batch:
    """Some atoms of the data set, with where they came from.

    Parameters
    ----------
    x
        Atoms, ``(n, D)``: a float64 array, or counts as a ``scipy.sparse.csr_array`` of float64
        (one row per document, one column per word; never made dense).
    weights
        How often each atom counts, ``(n,)`` float64, or None for once each.
    name
        Where the batch came from, for error messages: ``"patches.zarr batch 7 (rows 7000-7999)"``.
    """

    x: np.ndarray | sparse.csr_array
    weights: np.ndarray | None = None
    name: str = "batch"

    @property
    def n_atoms(self) -> int:
        """Number of atoms n."""
        return int(self.x.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features D (columns), or words V."""
        return int(self.x.shape[1])

    @property
    def is_sparse(self) -> bool:
        """Whether the atoms are sparse counts."""
        return sparse.issparse(self.x)

    @property
    def total_weight(self) -> float:
        """Sum of the weights; the number of atoms when there are none."""
        return float(self.n_atoms if self.weights is None else self.weights.sum())

    @property
    def nbytes(self) -> int:
        """Bytes held by the atoms and their weights."""
        held = 0 if self.weights is None else self.weights.nbytes
        if isinstance(self.x, np.ndarray):
            return held + self.x.nbytes
        return held + self.x.data.nbytes + self.x.indices.nbytes + self.x.indptr.nbytes

    def rows(self, start: int, stop: int) -> Batch:
        """The atoms ``start:stop``: views, nothing is copied but the row pointers of sparse rows."""
        weights = None if self.weights is None else self.weights[start:stop]
        if isinstance(self.x, np.ndarray):
            return replace(self, x=self.x[start:stop], weights=weights)
        indptr = self.x.indptr[start : stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        shape = (len(indptr) - 1, self.n_features)
        x = sparse.csr_array((self.x.data[entries], self.x.indices[entries], indptr - indptr[0]), shape=shape)
        return replace(self, x=x, weights=weights)

    def take(self, index: np.ndarray) -> Batch:
        """The atoms at the positions ``index``, ``(m,)``, in that order."""
        weights = None if self.weights is None else self.weights[index]
        return replace(self, x=self.x[index], weights=weights)

    def columns(self, index: np.ndarray) -> Batch:
        """All atoms, restricted to the columns ``index``."""
        return replace(self, x=self.x[:, index])


def concatenate(batches: list[Batch], name: str = "sample") -> Batch:
    """Atoms of several batches as one; weights are made explicit when any batch has them."""
    if any(b.is_sparse for b in batches):
        x = sparse.csr_array(sparse.vstack([b.x for b in batches], format="csr"))
    else:
        x = np.concatenate([b.x for b in batches])
    weights = None
    if any(b.weights is not None for b in batches):
        weights = np.concatenate([np.ones(b.n_atoms) if b.weights is None else b.weights for b in batches])
    return Batch(x, weights, name)


def check_weights(weights: np.ndarray, n_atoms: int, name: str) -> np.ndarray:
    """Weights as float64 ``(n_atoms,)``; DataError unless there is one finite, non-negative number per atom."""
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: weights have dtype {array.dtype}; needs real numbers")
    if array.shape != (n_atoms,):
        raise DataError(f"{name}: weights have shape {array.shape}; needs one per atom, ({n_atoms},)")
    array = np.ascontiguousarray(array, np.float64)
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{name}: weight of row {row} is {array[row]}; needs finite weights >= 0")
    return array
