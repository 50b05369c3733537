"""Computations of a posterior on data: on one BLAS thread, and in the order of sums that its model requires."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bnp_dask.data.base import Reader, Source, batch_reader
from bnp_dask.execute import Executor
from bnp_dask.execute.base import in_order, one_blas_thread
from bnp_dask.execute.reach import open_executor
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Model, Posterior

if TYPE_CHECKING:
    from distributed import Client

WINDOW = 8
"""Batches in flight."""


@contextmanager
def computing_as(model: Model) -> Iterator[None]:
    """Compute in this thread as the model requires: on one BLAS thread, and in a fixed order if it is reproducible."""
    with one_blas_thread(), fixed_order(model.reproducible):
        yield


@contextmanager
def runner_for(posterior: Posterior, client: Client | Executor | str | None) -> Iterator[Executor]:
    """An executor for tasks on batches, which compute as the posterior's model requires."""
    with computing_as(posterior.model), open_executor(client) as runner:
        yield runner


def for_batches(
    posterior: Posterior,
    source: Source,
    client: Client | Executor | str | None,
    function: Callable[[Posterior, Reader], Any],
    verb: str,
    batches: Sequence[int] | None = None,
) -> list[Any]:
    """Results of ``function(posterior, reader)`` for each batch of a source, in order; ``verb`` names the tasks.

    With ``batches`` only these are read.
    """
    numbers = range(source.n_batches) if batches is None else batches
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"{verb}-batch{i}", function, (shared, batch_reader(source, i))) for i in numbers)
        return list(in_order(runner, tasks, WINDOW))
