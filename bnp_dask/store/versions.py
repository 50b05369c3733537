"""Numbered versions of a run: a posterior and a record of each, and one pointer to the version in force.

::

    VERSION.json                  the number in force; replaced in one step
    versions/00000003.json        record of version 3: its checkpoint, new data, clusters, moves
    versions/00000003.zarr        its posterior, as long as it is kept
    versions/packs/               records of older versions, packed (store.packs)

Version 0 is the result of ``train``.  The record and the posterior of a version are whole before its checkpoint is
and the pointer follows the checkpoint.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from bnp_dask.core.schema import Finite, Id, Whole
from bnp_dask.errors import StoreError
from bnp_dask.store.files import seal, unseal, unsealed
from bnp_dask.store.layout import holds_run, may_hold_runs, run_folder
from bnp_dask.store.packs import Packs
from bnp_dask.store.place import DamagedError, Key, place_of

FORMAT, FORMAT_VERSION = "bnp-dask version", 1
FOLDER, POINTER = "versions", "VERSION.json"


class PointerContent(TypedDict):
    """Fields of the pointer to the version in force."""

    number: Whole


class RecordContent(TypedDict):
    """Fields of the record of a version."""

    number: Whole
    checkpoint: Whole
    before: Whole | None
    ids: list[Id]
    counts: list[Finite]
    pieces: list[str]
    moves: list[MoveContent]
    when: NotRequired[str | None]
    n_batches: NotRequired[Whole | None]
    elbo: NotRequired[Finite | None]


class MoveContent(TypedDict):
    """Fields of a decided proposal."""

    kind: str
    targets: list[Id]
    others: list[Id]


MOST_LOOSE = 64
"""Number of records with files of their own from which on the older half is packed."""

_NAMED = re.compile(r"(.+)@(\d+)")


@dataclass(frozen=True)
class Versions:
    """Versions under a run directory.

    Parameters
    ----------
    path
        The run directory.
    """

    path: Path | Key

    @property
    def current(self) -> int | None:
        """Number of the version in force; None for a run that was never updated.

        Raises
        ------
        StoreError
            The pointer is damaged.
        """
        if not place_of(self.path).exists(self.path / POINTER):
            return None
        return int(_read(self.path / POINTER, PointerContent)["number"])

    def posterior(self, number: int) -> Path | Key:
        """Place of the posterior of a version, while it is kept."""
        return self.path / FOLDER / f"{number:08d}.zarr"

    def record(self, number: int) -> dict[str, Any]:
        """The record of a version; StoreError if there is none."""
        path = self._record(number)
        try:
            try:
                data = place_of(path).read(path)
            except DamagedError:
                packed = self._packs.read(number, 0)
                if packed is None:
                    raise
                data = packed
            return unsealed(data, path, FORMAT, FORMAT_VERSION, RecordContent)
        except DamagedError as error:
            raise _unusable(path, error) from error

    def has(self, number: int) -> bool:
        """Whether there is a record of a version."""
        return place_of(self.path).exists(self._record(number)) or bool((self._packs.keys()[:, 0] == number).any())

    def pack(self) -> None:
        """Join records of older versions in one file, if there are many; the caller must hold the lock."""
        place, folder = place_of(self.path), self.path / FOLDER
        stems = (name.rpartition(".json") for name in place.names(folder))
        loose = sorted(int(stem) for stem, suffix, rest in stems if suffix and not rest and stem.isdigit())
        if len(loose) < MOST_LOOSE:
            return
        old = [self._record(number) for number in loose[: -MOST_LOOSE // 2]]
        contents = [(int(path.stem), place.read(path)) for path in old]
        self._packs.join(
            (((number, 0, zlib.crc32(data)), partial(bytes, data)) for number, data in contents), _all_of_them
        )
        place.remove(old)

    def write(self, number: int, record: Mapping[str, Any]) -> None:
        """Write the record of a version; it is on the disk on return."""
        place = place_of(self.path)
        place.make_folder(self.path / FOLDER)
        content = {"format": FORMAT, "version": FORMAT_VERSION, "number": number, **record}
        place.write(self._record(number), seal(content))
        place.sync_folder(self.path / FOLDER)

    def point_at(self, number: int) -> None:
        """Put a version in force, in one step."""
        content = {"format": FORMAT, "version": FORMAT_VERSION, "number": number}
        place_of(self.path).write(self.path / POINTER, seal(content))
        place_of(self.path).sync_folder(self.path)

    def kept(self) -> list[int]:
        """Numbers of the versions whose posterior is kept, ascending."""
        found = (name.rpartition(".zarr") for name in place_of(self.path).names(self.path / FOLDER))
        return sorted(int(stem) for stem, suffix, rest in found if suffix and not rest and stem.isdigit())

    def numbers(self) -> list[int]:
        """Numbers of all versions that have a record, ascending."""
        stems = (name.rpartition(".json") for name in place_of(self.path).names(self.path / FOLDER))
        loose = {int(stem) for stem, suffix, rest in stems if suffix and not rest and stem.isdigit()}
        return sorted(loose | set(self._packs.keys()[:, 0].tolist()))

    def keep(self, numbers: Collection[int]) -> None:
        """Remove the posteriors of all versions except some; records stay."""
        for number in set(self.kept()) - set(numbers):
            place_of(self.path).remove_tree(self.posterior(number))

    @property
    def _packs(self) -> Packs:
        return Packs(self.path / FOLDER)

    def _record(self, number: int) -> Path | Key:
        return self.path / FOLDER / f"{number:08d}.json"


def version_named(path: str) -> tuple[Versions, int | None] | None:
    """Run and version that a path such as ``"runs/news"`` or ``"runs/news@3"`` means; None if it means no run.

    The number is None if a run has no versions, or the version in force is meant.
    """
    if not may_hold_runs(path):
        return None
    if holds_run(path):
        return Versions(run_folder(path)), None
    found = _NAMED.fullmatch(path)
    if found is None or place_of(folder := run_folder(path)).exists(folder) or not holds_run(found[1]):
        return None
    return Versions(run_folder(found[1])), int(found[2])


def _read(path: Path | Key, fields: Any) -> dict[str, Any]:
    try:
        return unseal(path, FORMAT, FORMAT_VERSION, fields)
    except DamagedError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path | Key, error: DamagedError) -> StoreError:
    return StoreError(f"{error}; put it back from a copy, or name a version: {path.parent}@NUMBER")


def _all_of_them(keys: np.ndarray) -> np.ndarray:
    """Keep all records: they are never given up."""
    return np.ones(len(keys), np.bool_)
