"""Pages and pictures of a run, made for people."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnp_dask.reports import plot as plot


def __getattr__(name: str) -> Any:
    # pictures import most of the package; one line about a run (reports.describe) needs none of it
    if name != "plot":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return importlib.import_module(f"{__name__}.plot")
