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
"""Action of a row of the history where clusters were laid away, and kind of the moves in it."""

MOST = 100
"""Clusters that are laid away at most; those that left longest ago go first."""

WORTH = 100.0
"""Atoms that the statistics of a cluster count at least while it is laid away.

They had many before they faded, and their shape is known as well as by these.  Set by judgement, not by data.
"""

GROWN = 0.5
"""Weight of the batch that a cluster was born at below which the cluster is young no more: a half-life has passed.

By then it has half the atoms that it will ever have at its rate.
"""

ROUNDING = 1e-9
"""By how much weights may differ after a half-life, relatively: they are products of many factors."""


def lay_away(state: State, turn: Round, least: float) -> dict[str, Any] | None:
    """Let clusters of fewer (weighted) atoms leave the model with their atoms; the row of the history that says so.

    None where there are none; the largest cluster stays, and so does one that was born within the last half-life and
    never had so many.  A round that is open ends undecided where one leaves.  The gain of the row is the change of the
    objective, which is that of the other atoms from then on; atoms that left come back when their batch is visited
    again.
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
