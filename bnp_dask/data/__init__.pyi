"""Names of this package and the modules that define them: for type checkers, and for the package, which reads them."""

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
