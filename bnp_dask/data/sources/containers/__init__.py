"""Rows held by other libraries: Arrow files with the interface of Parquet, open Zarr stores with that for paths."""
