"""Topics: figures 5.3 and 5.6 to 5.8 of the thesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import betaln, expit, gammaln, psi

import bnp_dask as bnp
from bnp_dask.allocation import TopLevel, stick_weights, surrogate
from bnp_dask.analysis import split_atoms
from bnp_dask.reproduce import data
from bnp_dask.reproduce.base import Check, Outcome, Task, figure
from bnp_dask.reproduce.measures import (
    LEAST_DECAY,
    Watch,
    by_lap,
    counts_by_lap,
    curves,
    dots,
    grid,
    in_use,
    lines,
    pictures,
    sampler,
    traces,
)

TOKENS = bnp.Completion(split="tokens", share=0.5)
"""Half of each held-out document's tokens are predicted from the other half (5.59)."""

MERGES = (bnp.Merge(), bnp.Delete())


@figure("000-5.3", "Empty topics: point estimates want more, the surrogate bound none", "thesis, caption of 5.3")
def empty_topics(task: Task) -> Outcome:
    """Assignments of ten topics are fixed; one, two and three empty topics are added; u is estimated in both ways."""
    rng = np.random.default_rng(task.seed)
    n_docs, gamma, alpha = 200, 10.0, 0.5
    shares = rng.dirichlet(np.full(10, 0.5), size=n_docs)
    counts = np.array([rng.multinomial(100, p) for p in shares], np.float64)
    empty = (0, 1, 2, 3)
    tables = [np.hstack([counts, np.zeros((n_docs, more))]) for more in empty]
    point = np.array([point_estimate(table, gamma, alpha) for table in tables])
    bound = np.array([variational_bound(table, gamma, alpha) for table in tables])
    picture, axes = grid(1, 1, 5.6, 3.4)
    curves = {"point estimate of u": point - point[0], "surrogate bound": bound - bound[0]}
    lines(axes[0, 0], [10 + more for more in empty], curves, "topics", "change of the objective, nats")
    axes[0, 0].set_xticks([10 + more for more in empty])
    axes[0, 0].axhline(0.0, color="#a0aec0", linewidth=0.8)
    return Outcome(
        data="200 synthetic documents of 100 tokens in ten topics",
        checks=[
            Check(
                "surrogate with one to three empty topics, largest change, nats",
                "prefers none (< 0)",
                float(np.max(bound[1:] - bound[0])),
                high=0.0,
            ),
            Check(
                "point estimate with one to three empty topics, least change, nats",
                "undesired preference for empty topics (> 0)",
                float(np.min(point[1:] - point[0])),
                0.0,
            ),
        ],
        picture=picture,
        differences="Numbers of documents and tokens are not in the text.",
    )


def point_estimate(counts: np.ndarray, gamma: float, alpha: float) -> float:
    """Largest log p(z, u) with group weights integrated out, nats: a Dirichlet-multinomial of each document."""
    k = counts.shape[1]

    def loss(logit: np.ndarray) -> float:
        u = expit(logit)
        pi, _ = stick_weights(u)
        prior = np.sum((gamma - 1.0) * np.log1p(-u) - betaln(1.0, gamma))
        a = alpha * np.maximum(pi, 1e-300)
        total = gammaln(alpha) - gammaln(alpha + counts.sum(axis=1))
        # an empty topic's term is Gamma(a) / Gamma(a) = 1
        each = np.where(counts > 0, gammaln(a + counts) - gammaln(a), 0.0)
        return -float(prior + total.sum() + each.sum())

    start = np.log(1.0 / np.arange(k + 1.0, 1.0, -1.0))
    return -float(minimize(loss, start, method="L-BFGS-B", bounds=[(-20.0, 20.0)] * k).fun)


