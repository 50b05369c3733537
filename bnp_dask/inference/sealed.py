"""Batches whose own statistics a run does not keep: they are summed up, and never visited again.

The total is this sum plus the statistics of all other batches.  Changes of clusters act on the sum as on the statistics
of a batch; changes that it has not seen are replayed when it is next needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnp_dask.core.edits import Edit
from bnp_dask.core.totals import RunningTotal

SEALED = -2
"""In place of a visit's number: nothing is kept of this batch by itself."""


@dataclass
class Sealed:
    """Statistics of all batches that are never visited again.

    Parameters
    ----------
    total
        Their sum.
    seen
        Number of changes of clusters that are in it.
    """

    total: RunningTotal
    seen: int

    def catch_up(self, edits: Sequence[Edit]) -> None:
        """Replay the changes of clusters that it has not seen, given all of the run's; none of them needs a trial."""
        self.total.apply(edits[self.seen :])
        self.seen = len(edits)


def are_sealed(visits: np.ndarray) -> np.ndarray:
    """Which batches are sealed, ``(B,)`` bool, by the number of each batch's last visit."""
    return np.asarray(visits == SEALED)
