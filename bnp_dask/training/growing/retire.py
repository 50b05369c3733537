"""``retire``: data leave a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence, Set
from typing import Any

from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inputs.settings import path_text, shown
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore
from bnp_dask.training.growing.growing_run import GrowingRun, commit
from bnp_dask.training.growing.taking_out import batches_of, held, take_out


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
        is_held = held(run, state)
        batches = sorted({b for one in given for b in batches_of(run, one)} - set(state.lost))
        is_held[batches] = False
        if not is_held.any():
            raise SettingError(f"{run.store.path}: nothing would be left; remove the directory instead")
        if not batches:
            return run.base
        with fixed_order(run.base.model.reproducible):
            row = take_out(run.work(SerialExecutor()), state, run.turn, batches)
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
