"""Sources of batches: files, arrays and collections, and what is known about them."""

from bnp_dask.data.base import Reader, Source
from bnp_dask.data.ingestion.formats import FORMATS
from bnp_dask.data.ingestion.ingest import IngestReport, ingest
from bnp_dask.data.ingestion.patches import Patches
from bnp_dask.data.sources.open import as_source, open_path
from bnp_dask.data.sources.zarr_counts import read_vocabulary
from bnp_dask.data.text.ingest import TextReport
from bnp_dask.data.text.options import Text
from bnp_dask.data.text.vocabulary import Analysis, Vocabulary, load_documents, load_dropped, load_vocabulary

__all__ = [
    "FORMATS",
    "Analysis",
    "IngestReport",
    "Patches",
    "Reader",
    "Source",
    "Text",
    "TextReport",
    "Vocabulary",
    "as_source",
    "ingest",
    "load_documents",
    "load_dropped",
    "load_vocabulary",
    "open_path",
    "read_vocabulary",
]
