"""Pages and pictures of a run, made for people."""

from bnp_dask.reports import plot as plot
