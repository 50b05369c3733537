"""Allocation models: one file is one way to assign atoms to clusters."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
