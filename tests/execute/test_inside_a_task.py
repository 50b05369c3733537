"""Calls inside of a Dask task, also where it has the only thread of its cluster: they come back, with equal bits."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import joblib
import numpy as np
import pytest
from distributed import get_client, worker_client
from sklearn.model_selection import GridSearchCV

import bnp_dask as bnp
from bnp_dask.execute.dask import is_in_task

SECONDS = 60.0
ATOMS = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[-4.0], [0.0], [4.0]], 20, axis=0)


def run(client=None):
    schedule = bnp.Memoized(laps=2)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    settings = {"init": bnp.RandomExamples(4), "schedule": schedule, "moves": (), "batch_size": 20}
    result = bnp.train(model, ATOMS, client=client, **settings)
    labels = bnp.predict(result.posterior, ATOMS, client=client)
    return [row["elbo"] for row in result.history], labels.tolist()


@pytest.fixture(autouse=True)
def few_laps():
    """Filters of warnings are those of the process: a thread that changes them alone changes them for all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        warnings.filterwarnings("ignore", "limit of 2 laps")
        yield


def no_client():
    return nullcontext(None)


def own_client():
    return nullcontext(get_client())


@pytest.fixture
def one_thread(own_cluster):
    return own_cluster(1, processes=False)


@pytest.mark.parametrize("find", [no_client, own_client, worker_client])
def test_a_run_inside_a_task_has_the_bits_of_one_outside(one_thread, find):
    def task():
        with find() as client:
            return run(client)

    found = one_thread.submit(task, pure=False).result(timeout=SECONDS)
    assert found == run()
    assert one_thread.submit(is_in_task, pure=False).result(timeout=SECONDS)  # the thread is back in its place
    assert not is_in_task()


def test_many_tasks_that_train_on_their_own_cluster_all_come_back(one_thread):
    def task(_):
        return run(get_client())

    found = one_thread.gather(one_thread.map(task, range(3)), errors="raise")
    assert found == [run()] * 3


def test_a_search_on_a_grid_by_jobs_of_dask_finds_the_scores_of_one_in_this_process(one_thread):
    grid = GridSearchCV(
        bnp.DirichletProcessMixture(n_clusters=3, max_laps=2, random_state=0, moves=()),
        {"gamma": [0.1, 10.0]},
        cv=2,
    )
    here = grid.fit(ATOMS).cv_results_["mean_test_score"]
    with joblib.parallel_config("dask", client=one_thread):
        there = grid.fit(ATOMS).cv_results_["mean_test_score"]
    assert there.tolist() == here.tolist()
