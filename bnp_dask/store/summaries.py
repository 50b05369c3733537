"""Files with the summary of one batch at one visit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnp_dask.errors import StoreError
from bnp_dask.store.files import DamagedError, make_directory, pack, read_bytes, unpack, write_atomic

BATCHES_PER_FOLDER = 256


@dataclass(frozen=True)
class SummaryFiles:
    """Summaries under a directory; small and picklable, so that workers can read and write them too.

    Parameters
    ----------
    folder
        The directory, made when the first summary is written.
    """

    folder: Path

    def path(self, batch: int, visit: int) -> Path:
        """File of a summary; some hundred files per directory, whatever the number of batches."""
        return self.folder / f"{batch // BATCHES_PER_FOLDER:05d}" / f"{batch:08d}-{visit:06d}.npz"

    def put(
        self,
        batch: int,
        visit: int,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any] | None = None,
        is_committed: bool = False,
    ) -> None:
        """Write a summary, atomically.  Writing the same again changes nothing.

        Parameters
        ----------
        batch, visit
            What the summary is called.
        arrays, meta
            Its content.
        is_committed
            Whether a checkpoint refers to it; then it may not change.
        """
        _require_key(batch, visit)
        path, data = self.path(batch, visit), pack(arrays, meta)
        if not path.parent.exists():
            make_directory(path.parent)
        # Not synced, because a commit does that for all new ones together; but one that a checkpoint may refer to
        # is never replaced by bytes that are not on the disk yet.
        exists = path.exists()
        if exists and read_bytes(path) == data:
            return
        if exists and is_committed:
            raise StoreError(
                f"{path} belongs to a checkpoint and holds other values than those now put for batch {batch} at "
                f"visit {visit}; use the next number of visit, or resume from the checkpoint"
            )
        write_atomic(path, data, sync=exists)

    def get(self, batch: int, visit: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and meta data of a summary; StoreError when it is missing or damaged."""
        path = self.path(batch, visit)
        try:
            return unpack(read_bytes(path), path)
        except DamagedError as error:
            raise StoreError(
                f"the summary of batch {batch} at visit {visit} cannot be used: {error}. "
                "Put the file back from a copy, or remove the newest checkpoint to resume from the one before"
            ) from error

    def size(self, batch: int, visit: int) -> int:
        """Bytes of a summary's file; DamagedError when it is missing."""
        path = self.path(batch, visit)
        try:
            return path.stat().st_size
        except OSError as error:
            raise DamagedError(f"{path} is missing ({error.strerror})") from error

    def keys(self) -> Iterator[tuple[int, int]]:
        """Batch and visit of every summary there is."""
        if not self.folder.exists():
            return
        for folder in os.scandir(self.folder):
            for name in os.listdir(folder.path):
                stem, _, suffix = name.partition(".")
                batch, _, visit = stem.partition("-")
                if suffix == "npz" and batch.isdigit() and visit.isdigit():
                    yield int(batch), int(visit)


def _require_key(batch: int, visit: int) -> None:
    if batch < 0 or visit < 0:
        raise StoreError(f"batch {batch}, visit {visit}: both must be 0 or more")
