"""Sources of batches: files, arrays and collections, with facts about them.

A path or an object -> :func:`~bnp_dask.data.sources.open.as_source` -> a source -> readers -> batches.  Each kind of
storage is a module of ``sources`` that gives blocks of rows or counts; :class:`~bnp_dask.data.base.Stored` cuts, counts
and names them, and a :class:`~bnp_dask.data.view.View` reads them with weights, in groups, in another order, or without
some.

Names are imported at their first use, so that importing only a protocol (:mod:`bnp_dask.data.base`) loads no Dask, Zarr
or Arrow.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from bnp_dask._names import names_in_stub

_PLACES = names_in_stub(Path(__file__).parent)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PLACES)


__all__ = sorted(_PLACES)
