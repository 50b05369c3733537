"""``partial_fit`` of all estimators: the first call begins a run, later calls add data to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bnp_dask.data.base import Source
from bnp_dask.errors import SettingError
from bnp_dask.estimators.fitting import RUN, keep_run, seed_of_estimator
from bnp_dask.inference import Memoized
from bnp_dask.inputs.settings import shown
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore
from bnp_dask.training.defaults import default_moves
from bnp_dask.training.growing.in_memory import begun_in_memory, grown_in_memory, grown_on_disk, run_of
from bnp_dask.training.results import History, TrainResult


def is_first(estimator: Any) -> bool:
    """Whether neither this estimator nor the run in its directory has learned anything."""
    own = estimator.store is not None and RunStore.has_begun(estimator.store)
    return not own and "posterior_" not in vars(estimator)


def take_in(estimator: Any, source: Source, begin: Callable[[str | None], TrainResult]) -> History:
    """Add data to an estimator's run, or begin it; return the history of this call.

    ``begin`` trains on these data, with a run directory or without.
    """
    schedule = Memoized() if estimator.schedule is None else estimator.schedule
    if not isinstance(schedule, Memoized):
        raise SettingError(f"schedule={shown(schedule)}: partial_fit needs Memoized(), which keeps exact statistics")
    if is_first(estimator):
        return _begun(estimator, begin).history
    if estimator.store is not None and RunStore.has_begun(estimator.store):
        found = grown_on_disk(os.fspath(estimator.store), source, estimator.client)
    else:
        run = vars(estimator).get(RUN)
        if run is None:
            known = estimator.posterior_
            usual = default_moves(known.model, schedule, source.is_sparse)
            moves = usual if estimator.moves is None else estimator.moves
            seed = seed_of_estimator(estimator.random_state)
            run = run_of(known, estimator.history_[-1], source, schedule, seed, moves)
        found, run = grown_in_memory(run, source, estimator.client)
        setattr(estimator, RUN, run)
    keep_run(estimator, found.posterior, found.history)
    return found.history


def _begun(estimator: Any, begin: Callable[[str | None], TrainResult]) -> TrainResult:
    """Train; after several starts only the posterior is kept, after one all state from which an update continues."""
    if estimator.store is not None or estimator.n_init != 1:
        return begin(estimator.store)
    result, run = begun_in_memory(begin)
    setattr(estimator, RUN, run)
    return result


def in_known_order(posterior: Posterior, order: np.ndarray, known: np.ndarray) -> np.ndarray:
    """An order of clusters ``(K,)`` in which clusters with ``known`` ids come first, in their earlier order."""
    place = {int(i): position for position, i in enumerate(known)}
    keys = [place.get(int(i), len(place) + position) for position, i in enumerate(posterior.ids[order])]
    return np.asarray(order)[np.argsort(keys)]
