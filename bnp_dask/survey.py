"""What one pass over the data tells: sizes, moments, ranges, checksums.  Additive over batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Survey:
    """Facts about a set of atoms.

    Parameters
    ----------
    n_atoms
        Number of atoms.
    total_weight
        Sum of their weights (the number of atoms when there are none).
    mean, variance
        Weighted moments of each feature, ``(D,)``; the variance is the population one.
    minimum, maximum
        Range of each feature, ``(D,)``.
    is_sparse
        Whether the atoms are sparse counts.
    nbytes
        Bytes of all batches when loaded.
    batch_atoms
        Atoms in each batch, in batch order.
    batch_bytes
        Bytes of each batch when loaded.
    checksums
        CRC-32 of each batch's content, in batch order.
    """

    n_atoms: int
    total_weight: float
    mean: np.ndarray
    variance: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    is_sparse: bool
    nbytes: int
    batch_atoms: tuple[int, ...]
    batch_bytes: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def n_features(self) -> int:
        """Number of features D, or words V."""
        return len(self.mean)

    @property
    def n_batches(self) -> int:
        """Number of batches B."""
        return len(self.batch_atoms)
