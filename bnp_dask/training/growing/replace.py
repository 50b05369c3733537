"""``replace``: data that were corrected, or that grew, replace the run's data from the same place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from functools import partial
from typing import TYPE_CHECKING, Any

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.core.location import Location
from bnp_dask.data import as_source
from bnp_dask.data.base import opened_as
from bnp_dask.data.sources.open import as_modelled
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.settings import path_text
from bnp_dask.model import Posterior
from bnp_dask.training.growing.found import Found, Given, look_for_new
from bnp_dask.training.growing.growing_run import GrowingRun
from bnp_dask.training.growing.incoming.aside import Aside
from bnp_dask.training.growing.incoming.pieces import Piece, pieces_of
from bnp_dask.training.growing.incoming.times import Time
from bnp_dask.training.growing.incoming.words import Counts, NewWords, open_counts, require_new_words, widens
from bnp_dask.training.growing.reopening import place_again, weights_in_file
from bnp_dask.training.growing.taking_in import KEPT, UpdateResult
from bnp_dask.training.growing.taking_out import batches_of, held, require_kept
from bnp_dask.training.growing.update import rules_of, taken_in
from bnp_dask.training.memory_plan import MEMORY
from bnp_dask.training.run_settings import OPENED

if TYPE_CHECKING:
    from distributed import Client


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
            new_words,
            time,
            Aside.of_run(run.on_disk, place, "raise"),
        )
        found = changed(found, out=tuple(tuple(old[name]) for name in found.names))
        require_kept(run, state, found.gives_way, "source")
        return found

    return taken_in(store, rules, client, corrected)


def _opened_already(one: Given, base: Posterior) -> Given:
    return one


def _given_again(run: GrowingRun, source: str, new_words: NewWords | None) -> Iterator[Given]:
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
        if known.get("labels") is not None:
            raise SettingError(
                f"source: {piece.name} came with labels; retire() it, and update(..., labels=) with the new"
            )
        is_recording = known.get("files") == [known["place"]]
        data = place_again(known) if is_recording else piece.data
        if weights is None:
            counts = open_counts(base, data, size, new_words)
        else:
            columns = base.columns
            if columns is not None and widens(base.model):
                columns = columns.first(known["n_words"])
            opened = as_source(data, batch_size=size, weights=weights_in_file(weights), columns=columns)
            counts = Counts(as_modelled(opened, base.model.marginalises, base.model.lags))
        again = known if is_recording else opened_as(data, counts.source, size, weights) or {}
        yield Given(piece, counts, size, weights, again.get("files"))
