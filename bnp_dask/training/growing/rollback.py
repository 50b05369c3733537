"""``rollback``: a run goes back to an earlier version."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.inputs.paths import POSTERIOR_NAME
from bnp_dask.inputs.settings import path_text, whole_number
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore, Versions
from bnp_dask.store.layout import run_folder
from bnp_dask.training.results import load, save
from bnp_dask.training.survey_pass import GROWTH


def rollback(store: str | os.PathLike[str], version: int) -> Posterior:
    """Put an earlier version of a run in force, with its state: the next update goes on from there.

    Data that came in later no longer belong to the run, and may be given again.  Later versions are gone; their
    numbers, and the ids of clusters that they made, are not used again.

    Parameters
    ----------
    store
        Run directory.
    version
        Number of a version that is kept; 0 is the result of ``train``.

    Returns
    -------
    Posterior
        The version in force now.

    Raises
    ------
    StoreError
        No run, one that was never updated, one that another process is writing to, or a version that is not kept.
    """
    folder = run_folder(path_text("store", store))
    number = whole_number("version", version)
    with contextlib.closing(RunStore.open(folder)) as opened:
        versions, now = Versions(folder), opened.load()
        kept = versions.kept()
        if now is None or GROWTH not in now.state:
            raise StoreError(f"{folder} was never updated: it has the version that train() left, and no other")
        if number not in kept or number > now.state[GROWTH]["version"]:
            known = ", ".join(str(n) for n in kept if n <= now.state[GROWTH]["version"])
            raise StoreError(f"{folder} keeps no version {number} to go back to; it keeps {known}")
        found = opened.at(versions.record(number)["checkpoint"])
        state, arrays = _as_version_0(found.state, found.arrays) if number == 0 else (found.state, found.arrays)
        growth = {**state[GROWTH], **{name: now.state[GROWTH][name] for name in ("newest", "seconds")}}
        next_id = max(now.state["next_id"], state["next_id"])
        state = {**state, GROWTH: growth, "next_id": next_id}
        earlier = [n for n in kept if n < number]
        opened.pin([versions.record(n)["checkpoint"] for n in [*earlier, number]])
        rows = [{"version": number, "rolled_back": now.state[GROWTH]["version"], **_last_row(found.history)}]
        prepared = opened.prepare(state, arrays, rows, found.listing, found.parts)
        opened.write(prepared)
        opened.require_lock()
        versions.point_at(number)
        posterior = load(versions.posterior(number))
        save(posterior, folder / POSTERIOR_NAME)
        versions.keep([*earlier, number])
    return posterior


def _as_version_0(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The state after ``train``, as the state of a growing run."""
    nothing = {"bytes": 0, "crc32": 0}
    growth = {
        "rows": nothing,
        "pieces": nothing,
        "version": 0,
        "newest": 0,
        "is_open": False,
        "names": [],
        "lays_away": False,
    }
    n_batches = len(arrays["visits"])
    more: dict[str, np.ndarray] = {
        "seen": np.zeros(n_batches, np.bool_),
        "last": np.full(n_batches, state["step"], np.int64),
        "short": np.zeros(n_batches, np.bool_),
        "times": np.full(n_batches, np.nan),
    }
    return {**state, GROWTH: growth}, {**arrays, **{f"{GROWTH}/{name}": value for name, value in more.items()}}


def _last_row(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a run after a version, from its history."""
    names = ("step", "lap", "batch", "n_batches", "elbo", "n_clusters", "atoms", "seconds")
    return {**{name: history[-1][name] for name in names}, "moves": [], "action": "rolled back", "gain": None}
