"""Sources of batches: files, arrays and collections, and what is known about them."""

from bnp_dask.data.base import Reader, Source
from bnp_dask.data.corpus import Text
from bnp_dask.data.corpus_ingest import TextReport
from bnp_dask.data.formats import FORMATS
from bnp_dask.data.ingest import IngestReport, ingest
from bnp_dask.data.open import as_source, open_path
from bnp_dask.data.patches import Patches
from bnp_dask.data.vocabulary import Analysis, Vocabulary, load_documents, load_dropped, load_vocabulary
from bnp_dask.data.zarr_counts import read_vocabulary

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
