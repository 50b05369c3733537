"""``retire``: data leave a run."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from bnp_dask.errors import SettingError, redacted
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.inference.leaving import take_data
from bnp_dask.inputs.settings import path_text, shown, whole_number
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore
from bnp_dask.training.growing.growing_run import GrowingRun, commit
from bnp_dask.training.growing.incoming.times import moment_of
from bnp_dask.training.growing.taking_out import batches_of, held, require_kept, take_out


def retire(
    store: str | os.PathLike[str],
    sources: str | os.PathLike[str] | Sequence[str] = (),
    *,
    before: str | datetime.date | None = None,
    batches: int | Sequence[int] = (),
) -> Posterior:
    """Take data out of a run, exactly: their statistics leave all totals and the directory.

    No data are read except batches of which the run keeps assignments; if these are gone, the total is summed again
    from all other batches.  The model's priors and centre stay as the first data set them, even if these are retired.
    Clusters stay as long as other data use them: retired data helped to create them, and the other data hold them now.
    Earlier versions, which held the data, are removed.  The data stay known by place: an update does not take them
    again.

    Parameters
    ----------
    store
        Run directory.
    sources
        Paths or URLs as they were given to ``train`` or ``update``, or folders that hold them.
    before
        A time: batches whose atoms are all older, with the times of data as in :func:`bnp_dask.update`.
    batches
        Numbers of batches, from 0, in the order in which they came.

    Returns
    -------
    Posterior
        The version in force now.

    Raises
    ------
    SettingError
        The run has no data from there, or no data would remain; or an update with ``revisit=0`` took them in, and keeps
        no statistics of single batches.
    StoreError
        No run, one that another process is writing to, or one that cannot be updated.
    """
    given, numbers = _paths(sources), np.atleast_1d(np.asarray(batches, object)).tolist()
    numbers = [whole_number(f"batches[{i}]", number) for i, number in enumerate(numbers)]
    moment = None if before is None else moment_of(before)
    if before is not None and moment is None:
        raise SettingError(f'before={shown(before)}: needs a time such as "2026-08-01"')
    if not given and not numbers and moment is None:
        raise SettingError("say which data are to go: retire(store, sources), or before= or batches=")
    with contextlib.closing(RunStore.open(path_text("store", store))) as opened:
        run = GrowingRun.open(opened)
        run.publish()
        state = run.state()
        is_held = held(run, state)
        gone = {b for one in given for b in batches_of(run, one)} | _of_run(run, numbers)
        if moment is not None:
            gone |= _from_before(run, moment)
        out = sorted(gone - set(state.lost))
        is_held[out] = False
        if not is_held.any():
            raise SettingError(f"{run.on_disk.path}: nothing would be left; remove the directory instead")
        if not out:
            return run.base
        require_kept(run, state, out, "retire")
        with fixed_order(run.base.model.reproducible):
            state.memory.dormant.clear()  # their statistics hold the data too
            source = run.source(reads_old=take_data(opened, state, out))
            row = take_out(run.work(SerialExecutor(), source), state, run.turn, out)
        row |= {"version": run.newest + 1, "seconds": run.seconds}
        record = {
            "pieces": [],
            "retired": [redacted(one) for one in given],
            "batches": out,
            "fresh": None,
            "elbo": state.elbo,
            "moves": [],
        }
        posterior = commit(run, state, record, [row], keep=1)
        run.commit_again(state)  # so that the previous checkpoint does not hold the data either
    return posterior


def _paths(sources: Any) -> list[str]:
    """Places as they were given; SettingError for anything except a path or a list of paths."""
    if isinstance(sources, (str, os.PathLike)):
        return [path_text("sources", sources)]
    if not isinstance(sources, (Sequence, Set)) or isinstance(sources, bytes):
        raise SettingError(f"sources={shown(sources)}: needs a path, or a list of paths")
    return [path_text(f"sources[{i}]", one) for i, one in enumerate(sources)]


def _of_run(run: GrowingRun, numbers: Sequence[int]) -> set[int]:
    """Numbers of batches; SettingError if the run has no such batch."""
    n_batches = len(run.turn.last)
    for number in numbers:
        if number >= n_batches:
            raise SettingError(f"batches={number}: the run has 0 to {n_batches - 1}")
    return set(numbers)


def _from_before(run: GrowingRun, moment: float) -> set[int]:
    """Batches whose newest atom is from before a time; SettingError if no batch has a time."""
    times = run.times_of_first(None) if np.isnan(run.times).all() else run.times
    if np.isnan(times).all():
        raise SettingError("before: no data of the run have a time; name files by their date, or give time= to update")
    return set(np.flatnonzero(times < moment).tolist())
