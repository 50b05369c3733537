"""Workers that are forked from a process which has imported everything: each would take seconds for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed.utils import get_mp_context

MODULES = [
    *("distributed", "numpy", "numba", "pandas", "pyarrow.parquet", "scipy.linalg", "zarr"),
    *("bnp_dask.training.train", "tests.faults.parts"),
]
"""Modules that processes which start workers import before they do."""

METHOD = {"distributed.worker.multiprocessing-method": "forkserver"}


@contextmanager
def forked_workers() -> Iterator[None]:
    """Clusters that start inside have such workers."""
    with dask.config.set(METHOD):
        get_mp_context().set_forkserver_preload(MODULES)
        yield