def variational_bound(counts: np.ndarray, gamma: float, alpha: float) -> float:
    """Largest surrogate objective of u, omega and theta for fixed counts, nats ((5.25) and (5.27))."""
    n_docs, k = counts.shape
    u = 1.0 / np.arange(k + 1.0, 1.0, -1.0)
    value = -np.inf
    for _ in range(200):
        pi, rest = stick_weights(u)
        theta = np.hstack([counts + alpha * pi, np.full((n_docs, 1), alpha * rest)])
        log_pi = psi(theta) - psi(theta.sum(axis=1, keepdims=True))
        top = TopLevel(gamma, alpha, float(n_docs), log_pi[:, :-1].sum(axis=0), float(log_pi[:, -1].sum()))
        u = top.best_u()
        pi, rest = stick_weights(u)
        # theta is optimal for the weights before: terms of (5.27) that vanish at its optimum are written out
        cumulant = np.sum(gammaln(theta).sum(axis=1) - gammaln(theta.sum(axis=1)))
        wanted = np.hstack([counts + alpha * pi, np.full((n_docs, 1), alpha * rest)])
        new = cumulant + np.sum((wanted - theta) * log_pi) + surrogate(u, top.omega(), gamma, alpha, float(n_docs))
        if new - value < 1e-9 * abs(new):
            return float(new)
        value = new
    return float(value)


