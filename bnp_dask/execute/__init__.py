"""Executors: run pure tasks here, in threads, or on a Dask cluster."""
