"""Few clusters per atom or token: figures 7.1 to 7.5 of the thesis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

import bnp_dask as bnp
from bnp_dask.core import Batch
from bnp_dask.kernels import resp_from_weights, top_resp_from_weights
from bnp_dask.reproduce import data
from bnp_dask.reproduce.base import Check, Outcome, Task, figure
from bnp_dask.reproduce.measures import Watch, grid, lines


def cpu_seconds(function: Callable[[], object], times: int = 3) -> float:
    """Least CPU seconds of a call; the first call compiles and does not count."""
    function()
    found = []
    for _ in range(times):
        began = time.process_time()
        function()
        found.append(time.process_time() - began)
    return min(found)


@figure("000-7.1", "Cost and accuracy of L clusters per patch, of 200", "thesis, 7.1 and caption", "bsds500")
def sparse_patches(task: Task) -> Outcome:
    """One batch of patches and a trained mixture of 200 clusters: responsibilities, sums, share left out by L."""
    n, k = task.size(36_000, 6_000), 200
    found, words = data.patches(task, task.size(20, 20), task.size(6, 8))
    x = np.concatenate(found)
    x = x[np.random.default_rng(task.seed).permutation(len(x))[:n]]
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.ZeroMeanGaussian())
    result = bnp.train(
        model, x, init=bnp.RandomExamples(k), schedule=bnp.FullBatch(laps=task.size(8, 3)), moves=(), rng=task.seed
    )
    posterior = result.posterior
    batch, model = Batch(x, None, "patches"), posterior.model
    weights = model.observation.expected_log_lik(posterior.observation, batch)
    weights = weights + model.allocation.log_weights(posterior.allocation)
    dense = resp_from_weights(weights)[0]
    levels = (1, 2, 4, 8, 16, 32, posterior.n_clusters)
    local, sums, apart = [], [], []
    for level in levels:
        is_dense = level == levels[-1]
        resp: Any = dense if is_dense else top_resp_from_weights(weights, level)[0]
        step = resp_from_weights if is_dense else partial(top_resp_from_weights, top=level)
        local.append(cpu_seconds(partial(step, weights)))
        sums.append(cpu_seconds(partial(model.observation.summarize, batch, resp), 2))
        kept = np.sort(dense, axis=1)[:, ::-1][:, :level]
        # the largest entries, scaled to one: half the sum of differences is the share left out
        apart.append(1.0 - kept.sum(axis=1))
    picture, axes = grid(1, 3, 11.0, 3.0)
    lines(axes[0, 0], levels, {"responsibilities": local}, "clusters per atom L", "CPU seconds", log=True)
    lines(axes[0, 1], levels, {"sums of statistics": sums}, "clusters per atom L", "CPU seconds", log=True)
    for level, distance in zip(levels[:-1], apart, strict=False):
        axes[0, 2].plot(np.sort(distance), np.linspace(0, 1, len(distance)), label=f"L={level}")
    axes[0, 2].set(xlabel="variational distance from dense", ylabel="share of patches")
    axes[0, 2].legend(frameon=False, fontsize=7)
    return Outcome(
        data=f"{len(x):,} of {words}",
        checks=[
            Check(
                "share of patches whose distance at L=8 is below .05",
                "almost indistinguishable (1)",
                float(np.mean(apart[3] < 0.05)),
                0.9,
            ),
            Check("time of responsibilities, dense over L=4", "much faster (> 1)", local[-1] / local[2], 1.0),
            Check("time of sums, dense over L=4", "over 10 s to less than 1 s (> 10)", sums[-1] / sums[2], 10.0),
        ],
        picture=picture,
        differences=f"{len(x):,} patches, and clusters trained on them for a few laps in place of the published model "
        "of 200. Times are of this package's compiled loops; dense sums are matrix products.",
    )


@figure("000-7.2", "Held-out patches by L and number of clusters", "thesis, 7.2.1 and caption", "bsds500")
def sparse_training(task: Task) -> Outcome:
    """Memoized and stochastic training of a mixture of zero-mean Gaussians with L clusters per patch."""
    found, words = data.patches(task, task.size(60, 20), task.size(6, 8))
    n_held, laps = len(found) // 5, task.size(8, 4)
    train, held = np.concatenate(found[n_held:]), np.concatenate(found[:n_held])
    sizes, levels = ((50, 200) if not task.quick else (50,)), (1, 4, 16, None)
    size = len(train) // 10
    score: dict[tuple[str, int, int | None], float] = {}
    seconds: dict[tuple[str, int, int | None], float] = {}
    for k in sizes:
        for top in levels:
            model = bnp.Model(bnp.FiniteMixture(gamma=10.0, top=top), bnp.ZeroMeanGaussian())
            schedules: dict[str, Any] = {"memoized": bnp.Memoized(laps=laps)}
            if top in (4, None):
                schedules["stochastic"] = bnp.Stochastic(laps=laps, window=1, delay=1.0, decay=0.55)
            for name, schedule in schedules.items():
                began = time.process_time()
                result = bnp.train(
                    model,
                    train,
                    init=bnp.RandomExamples(k),
                    schedule=schedule,
                    moves=(),
                    batch_size=size,
                    rng=task.seed,
                )
                seconds[name, k, top] = time.process_time() - began
                score[name, k, top] = bnp.score(result.posterior, held)
    places = [level or sizes[-1] for level in levels]
    picture, axes = grid(1, 2)
    lines(
        axes[0, 0],
        places,
        {f"K={k}": [score["memoized", k, t] for t in levels] for k in sizes},
        "clusters per atom L (rightmost: all)",
        "nats a held-out patch",
        log=True,
    )
    lines(
        axes[0, 1],
        places,
        {f"K={k}": [seconds["memoized", k, t] for t in levels] for k in sizes},
        "clusters per atom L (rightmost: all)",
        "CPU seconds of training",
        log=True,
    )
    k = sizes[-1]
    worst = min(score["memoized", k, t] - score["memoized", k, None] for k in sizes for t in (4, 16))
    other = score["stochastic", k, 4] - score["stochastic", k, None]
    return Outcome(
        data=f"{words}, {n_held} images held out",
        checks=[
            Check("worst of L=4 and 16 over dense, nats a patch", "match or exceed (>= 0)", worst, -0.3),
            Check("the same of stochastic runs with L=4", "match or exceed (>= 0)", other, -0.3),
            Check(
                f"CPU of training with {k} clusters, dense over L=4",
                "27,000 s over 8,100 s (3.3) with 800 clusters",
                seconds["memoized", k, None] / seconds["memoized", k, 4],
                1.0,
            ),
        ],
        picture=picture,
        differences=f"{' and '.join(map(str, sizes))} clusters in place of 200 to 1,600, {laps} laps, ten batches. "
        "Dense responsibilities are cheap here: this package leaves clusters out that cannot matter, by a bound.",
    )


@figure("000-7.3", "Cost and accuracy of L topics per token", "thesis, 7.4 and caption of 7.3", "newsgroups20")
def sparse_documents(task: Task) -> Outcome:
    """The document step of one batch of LDA by L, with and without restarts, and distances from dense topics."""
    n, k = task.size(1000, 150), task.size(500, 100)
    corpus = data.documents(task, "newsgroups20", n, task.size(6000, 2000), held=0.0)
    start = bnp.train(
        bnp.Model(bnp.LDA(alpha=0.5), bnp.Multinomial(0.1)),
        corpus.train,
        init=bnp.RandomExamples(k),
        schedule=bnp.FullBatch(laps=task.size(5, 3)),
        moves=(),
        rng=task.seed,
    ).posterior
    k = start.n_clusters
    levels: tuple[int | None, ...] = (1, 2, 4, 8, 16, None)
    rate: dict[str, list[float]] = {"without restarts": [], "with restarts": []}
    shares = []
    batch = Batch(corpus.train, None, "documents")
    for top in levels:
        for name, restarts in (("without restarts", 0), ("with restarts", 5)):
            step = bnp.DocumentStep(start="cold", top=top, restarts=restarts)
            posterior = _with_step(start, step)
            seconds = cpu_seconds(partial(posterior.model.local_step, posterior, batch), 1)
            rate[name].append(batch.n_atoms / seconds if batch.n_atoms else 0.0)
        shares.append(document_shares(_with_step(start, bnp.DocumentStep(start="cold", top=top)), corpus.train[:100]))
    # half the sum of differences of shares of each document (panel d)
    apart = [0.5 * np.abs(share - shares[-1]).sum(axis=1) for share in shares[:-1]]
    places = [top or k for top in levels]
    picture, axes = grid(1, 2)
    lines(axes[0, 0], places, rate, "topics per token L (rightmost: all)", "documents a CPU second", log=True)
    for top, distance in zip(levels, apart, strict=False):
        axes[0, 1].plot(np.sort(distance), np.linspace(0, 1, len(distance)), label=f"L={top}")
    axes[0, 1].set(xlabel="variational distance from dense", ylabel="share of documents")
    axes[0, 1].legend(frameon=False, fontsize=7)
    mean = [float(np.mean(distance)) for distance in apart]
    return Outcome(
        data=corpus.words,
        checks=[
            Check(
                f"documents a second with {k} topics, L=8 over dense",
                "100 over 30 (3.3) with 500 topics",
                rate["without restarts"][3] / rate["without restarts"][-1],
                1.0,
            ),
            Check("mean distance of L=8", "small; that of L=1 larger", mean[3], high=0.1),
            Check("mean distance of L=1 over that of L=8", "falls with L (> 1)", mean[0] / max(mean[3], 1e-9), 1.0),
        ],
        picture=picture,
        differences="20 Newsgroups in place of the New York Times. Loops over all topics are vector code here and "
        "leave out topics that a document does not use, so that L saves no time (see DocumentStep).",
    )


def document_shares(posterior: bnp.Posterior, x: Any) -> np.ndarray:
    """Expected share of the document's tokens in each topic, ``(D, K)``: each document is a batch of its own."""
    single = [Batch(x[d : d + 1], None, "document") for d in range(x.shape[0])]
    counts = np.array([posterior.model.local_step(posterior, batch)["N"] for batch in single])
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _with_step(posterior: bnp.Posterior, step: bnp.DocumentStep) -> bnp.Posterior:
    """The same topics with another search in documents."""
    from dataclasses import replace

    before: Any = posterior.model.allocation
    allocation = replace(before, step=step)
    return replace(posterior, model=posterior.model.with_allocation(allocation))


