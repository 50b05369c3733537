"""Rows that other libraries hold: Arrow files with the verbs of Parquet, open Zarr stores with those of paths."""
