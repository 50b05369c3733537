"""Plain functions on arrays; imports numpy, scipy and numba only.  Each has a slow twin in tests/naive.py."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
