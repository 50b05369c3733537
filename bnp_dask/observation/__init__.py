"""Observation models: one file is one likelihood with its conjugate prior."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
