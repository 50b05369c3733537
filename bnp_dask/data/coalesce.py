"""Batches so small that one task reads several: for every task some 10 ms go by that nobody computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bnp_dask.data.base import Source

SMALL_BYTES = 2**21
"""Bytes of a batch above which two at a time, one being read, are too many."""

TOGETHER = 8
"""Small batches that one task reads at most."""

ROUNDS = 4
"""Tasks that each worker thread gets at least, so that all of them end at about the same time."""


def n_together(n_batches: int, nbytes: float, n_workers: int) -> int:
    """How many batches one task had better read in a pass over the data that computes next to nothing.

    Parameters
    ----------
    n_batches, nbytes
        Of the data.
    n_workers
        Worker threads.
    """
    if nbytes > SMALL_BYTES * n_batches:
        return 1
    return max(1, min(TOGETHER, n_batches // (ROUNDS * max(1, n_workers))))


def bytes_told(source: Source) -> float:
    """Bytes of the data in memory; no end of them where only reading tells."""
    if source.is_sparse or source.n_atoms is None:
        return math.inf
    return 8.0 * source.n_atoms * source.n_features


def in_words(batches: Sequence[int]) -> str:
    """For the name of a task that reads these."""
    return f"batch{batches[0]}" if len(batches) == 1 else f"batch{batches[0]}-to-{batches[-1]}"
