"""Sources of batches: files, arrays and collections, with facts about them.

A path or an object -> :func:`~bnp_dask.data.sources.open.as_source` -> a source -> readers -> batches.

Names are imported at their first use, so that importing only a protocol (:mod:`bnp_dask.data.base`) loads no Dask, Zarr
or Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnp_dask.data.base import Reader as Reader
    from bnp_dask.data.base import Source as Source
    from bnp_dask.data.ingestion.ingest import IngestReport as IngestReport
    from bnp_dask.data.ingestion.ingest import ingest as ingest
    from bnp_dask.data.ingestion.patches import Patches as Patches
    from bnp_dask.data.ingestion.streams import FORMATS as FORMATS
    from bnp_dask.data.sources.open import as_source as as_source
    from bnp_dask.data.sources.open import open_path as open_path
    from bnp_dask.data.sources.zarr import read_vocabulary as read_vocabulary
    from bnp_dask.data.text.ingest import TextReport as TextReport
    from bnp_dask.data.text.options import Text as Text
    from bnp_dask.data.text.vocabulary import Analysis as Analysis
    from bnp_dask.data.text.vocabulary import Vocabulary as Vocabulary
    from bnp_dask.data.text.vocabulary import load_documents as load_documents
    from bnp_dask.data.text.vocabulary import load_dropped as load_dropped
    from bnp_dask.data.text.vocabulary import load_vocabulary as load_vocabulary

_PLACES = {
    "Analysis": "bnp_dask.data.text.vocabulary",
    "FORMATS": "bnp_dask.data.ingestion.streams",
    "IngestReport": "bnp_dask.data.ingestion.ingest",
    "Patches": "bnp_dask.data.ingestion.patches",
    "Reader": "bnp_dask.data.base",
    "Source": "bnp_dask.data.base",
    "Text": "bnp_dask.data.text.options",
    "TextReport": "bnp_dask.data.text.ingest",
    "Vocabulary": "bnp_dask.data.text.vocabulary",
    "as_source": "bnp_dask.data.sources.open",
    "ingest": "bnp_dask.data.ingestion.ingest",
    "load_documents": "bnp_dask.data.text.vocabulary",
    "load_dropped": "bnp_dask.data.text.vocabulary",
    "load_vocabulary": "bnp_dask.data.text.vocabulary",
    "open_path": "bnp_dask.data.sources.open",
    "read_vocabulary": "bnp_dask.data.sources.zarr",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_PLACES)


__all__ = sorted(_PLACES)
