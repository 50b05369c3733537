"""``follow``: update a run again and again, as data arrive."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.settings import positive_number, shown
from bnp_dask.training.growing.incoming.aside import OnBad
from bnp_dask.training.growing.incoming.pieces import Feed
from bnp_dask.training.growing.incoming.times import Time
from bnp_dask.training.growing.incoming.words import NewWords
from bnp_dask.training.growing.ingest_update import KEPT, UpdateResult
from bnp_dask.training.growing.update import update
from bnp_dask.training.memory_plan import MEMORY

if TYPE_CHECKING:
    from distributed import Client


def follow(
    store: str | os.PathLike[str],
    data: str | os.PathLike[str] | Feed,
    *,
    every: float = 60.0,
    stop: threading.Event | None = None,
    revisit: float = 1.0,
    laps: int = 0,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
    memory: int | str = MEMORY,
    versions: int = KEPT,
    half_life: str | datetime.timedelta | None = None,
    keep: str | datetime.timedelta | None = None,
    time: Time | None = None,
    new_words: NewWords | None = None,
    dormant: float | None = None,
    on_version: Callable[[UpdateResult], bool | None] | None = None,
    on_bad: OnBad = "raise",
) -> Iterator[UpdateResult]:
    """Look for new data again and again, and take them in.

    A file that is still being written needs a hidden name, or one that ends with ``.tmp``, ``.part`` or ``.partial``,
    until it is whole; or give ``on_bad="set aside"``, with which it waits.

    Parameters
    ----------
    store, revisit, laps, batch_size, client, memory, versions, half_life, keep, time, new_words, dormant
        As for :func:`bnp_dask.update`.
    on_version, on_bad
        As for :func:`bnp_dask.update`.
    data
        A folder, a pattern such as ``"inbox/*.parquet"``, or a feed.
    every
        Seconds between the end of one look and the start of the next.
    stop
        Ends the loop once it is set, after the current update.  None: it goes on for ever.

    Yields
    ------
    UpdateResult
        Result of every update that took data in, that was refused, or that set data aside.

    Raises
    ------
    DataError, StoreError
        As :func:`bnp_dask.update`; the run stays as the last update left it.
    """
    if not isinstance(data, (str, os.PathLike, Feed)):
        raise SettingError(f"data={shown(data)}: needs a folder or a pattern, where new files appear, or a Feed")
    positive_number("every", every, "number of seconds")
    stop = threading.Event() if stop is None else stop
    look = partial(
        update,
        store,
        data,
        revisit=revisit,
        laps=laps,
        batch_size=batch_size,
        client=client,
        memory=memory,
        versions=versions,
        half_life=half_life,
        keep=keep,
        time=time,
        new_words=new_words,
        dormant=dormant,
        on_version=on_version,
        on_bad=on_bad,
    )
    return _looks(look, every, stop)


def _looks(look: Callable[[], UpdateResult], every: float, stop: threading.Event) -> Iterator[UpdateResult]:
    while not stop.is_set():
        found = look()
        if found.new or found.refused or found.set_aside:
            yield found
        stop.wait(every)
