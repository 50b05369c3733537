"""Measures speed; prints one JSON line per figure and asserts nothing.

``python -m benchmarks.run [names]``; names: kernel, lap, lap_large, sklearn, coordinator,
global_step, job.  All if none.
Ratios within one run mean more than seconds: machines are shared, and their clocks change.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from distributed import Client, get_task_stream

import bnp_dask as bnp
from benchmarks.mixtures import Size, posterior_at_truth, sample, write
from benchmarks.timing import dgemm_rate, emit, median, run_named, workers
from bnp_dask.core.batch import Batch
from bnp_dask.execute import SerialExecutor

SMALL = [Size(100_000, 16, 32, spread) for spread in (4.0, 0.5)]
LARGE = [Size(1_000_000, 64, 200, spread) for spread in (4.0, 0.5)]
VISITED = 16_384
"""Atoms of the batch that stands for all when a lap is too long to be run: local steps are linear in the atoms."""


def lap_ends(result: bnp.TrainResult) -> list[float]:
    """Seconds from the start of a run to the end of each of its laps."""
    return list({row["lap"]: row["seconds"] for row in result.history}.values())


def kernel() -> None:
    """Local steps in CPU time: atoms per second, and the share of the dgemm rate of the same minute."""
    for size in (*SMALL, *LARGE):
        posterior = posterior_at_truth(size)
        batch = Batch(sample(size, VISITED)[0])
        model = posterior.model
        rate = dgemm_rate(3)
        seconds = median(lambda: model.visit(posterior, batch), 3)  # noqa: B023
        emit(f"local step, {size.label}", batch.n_atoms / seconds, "atoms/s", 3)
        share = size.flop * batch.n_atoms / size.n / seconds / rate
        emit(f"local step, {size.label}, share of dgemm", share, "1", 3, dgemm_gflops=round(rate / 1e9, 1))


def lap() -> None:
    """Laps of N=100,000, D=16, K=32 over a Zarr store from the true clusters, wall time, here and on two workers."""
    for size in SMALL:
        laps_of(size, 12_500, 5)


def lap_large() -> None:
    """The same for N=1,000,000, D=64, K=200: half a minute to a minute a lap on one idle core."""
    for size in LARGE:
        laps_of(size, 25_000, 1)


def laps_of(size: Size, rows: int, laps: int) -> None:
    """Write the store and run laps over it."""
    start = bnp.FromPosterior(posterior_at_truth(size))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "x.zarr", size, rows)
        for where in ("serial", "2 workers"):
            emit_laps(f"lap, {size.label}, {where}", size, Path(folder) / "x.zarr", start, laps, where)


def emit_laps(name: str, size: Size, path: Path, start: bnp.FromPosterior, laps: int, where: str) -> None:
    """Seconds of the laps after the first (which keeps the posterior, and warms up)."""

    def go(client: object) -> list[float]:
        schedule = bnp.Memoized(laps=laps + 1, tolerance=0, count_tolerance=0)
        model = start.posterior.model
        result = bnp.train(model, str(path), init=start, schedule=schedule, client=client)
        return list(np.diff(lap_ends(result)))

    if where == "serial":
        seconds = go(SerialExecutor())
    else:
        with workers(2) as client:
            seconds = go(client)
    emit(name, float(np.median(seconds)), "s", len(seconds))
    emit(f"{name}, speed", size.n / float(np.median(seconds)), "atoms/s", len(seconds))


def sklearn() -> None:
    """An iteration of scikit-learn's BayesianGaussianMixture against a lap here, on the same atoms, in memory."""
    from sklearn.mixture import BayesianGaussianMixture

    def iterations(x: np.ndarray, k: int, count: int) -> float:
        mixture = BayesianGaussianMixture(
            n_components=k, max_iter=count, tol=0.0, init_params="random_from_data", random_state=0
        )
        start = time.process_time()
        mixture.fit(x)
        return time.process_time() - start

    for size, n in ((SMALL[0], 100_000), (SMALL[1], 100_000), (LARGE[0], 20_000), (LARGE[1], 20_000)):
        x, _ = sample(size, n)
        posterior = posterior_at_truth(size)
        model, batch = posterior.model, Batch(x)
        theirs = (iterations(x, size.k, 4) - iterations(x, size.k, 1)) / 3
        ours = median(lambda: model.global_step(model.visit(posterior, batch).summary), 3)  # noqa: B023
        scaled = "" if n == size.n else f" ({n} atoms, scaled)"
        emit(f"sklearn iteration, {size.label}{scaled}", theirs * size.n / n, "s CPU", 1)
        emit(f"one lap in memory, {size.label}{scaled}", ours * size.n / n, "s CPU", 3)
        emit(f"speed over sklearn, {size.label}", theirs / ours, "times", 1)


