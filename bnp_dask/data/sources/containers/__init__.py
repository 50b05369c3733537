"""Containers of rows of other libraries: Arrow files with the verbs of Parquet, open Zarr stores with those of paths."""
