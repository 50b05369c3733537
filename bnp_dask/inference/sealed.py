"""Batches of which a run keeps no statistics: summed up in one, and never visited again.

The total is that sum and the statistics of all other batches.  Changes of clusters act on it as on the statistics of a
batch; those that it has not seen are replayed when it is next needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnp_dask.core.edits import Edit
from bnp_dask.core.totals import RunningTotal

SEALED = -2
"""In place of the number of a visit: nothing is kept of this batch by itself."""


@dataclass
class Sealed:
    """Statistics of all batches that are never visited again.

    Parameters
    ----------
    total
        Their sum.
    seen
        How many changes of clusters are in it.
    """

    total: RunningTotal
    seen: int

    def catch_up(self, edits: Sequence[Edit]) -> None:
        """Replay changes of clusters that it has not seen, of all of a run's; none of them needs a trial."""
        self.total.apply(edits[self.seen :])
        self.seen = len(edits)


def are_sealed(visits: np.ndarray) -> np.ndarray:
    """Which batches are, ``(B,)`` bool, by the number of the last visit of each."""
    return np.asarray(visits == SEALED)
