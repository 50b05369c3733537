"""A data set of several times the memory of the workers trains and predicts; a worker holds a batch or two."""

from __future__ import annotations

from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import bnp_dask as bnp
from bnp_dask.cli.console import open_client
from bnp_dask.cli.jobfile import ClientSpec
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.execute.local import ANY_PORT, worker_settings
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.training.train import ConvergenceWarning
from tests.memory import measure
from tests.memory.measure import MB, can_measure
from tests.memory.parts import N_FEATURES, write_rows

pytestmark = [
    pytest.mark.skipif(not can_measure(), reason="needs /proc/self/clear_refs"),
    pytest.mark.usefixtures("first_cluster"),
    pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}"),
]
N_CLUSTERS = 8


def train(client: Client, data: object, observation: object, laps: int) -> bnp.TrainResult:
    """A few laps."""
    model = bnp.Model(bnp.DPMixture(1.0), observation)
    init = bnp.BregmanKMeans(N_CLUSTERS, sample=2000)
    return bnp.train(model, data, init=init, schedule=bnp.Memoized(laps=laps, window=4), client=client)


def over(client: Client, before: dict[str, int]) -> int:
    """Most that any worker held beside what it held when :func:`measure.start` ran."""
    after = client.run(measure.highest)
    assert after.keys() == before.keys(), "a worker died"
    return max(after[worker] - before[worker] for worker in before)


def check(
    tmp_path: Path, n_workers: int, limit: int, batch_bytes: int, observation: object, laps: int, times: int = 6
) -> None:
    """Write ``times`` what the workers hold, train, predict, and look at what the workers held."""
    n_batches = -(-times * n_workers * limit // batch_bytes)
    truth = write_rows(tmp_path / "x.zarr", n_batches, batch_bytes)
    assert len(truth) * N_FEATURES * 8 >= times * n_workers * limit
    with dask.config.set(worker_settings(limit)):  # as `bnp-dask train` starts its workers
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ANY_PORT},
            memory_limit=limit,
        )
    with cluster, Client(cluster, set_as_default=False) as client:
        # imports and compiled code belong to the baseline
        small = bnp.as_source(np.random.default_rng(0).normal(size=(8000, N_FEATURES)), batch_size=1000)
        executor = DaskExecutor(client, "predict")
        warm = train(client, small, observation, laps)
        bnp.predict(warm.posterior, small, out=tmp_path / "small.zarr", client=executor)
        before = client.run(measure.start)
        result = train(client, str(tmp_path / "x.zarr"), observation, laps)
        bound = 2 * batch_bytes + measure.model_bytes(result.posterior)
        assert over(client, before) < bound
        before = client.run(measure.start)
        bnp.predict(result.posterior, str(tmp_path / "x.zarr"), out=tmp_path / "labels.zarr", client=executor)
        assert over(client, before) < bound
        executor.close()
    label = zarr.open_array(tmp_path / "labels.zarr" / "label", mode="r")[:]
    assert label.shape == truth.shape
    pairs = np.unique(label * 6 + truth, return_counts=True)
    purest = [pairs[1][pairs[0] // 6 == cluster].max() for cluster in np.unique(label)]
    assert sum(purest) > 0.99 * len(truth)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_one_worker(tmp_path):
    check(tmp_path, 1, 480 * 10**6, 24 * MB, DiagGaussian(), laps=1, times=2)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_data_of_six_times_the_memory(tmp_path):
    check(tmp_path, 1, 480 * 10**6, 24 * MB, DiagGaussian(), laps=1)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_workers_and_full_covariances(tmp_path):
    check(tmp_path, 2, 500 * 10**6, 40 * MB, Gaussian(), laps=2)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_data_of_twenty_times_the_memory(tmp_path):
    check(tmp_path, 1, 400 * 10**6, 24 * MB, DiagGaussian(), laps=1, times=20)


def bookkeeping(dask_worker) -> tuple[int, int, float]:
    """Profiles that a worker keeps at most, of both kinds, and the milliseconds that each is of."""
    cycle = dask_worker.periodic_callbacks["profile-cycle"].callback_time
    return dask_worker.profile_history.maxlen, dask_worker.profile_keys_history.maxlen, cycle


@pytest.mark.long
def test_what_grows_in_a_worker_is_bounded_and_small_where_we_start_it():
    """Beside our tasks only Dask's profiles grow in a worker: 15 MB in 500 tasks, and nothing when they are off."""
    with open_client(ClientSpec(workers=1), quiet=True) as client:
        assert list(client.run(bookkeeping).values()) == [(10, 10, 10_000.0)]
    with (
        LocalCluster(
            n_workers=1, host="127.0.0.1", dashboard_address=None, scheduler_kwargs={"dashboard_address": ANY_PORT}
        ) as cluster,
        Client(cluster) as client,
    ):
        assert list(client.run(bookkeeping).values()) == [(1000, 1000, 1000.0)]
