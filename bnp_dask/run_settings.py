"""What a run is, compared when it is resumed; and the directory that it is kept in."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.columns import Columns
from bnp_dask.data.base import Source
from bnp_dask.errors import StoreError
from bnp_dask.first_pass import Surveyed, skipped
from bnp_dask.initialize import Initialization
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.schedules import Schedule
from bnp_dask.serialize import first_difference, to_identity, to_spec, with_added
from bnp_dask.settings import shown
from bnp_dask.store import JOB_NAME, MemoryStore, RunStore

DATA = ("data", "n_batches")
"""Settings of a run that say what its data are."""

SURVEYED = ("skipped", "checksums", "n_atoms")
"""Settings that version 0.1 kept as well; now the list of batches says so."""


@dataclass(frozen=True, eq=False)
class RunParts:
    """What makes a run the one that it is.  The limit of laps may change."""

    model: Model
    init: Initialization
    schedule: Schedule
    moves: tuple[Move, ...]
    seed: int
    source: Source
    columns: Columns | None

    def settings(self) -> dict[str, Any]:
        """All of it, JSON-able: kept with the run, and compared when it is resumed."""
        return {
            "model": to_identity(self.model),
            "init": to_identity(self.init),
            "schedule": to_spec(self.schedule)[0],
            "moves": [to_spec(move)[0] for move in self.moves],
            "seed": self.seed,
            "data": self.source.describe(),
            "n_batches": self.source.n_batches,
            "columns": None if self.columns is None else self.columns.to_json(),
        }

    def with_added(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings of a run that an earlier version began, with those that its parts have got since."""
        (model, digest), (init, other) = settings["model"], settings["init"]
        return {
            **settings,
            "model": [with_added(model, self.model), digest],
            "init": [with_added(init, self.init), other],
            "schedule": with_added(settings["schedule"], self.schedule),
            "moves": with_added(settings["moves"], self.moves),
        }


def kept_seed(path: str | Path | None) -> int | None:
    """The seed that a run directory began with; None where it holds no run."""
    return None if path is None or not RunStore.exists(path) else int(RunStore.view(path).settings["seed"])


def columns_before(path: str | Path | None) -> Columns | None:
    """Columns of the data that a run was begun with; None for a new one, and where they had no names."""
    if path is None or not RunStore.has_begun(path):
        return None
    facts = RunStore.view(path).settings.get("columns")
    return None if facts is None else Columns.from_json(facts)


def open_store(
    path: str | Path | None, resume: bool, parts: RunParts, job: str | None, room: int
) -> RunStore | MemoryStore:
    """Where a run is kept.  One that has not begun is gone on with if it is the same, and else replaced.

    Without a path it is kept in memory, up to ``room`` bytes, and beyond that in a temporary directory.

    Raises
    ------
    StoreError
        The directory cannot be used, another process writes to it, or it holds another run.
    """
    if path is None:
        return MemoryStore(room)
    notes, settings = {} if job is None else {JOB_NAME: job.encode()}, parts.settings()
    begun = RunStore.has_begun(path)
    if RunStore.exists(path) and (resume or not begun):
        found = RunStore.open(path)
        try:
            other = _differs(parts.with_added(found.settings), settings, path)
            if other is None:
                for name, text in notes.items():
                    found.note(name, text)
                return found
        except BaseException:
            found.close()
            raise
        found.close()
        if begun:
            raise other
    return RunStore.create(path, settings, notes)


def _differs(old: dict[str, Any], new: dict[str, Any], path: str | Path) -> StoreError | None:
    """The error for a run that is not the one which is wanted; None where it is."""

    def comparable(settings: dict[str, Any]) -> dict[str, Any]:
        schedule = settings["schedule"]
        rest = {name: value for name, value in schedule["fields"].items() if name != "laps"}
        return {**settings, "schedule": {**schedule, "fields": rest}}

    # sources of later versions may say more about the same data
    facts = {name: new["data"].get(name) for name in old["data"]}
    a, b = comparable(old), comparable({**new, "data": facts})
    differ = (name for name in a if name not in SURVEYED and a[name] != b.get(name))
    return next((_other(path, name, a[name], b.get(name)) for name in differ), None)


def compare_data(memo: RunStore | MemoryStore, found: Surveyed) -> None:
    """StoreError when data are not what version 0.1 noted of them."""
    if not isinstance(memo, RunStore) or not set(SURVEYED) <= memo.settings.keys():
        return
    left_out = [batch for batch, _ in skipped(found.source)]
    checksums = zlib.crc32(np.array(found.survey.checksums, np.int64).tobytes())
    for name, value in zip(SURVEYED, (left_out, checksums, found.survey.n_atoms), strict=True):
        if memo.settings[name] != value:
            raise _other(memo.path, name, memo.settings[name], value)


def _other(path: str | Path, name: str, old: Any, new: Any) -> StoreError:
    what = "the data changed" if name in (*DATA, *SURVEYED) else "settings differ"
    place, ours, theirs = first_difference(name, old, new)
    place = place.replace(".fields", "").replace("model[0]", "model").replace("init[0]", "init")
    return StoreError(
        f"cannot resume {path}: {what} ({place}: the run has {shown(ours)}, this call {shown(theirs)}). "
        "Resume with what the run was started with, or start a new run in another directory"
    )
