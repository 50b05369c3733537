"""Moves that change the number of clusters: planned at the start of a lap, tracked during it, decided at its end."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
