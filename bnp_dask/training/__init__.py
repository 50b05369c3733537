"""Training: a model, data and settings -> survey -> starting values -> laps -> result."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