@figure("000-5.6", "Toy bars: fixed numbers of topics, Gibbs sampling, and merges and deletes", "thesis, 5.6.1")
def toy_bars(task: Task) -> Outcome:
    """HDP topics of 1,000 documents of one to three bars, from 50 and 100 topics: with and without moves, sampled."""
    n, laps, sweeps = task.size(1000, 200), task.size(40, 20), task.size(200, 60)
    starts = (50, 100) if not task.quick else (50,)
    x = data.mixed_bar_documents(n + 100, 200, task.seed)
    train, held = x[:n], x[n:]
    model = bnp.Model(bnp.HDPTopics(gamma=10.0, alpha=0.5), bnp.Multinomial(0.1))

    runs: dict[str, bnp.TrainResult] = {}
    heldout: dict[str, tuple[list[int], list[float]]] = {}

    def fit(name: str, schedule: Any, init: Any, moves: tuple[Any, ...] = ()) -> None:
        watch, size = Watch(), -(-n // 10)
        runs[name] = bnp.train(
            model, train, init=init, schedule=schedule, moves=moves, batch_size=size, rng=task.seed, callbacks=[watch]
        )
        heldout[name] = by_lap(watch, runs[name], lambda posterior: bnp.score(posterior, held, completion=TOKENS))

    for k in starts:
        fit(f"MOfix {k}", bnp.Memoized(laps=laps), bnp.RandomExamples(k))
        fit(f"MOdm {k}", bnp.Memoized(laps=laps), bnp.RandomExamples(k), MERGES)
        fit(f"Gibbs {k}", sampler(sweeps), bnp.RandomExamples(k))
    fit("MOdm fromGibbs", bnp.Memoized(laps=laps), bnp.FromPosterior(runs["Gibbs 50"].posterior), MERGES)
    slow = bnp.Stochastic(laps=laps, window=1, decay=LEAST_DECAY, delay=1.0)
    fit("SOfix 50", slow, bnp.RandomExamples(50))
    scores = {name: values[-1] for name, (_, values) in heldout.items()}
    moved = [run.posterior for name, run in runs.items() if name.startswith("MOdm")]
    phi = moved[0].observation.lam / moved[0].observation.lam.sum(axis=1, keepdims=True)
    distance = np.array([0.5 * np.abs(phi - bar).sum(axis=1).min() for bar in data.bar_topics()])
    sampled = [in_use(run.posterior) for name, run in runs.items() if name.startswith("Gibbs")]
    picture, axes = grid(1, 3, 11.0, 3.2)
    curves(axes[0, 0], {name: counts_by_lap(run) for name, run in runs.items()}, "topics")
    curves(axes[0, 1], heldout, "nats a held-out token")
    pictures(axes[0, 2], phi[np.argsort(-moved[0].weights)], 30, columns=5, limit=15)
    return Outcome(
        data=f"{n:,} synthetic documents of one to three bars, 200 tokens each, 100 held out",
        checks=[
            Check("most topics with merges and deletes", "the 10 ideal bars", max(p.n_clusters for p in moved), 10, 10),
            Check("bars matched within .2 of total variation", "10", int((distance < 0.2).sum()), 10, 10),
            Check(
                "fewest topics in use without moves",
                "stuck at fragments of bars (> 10)",
                min(in_use(run.posterior) for name, run in runs.items() if "fix" in name),
                11,
            ),
            Check(
                "score with moves over without, nats a token",
                "better (> 0)",
                scores["MOdm 50"] - scores["MOfix 50"],
                0.0,
            ),
            Check(
                "fewest topics of the sampler",
                "a redundant set; does not merge down to the ideal 10 (> 10)",
                min(sampled),
                11,
            ),
            Check(
                "topics with merges and deletes from the sampler's",
                "easily recovers the ideal bars (10)",
                runs["MOdm fromGibbs"].posterior.n_clusters,
                10,
                10,
            ),
            Check(
                "score with moves over the sampler, nats a token",
                "none; the curves' end (>= 0)",
                scores["MOdm 50"] - scores["Gibbs 50"],
                0.0,
            ),
        ],
        picture=picture,
        differences=f"{n:,} documents; the sampler (direct assignment) makes {sweeps} sweeps and opens topics among "
        "the documents of one batch in turn. The stochastic CRF method and the split-merge method of others are not "
        "run. Bars are six pixels wide with 5 % of words anywhere, which the text does not say.",
    )


@figure("000-5.7", "Papers: random and anchor topics, fixed and with merges and deletes", "thesis, 5.6.2", "nips12")
def paper_topics(task: Task) -> Outcome:
    """Predictions and numbers of topics of NIPS papers, a fifth of which is held out."""
    n, words, k, laps = task.size(1740, 300), task.size(4000, 800), task.size(100, 60), task.size(15, 6)
    corpus = data.documents(task, "nips12", n, words)
    size = -(-corpus.train.shape[0] // 20)
    model = bnp.Model(bnp.HDPTopics(gamma=10.0, alpha=0.5), bnp.Multinomial(0.1))
    sweeps = task.size(50, 40)
    schedules: dict[str, Any] = {
        "Gibbs": sampler(sweeps),
        "MO": bnp.Memoized(laps=laps),
        "SO": bnp.Stochastic(laps=laps, window=1, decay=LEAST_DECAY, delay=1.0),
    }

    runs: dict[str, bnp.TrainResult] = {}
    heldout: dict[str, tuple[list[int], list[float]]] = {}

    def score(posterior: bnp.Posterior) -> float:
        return bnp.score(posterior, corpus.held, completion=TOKENS)

    def fit(name: str, schedule: str, init: Any, moves: tuple[Any, ...] = ()) -> Watch:
        watch, chosen = Watch(), schedules[schedule]
        runs[name] = bnp.train(
            model, corpus.train, init=init, schedule=chosen, moves=moves, batch_size=size, rng=task.seed,
            callbacks=[watch],
        )  # fmt: skip
        heldout[name] = by_lap(watch, runs[name], score)
        return watch

    fit("MOdm anchor", "MO", bnp.AnchorWords(k, noise=0.0), MERGES)
    fit("MOfix anchor", "MO", bnp.AnchorWords(k, noise=0.0))
    fit("MOfix rand", "MO", bnp.RandomExamples(k))
    fit("SOfix rand", "SO", bnp.RandomExamples(k))
    sampled = fit("Gibbs rand", "Gibbs", bnp.RandomExamples(k))
    fit("MOdm fromGibbs", "MO", bnp.FromPosterior(runs["Gibbs rand"].posterior), MERGES)
    scores = {name: values[-1] for name, (_, values) in heldout.items()}
    picture, axes = grid(1, 2)
    curves(axes[0, 0], {name: counts_by_lap(run) for name, run in runs.items()}, "topics")
    curves(axes[0, 1], heldout, "nats a held-out token")
    removed = runs["MOfix anchor"].posterior.n_clusters - runs["MOdm anchor"].posterior.n_clusters
    return Outcome(
        data=corpus.words,
        checks=[
            Check("topics removed by merges and deletes", "many", removed, 1),
            Check(
                "score with moves over without, nats a token",
                "removes topics while predictions improve (>= 0)",
                scores["MOdm anchor"] - scores["MOfix anchor"],
                -0.005,
            ),
            Check(
                "anchor words over random, nats a token",
                "better (> 0)",
                scores["MOfix anchor"] - scores["MOfix rand"],
                0.0,
            ),
            Check(
                f"sampler after {laps} laps over memoized, random, nats a token",
                "needs many laps to make quality predictions (< 0)",
                score(sampled.posteriors[laps - 1]) - scores["MOfix rand"],
                high=0.0,
            ),
            Check(
                "topics removed by merges and deletes from the sampler's",
                "similar gains as from anchors (> 0)",
                runs["Gibbs rand"].posterior.n_clusters - runs["MOdm fromGibbs"].posterior.n_clusters,
                1,
            ),
            Check(
                "score after that over the sampler's, nats a token",
                "similar gains as from anchors (>= 0)",
                scores["MOdm fromGibbs"] - scores["Gibbs rand"],
                -0.005,
            ),
        ],
        picture=picture,
        differences=f"{n:,} papers, {k} topics at the start in place of up to 200, {laps} laps, {sweeps} of "
        "the sampler; Wikipedia, Science and the New York Times are not at hand; programs of others are not run. "
        "So few laps on so few papers leave merges and deletes little to remove.",
    )


@figure("000-5.8", "Image patches: a mixture for all, and an HDP of images", "thesis, 5.6.3", "bsds500")
def image_topics(task: Task) -> Outcome:
    """Zero-mean Gaussians of 8 x 8 patches; the HDP gives each image its own weights; other images are held out."""
    images, stride, laps, k = task.size(60, 25), task.size(6, 12), task.size(12, 8), task.size(40, 20)
    found, words = data.patches(task, images, stride)
    n_held = images // 5
    train, held = found[n_held:], found[:n_held]
    runs = {}
    for name, allocation, moves in (
        ("DP", bnp.DPMixture(gamma=10.0), MERGES),
        ("HDP", bnp.HDPTopics(gamma=10.0, alpha=0.5), MERGES),
        ("HDP fixed", bnp.HDPTopics(gamma=10.0, alpha=0.5), ()),
    ):
        x: Any = np.concatenate(train) if name == "DP" else train
        runs[name] = bnp.train(
            bnp.Model(allocation, bnp.ZeroMeanGaussian()),
            x,
            init=bnp.RandomExamples(k),
            schedule=bnp.Memoized(laps=laps),
            moves=moves,
            batch_size=max(map(len, train)) * 4,
            rng=task.seed,
        )
    rows, offsets = np.concatenate(held), np.concatenate([[0], np.cumsum([len(image) for image in held])])
    scores = {"DP": bnp.score(runs["DP"].posterior, rows[split_atoms(rows, offsets, TOKENS)])}
    scores |= {name: bnp.score(runs[name].posterior, held, completion=TOKENS) for name in ("HDP", "HDP fixed")}
    picture, axes = grid(1, 3, 11.0, 3.2)
    traces(axes[0, 0], runs, "n_clusters")
    dots(axes[0, 1], {name: [s] for name, s in scores.items()}, "nats a held-out patch")
    bnp.plot.clusters(runs["HDP"].posterior, limit=8, ax=axes[0, 2])
    return Outcome(
        data=f"{words}, {n_held} images held out",
        checks=[
            Check("HDP over DP, nats a patch", "better prediction (> 0)", scores["HDP"] - scores["DP"], 0.0),
            Check(
                "topics removed by merges and deletes",
                "removes junk topics (> 0)",
                k - runs["HDP"].posterior.n_clusters,
                1,
            ),
            Check(
                "HDP with moves over without, nats a patch",
                "improves predictions (>= 0)",
                scores["HDP"] - scores["HDP fixed"],
                -0.1,
            ),
        ],
        picture=picture,
        differences=f"Patches each {stride} pixels of {images} images in place of 3.5 million patches of 400; half of "
        "a held-out image's patches tell its weights, and the score of both models is the mean of the other half. "
        "The mixture scores 1.1 nats less with merges than without, and its objective .3 less: in the first laps they "
        "unite clusters that are not formed yet. Given the mixture's clusters, the HDP is .9 nats ahead of it.",
    )
