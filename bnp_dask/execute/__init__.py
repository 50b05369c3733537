"""Executors: run pure tasks here, in threads, or on a Dask cluster.

Only ``execute.dask`` and the modules that it is made of import Dask here (``tests.test_layers`` names them).
"""

from bnp_dask.execute.base import Executor, Handle, one_blas_thread
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor

__all__ = ["Executor", "Handle", "SerialExecutor", "ThreadExecutor", "one_blas_thread"]