def coordinator() -> None:
    """What a lap on two workers takes beside its local steps, at batches of about 0.2 and 1 second."""
    size = Size(200_000, 64, 200, 0.5)
    posterior = posterior_at_truth(size)
    model, x = posterior.model, sample(size, 8192)[0]
    per_atom = median(lambda: model.visit(posterior, Batch(x)), 3) / len(x)
    start = bnp.FromPosterior(posterior)
    for target in (0.2, 1.0):  # CPU seconds: on a busy machine batches take longer, and the share is what counts
        rows = int(target / per_atom)
        with tempfile.TemporaryDirectory() as folder, workers(2) as client:
            path = Path(folder) / "x.zarr"
            n = rows * 16
            write(path, Size(n, size.d, size.k, size.spread), rows)
            busy = busy_seconds(client, path, start)
            emit(f"coordinator, {target} s batches, lap", busy[0], "s", 1, batches=16, atoms_per_batch=rows)
            emit(f"coordinator, {target} s batches, workers busy", busy[1], "1", 1)


def busy_seconds(client: Client, path: Path, start: bnp.FromPosterior) -> tuple[float, float]:
    """Seconds of the last lap, and the share of them that the two workers spent in local steps."""
    schedule = bnp.Memoized(laps=2, tolerance=0, count_tolerance=0)
    with get_task_stream(client) as stream:
        result = bnp.train(start.posterior.model, str(path), init=start, schedule=schedule, client=client)
    ends = lap_ends(result)
    steps = [
        part["stop"] - part["start"]
        for task in stream.data
        for part in task["startstops"]
        if str(task["key"]).startswith(f"local_step-lap{len(ends) - 1}-") and part["action"] == "compute"
    ]
    return ends[-1] - ends[-2], sum(steps) / 2 / (ends[-1] - ends[-2])


def global_step() -> None:
    """What the coordinator computes at every fold, K=200, D=64, CPU time."""
    posterior = posterior_at_truth(LARGE[0])
    model, summary = posterior.model, posterior.summary
    assert summary is not None
    emit("global step, K=200 D=64", median(lambda: model.global_step(summary), 15), "s CPU", 15)
    emit("objective, K=200 D=64", median(lambda: model.elbo(posterior, summary), 15), "s CPU", 15)


def job() -> None:
    """A whole job, from a file to a converged Dirichlet process mixture grown from one cluster, on two workers."""
    from sklearn.metrics import adjusted_rand_score
    from sklearn.mixture import BayesianGaussianMixture

    size = SMALL[0]
    x, truth = sample(size, size.n)
    with tempfile.TemporaryDirectory() as folder, workers(2) as client:
        np.save(Path(folder) / "x.npy", x)
        start = time.perf_counter()
        bnp.ingest(Path(folder) / "x.npy", Path(folder) / "x.zarr", batch_size=12_500)
        result = bnp.train(
            bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()),
            str(Path(folder) / "x.zarr"),
            init=bnp.BregmanKMeans(1),
            schedule=bnp.Memoized(laps=60),
            moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()],
            client=client,
            store=Path(folder) / "run",
        )
        labels = bnp.predict(result.posterior, str(Path(folder) / "x.zarr"))
        seconds = time.perf_counter() - start
    facts = {"clusters": result.posterior.n_clusters, "laps": len(lap_ends(result)), "reason": result.reason}
    emit(f"job from K=1, {size.label}", seconds, "s", 1, **facts)
    emit(f"job from K=1, {size.label}, ARI", adjusted_rand_score(truth, labels), "1", 1)
    mixture = BayesianGaussianMixture(
        n_components=64,
        max_iter=20,
        tol=0.0,
        weight_concentration_prior_type="dirichlet_process",
        init_params="kmeans",
        random_state=0,
    )
    start = time.perf_counter()
    found = mixture.fit(x).predict(x)
    seconds = time.perf_counter() - start
    emit(f"sklearn, 64 clusters, 20 iterations, {size.label}", seconds, "s", 1)
    emit(f"sklearn, 64 clusters, 20 iterations, {size.label}, ARI", adjusted_rand_score(truth, found), "1", 1)


ALL = {f.__name__: f for f in (kernel, lap, lap_large, sklearn, coordinator, global_step, job)}


if __name__ == "__main__":
    run_named(ALL, sys.argv[1:])
