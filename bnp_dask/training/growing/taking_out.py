"""Batches leave a run: finding the batches of a place, and taking their statistics out of all totals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bnp_dask.core.location import Location
from bnp_dask.errors import SettingError
from bnp_dask.inference import State, Work
from bnp_dask.inference.bad_batches import instead
from bnp_dask.inference.drive import history_row
from bnp_dask.inference.leaving import subtract
from bnp_dask.inference.local_steps import LocalStep, lose_batch
from bnp_dask.inference.sealed import SEALED
from bnp_dask.inference.state import Loss, recall_parts, remember
from bnp_dask.inference.variational.arrivals import Round, abandon
from bnp_dask.inference.visit import Request
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.run_settings import OPENED

RETIRED = "retired"
"""Reason why batches of such data are left out."""

SHOWN = 5
"""Most names of pieces of data in an error."""


def take_out(
    work: Work, state: State, turn: Round, batches: Sequence[int], keeps_round: bool = False
) -> dict[str, Any]:
    """Subtract the statistics of batches from the total; return the row of the history for it.

    Statistics without atoms take the place of each batch.  An open round goes on without these batches if it is to be
    kept; otherwise it ends undecided, and its sums are dropped.
    """
    if turn.is_open and not keeps_round:
        abandon(state, turn)
    state.step += 1
    subtract(work, state, batches)
    for batch in batches:
        if turn.is_open and turn.seen[batch]:
            for name, part in recall_parts(work, state, batch).items():
                if name in state.trials:
                    state.trials[name].subtract(part)
        state.lost[batch] = Loss(RETIRED, state.lap, state.step)
        empty = instead(work, batch)
        step = LocalStep(Request(batch, f"batch {batch}", empty, work.seed, empty=empty), state.total.high.pairs)
        trials = state.plan.trials if turn.is_open else ()
        remember(work, state, batch, lose_batch(state.posterior, trials, step, RETIRED))
    turn.note(batches, state.step)
    state.settle()
    return history_row(state, state.lap, batches, exact=True, action=RETIRED, gain=None, moves=[])


def held(run: GrowingRun, state: State) -> np.ndarray:
    """Which batches have atoms in the totals, ``(B,)`` bool."""
    out = np.array(run.survey().batch_atoms) > 0
    out[list(state.lost)] = False
    return out


def require_kept(run: GrowingRun, state: State, batches: Iterable[int], name: str) -> None:
    """SettingError if nothing of some of these single batches is kept; ``name`` is the caller in the message."""
    found = [batch for batch in batches if state.visits[batch] == SEALED]
    if not found:
        return
    starts = np.cumsum([run.first.n_batches, *(piece["n_batches"] for piece in run.log.pieces)])
    numbers = np.unique(np.searchsorted(starts, found, side="right") - 1)
    pieces = [run.log.pieces[number]["name"] for number in numbers.tolist()]
    more = f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else ""
    raise SettingError(
        f"{name}: {len(found)} batches, {found[0]} to {found[-1]}, of {', '.join(pieces[:SHOWN])}{more} were taken in "
        "with revisit=0, which keeps nothing of a batch by itself: they stay in the totals. rollback() goes back to a "
        "version before them, as long as that is kept"
    )


def batches_of(run: GrowingRun, source: str) -> list[int]:
    """Batches of the data from a place; SettingError if there are none."""
    place = Location.of(source, None, "sources").place
    n_first, opened = run.first.n_batches, run.on_disk.settings.get(OPENED)
    starts = np.cumsum([n_first, *(piece["n_batches"] for piece in run.log.pieces)])
    found = list(range(n_first)) if opened is not None and _is_in(opened["place"], place) else []
    for piece, start in zip(run.log.pieces, starts, strict=False):
        if piece["place"] is not None and _is_in(piece["place"], place):
            found += range(start, start + piece["n_batches"])
    if not found:
        places = [opened["place"]] if opened is not None else []
        places += [piece["place"] for piece in run.log.pieces if piece["place"] is not None]
        known = ", ".join(list(dict.fromkeys(places))[:5]) or "none"
        raise SettingError(f"sources: {run.on_disk.path} has no data from {place}; it has {known}")
    return found


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
