"""The place of a run directory: paths of a file system, or objects of a store, used by the same verbs.

::

    path -> place_of -> Disk (paths: renames, syncs, file locks) or Bucket (keys: conditional puts, leases)
"""

from __future__ import annotations

from pathlib import Path

from bnp_dask.store.place.base import DamagedError, Extent, ExtentContent, Lock, Place, cannot
from bnp_dask.store.place.bucket import Bucket, Key, require_known
from bnp_dask.store.place.disk import TEMPORARY, Disk

_DISK, _BUCKET = Disk(), Bucket()


def place_of(path: Path | Key) -> Place:
    """The place that reads and writes a path."""
    return _BUCKET if isinstance(path, Key) else _DISK


__all__ = [
    "TEMPORARY",
    "DamagedError",
    "Extent",
    "ExtentContent",
    "Key",
    "Lock",
    "Place",
    "cannot",
    "place_of",
    "require_known",
]
