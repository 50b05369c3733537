"""How time grows: with atoms, features, clusters, words, states, batches and workers.

``python -m benchmarks.growth [names]``; names: atoms, features, clusters, words, states, batches, workers, scaling,
memory, sampled, documents.  One JSON line per point.  Times of local steps are CPU seconds; those of laps on workers
are wall seconds.

``python -m benchmarks.growth page LINES FOLDER`` writes the tables and the picture of ``docs/guides/scale.md`` from
such lines: between its marks the page is that output.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from scipy import sparse

import bnp_dask as bnp
from benchmarks.coordinator import spread
from benchmarks.mixtures import Size, posterior_at_truth, sample, write
from benchmarks.timing import emit, median, run_named, workers
from benchmarks.turns import in_turns
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.kernels.hmm import forward_backward

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
    for apart, name in ((0.5, "overlapping"), (4.0, "separated")):
        for k in (8, 32, 128, 512):
            seconds = local_seconds(Size(8_000, 16, k, apart))
            emit(f"grows with K, {name}", seconds, "s CPU", REPEATS, K=k)


def words() -> None:
    """V, at 1000 documents of 100 tokens and 50 topics."""
    for v in (1_000, 4_000, 16_000, 64_000):
        rng = np.random.default_rng(0)
        topics = rng.dirichlet(np.full(v, 0.02), 50)
        shares = rng.dirichlet(np.full(50, 0.05), 1000)
        counts = np.stack([rng.multinomial(100, p) for p in shares @ topics])
        batch = Batch(sparse.csr_array(counts.astype(float)))
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


def batches() -> None:
    """Batches of 50 rows, where the coordinator's work is all there is: CPU seconds of a lap, without moves."""
    for n in (250, 1_000, 4_000):
        data = bnp.VirtualMixture(50 * n, 8, 8, batch_size=50)
        marks = _Marks()
        schedule = bnp.Memoized(laps=4, tolerance=0, count_tolerance=0)
        model, start = bnp.Model(bnp.DPMixture(), bnp.Gaussian()), bnp.RandomExamples(8)
        bnp.train(model, data, init=start, schedule=schedule, moves=(), callbacks=[marks], client=SerialExecutor())
        emit("grows with batches", float(np.median([cpu for _, cpu in marks.laps[1:]])), "s CPU", 3, B=n)


def workers_in_flight() -> None:
    """A lap over its ideal, by workers: tasks wait for half a second, in one process (``coordinator.spread``)."""
    for n in (4, 8, 16, 32):
        found = spread.laps(n, spread.options([str(n), "--laps", "4"]))
        emit("grows with workers", found["median"], "of the ideal", 3, W=n, batches=found["batches"])


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


ALL = {f.__name__: f for f in (atoms, features, clusters, words, states, batches, scaling, memory, sampled, documents)}
ALL["workers"] = workers_in_flight


# -- the page ----------------------------------------------------------------------------------------------------
BEGIN, END = "<!-- growth -->", "<!-- end of growth -->"
"""What is between these marks of the page is the output of this command."""

SERIES = {
    "grows with N": ("rows", "N"),
    "grows with D": ("columns of full Gaussians", "D"),
    "grows with K, overlapping": ("clusters that overlap", "K"),
    "grows with K, separated": ("clusters that do not overlap", "K"),
    "grows with V": ("words of a vocabulary", "V"),
    "grows with states": ("states of a hidden Markov model", "K"),
    "grows with batches": ("batches of 50 rows", "B"),
    "grows with workers": ("workers", "W"),
}
"""Names of figures, what grows, and the fact that tells how much."""


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the logarithms between the last two points: what larger data would see."""
    return float(np.log(seconds[-1] / seconds[-2]) / np.log(sizes[-1] / sizes[-2]))


def page(lines: Path, folder: Path) -> None:
    """Write the table between the marks of ``guides/scale.md``, and ``growth.png``."""
    from matplotlib.figure import Figure

    points: dict[str, list[dict[str, Any]]] = {}
    for line in lines.read_text().splitlines():
        found = json.loads(line)
        if found["name"] in SERIES:
            points.setdefault(found["name"], []).append(found)
    rows = [
        "| what grows | from | to | time at the start | at the end | exponent, last step |",
        "|---|---|---|---|---|---|",
    ]
    figure = Figure(figsize=(11, 5), layout="constrained")
    for place, (name, some) in enumerate(points.items()):
        what, fact = SERIES[name]
        sizes, values = [float(one[fact]) for one in some], [float(one["value"]) for one in some]
        slope, unit = exponent(sizes, values), some[0]["unit"]
        ends = f"{sizes[0]:,.0f} | {sizes[-1]:,.0f} | {values[0]:.3g} {unit} | {values[-1]:.3g} {unit}"
        rows.append(f"| {what} | {ends} | {slope:.2f} |")
        axes = figure.add_subplot(2, 4, place + 1)
        axes.loglog(sizes, values, marker="o")
        if unit != "of the ideal":
            axes.loglog(sizes, [values[0] * size / sizes[0] for size in sizes], color="0.7", linestyle="--")
        axes.set(title=what, xlabel=fact, ylabel=unit)
        axes.minorticks_off()
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], fontsize=7)
    figure.savefig(folder / "growth.png", dpi=80)
    target = folder / "guides" / "scale.md"
    text = target.read_text()
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    target.write_text(f"{text[:first]}\n" + "\n".join(rows) + f"\n{text[last:]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["page"]:
        page(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        run_named(ALL, sys.argv[1:])
