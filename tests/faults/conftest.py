"""Clusters that may be harmed; their workers are forked from a process that has imported everything already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

from bnp_dask.execute.local import ANY_PORT, FAITHFUL, PROMPT
from tests.faults.machines import OneProcess
from tests.warm import forked_workers

WarmCluster = Callable[..., tuple[LocalCluster, Client]]


@pytest.fixture
def warm_cluster() -> Iterator[WarmCluster]:
    """``warm_cluster(n_workers)``: a cluster that the test may harm, and its client.

    A worker that is killed is replaced within a fraction of a second.
    """
    with ExitStack() as stack:
        stack.enter_context(forked_workers())
        stack.enter_context(dask.config.set(FAITHFUL | PROMPT))

        def make(n_workers: int, **more: Any) -> tuple[LocalCluster, Client]:
            settings = {"host": "127.0.0.1", "dashboard_address": None, "memory_limit": 0, "silence_logs": 60, **more}
            settings.setdefault("scheduler_kwargs", {"dashboard_address": ANY_PORT})
            cluster = stack.enter_context(LocalCluster(n_workers=n_workers, threads_per_worker=1, **settings))
            return cluster, stack.enter_context(Client(cluster, set_as_default=False))

        yield make


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[OneProcess]:
    """A scheduler and two workers in a process of their own."""
    with OneProcess(tmp_path).running() as made:
        yield made
