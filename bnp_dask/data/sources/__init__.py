"""Sources: arrays, ``.npy``, Zarr, Parquet, tables and Dask collections, as batches of rows or counts.

The user's data -> :func:`~bnp_dask.data.sources.open.as_source` -> a source of readers, one per batch.
"""
