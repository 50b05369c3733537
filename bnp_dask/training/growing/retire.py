"""``retire``: data leave a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from bnp_dask.core.location import Location
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inputs.settings import path_text, shown
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.moves.base import Gather
from bnp_dask.schedules import State, Work
from bnp_dask.schedules.arrivals import abandon
from bnp_dask.schedules.base import history_row
from bnp_dask.schedules.engine.bad_batches import instead
from bnp_dask.schedules.engine.state import Loss, recall, remember
from bnp_dask.schedules.engine.tasks import Job, lose_batch
from bnp_dask.store import RunStore
from bnp_dask.training.growing.growing_run import GrowingRun, commit
from bnp_dask.training.run_settings import OPENED

RETIRED = "retired"
"""Why batches of such data are left out."""


def retire(store: str | os.PathLike[str], sources: str | os.PathLike[str] | Sequence[str]) -> Posterior:
    """Take data out of a run, exactly: their statistics leave all totals and the directory.

    No data are read.  The model's priors and centre stay those of the first data, also where these go.  Clusters stay
    as long as other data use them: they were born with the help of what is retired, and the others hold them now.
    Earlier versions, which held the data, are removed.  The data stay known by place: an update does not take them
    again.

    Parameters
    ----------
    store
        Run directory.
    sources
        Paths or URLs as they were given to ``train`` or ``update``, or folders that hold them.

    Returns
    -------
    Posterior
        The version in force now.

    Raises
    ------
    SettingError
        The run has no data from there, or nothing would be left of it.
    StoreError
        No run, one that another process is writing to, or one that cannot be updated.
    """
    given = _paths(sources)
    with contextlib.closing(RunStore.open(path_text("store", store))) as opened:
        run = GrowingRun.open(opened)
        run.publish()
        state = run.state()
        batches = sorted({b for one in given for b in _batches_of(run, one)} - set(state.lost))
        left = set(np.flatnonzero(np.array(run.survey().batch_atoms) > 0).tolist()) - set(state.lost) - set(batches)
        if not left:
            raise SettingError(f"{run.store.path}: nothing would be left; remove the directory instead")
        if not batches:
            return run.base
        with fixed_order(run.base.model.reproducible):
            work = run.work(SerialExecutor())
            if run.turn.is_open:
                abandon(state, run.turn)
            _take_out(work, state, batches)
        row = history_row(state, state.lap, batches, exact=True, action=RETIRED, gain=None, moves=[])
        row |= {"version": run.newest + 1, "seconds": run.seconds}
        record = {"pieces": [], "retired": given, "fresh": None, "elbo": state.elbo, "moves": []}
        posterior = commit(run, state, record, [row], keep=1)
        run.commit_again(state)  # so that the checkpoint before holds nothing of the data either
    return posterior


def _paths(sources: Any) -> list[str]:
    """Places as they were given; SettingError for what is neither a path nor a list of paths."""
    if isinstance(sources, (str, os.PathLike)):
        return [path_text("sources", sources)]
    if not isinstance(sources, (Sequence, Set)) or isinstance(sources, bytes):
        raise SettingError(f"sources={shown(sources)}: needs a path, or a list of paths")
    return [path_text(f"sources[{i}]", one) for i, one in enumerate(sources)]


def _take_out(work: Work, state: State, batches: Sequence[int]) -> None:
    """Subtract the statistics of batches from the total, and leave those of a batch without atoms in their place."""
    state.step += 1
    for batch in batches:
        state.total.subtract(recall(work, state, batch))
        state.lost[batch] = Loss(RETIRED, state.lap, state.step)
        job = Job(f"batch {batch}", state.total.high.pairs, None, Gather(), work.seed)
        remember(work, state, batch, lose_batch(state.posterior, instead(work, batch), (), job, RETIRED))
    value = state.total.value()
    state.posterior = state.model.global_step(value)
    state.terms = state.model.elbo(state.posterior, value)


def _batches_of(run: GrowingRun, source: str) -> range | list[int]:
    """Batches of the data from a place."""
    place = Location.of(source, None, "sources").url
    n_first, opened = run.first.n_batches, run.store.settings.get(OPENED)
    starts = np.cumsum([n_first, *(piece["n_batches"] for piece in run.log.pieces)])
    found = list(range(n_first)) if opened is not None and _is_in(opened["place"], place) else []
    for piece, start in zip(run.log.pieces, starts, strict=False):
        if piece["place"] is not None and _is_in(piece["place"], place):
            found += range(start, start + piece["n_batches"])
    if not found:
        places = [opened["place"]] if opened is not None else []
        places += [piece["place"] for piece in run.log.pieces if piece["place"] is not None]
        raise SettingError(
            f"sources: {run.store.path} has no data from {place}; it has {', '.join(places[:5]) or 'none'}"
        )
    return found


def _is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