@lru_cache(maxsize=1)
def _sparse_runs(task: Task) -> tuple[str, dict[tuple[str, int, int | None], tuple[list[float], list[float]]], float]:
    """Held-out scores by CPU seconds of LDA with K topics and L a token; figures 7.4 and 7.5 are both of these runs."""
    n, words, laps = task.size(1740, 400), task.size(4000, 1000), task.size(10, 5)
    corpus = data.documents(task, "nips12", n, words)
    sizes: Sequence[int] = (50, 100) if not task.quick else (30,)
    found: dict[tuple[str, int, int | None], tuple[list[float], list[float]]] = {}
    for k in sizes:
        for top in (1, 4, 16, None):
            model = bnp.Model(bnp.LDA(alpha=0.5, step=bnp.DocumentStep(top=top)), bnp.Multinomial(0.1))
            schedules: dict[str, Any] = {"memoized": bnp.Memoized(laps=laps)}
            if top in (4, None):
                schedules["stochastic"] = bnp.Stochastic(laps=laps, window=1, delay=1.0, decay=0.55)
            for name, schedule in schedules.items():
                watch = Watch()
                bnp.train(
                    model,
                    corpus.train,
                    init=bnp.RandomExamples(k),
                    schedule=schedule,
                    moves=(),
                    callbacks=[watch],
                    batch_size=-(-corpus.train.shape[0] // 5),
                    rng=task.seed,
                )
                dense = [_with_step(p, bnp.DocumentStep()) for p in watch.posteriors]
                found[name, k, top] = watch.seconds, [bnp.score(p, corpus.held) for p in dense]
    return corpus.words, found, float(corpus.train.sum())


def _draw(found: dict[tuple[str, int, int | None], tuple[list[float], list[float]]], ax: Any, k: int) -> None:
    for (name, size, top), (seconds, scores) in found.items():
        if size == k:
            style = "-" if name == "memoized" else "--"
            ax.plot(seconds, scores, style, label=f"{name}, L={'all' if top is None else top}")
    ax.set(xlabel="CPU seconds", ylabel="nats a held-out token", title=f"K={k}", xscale="log")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize=6)


