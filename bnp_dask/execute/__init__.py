"""Executors: run pure tasks here, in threads, or on a Dask cluster.

Only ``execute.dask`` and the modules that it is made of import Dask here (``tests.test_layers`` names them).
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
