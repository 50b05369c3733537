"""Checks of what ``ingest`` is given, before anything is read."""

from __future__ import annotations

import os
from typing import Any

from bnp_dask.data.checks import check_batch_size
from bnp_dask.data.corpus import Text
from bnp_dask.data.files import Location
from bnp_dask.data.patches import Patches
from bnp_dask.errors import SettingError
from bnp_dask.settings import shown, whole_number


def check_ingest(batch_size: Any, batch_bytes: Any, project: Any, patches: Any, text: Any, progress: Any) -> None:
    """SettingError for settings that say nothing."""
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


def check_use(location: Location, kind: str, patches: Patches | None, text: Text | None) -> None:
    """SettingError for settings of images or of text that is none."""
    if patches is not None and kind != "images":
        raise SettingError(f"{location.name} is no image or folder of images (format {kind}), and has no patches")
    if text is not None:
        raise SettingError(f"{location.name} has format {kind}, which is no raw text; leave the settings of text out")
