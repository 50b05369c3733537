"""A batch is read ahead only where a worker has room for it, and for all that its task will take."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.execute import prefetch as ahead
from bnp_dask.execute.local import ANY_PORT, worker_settings
from tests.execute.reading import events, note
from tests.memory import measure
from tests.memory.measure import MB, can_measure

pytestmark = [
    pytest.mark.skipif(not can_measure(), reason="needs /proc/self/clear_refs"),
    pytest.mark.usefixtures("first_cluster"),
]
N_FEATURES, BATCH = 64, 24 * MB


@dataclass(frozen=True)
class SlowReader:
    """Holds its rows while it waits, much longer than it takes to make them up."""

    folder: str
    index: int
    n_atoms: int

    def __call__(self) -> Batch:
        note(self.folder, "read", self.index)
        x = np.full((self.n_atoms, N_FEATURES), float(self.index % 3))
        x[:, 0] = np.arange(self.n_atoms) % 5
        time.sleep(0.3)
        return Batch(x, None, f"slow batch {self.index}")


@dataclass(frozen=True)
class SlowSource:
    """Batches that are long in coming."""

    folder: str
    n_batches: int
    batch_atoms: int
    name: str = "slow"
    n_features: int = N_FEATURES
    is_sparse: bool = False

    @property
    def n_atoms(self) -> int:
        return self.n_batches * self.batch_atoms

    def reader(self, index: int) -> SlowReader:
        return SlowReader(self.folder, index, self.batch_atoms)

    def describe(self) -> dict[str, Any]:
        return {"kind": "slow"}


def train(client: Client, source: SlowSource) -> bnp.TrainResult:
    """Two laps."""
    model = bnp.Model(bnp.FiniteMixture(1.0), bnp.DiagGaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bnp.train(
            model, source, init=bnp.RandomExamples(4), schedule=bnp.Memoized(laps=2, window=4), client=client
        )


ROOMY = pytest.param(2 * 10**9, True, marks=pytest.mark.long)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("limit, has_room", [(480 * 10**6, False), ROOMY])
def test_only_with_room(tmp_path, limit, has_room):
    # with settings that give freed memory back at once: it is counted here
    with dask.config.set(worker_settings(480 * 10**6)):
        cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ANY_PORT},
            memory_limit=limit,
        )
    with cluster, Client(cluster, set_as_default=False) as client:
        for name in ("warm", "run"):
            (tmp_path / name).mkdir()
        train(client, SlowSource(str(tmp_path / "warm"), 4, 1000))
        (before,) = client.run(measure.start).values()
        result = train(client, SlowSource(str(tmp_path / "run"), 6, BATCH // (8 * N_FEATURES)))
        (high,) = client.run(measure.highest).values()
    names = [line[3] for line in events(tmp_path / "run")]
    assert (ahead.THREAD_NAME in names) == has_room
    # one batch at work with at most as much again, and one more that is held for the next task
    assert high - before < (3 if has_room else 2) * BATCH + measure.model_bytes(result.posterior)
    assert high < 0.8 * limit
