"""Exact removal of the statistics of batches from the total, even if a batch's data are gone too."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import DataError, StoreError
from bnp_dask.inference.batch_memo import is_assigned
from bnp_dask.inference.state import Memo, State, Work, logger, recall


def take_data(memo: Memo, state: State, batches: Collection[int]) -> bool:
    """Whether the statistics of some batches must be recomputed from their data."""
    kept = (memo.get_summary(b, int(state.visits[b]), state.receipt(b))[0] for b in batches if state.visits[b] >= 0)
    return any(is_assigned(arrays) for arrays in kept)


def subtract(work: Work, state: State, batches: Sequence[int]) -> None:
    """Take the statistics of some batches out of the total.

    If a batch left assignments, and its data are gone or have changed, the total is summed again from all other
    batches; of these, batches that left assignments are read.

    Raises
    ------
    StoreError
        The data of another batch that left assignments are gone too.
    """
    why = ""
    for batch in batches:
        try:
            state.total.subtract(recall(work, state, batch))
        except (DataError, OSError) as error:
            why = why or str(error)
    if why:
        logger.info("the total is summed again from all other batches: %s", why)
        state.total = _of_others(work, state, {*batches, *state.lost}, why)


def _of_others(work: Work, state: State, out: Collection[int], why: str) -> RunningTotal:
    total = RunningTotal(state.total.high.zeros())
    if state.sealed is not None:
        state.sealed.catch_up(state.edits)
        total.join(state.sealed.total)
    for batch in np.flatnonzero(state.visits >= 0).tolist():
        if batch in out:
            continue
        try:
            own = recall(work, state, batch)
        except (DataError, OSError) as error:
            raise StoreError(
                f"the statistics of a batch cannot be taken out: {why}. They take its data, or the data of all other "
                f"batches, and one of these cannot be used either: {error}. Put the data of one of them back"
            ) from error
        is_tracked = np.array_equal(own.pairs, total.high.pairs)
        total.add(own if is_tracked else own.with_pairs(total.high.pairs))
    return total
