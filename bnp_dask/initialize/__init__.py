"""Initializations: each class makes the first summary of training in one way."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
