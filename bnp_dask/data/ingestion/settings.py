"""Checks of the arguments of ``ingest``, before anything is read."""

from __future__ import annotations

import os
from typing import Any, get_args

from bnp_dask.core.location import Location
from bnp_dask.data.batching import check_batch_size
from bnp_dask.data.ingestion.distinct import Deduplicate
from bnp_dask.data.ingestion.patches import Patches
from bnp_dask.data.text.options import Text
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs.settings import flag, one_of, shown, whole_number


def check_ingest(
    batch_size: Any, batch_bytes: Any, project: Any, patches: Any, text: Any, progress: Any, workers: Any
) -> None:
    """SettingError for settings without meaning."""
    whole_number("workers", workers, 1, what="a number of workers")
    if batch_size is not None:
        check_batch_size(batch_size)
    whole_number("batch_bytes", batch_bytes, 1, what="a whole number of bytes")
    if project is not None and not isinstance(project, (str, os.PathLike)):
        whole_number("project", project, 1, what="a number of components, or the path of a store that was projected")
    for name, value, kind in (("patches", patches, Patches), ("text", text, Text)):
        if value is not None and not isinstance(value, kind):
            raise SettingError(f"{name}={shown(value)}: needs {kind.__name__}(...), or None")
    if progress is not None and not callable(progress):
        raise SettingError(f"progress={shown(progress)}: needs a function of two numbers, or None")


def check_deduplicate(value: Any, weights: Any) -> Deduplicate | None:
    """The value; SettingError if it is unknown, or contradicts weights."""
    if value is None:
        return None
    one_of("deduplicate", value, get_args(Deduplicate))
    if value == "once" and weights is not None:
        raise SettingError(
            f'deduplicate="once" lets every row count once, and weights={shown(weights)} says how often it counts: '
            'leave one out, or give deduplicate="weights"'
        )
    found: Deduplicate = value
    return found


def check_use(location: Location, kind: str, patches: Patches | None, text: Text | None) -> None:
    """SettingError for settings of images or of text if the source is neither."""
    if patches is not None and kind != "images":
        raise SettingError(f"{location.name} is no image or folder of images (format {kind}), and has no patches")
    if text is not None:
        raise SettingError(f"{location.name} has format {kind}, which is no raw text; leave the settings of text out")


def check_target(target: Location, location: Location, overwrite: Any) -> None:
    """DataError if the target exists and may not be replaced."""
    replaces = flag("overwrite", overwrite)
    if target.url == location.url:
        raise DataError(f"{target.name}: source and target are the same")
    if (is_there := target.exists()) and not replaces:
        raise DataError(f"{target.name} exists; pass overwrite=True (--overwrite) to replace it, or another name")
    if is_there and not _is_store(target):
        raise DataError(f"{target.name} exists and is no Zarr store; only stores are replaced: choose another name")


def _is_store(target: Location) -> bool:
    """Whether the target is a Zarr store, or parts of a store whose writing was cut short on remote storage."""
    if not target.is_dir() or (target.is_local and os.path.islink(target.url)):
        return False
    return "zarr.json" in (names := target.names()) or all(target.child(n, "zarr.json").exists() for n in names)