@figure("000-7.4", "Predictions by L: one topic per token fails", "thesis, 7.4 and caption", "nips12")
def levels_of_topics(task: Task) -> Outcome:
    """Memoized LDA on papers with L of 1, 4, 16 and all topics per token."""
    words, found, _ = _sparse_runs(task)
    k = max(size for _, size, _ in found)
    last = {top: found["memoized", k, top][1][-1] for top in (1, 4, 16, None)}
    picture, axes = grid(1, 1, 6.0, 3.4)
    _draw({key: run for key, run in found.items() if key[0] == "memoized"}, axes[0, 0], k)
    return Outcome(
        data=words,
        checks=[
            Check("L=1 over all topics, nats a token", "plateaus early or fails (< 0)", last[1] - last[None], high=0.0),
            Check(
                "worst of L=4 and 16 over all, nats a token",
                "the same predictions (0)",
                min(last[4], last[16]) - last[None],
                -0.02,
            ),
        ],
        picture=picture,
        differences=f"{k} topics from random documents; document steps start from earlier counts, which keeps the "
        "objective from falling, so that L=1 does not fail as badly as in the paper. Wikipedia is not at hand.",
    )


@figure("000-7.5", "Predictions of LDA by K and L, memoized and stochastic", "thesis, 7.4 and caption", "nips12")
def sizes_of_topics(task: Task) -> Outcome:
    """Document completion (80 and 20 % of word types) by CPU seconds, for L of 4 and all topics per token."""
    words, found, _ = _sparse_runs(task)
    sizes = sorted({size for _, size, _ in found})
    gaps = {
        name: min(found[name, k, 4][1][-1] - found[name, k, None][1][-1] for k in sizes)
        for name in ("memoized", "stochastic")
    }
    k = sizes[-1]
    faster = found["memoized", k, None][0][-1] / found["memoized", k, 4][0][-1]
    picture, axes = grid(1, len(sizes), 5.0 * len(sizes) + 1.0, 3.4)
    for ax, size in zip(axes[0], sizes, strict=True):
        _draw(found, ax, size)
    return Outcome(
        data=words,
        checks=[
            Check("memoized, L=4 over all, nats a token", "indistinguishable (0)", gaps["memoized"], -0.02),
            Check("stochastic, L=4 over all, nats a token", "indistinguishable (0)", gaps["stochastic"], -0.02),
            Check("CPU of the same laps, all over L=4", "several times faster (> 1)", faster, 1.0),
        ],
        picture=picture,
        differences=f"The runs of figure 7.4, {' and '.join(map(str, sizes))} topics; SparseGibbs, GibbsInSVI, "
        "Wikipedia and the New York Times are left out. Time is CPU of training; loops over all topics are vector "
        "code: L saves little here.",
    )
