"""``replace``, ``retire``, ``rollback``: data of a run are replaced, or leave; it goes back to an earlier version."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace as changed
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis import require_posterior
from bnp_dask.core import Location
from bnp_dask.data import as_modelled, as_source, opened_as
from bnp_dask.errors import SettingError, StoreError, answering, redacted
from bnp_dask.execute import Executor, SerialExecutor
from bnp_dask.inference import SavedState, take_data, take_out
from bnp_dask.inputs import POSTERIOR_NAME, path_text, shown, whole_number
from bnp_dask.kernels import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.store import RunStore, Versions, run_folder
from bnp_dask.training.growing.growing_run import (
    Found,
    GrowingRun,
    OpenedPiece,
    commit,
    look_for_new,
    place_again,
    posterior_of,
    weights_in_file,
)
from bnp_dask.training.growing.incoming import (
    Aside,
    Counts,
    NewWords,
    Piece,
    Time,
    moment_of,
    open_counts,
    pieces_of,
    require_new_words,
    widens,
)
from bnp_dask.training.growing.update import KEPT, UpdateResult, batches_of, held, require_kept, rules_of, taken_in
from bnp_dask.training.memory_plan import MEMORY
from bnp_dask.training.results import save_again
from bnp_dask.training.run_settings import OPENED
from bnp_dask.training.survey_pass import GROWTH

if TYPE_CHECKING:
    from distributed import Client


# -- replace -------------------------------------------------------------------------------------------------------
@answering
def replace(
    store: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    revisit: float = 1.0,
    laps: int = 0,
    client: Client | Executor | str | None = None,
    memory: int | str = MEMORY,
    versions: int = KEPT,
    time: Time | None = None,
    new_words: NewWords | None = None,
    on_version: Callable[[UpdateResult], bool | None] | None = None,
) -> UpdateResult:
    """Take in the data of a place anew and replace the run's data from there: a corrected file, a longer sequence.

    The statistics of the old batches leave all totals exactly, and the new batches are visited as in an update,
    beginning with the posterior in force; the objective then belongs to the present data.  Both are one step and one
    version: a kill on the way leaves the run unchanged.  Earlier versions are kept unchanged; use
    :func:`bnp_dask.retire` for data that must be in no version.

    Parameters
    ----------
    store
        Run directory.
    source
        Path or URL as it was given to ``train`` or ``update``; or a folder or pattern, of which the files with another
        content now are taken.  Files are opened as they were before.  Data that were retired come back.
    revisit, laps, client, memory, versions, new_words, on_version
        As for :func:`bnp_dask.update`.
    time
        As for :func:`bnp_dask.update`; if it gives no time, the new batches get the times of the old ones.  In any case
        they get the weights of the old ones, if time has passed.

    Returns
    -------
    UpdateResult
        As of an update; ``known`` names places whose content the run has already.

    Raises
    ------
    SettingError
        The run has no data from there, and :func:`bnp_dask.update` takes in new data; or an update with ``revisit=0``
        took them in, and keeps no statistics of single batches.
    DataError, StoreError
        As :func:`bnp_dask.update`; nothing was replaced then.
    """
    rules = rules_of(revisit, laps, memory, versions, time=time, on_version=on_version)
    require_new_words(new_words)
    place = path_text("source", source)

    def corrected(run: GrowingRun, executor: Executor) -> Found:
        state = run.state()
        is_held = held(run, state)
        given = list(_given_again(run, place, new_words))
        old = {str(one.piece.place): [b for b in batches_of(run, str(one.piece.place)) if is_held[b]] for one in given}
        # retired data are unknown now
        back = {name for name, batches in old.items() if not batches}
        found = look_for_new(
            run,
            ((one.piece, partial(_opened_already, one)) for one in given),
            executor,
            old.keys(),
            back,
            new_words=new_words,
            time=time,
            aside=Aside.of_run(run.on_disk, place, "raise"),
        )
        found = changed(found, out=tuple(tuple(old[name]) for name in found.names))
        require_kept(run, state, found.gives_way, "source")
        return found

    return taken_in(store, rules, client, corrected)


def _opened_already(one: OpenedPiece, base: Posterior) -> OpenedPiece:
    return one


def _given_again(run: GrowingRun, source: str, new_words: NewWords | None) -> Iterator[OpenedPiece]:
    """Pieces of a place, opened as they were before; SettingError for pieces that the run does not have."""
    base, first = require_posterior(run.base), run.on_disk.settings.get(OPENED)
    place = Location.of(source, None, "source").place
    pieces = [Piece(source, place)] if first is not None and first["place"] == place else pieces_of(source)
    before: dict[str, Any] = {} if first is None else {first["place"]: first}
    before |= {piece["place"]: piece for piece in run.log.pieces if piece["place"] is not None}
    for piece in pieces:
        known = before.get(piece.place or "")
        if known is None:
            raise SettingError(
                f"source: {run.on_disk.path} has no data from {piece.name} by itself; it has "
                f"{', '.join(list(before)[:5]) or 'none'}. update() takes in new data"
            )
        size, weights = known["batch_size"], known.get("weights")
        for what in ("labels", "links", "responses"):
            if known.get(what) is not None:
                raise SettingError(
                    f"source: {piece.name} came with {what}; retire() it, and update(..., {what}=) with the new"
                )
        is_recording = known.get("files") == [known["place"]]
        data = place_again(known) if is_recording else piece.data
        if weights is None:
            counts = open_counts(base, data, size, new_words)
        else:
            columns = base.columns
            if columns is not None and widens(base.model):
                columns = columns.first(dict(run.words_then())[known["place"]])
            opened = as_source(data, batch_size=size, weights=weights_in_file(weights), columns=columns)
            counts = Counts(as_modelled(opened, base.model.marginalises, base.model.lags))
        again = known if is_recording else opened_as(data, counts.source, size, weights) or {}
        yield OpenedPiece(piece, counts, size, weights, again.get("files"))


# -- retire --------------------------------------------------------------------------------------------------------
@answering
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


# -- rollback ------------------------------------------------------------------------------------------------------
@answering
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
        No run, one that was never updated, one that another process is writing to, or a version that is not kept, or
        whose posterior is damaged; nothing is changed then.
    """
    folder = run_folder(path_text("store", store))
    number = whole_number("version", version)
    with contextlib.closing(RunStore.open(folder)) as opened:
        versions, now = Versions(folder), opened.load(fields=SavedState)
        kept = versions.kept()
        if now is None or GROWTH not in now.state:
            raise StoreError(f"{folder} was never updated: it has the version that train() left, and no other")
        if number not in kept or number > now.state[GROWTH]["version"]:
            known = ", ".join(str(n) for n in kept if n <= now.state[GROWTH]["version"])
            raise StoreError(f"{folder} keeps no version {number} to go back to; it keeps {known}")
        posterior = posterior_of(opened, versions, number)  # before anything is written
        found = opened.at(versions.record(number)["checkpoint"], SavedState)
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
        save_again(posterior, versions.posterior(number), folder / POSTERIOR_NAME)
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
