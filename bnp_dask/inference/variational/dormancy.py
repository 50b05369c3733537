"""Clusters that fade leave the model, and are laid away under their ids for as long as there is room."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnp_dask.core.edits import Take
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.state import State
from bnp_dask.inference.variational.arrivals import Round, abandon
from bnp_dask.moves.base import record

DORMANT = "dormant"
"""Action of a history row in which clusters were laid away, and kind of the moves in it."""

MOST = 100
"""Clusters laid away at most; the earliest to leave are dropped first."""

WORTH = 100.0
"""Least number of atoms that the statistics of a laid-away cluster stand for.

Such clusters had many atoms before they faded, so their shape is known at least this well.  Set by judgement, not by
data.
"""

GROWN = 0.5
"""Weight of the batch at which a cluster was born, below which the cluster is no longer young: a half-life has passed.

By then it has half the atoms that it will ever have at its rate.
"""

ROUNDING = 1e-9
"""Relative difference between weights after a half-life, by rounding: they are products of many factors."""


def lay_away(state: State, turn: Round, least: float) -> dict[str, Any] | None:
    """Remove clusters of fewer than ``least`` (weighted) atoms, with their atoms; returns the history row for it.

    Returns None if there are none.  The largest cluster stays, and so does one that was born within the last half-life
    and never had that many.  If a cluster leaves, an open round ends undecided.  The gain of the row is the change of
    the objective, which from then on covers the remaining atoms only.  Atoms that left return when their batch is
    visited again.
    """
    value = state.total.value()
    counts = value["N"]
    faint = value.ids[counts < least].tolist()
    young = {i: weight for i, weight in state.memory.young.items() if weight > GROWN * (1.0 + ROUNDING) and i in faint}
    state.memory.young = young
    stays = (counts >= least) | np.isin(value.ids, list(young))
    stays[np.argmax(counts)] = True
    if stays.all():
        return None
    if turn.is_open:
        abandon(state, turn)
        value = state.total.value()
    gone, memory, before = value.ids[~stays].tolist(), state.memory, state.elbo
    for cluster in gone:
        part = value.without_pairs().take([cluster])
        count = float(part["N"][0])
        if count > 0:
            memory.dormant[cluster] = part.scale(max(1.0, WORTH / count))
    for cluster in list(memory.dormant)[:-MOST]:
        del memory.dormant[cluster]
    edit = Take(tuple(value.ids[stays].tolist()))
    state.edits.append(edit)
    state.total.apply([edit])
    memory.forget_dead(np.array(edit.ids))
    turn.short[turn.last >= 0] = True
    state.settle()
    state.step += 1
    why = f"fewer than {least:g} atoms"
    moves = [record(DORMANT, (cluster,), (), None, True, why) for cluster in gone]
    row = history_row(state, state.lap, None, exact=True, action=DORMANT, gain=state.elbo - before, moves=moves)
    return {**row, "n_batches": 0}
