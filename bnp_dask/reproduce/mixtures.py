"""Mixtures: figures 3.3 to 4.7 of the thesis, and the births of the supplement of 2013."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import bnp_dask as bnp
from bnp_dask.reproduce import data
from bnp_dask.reproduce.base import Check, Outcome, Task, figure
from bnp_dask.reproduce.measures import (
    LEAST_DECAY,
    cluster_counts,
    dots,
    grid,
    in_use,
    last_objective,
    majority_share,
    own_clusters,
    pictures,
    traces,
)

STARTS = {"random": bnp.RandomExamples, "k-means++": bnp.BregmanKMeans}
"""The two initialisations that chapter 3 compares."""

MOVES = (bnp.Birth(), bnp.Merge(), bnp.Delete())


def local_optima(
    model: bnp.Model, x: Any, sizes: Sequence[int], runs: int, laps: int
) -> dict[tuple[str, int], list[bnp.TrainResult]]:
    """Full-dataset runs (Alg. 3.1) from both initialisations, some sizes and seeds."""
    return {
        (name, k): [
            bnp.train(model, x, init=start(k), schedule=bnp.FullBatch(laps=laps), moves=(), rng=seed)
            for seed in range(runs)
        ]
        for name, start in STARTS.items()
        for k in sizes
    }


def objectives(runs: Sequence[bnp.TrainResult]) -> list[float]:
    """Objectives at the ends of runs, nats."""
    return [last_objective(run) for run in runs]


def mean_objective(runs: Sequence[bnp.TrainResult]) -> float:
    """Mean objective at the ends of runs, nats."""
    return float(np.mean(objectives(runs)))


def draw_optima(found: dict[tuple[str, int], list[bnp.TrainResult]], n: float, last: np.ndarray, side: int) -> Any:
    """Objectives, clusters in use, and the clusters of one run as images (or their sizes)."""
    picture, axes = grid(1, 3, 11.0, 3.4)
    labels = {f"{name}\nK={k}": runs for (name, k), runs in found.items()}
    dots(axes[0, 0], {k: [o / n for o in objectives(runs)] for k, runs in labels.items()}, "objective, nats an atom")
    dots(axes[0, 1], {k: [in_use(run.posterior) for run in runs] for k, runs in labels.items()}, "clusters in use")
    if side:
        pictures(axes[0, 2], last, side, columns=7, limit=35)
    else:
        axes[0, 2].plot(np.sort(last)[::-1])
        axes[0, 2].set(xlabel="cluster, by size", ylabel="documents")
    return picture


@figure("000-3.3", "Local optima of letters, by start and number of clusters", "thesis, 3.6.1 and caption")
def letters_optima(task: Task) -> Outcome:
    """Zero-mean Gaussians on patches of 26 letters, from few and from many clusters, at random and by k-means++."""
    n, runs, laps = task.size(10_000, 2_000), task.size(3, 2), task.size(40, 10)
    x, _ = data.letters(n, task.seed)
    sizes = (40, 100)
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.ZeroMeanGaussian())
    found = local_optima(model, x, sizes, runs, laps)
    gain = {name: mean_objective(found[name, 100]) - mean_objective(found[name, 40]) for name in STARTS}
    used = max(in_use(run.posterior) for name in STARTS for run in found[name, 100])
    better = mean_objective(found["k-means++", 40]) - mean_objective(found["random", 40])
    best = max((run for each in found.values() for run in each), key=last_objective)
    order = np.argsort(-cluster_counts(best.posterior))[:35]
    moments = np.array([np.diag(c) for c in covariances(best.posterior)[order]])
    return Outcome(
        data=f"{n:,} synthetic patches of 26 letters",
        checks=[
            Check(
                "objective of 100 over that of 40 random clusters, nats an atom", "much better", gain["random"] / n, 0
            ),
            Check("the same from k-means++", "much better", gain["k-means++"] / n, 0),
            Check("most clusters in use of 100", "many decay to zero", used, high=99),
            Check("k-means++ over random at 40, nats an atom", "consistently larger", better / n, 0),
        ],
        picture=draw_optima(found, n, moments, 8),
        differences=f"{n:,} patches in place of 50,000, {runs} runs a setting in place of 25, at most {laps} laps; two "
        "sizes, 40 and 100, of the many in the figure. The letters are of another font. The number of patches is not "
        "the reason that 100 clusters are worse: with 50,000, one random run of 30 laps each, all of 40 stay and end "
        "at 2.96 nats an atom, all of 100 at 1.93; the true 26 at 8.77. A cluster too many costs its 2,080 numbers, so "
        "that more can win only where those decay. That depends on the prior, which the text does not give: with 160 "
        "degrees of freedom around "
        ".05 I in place of 66, up to 90 of 100 stay and 40 are better by 1.9 nats an atom (random, three runs); "
        "with 1,066 three stay. Of chapter 4 the text says that priors were chosen for each data set in an empirical "
        "Bayes manner; a prior that is learned, with a full matrix, leaves 98 of 100 random clusters and 92 from "
        "k-means++ in use after 25 laps, 10.1 and 8.4 nats an atom below 40.",
    )


def covariances(posterior: bnp.Posterior) -> np.ndarray:
    """Expected covariance matrices of clusters, ``(K, D, D)``."""
    from bnp_dask.observation import estimates_of

    return np.array(estimates_of(posterior.model.observation, posterior.observation, None)["covariance"].values)


@figure("000-3.4", "Local optima of toy bars, by start and number of clusters", "thesis, 3.6.2 and caption")
def bars_optima(task: Task) -> Outcome:
    """Multinomials on 100 documents of ten bars, from 5, 10 and 40 clusters."""
    runs = task.size(25, 8)
    x, _ = data.bar_documents(100, 500, task.seed)
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Multinomial(0.1))
    found = local_optima(model, x, (5, 10, 40), runs, 40)
    ideal = max(o for name in STARTS for o in objectives(found[name, 10]))
    few = max(o for name in STARTS for o in objectives(found[name, 5]))
    many = float(np.mean([o for name in STARTS for o in objectives(found[name, 40])]))
    kept = min(in_use(run.posterior, 0.5) for name in STARTS for run in found[name, 40])
    spread = {name: float(np.mean([np.std(objectives(found[name, k])) for k in (5, 10, 40)])) for name in STARTS}
    best = max((run for name in STARTS for run in found[name, 10]), key=last_objective)
    lam = best.posterior.observation.lam
    return Outcome(
        data="100 synthetic documents of ten bars, 900 words",
        checks=[
            Check("fewest clusters in use of 40", "no cluster becomes empty", kept, 40, 40),
            Check(
                "objective of 40 clusters between the best of 5 (0) and of 10 (1)",
                "roughly half-way (.5)",
                (many - few) / (ideal - few),
                0.2,
                0.8,
            ),
            Check(
                "spread of objectives, k-means++ over random",
                "noticeably reduced (< 1)",
                spread["k-means++"] / spread["random"],
                high=1.0,
            ),
        ],
        picture=draw_optima(found, 100.0, lam / lam.sum(axis=1, keepdims=True), 30),
        differences=f"{runs} runs a setting in place of 25. Length of documents, concentration (10) and the "
        "Dirichlet parameter of words (.1) are not in the text. Of lengths of 100, 200 and 500 words the last was "
        "chosen: with shorter documents 40 clusters do no better than five.",
    )


@figure("000-3.5", "Local optima of NIPS papers, by start and number of clusters", "thesis, 3.6.2", "nips12")
def papers_optima(task: Task) -> Outcome:
    """Multinomials on papers: the more clusters at the start the better, and none is ever lost."""
    n, words, runs = task.size(1740, 300), task.size(3000, 800), task.size(2, 1)
    corpus = data.documents(task, "nips12", n, words)
    sizes = (50, 200, 300) if not task.quick else (10, 50)
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Multinomial(0.1))
    found = local_optima(model, corpus.train, sizes, runs, task.size(15, 8))
    tokens = float(corpus.train.sum())
    best = {k: max(o for name in STARTS for o in objectives(found[name, k])) for k in sizes}
    kept = min(in_use(run.posterior, 0.5) / k for (_, k), each in found.items() for run in each)
    apart = mean_objective(found["k-means++", sizes[-1]]) - mean_objective(found["random", sizes[-1]])
    largest = max(found["k-means++", sizes[-1]], key=last_objective)
    return Outcome(
        data=corpus.words,
        checks=[
            Check(
                f"best objective of {sizes[-1]} over {sizes[0]} clusters, nats a token",
                "hundreds of clusters are best",
                (best[sizes[-1]] - best[sizes[0]]) / tokens,
                0,
            ),
            Check("least share of clusters still in use", "never decreases (1)", kept, 0.99),
            Check(
                f"k-means++ over random at {sizes[-1]}, nats a token",
                "not visibly better (about 0)",
                apart / tokens,
                -0.02,
                0.02,
            ),
        ],
        picture=draw_optima(found, tokens, cluster_counts(largest.posterior), 0),
        differences=f"{runs} runs a setting in place of 10, with {', '.join(map(str, sizes))} clusters; vocabulary and "
        "split of the thesis are not known. At 50 clusters or fewer the text sees k-means++ ahead too.",
    )


@figure("000-4.5", "One Gaussian: merges fail, deletes succeed", "thesis, 4.4.1 and caption")
def deletes_beat_merges(task: Task) -> Outcome:
    """25,000 draws of one Gaussian, five clusters at the start, with merges alone and with deletes."""
    n = task.size(25_000, 5_000)
    x = np.random.default_rng(task.seed).normal(size=(n, 1))
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Gaussian(nu=3.0, B=1.0))
    kinds: dict[str, tuple[Any, ...]] = {"merges": (bnp.Merge(),), "merges and deletes": (bnp.Merge(), bnp.Delete())}
    schedule = bnp.FullBatch(laps=task.size(200, 80), tolerance=1e-9)
    runs = {
        name: bnp.train(model, x, init=bnp.BregmanKMeans(5), schedule=schedule, moves=moves, rng=task.seed)
        for name, moves in kinds.items()
    }
    picture, axes = grid(1, 2)
    traces(axes[0, 0], runs)
    traces(axes[0, 1], runs, "n_clusters")
    ended = {name: run.posterior.n_clusters for name, run in runs.items()}
    return Outcome(
        data=f"{n:,} draws of a standard normal",
        checks=[
            Check("clusters with merges alone", "3 (stuck)", ended["merges"], 2),
            Check("clusters with deletes", "1", ended["merges and deletes"], 1, 1),
            Check(
                "objective won by deletes, nats",
                "accepted (> 0)",
                last_objective(runs["merges and deletes"]) - last_objective(runs["merges"]),
                0,
            ),
        ],
        picture=picture,
        differences=f"{n:,} draws, from k-means++; the paper's start is not in the text, nor are its degrees of "
        "freedom: 3 here. How many clusters merges leave depends on both.",
    )


@figure("000-4.6", "Eight kinds of edges: stochastic, memoized, and with births and merges", "thesis, 4.4.2")
def edge_patches(task: Task) -> Outcome:
    """Fixed truncations start from 25 random clusters, runs with births from one; 100 batches (quick: 12)."""
    n, batches, runs, laps = task.size(100_000, 6_000), task.size(100, 12), task.size(3, 2), task.size(20, 10)
    x, labels = data.edges(n, task.seed)
    model = bnp.Model(bnp.DPMixture(gamma=5.0), bnp.ZeroMeanGaussian())
    size = n // batches

    def fit(schedule: Any, start: int, moves: tuple[Any, ...], seed: int) -> bnp.TrainResult:
        init = bnp.RandomExamples(start) if start > 1 else bnp.BregmanKMeans(1)
        return bnp.train(model, x, init=init, schedule=schedule, moves=moves, batch_size=size, rng=seed)

    rates = {"SO-a": (LEAST_DECAY, 10.0), "SO-b": (LEAST_DECAY, 100.0), "SO-c": (0.9, 10.0)}
    found = {
        name: [fit(bnp.Stochastic(laps=laps, window=1, decay=kappa, delay=d), 25, (), s) for s in range(runs)]
        for name, (kappa, d) in rates.items()
    }
    found["MO"] = [fit(bnp.Memoized(laps=laps), 25, (), s) for s in range(runs)]
    found["MO-BM"] = [fit(bnp.Memoized(laps=laps), 1, (bnp.Birth(), bnp.Merge()), s) for s in range(runs)]
    truth = {
        name: [own_clusters(labels, bnp.predict(run.posterior, x)) for run in each] for name, each in found.items()
    }
    exact = [k == 8 == run.posterior.n_clusters for k, run in zip(truth["MO-BM"], found["MO-BM"], strict=True)]
    fixed = max(o for name in ("SO-a", "SO-b", "SO-c", "MO") for o in objectives(found[name]))
    picture, axes = grid(1, 3, 11.0, 3.2)
    dots(axes[0, 0], {k: [o / n for o in objectives(each)] for k, each in found.items()}, "objective, nats an atom")
    dots(axes[0, 1], truth, "of 8 true clusters found")
    best = max(found["MO-BM"], key=last_objective).posterior
    bnp.plot.clusters(best, kind="covariance", ax=axes[0, 2])
    return Outcome(
        data=f"{n:,} synthetic 5 x 5 patches of eight edges, {batches} batches",
        checks=[
            Check("share of runs with births that find all 8 and no more", "10 of 10 (1)", float(np.mean(exact)), 1, 1),
            Check(
                "true clusters in the best stochastic run",
                "not even the best recovers all 8",
                max(k for name in rates for k in truth[name]),
                high=7,
            ),
            Check(
                "births over the best fixed run, nats an atom",
                "escapes local optima (>= 0)",
                (min(objectives(found["MO-BM"])) - fixed) / n,
                -1e-3,
            ),
        ],
        picture=picture,
        differences=f"{runs} runs in place of 10; births here never lower the objective, those of the figure could. "
        "The decay of rates is .51 in place of .5. GreedyMerge, which judges merges by one batch, is not at hand. "
        "The paper's covariances are not in the text: with these the best stochastic run may find all eight.",
    )


@figure("000-4.7", "MNIST digits: 100 clusters held fixed, and growth from one", "thesis, 4.4.3", "mnist")
def mnist_digits(task: Task) -> Outcome:
    """Digits in 50 dimensions: births and merges from one cluster against 100 clusters from k-means++."""
    n, laps = task.size(60_000, 3_000), task.size(120, 10)
    (x, labels), words = data.digits(task, n)
    n, size, start = len(x), max(200, len(x) // task.size(100, 10)), task.size(100, 40)
    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.Gaussian())
    grow = bnp.train(
        model,
        x,
        init=bnp.BregmanKMeans(1),
        schedule=bnp.Memoized(laps=laps),
        moves=MOVES[:2],
        batch_size=size,
        rng=task.seed,
    )

    def fixed(schedule: Any, kind: str) -> bnp.TrainResult:
        init = STARTS[kind](start)
        return bnp.train(model, x, init=init, schedule=schedule, moves=(), batch_size=size, rng=task.seed)

    slow = bnp.Stochastic(laps=laps, window=1, decay=LEAST_DECAY, delay=10.0)
    runs = {
        "MO smart": fixed(bnp.Memoized(laps=laps), "k-means++"),
        "MO random": fixed(bnp.Memoized(laps=laps), "random"),
        "SO random": fixed(slow, "random"),
        "MO-BM": grow,
    }
    shares = {name: [majority_share(labels, bnp.predict(run.posterior, x))] for name, run in runs.items()}
    picture, axes = grid(1, 3, 11.0, 3.2)
    dots(axes[0, 0], {name: [last_objective(run) / n] for name, run in runs.items()}, "objective, nats an atom")
    dots(axes[0, 1], shares, "alignment with digits")
    bnp.plot.history(grow, "n_clusters", ax=axes[0, 2])
    gain = (last_objective(grow) - last_objective(runs["MO smart"])) / n
    loss = (last_objective(runs["SO random"]) - last_objective(runs["MO random"])) / n
    return Outcome(
        data=words,
        checks=[
            Check("clusters grown from one", "over 80", grow.posterior.n_clusters, 80 if n == 60_000 else 10),
            Check(f"births over {start} smart clusters, nats an atom", "better than every one (> 0)", gain, 0),
            Check("stochastic over memoized, both random, nats an atom", "especially poor (< 0)", loss, high=0),
            Check(
                "alignment, births over stochastic",
                "among the best; SO lags",
                shares["MO-BM"][0] - shares["SO random"][0],
                0,
            ),
        ],
        picture=picture,
        differences=f"{n:,} images, one run a setting in place of 10, {laps} laps in place of 200, {start} clusters "
        "held fixed; Kurihara's program is not run; rates decay with .51.",
    )


@figure("002-birth", "Births: collect, create, adopt", "supplement, 2.1 to 2.4")
def births(task: Task) -> Outcome:
    """From one cluster, one birth a lap: new clusters are made on a sample of one cluster and adopted by all data."""
    n, laps = task.size(100_000, 5_000), 12
    x, labels = data.edges(n, task.seed)
    model = bnp.Model(bnp.DPMixture(gamma=5.0), bnp.ZeroMeanGaussian())
    birth = bnp.Birth(per_lap=1, fresh=10, sample=10_000)
    moved = bnp.train(
        model,
        x,
        init=bnp.BregmanKMeans(1),
        schedule=bnp.Memoized(laps=laps),
        moves=(birth, bnp.Merge()),
        batch_size=n // 20,
        rng=task.seed,
    )
    alone = bnp.train(
        model, x, init=bnp.BregmanKMeans(1), schedule=bnp.Memoized(laps=3), moves=(), batch_size=n // 20, rng=task.seed
    )
    found = bnp.predict(moved.posterior, x)
    picture, axes = grid(1, 3, 11.0, 3.2)
    bnp.plot.history(moved, ax=axes[0, 0])
    bnp.plot.history(moved, "n_clusters", ax=axes[0, 1])
    bnp.plot.clusters(moved.posterior, kind="covariance", ax=axes[0, 2])
    ended = {row["lap"]: row["elbo"] for row in moved.history}
    fall = min(np.diff(list(ended.values())))
    return Outcome(
        data=f"{n:,} synthetic 5 x 5 patches of eight edges",
        checks=[
            Check(
                "true clusters found from one by one birth a lap",
                "recovers all missing components (8)",
                own_clusters(labels, found),
                8,
                8,
            ),
            Check(
                "objective over that of one cluster, nats an atom",
                "improves (> 0)",
                (last_objective(moved) - last_objective(alone)) / n,
                0,
            ),
            Check(
                "worst change of the objective from lap to lap, nats an atom",
                "exact after each adoption; accepted here only if it rises (>= 0)",
                fall / n,
                -1e-9,
            ),
        ],
        picture=picture,
        differences="The text at hand is the supplement, which prints no results; its experiments are figures 4.6 and "
        "4.7 of the thesis. Ten new clusters a birth and samples of up to 10,000 atoms are its settings. Births here "
        "are judged by the whole objective before they are kept, in place of adoption on trust.",
    )
