"""What the coordinator spends on a group of batches, and so how many summaries a second it takes and workers it feeds.

``python -m benchmarks.coordinator.measure [K D]``: JSON lines.  Costs are of this process alone: workers and the
scheduler run elsewhere.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from benchmarks.coordinator.feeds import feeds
from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import SerialExecutor, one_blas_thread
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import Memoized, State, Work
from bnp_dask.inference.local_steps import Taken
from bnp_dask.inference.reduction import FAN, Change, change_of, joined, reduced_for_us, sums_left
from bnp_dask.model import Model
from bnp_dask.observation import Gaussian
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.training.planning import Costs
from tests.moves.parts import Batches, DictMemo

REPEATS = 7


def median_seconds(function: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    out = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        out.append(time.process_time() - start)
    return float(np.median(out))


def case(n_clusters: int, n_features: int) -> tuple[Work, State, Change]:
    """A run after its first lap, and the change of a batch."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20 * n_clusters, n_features)) + 5.0 * rng.integers(4, size=(20 * n_clusters, 1))
    batch = Batch(x)
    survey = survey_batch(batch)
    model = Model(DPMixture(5.0), Gaussian()).with_prior(survey)
    work = Work(model, Batches([batch] * 2), survey, SerialExecutor(), DictMemo(), 0)
    labels = np.arange(len(x)) % n_clusters
    first, second = (summary_of(model, batch, np.roll(labels, shift), n_clusters) for shift in (0, 1))
    state = State.start(model, first, 2)
    state.total.add(first.scale(100.0))
    value = state.total.value()
    state.posterior = model.global_step(value)
    state.terms = model.elbo(state.posterior, value)
    empty = replace(model.visit(state.posterior, batch.take(np.arange(4))), summary=second)
    return work, state, change_of(empty, first)


def summary_of(model: Model, batch: Batch, labels: np.ndarray, n_clusters: int) -> Summary:
    """Statistics of hard assignments."""
    return model.summarize(np.arange(n_clusters), batch, np.eye(n_clusters)[labels])


def submit_seconds() -> tuple[float, float]:
    """CPU seconds of the coordinator, and of the scheduler, for one task."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        executor = DaskExecutor(client, "bench")
        start, loop = time.thread_time(), time.process_time()
        handles = [executor.submit(f"local_step-lap1-batch{i}", int, i) for i in range(500)]
        own = time.thread_time() - start
        for handle in handles:
            executor.result(handle)
        both = time.process_time() - loop
    return own / 500, (both - own) / 500


def fold(work: Work, state: State, taken: Taken) -> None:
    """A group is folded, and its sum taken back: each call finds the same."""
    undo = state.total.before(taken.change.delta)
    Memoized(laps=2)._try(work, replace(state), taken)
    undo()


def travel(n_bytes: float) -> float:
    """Seconds in which so much comes to the client: a gigabyte a second."""
    return n_bytes / 1e9


def say_rates(costs: Costs) -> None:
    """Summaries a second that the coordinator takes, by window."""
    for window in (2, 8, 32, 128, 256):
        size = max(1, window // 2)
        most = sums_left(size, max(1, window // 4), costs.numbers)
        messages = len(reduced_for_us(range(size), lambda groups: [some[0] for some in groups], most))
        seconds = costs.fold + (messages - 1) * costs.message + costs.share + size * FAN / (FAN - 1) * costs.submit
        rate = size / seconds
        print(json.dumps({"bench": "summaries per second", "window": window, "coordinator": round(rate)}), flush=True)


def say_ceiling(costs: Costs, per_worker: int = 4) -> None:
    """How busy workers are by their number."""
    for n_workers in (25, 50, 100, 200, 400):
        found = feeds(costs, n_workers, per_worker)
        line = {
            "bench": "simulated, batches of one second", "in flight for each worker": per_worker, "workers": n_workers,
            "workers busy": round(found.workers, 3), "coordinator busy": round(found.coordinator, 3),
            "scheduler busy": round(found.scheduler, 3),
        }  # fmt: skip
        print(json.dumps(line), flush=True)


def main() -> None:
    """Measure and print."""
    n_clusters, n_features = (int(a) for a in (*sys.argv[1:], 200, 64)[:2])
    work, state, change = case(n_clusters, n_features)
    taken = Taken((0,), 0, change, {}, [])
    message = pickle.dumps(change, protocol=5)
    with one_blas_thread():
        parts = {
            "open the message": median_seconds(lambda: pickle.loads(message)),
            "global step": median_seconds(lambda: work.model.global_step(state.total.value())),
            "objective": median_seconds(lambda: work.model.elbo(state.posterior, state.total.value())),
            "fold": median_seconds(lambda: fold(work, state, taken)),
            "send the posterior": median_seconds(lambda: pickle.dumps(state.posterior.for_visits(), protocol=5)),
            f"add {FAN} (on a worker)": median_seconds(lambda: joined(*[change] * FAN)),
        }
    submit, scheduler = submit_seconds()
    print(json.dumps({"bench": "coordinator", "K": n_clusters, "D": n_features, "message MB": len(message) / 1e6}))
    print(json.dumps({"bench": "coordinator, ms", **{k: round(1e3 * v, 2) for k, v in parts.items()}}))
    print(json.dumps({"bench": "a task, ms", "submit": round(1e3 * submit, 2), "scheduler": round(1e3 * scheduler, 2)}))
    costs = Costs(
        add=parts[f"add {FAN} (on a worker)"] + FAN * travel(len(message)),
        submit=submit,
        schedule=scheduler,
        share=parts["send the posterior"],
        fold=parts["open the message"] + parts["fold"],
        # opened, added, and brought here
        message=parts["open the message"] + parts[f"add {FAN} (on a worker)"] / (FAN - 1) + travel(len(message)),
        numbers=n_clusters * numbers_per_cluster(work.model.observation),
    )
    say_rates(costs)
    say_ceiling(costs)


if __name__ == "__main__":
    main()
