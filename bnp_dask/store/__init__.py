"""The run directory: summaries of batches, checkpoints, history.  Knows arrays and JSON, no models.

::

    run/
      RUN.json                      what this directory is, and the settings of the run; written once
      LOCK                          held by the process that writes
      history.jsonl                 one line per row of the history; only ever appended to
      checkpoints/00000012.json     manifest of checkpoint 12: state, checksums; its appearance is the commit
      checkpoints/00000012.npz      arrays of checkpoint 12, and the list of summaries that it refers to
      summaries/00003/00000800-000002.npz    summary of batch 800 at visit 2

Every file is written under a temporary name, synced, and renamed, so that a kill at any moment leaves old files whole.
"""

from bnp_dask.store.behind import Behind
from bnp_dask.store.checkpoint import Checkpoint
from bnp_dask.store.memory import MemoryStore
from bnp_dask.store.run import RunStore, is_within_reach, read_history
from bnp_dask.store.summaries import SummaryFiles

__all__ = ["Behind", "Checkpoint", "MemoryStore", "RunStore", "SummaryFiles", "is_within_reach", "read_history"]
