"""Ingestion: files of any format -> batches of a size that suits workers -> Zarr, in one streamed pass."""
