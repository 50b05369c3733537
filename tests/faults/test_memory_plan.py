"""A plan that cannot fit a worker's memory is refused before it starts, with the size that would fit."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.training.memory_plan import KILLED_AT, PROGRAM_BYTES, MemoryPlan
from tests.faults.parts import Faulty, atoms

LIMIT = 300 * 10**6


class Limited(SerialExecutor):
    """This thread, as if it were a worker with a memory limit; notes whether it ran anything."""

    memory_limit = LIMIT

    def __init__(self):
        super().__init__()
        self.ran = []

    def submit(self, name, function, *args):
        self.ran.append(name)
        return super().submit(name, function, *args)


def train(data, executor, observation=None, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bnp.Model(bnp.DPMixture(1.0), observation or bnp.DiagGaussian())
        return bnp.train(model, data, schedule=bnp.Memoized(laps=1), client=executor, **more)


def suggested(error):
    """The batch size and the worker size that a message names."""
    rows = re.search(r"batch_size=(\d+)\)", str(error))
    size = re.search(r"at least ([\d.]+)([MG]B)", str(error))
    return int(rows[1]) if rows else None, float(size[1]) * {"MB": 1e6, "GB": 1e9}[size[2]]


def test_a_batch_of_known_size_is_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "wide.npy"
    np.lib.format.open_memmap(path, "w+", np.float64, (40_000, 1000)).flush()  # takes no room on the disk
    executor = Limited()
    with pytest.raises(SettingError, match=r"wide.npy batch 0 takes 320MB in memory, but a worker has 300MB") as caught:
        train(str(path), executor, batch_size=40_000)
    assert executor.ran == []
    rows, worker = suggested(caught.value)
    source = bnp.as_source(str(path), batch_size=rows)
    MemoryPlan(LIMIT).require_batches(source)
    assert 2 * 8000 * rows < KILLED_AT * LIMIT - PROGRAM_BYTES
    MemoryPlan(int(worker)).require_batches(bnp.as_source(str(path), batch_size=40_000))


def test_a_batch_of_unknown_size_is_refused_after_the_survey():
    executor = Limited()
    executor.memory_limit = int((PROGRAM_BYTES + 1000) / KILLED_AT)
    with pytest.raises(SettingError, match="batch 0 takes 4kB in memory"):
        train(Faulty(atoms()), executor)
    assert {name.split("-")[0] for name in executor.ran} == {"survey"}


def test_a_long_sequence_is_refused_with_the_setting_that_cuts_it():
    plan = MemoryPlan(int((PROGRAM_BYTES + 20_000) / KILLED_AT))
    source = bnp.as_source([np.zeros((10, 4)), np.ones((900, 4))])
    survey = survey_batch(source.reader(0)())
    with pytest.raises(SettingError, match=r"longer group or sequence stays whole unless cut=(\d+)") as caught:
        plan.require_surveyed(source, survey)
    longest = int(re.search(r"cut=(\d+)", str(caught.value))[1])
    cut = bnp.as_source([np.zeros((10, 4)), np.ones((900, 4))], batch_size=longest, cut=longest)
    plan.require_surveyed(cut, combine([survey_batch(cut.reader(b)()) for b in range(cut.n_batches)]))


@pytest.mark.long
def test_a_model_is_refused_before_the_first_lap_with_the_clusters_that_fit():
    rng = np.random.default_rng(0)
    counts = sparse.random_array((300, 200_000), density=1e-4, rng=rng, format="csr")
    counts.data[:] = 1.0
    executor = Limited()
    init = bnp.RandomExamples(n_clusters=100)
    with pytest.raises(SettingError, match=r"a model of 100 clusters takes 320.\dMB of a worker's memory") as caught:
        train(counts, executor, bnp.Multinomial(lam=0.1), init=init)
    assert not any(name.startswith("local_step") for name in executor.ran)
    fitting = int(re.search(r"start with at most (\d+) clusters", str(caught.value))[1])
    assert 20 < fitting < 30
    result = train(counts, Limited(), bnp.Multinomial(lam=0.1), init=bnp.RandomExamples(n_clusters=fitting))
    assert result.posterior.n_clusters == fitting
    _, worker = suggested(caught.value)
    MemoryPlan(int(worker)).require_model(100, 160 * 10**6, 10**5)


def test_no_limit_refuses_nothing():
    MemoryPlan(None).require_model(10**6, 10**15, 10**15)
    MemoryPlan(None).require_batches(Faulty(atoms()))


def test_the_limit_is_that_of_the_smallest_worker(warm_cluster):
    from bnp_dask.execute.dask import DaskExecutor

    _, client = warm_cluster(1, memory_limit="256MiB")
    executor = DaskExecutor(client, "limits")
    assert executor.memory_limit == 256 * 2**20
    executor.close()
    x = np.broadcast_to(np.zeros(1000), (50_000, 1000))
    with pytest.raises(SettingError, match="array batch 0 takes 400MB in memory, but a worker has 268.5MB"):
        train(x, client, batch_size=50_000)


def test_without_workers_or_limits_there_is_no_limit(warm_cluster):
    from bnp_dask.execute.dask import DaskExecutor

    _, client = warm_cluster(0)
    assert DaskExecutor(client, "nobody").memory_limit is None
