"""How large ``ingest`` cuts batches: so that every expected worker gets several, and none is a crumb."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bnp_dask.data.batching import BATCH_BYTES

WORKERS = 4
"""Workers that are expected where nobody says how many: a number, so that stores are alike on all machines."""

PER_WORKER = 4
"""Batches that each of them gets at least, so that all of them end at about the same time."""

LEAST_BYTES = 2**20
"""Bytes of a batch in memory below which data are not cut for the sake of more batches.

Some 10 ms go by at every visit of a batch that nobody computes.  A megabyte is 2,000 rows of 64 numbers, or 87,000
entries of documents; 100 clusters take some 100 ms or more for it, with full covariances or as topics.
"""

LATER = 4
"""Where so many times the wanted batches are to come, chunks need not be small: all batches will be as large as may be.
"""


@dataclass(frozen=True)
class BatchSizes:
    """Size of batches, in bytes in memory, from that of the data.

    Parameters
    ----------
    most
        Bytes of a batch at most.
    workers
        Workers that are expected.
    """

    most: int = BATCH_BYTES
    workers: int = WORKERS

    @property
    def wanted(self) -> int:
        """Batches in all that are to be there at least."""
        return PER_WORKER * self.workers

    @property
    def finest(self) -> int:
        """Bytes of a batch of the smallest data that fill a batch of ``most`` bytes."""
        return self.of(self.most)

    def of(self, total: float) -> int:
        """Bytes of a batch of data of so many bytes in all."""
        return max(1, min(self.most, max(LEAST_BYTES, int(total // self.wanted))))

    def next(self, written: float, total: float, n_batches: int) -> int:
        """Bytes of the next batch, after ``n_batches`` with ``written`` bytes; ``total`` may be a guess."""
        left = self.wanted - n_batches
        if left < 1:
            return self.of(total)
        return max(1, min(self.most, max(LEAST_BYTES, math.ceil((total - written) / left))))

    def is_long(self, total: float) -> bool:
        """Whether data of about so many bytes have more batches than are wanted, however they go on."""
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
