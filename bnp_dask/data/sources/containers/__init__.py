"""Rows held by other libraries: Arrow files read like Parquet files, open Zarr stores read like paths."""
