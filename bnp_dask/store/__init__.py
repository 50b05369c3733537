"""The run directory: summaries of batches, checkpoints, history.  Knows arrays and JSON, no models.

::

    run/
      RUN.json                      kind of the directory and settings of the run; written once
      job.yaml                      job file of the run, if it has one; present as soon as RUN.json is
      LOCK, SESSION                 lock of the writing process; number by which others recognise the directory
      posted/                       posteriors for the tasks that are out; removed as these come back
      drafts/                       atoms read by an initialisation, kept until it is finished
      manifest/5f0c7d21.rows        batches of the data as the survey found them; only ever appended to
      manifest/5f0c7d21.npz         their totals, and how many of the rows are valid
      manifest/grown.rows, .jsonl   batches that came later, and the pieces of data they belong to (store.manifest)
      versions/, VERSION.json       posteriors and records of an updated run (store.manifest)
      history.jsonl                 one line per row of the history; only ever appended to
      checkpoints/00000012.json     head of checkpoint 12: state, checksums; its appearance is the commit
      checkpoints/00000012.npz      arrays of checkpoint 12, and the list of summaries that it refers to
      summaries/00003/00000800-000002-9ae1f004.npz    summary of batch 800 at visit 2, with its CRC-32
      summaries/packs/              summaries left by updates, packed (store.checkpoint)

Every file is written under a temporary name, synced, and renamed, so that a kill at any moment leaves old files whole.
On an object store (store.place) the names are names of objects; files that grow are folders of pieces, and ``lock/``
holds a lease.
A file that grows is valid up to the length that the head written after it records.  Names are never trusted: a
checkpoint's list holds the visit, the bytes and the CRC-32 of every summary, and every reader compares them.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
