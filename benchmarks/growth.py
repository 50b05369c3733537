"""How time grows: with atoms, features and clusters of mixtures, with words of topics, and with workers.

``python -m benchmarks.growth [names]``; names: atoms, features, clusters, words, states, scaling, memory,
sampled, documents.  One JSON line per point.  Times of local steps are CPU seconds; those of laps on workers are wall
seconds.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from scipy import sparse

import bnp_dask as bnp
from benchmarks.mixtures import Size, posterior_at_truth, sample, write
from benchmarks.timing import emit, median, run_named, workers
from benchmarks.turns import in_turns
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.kernels.hmm.forward_backward import forward_backward

REPEATS = 5

LAPS = 6
"""Of one and of two workers."""


def local_seconds(size: Size) -> float:
    """CPU seconds of the local step on all atoms of a mixture, from its true clusters."""
    posterior, batch = posterior_at_truth(size), Batch(sample(size, size.n)[0])
    return median(lambda: posterior.model.visit(posterior, batch), REPEATS)


def atoms() -> None:
    """N, at D=16 and K=32."""
    for n in (2_000, 8_000, 32_000, 128_000):
        emit("grows with N", local_seconds(Size(n, 16, 32, 0.5)), "s CPU", REPEATS, N=n)


def features() -> None:
    """D, at N=8000 and K=32."""
    for d in (4, 8, 16, 32, 64, 128):
        emit("grows with D", local_seconds(Size(8_000, d, 32, 0.5)), "s CPU", REPEATS, D=d)


def clusters() -> None:
    """K, at N=8000 and D=16: clusters that overlap, and clusters that do not."""
    for spread, name in ((0.5, "overlapping"), (4.0, "separated")):
        for k in (8, 32, 128, 512):
            seconds = local_seconds(Size(8_000, 16, k, spread))
            emit(f"grows with K, {name}", seconds, "s CPU", REPEATS, K=k)


def words() -> None:
    """V, at 1000 documents of 100 tokens and 50 topics."""
    for v in (1_000, 4_000, 16_000, 64_000):
        rng = np.random.default_rng(0)
        topics = rng.dirichlet(np.full(v, 0.02), 50)
        shares = rng.dirichlet(np.full(50, 0.05), 1000)
        counts = np.stack([rng.multinomial(100, p) for p in shares @ topics])
        batch = Batch(sparse.csr_array(counts))
        model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.1)).with_prior(survey_batch(batch))
        start = model.summarize(np.arange(50), Batch(sparse.csr_array(np.round(1e4 * topics))), np.eye(50))
        posterior = model.global_step(start)
        seconds = median(lambda: model.visit(posterior, batch), REPEATS)  # noqa: B023
        emit("grows with V", seconds, "s CPU", REPEATS, V=v, documents_per_s=round(1000 / seconds))


def states() -> None:
    """States of a hidden Markov model: forward-backward with pair sums over 1000 steps."""
    for k in (5, 10, 20, 50, 100, 200):
        rng = np.random.default_rng(0)
        log_lik, log_trans = rng.normal(size=(1000, k)), np.log(rng.dirichlet(np.ones(k), k))
        log_start, offsets, once = np.log(np.full(k, 1.0 / k)), np.array([0, 1000]), np.ones(1)
        seconds = median(
            lambda: forward_backward(log_start, log_trans, log_lik, offsets, once).pair_sums(),  # noqa: B023
            REPEATS,
        )
        emit("grows with states", 1e6 * seconds / 1000, "us per step", REPEATS, K=k)


def train(client: Client, path: Path, start: bnp.FromPosterior, laps: int, *callbacks: Any) -> None:
    """So many laps and one, with a run directory."""
    schedule = bnp.Memoized(laps=laps + 1, window=16, tolerance=0, count_tolerance=0)
    model, own = start.posterior.model, list(callbacks)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        bnp.train(model, str(path), init=start, schedule=schedule, client=client, store=run, callbacks=own)


def scaling() -> None:
    """Laps on one and two workers: the same data (strong), and twice as much for two (weak).

    Batches of some 50 milliseconds, and of about a second; the coordinator shares the two cores.  The runs take turns,
    and a figure is the median of the ratios of their laps, the first left out.
    """
    for size, rows in ((Size(320_000, 32, 50, 0.5), 8_000), (Size(23_000 * 16, 64, 200, 0.5), 23_000)):
        facts = {"K": size.k, "D": size.d, "batches": size.n // rows, "atoms_per_batch": rows}
        start = bnp.FromPosterior(posterior_at_truth(size))
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            paths = {n: Path(folder) / f"{n}.zarr" for n in (size.n // 2, size.n)}
            for n, path in paths.items():
                write(path, Size(n, size.d, size.k, size.spread), rows)
            one, two = (stack.enter_context(workers(n)) for n in (1, 2))
            jobs = ((one, size.n), (two, size.n), (one, size.n // 2))
            runs = [partial(train, client, paths[n], start, LAPS) for client, n in jobs]
            alone, both, half = np.array([turn.seconds[1:] for turn in in_turns(runs)])
        emit(
            "strong scaling: speed of two workers over one",
            np.median(alone / both),
            "times",
            LAPS,
            lap_seconds=round(float(np.median(both)), 2),
            **facts,
        )
        emit("weak scaling: one worker on half over two on all", np.median(half / both), "times", LAPS, **facts)


def memory() -> None:
    """How much a worker's memory grows over its start while data 50 times as large as a batch go by."""
    size = Size(400_000, 64, 50, 0.5)
    start = bnp.FromPosterior(posterior_at_truth(size))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zarr"
        write(path, size, 8_000)
        with workers(1) as client:
            train(client, path, start, 1)
            before = client.run(_peak)
            train(client, path, start, 3)
            grown = [client.run(_peak)[key] - value for key, value in before.items()]
        facts = {"data_MB": size.n * size.d * 8 // 10**6, "batch_MB": 4.1}
        emit("worker's peak memory, growth after its first lap", max(grown) / 1e6, "MB", 1, **facts)


def sampled() -> None:
    """A mixture of 64 clusters that is learned from nothing by a growing sample, of rows that no disk holds.

    Where a run of a billion rows would end: the CPU of its survey, and of a lap over all data, grow with the rows.
    """
    data = bnp.VirtualMixture(10_000_000, 16, 64)
    marks = _Marks()
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    found = bnp.train(model, data, init=bnp.FromSample(), callbacks=[marks])
    facts = {"rows": data.n_rows, "K": found.posterior.n_clusters, "MB": round(_peak() / 1e6)}
    emit("from a sample, survey and start", marks.begun, "s CPU", 1, **facts)
    on_sample = [cpu for sample, cpu in marks.laps if sample]
    emit("from a sample, laps on the sample", sum(on_sample), "s CPU", 1, laps=len(on_sample))
    whole = [cpu for sample, cpu in marks.laps if not sample]
    emit("from a sample, laps on all rows", sum(whole), "s CPU", 1, laps=len(whole), last=round(whole[-1], 1))


def documents() -> None:
    """Virtual documents, 200 topics and 140,000 words: CPU of making a batch and of its local step, from the truth."""
    data = bnp.VirtualTopics(8_200_000, 140_000, 200)
    batch = data.reader(0)()
    tokens = float(batch.x.sum())
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.1)).with_prior(survey_batch(batch))
    counts = np.array([share * data.topic(k) for k, share in enumerate(data.weights)]) * 89.0 * data.n_rows
    posterior = model.global_step(model.summarize(np.arange(200), Batch(sparse.csr_array(counts)), np.eye(200)))
    making, step = (
        median(data.reader(0), REPEATS),
        median(lambda: model.visit(posterior, batch), REPEATS),
    )
    for name, seconds in (("making", making), ("local step", step)):
        emit(f"virtual documents, {name}", 1e9 * seconds / tokens, "ns CPU per token", REPEATS, tokens=round(tokens))


class _Marks:
    """Callback that notes the CPU seconds before the first lap, and of each lap, with its sample."""

    def __init__(self) -> None:
        self.last, self.begun, self.laps = time.process_time(), 0.0, list[tuple[int, float]]()

    def _since(self) -> float:
        before, self.last = self.last, time.process_time()
        return self.last - before

    def on_start(self, info: Any) -> None:
        self.begun = self._since()

    def on_batch(self, done: int) -> None:
        """Do nothing."""

    def on_lap(self, row: Any, posterior: bnp.Posterior) -> None:
        self.laps.append((row.get("sample", 0), self._since()))

    def on_end(self, reason: str) -> None:
        """Do nothing."""


def _peak() -> int:
    """Most bytes that this process ever held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


ALL = {f.__name__: f for f in (atoms, features, clusters, words, states, scaling, memory, sampled, documents)}


if __name__ == "__main__":
    run_named(ALL, sys.argv[1:])
