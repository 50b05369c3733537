"""Sources of batches: files, arrays and collections, and what is known about them."""

from bnp_dask.data.base import Reader, Source
from bnp_dask.data.formats import FORMATS
from bnp_dask.data.ingest import IngestReport, ingest
from bnp_dask.data.open import as_source, open_path
from bnp_dask.data.patches import Patches
from bnp_dask.data.zarr_counts import read_vocabulary

__all__ = [
    "FORMATS",
    "IngestReport",
    "Patches",
    "Reader",
    "Source",
    "as_source",
    "ingest",
    "open_path",
    "read_vocabulary",
]
