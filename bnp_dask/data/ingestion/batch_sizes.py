"""Batch sizes of ``ingest``: every expected worker gets several batches, and no batch is tiny."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bnp_dask.data.batching import BATCH_BYTES

WORKERS = 4
"""Default number of expected workers: a constant, so that stores are alike on all machines."""

PER_WORKER = 4
"""Least batches of each worker, so that all workers end at about the same time."""

LEAST_BYTES = 2**20
"""Least bytes of a batch in memory when data are cut smaller to get more batches.

Every visit of a batch has an overhead of some 10 ms.  A megabyte is 2,000 rows of 64 numbers, or 87,000 entries of
documents; with 100 clusters it takes some 100 ms or more, with full covariances or as topics.
"""

LATER = 4
"""Multiple of the wanted batches from which on chunks need not be small: all batches will have the largest size.
"""


@dataclass(frozen=True)
class BatchSizes:
    """Size of batches from the size of the data, in bytes in memory.

    Parameters
    ----------
    most
        Most bytes of a batch.
    workers
        Number of expected workers.
    """

    most: int = BATCH_BYTES
    workers: int = WORKERS

    @property
    def wanted(self) -> int:
        """Least number of batches in all."""
        return PER_WORKER * self.workers

    @property
    def finest(self) -> int:
        """Bytes of a batch for the smallest data that fill a batch of ``most`` bytes."""
        return self.of(self.most)

    def of(self, total: float) -> int:
        """Bytes of a batch for data of ``total`` bytes."""
        return max(1, min(self.most, max(LEAST_BYTES, int(total // self.wanted))))

    def next(self, written: float, total: float, n_batches: int) -> int:
        """Bytes of the next batch, after ``n_batches`` with ``written`` bytes; ``total`` may be a guess."""
        left = self.wanted - n_batches
        if left < 1:
            return self.of(total)
        return max(1, min(self.most, max(LEAST_BYTES, math.ceil((total - written) / left))))

    def is_long(self, total: float) -> bool:
        """Whether data of about ``total`` bytes have far more batches than wanted, even if the guess is off."""
        return total > LATER * self.wanted * self.most

    def line(self, n_batches: int, grouped: bool) -> str:
        """One line for a report."""
        expected = "the worker that is expected" if self.workers == 1 else f"each of {self.workers} expected workers"
        if n_batches >= self.wanted:
            return f"{n_batches:,} batches: at least {PER_WORKER} for {expected} (workers)"
        why = "groups are never cut, and " if grouped else ""
        batches = "1 batch" if n_batches == 1 else f"{n_batches:,} batches"
        least = min(self.most, LEAST_BYTES) / 2**20
        return (
            f"{batches}, fewer than {PER_WORKER} for {expected} (workers): {why}none is made smaller than about "
            f"{least:.3g} MB (batch_size makes any)"
        )
