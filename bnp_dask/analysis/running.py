"""How a posterior is asked about data: on one BLAS thread, and in the order of sums that its model says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bnp_dask.execute import Executor
from bnp_dask.execute.blas import one_blas_thread
from bnp_dask.execute.dask import open_executor
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Model, Posterior

if TYPE_CHECKING:
    from distributed import Client


@contextmanager
def computing_as(model: Model) -> Iterator[None]:
    """Compute in this thread as the model says: on one BLAS thread, and in a fixed order if it is reproducible."""
    with one_blas_thread(), fixed_order(model.reproducible):
        yield


@contextmanager
def runner_for(posterior: Posterior, client: Client | Executor | str | None) -> Iterator[Executor]:
    """An executor for tasks on batches, which compute as the posterior's model says."""
    with computing_as(posterior.model), open_executor(client) as runner:
        yield runner
