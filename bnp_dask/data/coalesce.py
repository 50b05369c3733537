"""Small batches that one task reads together, because every task has an overhead of some 10 ms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bnp_dask.data.base import Source

SMALL_BYTES = 2**21
"""Bytes of a batch above which a task must not hold two, one of them being read."""

TOGETHER = 8
"""Most small batches that one task reads."""

ROUNDS = 4
"""Least tasks of each worker thread, so that all threads end at about the same time."""


def n_together(n_batches: int, nbytes: float, n_workers: int) -> int:
    """Number of batches that one task should read in a pass over the data with little computation.

    Parameters
    ----------
    n_batches, nbytes
        Number of batches and bytes of the data.
    n_workers
        Number of worker threads.
    """
    if nbytes > SMALL_BYTES * n_batches:
        return 1
    return max(1, min(TOGETHER, n_batches // (ROUNDS * max(1, n_workers))))


def bytes_told(source: Source) -> float:
    """Bytes of the data in memory; infinity for sparse counts, or if known only after reading."""
    if source.is_sparse or source.n_atoms is None:
        return math.inf
    return 8.0 * source.n_atoms * source.n_features


def in_words(batches: Sequence[int]) -> str:
    """Numbers of batches as text, for the name of the task that reads them."""
    return f"batch{batches[0]}" if len(batches) == 1 else f"batch{batches[0]}-to-{batches[-1]}"
