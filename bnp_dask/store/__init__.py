"""The run directory: summaries of batches, checkpoints, history.  Knows arrays and JSON, no models.

::

    run/
      RUN.json                      what this directory is, and the settings of the run; written once
      job.yaml                      the job file that the run is of, where there was one; there when RUN.json is
      LOCK, SESSION                 held by the process that writes; by what other processes know the directory
      drafts/                       atoms that an initialisation has read, until it is made
      manifest/5f0c7d21.rows        the batches of the data as they were surveyed; only ever appended to
      manifest/5f0c7d21.npz         what they come to together, and how many of the rows are valid
      manifest/grown.rows, .jsonl   batches that came later, and the pieces of data they are of (store.growth)
      versions/, VERSION.json       posteriors and records of a run that was updated (store.versions)
      history.jsonl                 one line per row of the history; only ever appended to
      checkpoints/00000012.json     head of checkpoint 12: state, checksums; its appearance is the commit
      checkpoints/00000012.npz      arrays of checkpoint 12, and the list of summaries that it refers to
      summaries/00003/00000800-000002-9ae1f004.npz    summary of batch 800 at visit 2, with its CRC-32
      summaries/packs/              summaries that updates left, packed (store.packs)

Every file is written under a temporary name, synced, and renamed, so that a kill at any moment leaves old files whole.
On an object store (store.place) the names are those of objects; files that grow are folders of pieces, and ``lock/``
holds a lease.
Files that grow are valid as far as the head says that was written after them.  Nothing is believed for its name: a
checkpoint's list says of every summary its visit, its bytes and its CRC-32, which whoever reads it compares.
"""

from bnp_dask.store.background import BackgroundCommits
from bnp_dask.store.checkpoint import Checkpoint, Listing, no_receipts, receipt_of
from bnp_dask.store.growth import GrowthLog
from bnp_dask.store.layout import JOB_NAME, holds_run, may_hold_runs, posterior_place, read_note, run_folder
from bnp_dask.store.manifest import Manifest
from bnp_dask.store.memory import MemoryStore
from bnp_dask.store.place import DamagedError, Key, place_of
from bnp_dask.store.reach import Drafts, SharedFiles
from bnp_dask.store.run import RunStore, read_history
from bnp_dask.store.summaries import NO_RECEIPT, Receipt, SummaryFiles
from bnp_dask.store.versions import Versions, version_named

__all__ = [
    "JOB_NAME",
    "NO_RECEIPT",
    "BackgroundCommits",
    "Checkpoint",
    "DamagedError",
    "Drafts",
    "GrowthLog",
    "Key",
    "Listing",
    "Manifest",
    "MemoryStore",
    "Receipt",
    "RunStore",
    "SharedFiles",
    "SummaryFiles",
    "Versions",
    "holds_run",
    "may_hold_runs",
    "no_receipts",
    "place_of",
    "posterior_place",
    "read_history",
    "read_note",
    "receipt_of",
    "run_folder",
    "version_named",
]
