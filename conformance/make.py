"""Writes the cases anew: ``python -m conformance.make [FOLDER]``.  Data are drawn here, answers by ``reference.py``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from conformance import reference as ref
from conformance.cases import FOLDER, Case, save_case

EQUAL = {"rule": "equal", "rtol": 1e-6, "atol": 1e-6}
RISES = {"rule": "rises", "atol": 1e-6}
ONE = {"rule": "sums to one", "atol": 1e-6}


def case(
    name: str, kind: str, about: str, source: str, expect: dict, inputs: dict, outputs: dict, **settings: Any
) -> Case:
    arrays = [{key: np.asarray(value) for key, value in side.items()} for side in (inputs, outputs)]
    return Case(name, kind, about, source, settings, expect, *arrays)


# -- mixtures ---------------------------------------------------------------------------------------------------------
def blobs(rng: np.random.Generator, n: int, d: int, spread: float) -> np.ndarray:
    centres = spread * rng.normal(size=(3, d))
    return centres[np.arange(n) % 3] + rng.normal(size=(n, d)) * rng.uniform(0.5, 1.5, d)


def gaussian_prior(d: int, covariance: str, scale: float = 1.0) -> dict:
    full = scale * (np.eye(d) + 0.2 * np.ones((d, d)))
    return {
        "nu": np.float64(d + 2.0),
        "B": full if covariance == "full" else np.diag(full).copy(),
        "m": np.linspace(-0.5, 0.5, d),
        "kappa": np.float64(0.3),
    }


def mixtures() -> Iterator[Case]:
    about = (
        "Variational Bayes of a mixture of Gaussians from given responsibilities: a global step, then a local and a "
        "global step in turn. Expected are the sizes of the clusters at the end, "
        "the objective after each global step, and that it never falls."
    )
    source = "Bishop (2006), 10.2; Blei & Jordan (2006) for sticks; coordinate ascent written out in reference.py"
    shapes = [("small", 60, 2, 4, 8, 3.0), ("wide", 40, 6, 5, 40, 1.0)]
    kinds = itertools.product(("dp", "dirichlet"), ("full", "diag"), shapes)
    for weights, covariance, (label, n, d, k, steps, spread) in kinds:
        rng = np.random.default_rng([1, n, d])
        x, resp = blobs(rng, n, d, spread), rng.dirichlet(np.ones(k), n)
        prior = gaussian_prior(d, covariance)
        found = ref.mixture_steps(x, resp, prior, 1.5, weights, steps)
        yield case(
            f"mixture_{weights}_{covariance}_{label}",
            "mixture_steps",
            about,
            source,
            {
                "counts": EQUAL | {"values": "counts"},
                "objective_change": EQUAL | {"values": "objective", "up_to": "constant"},
                "objective": EQUAL | {"values": "objective"},
                "rises": RISES,
            },
            {"x": x, "resp": resp, **prior},
            {"counts": found["counts"][-1], "objective": found["objective"]},
            weights=weights,
            covariance=covariance,
            gamma=1.5,
            steps=steps,
        )
    for covariance in ("full", "diag"):
        rng = np.random.default_rng(2)
        x, prior = blobs(rng, 12, 3, 1.0), gaussian_prior(3, covariance)
        yield case(
            f"evidence_one_cluster_{covariance}",
            "mixture_steps",
            "With one cluster the objective is the log evidence: the chain rule of predictive densities gives it too.",
            "Murphy (2007), conjugate Bayesian analysis of the Gaussian",
            {"objective": EQUAL | {"values": "objective"}},
            {"x": x, "resp": np.ones((12, 1)), **prior},
            {"objective": np.full(2, ref.log_evidence(x, prior))},
            weights="dirichlet",
            covariance=covariance,
            gamma=1.0,
            steps=2,
        )
    for weights in ("dp", "dirichlet"):
        rng = np.random.default_rng(3)
        x, resp, prior = rng.normal(size=(8, 1)), rng.dirichlet(np.ones(2), 8), gaussian_prior(1, "full")
        found = ref.mixture_steps(x, resp, prior, 0.8, weights, 3)
        points, measure = ref.line(0.0, 1.0, 241)
        density = ref.mixture_log_density(
            points[:, None], found["clusters"], prior, found["resp"].sum(axis=0), 0.8, weights
        )
        yield case(
            f"density_{weights}",
            "mixture_density",
            "Log density of new atoms after three steps. Expected is the posterior predictive: expected weights, "
            "parameters integrated over q, what sticks leave to the prior predictive. Any density has integral one.",
            "Bishop (2006), (10.81); quadrature of Takahasi & Mori (1974)",
            {"log_density": EQUAL | {"values": "log_density"}, "integral": ONE},
            {"x": x, "resp": resp, "points": points[:, None], "log_measure": measure, **prior},
            {"log_density": density},
            weights=weights,
            covariance="full",
            gamma=0.8,
            steps=3,
        )


def merges() -> Iterator[Case]:
    rng = np.random.default_rng(4)
    x, resp, prior = blobs(rng, 40, 2, 1.5), rng.dirichlet(np.ones(5), 40), gaussian_prior(2, "full")
    for weights in ("dp", "dirichlet"):
        found = ref.mixture_steps(x, resp, prior, 1.5, weights, 4)
        pairs = np.array(list(itertools.combinations(range(5), 2)))
        gains = []
        for keep, drop in pairs:
            united = found["resp"].copy()
            united[:, keep] += united[:, drop]
            united = np.delete(united, drop, axis=1)
            clusters = [ref.updated(x, r, prior) for r in united.T]
            # a finite mixture of one cluster less: gamma stays the total of the prior
            gains.append(ref.mixture_objective(x, united, clusters, prior, 1.5, weights) - found["objective"][-1])
        yield case(
            f"merges_{weights}",
            "merge_gains",
            "Exact change of the objective when the second cluster of each pair joins the first, after four steps. The "
            "stick of the united cluster stands where the first one's stood.",
            "Hughes & Sudderth (2013), merges; by two evaluations of the objective",
            {"gains": EQUAL | {"values": "gains"}},
            {"x": x, "resp": resp, "pairs": pairs, **prior},
            {"gains": gains},
            weights=weights,
            covariance="full",
            gamma=1.5,
            steps=4,
        )


def sampled_partitions() -> Iterator[Case]:
    x = np.array([[-1.6], [-1.2], [-0.1], [0.9], [1.4], [3.2]])
    prior = {"nu": np.float64(3.0), "B": np.array([[0.8]]), "m": np.zeros(1), "kappa": np.float64(0.2)}
    labels = np.array(list(ref.partitions(len(x))))
    log_prob = np.array(
        [
            ref.log_partition(z, 1.2) + sum(ref.log_evidence(x[z == k], prior) for k in range(z.max() + 1))
            for z in labels
        ]
    )
    yield case(
        "partitions_gaussian",
        "partition_draws",
        "Draws of the partition of six points under a Dirichlet process mixture; expected is how often each pair is "
        "together, by the sum over all 203 partitions.",
        "Chinese restaurant process; evidence of each block in closed form",
        {"labels": {"rule": "frequencies", "values": "together", "sigmas": 5.0, "least": 0.002}},
        {"x": x, **prior},
        {"together": ref.together(labels, log_prob), "log_evidence": logsumexp(log_prob)},
        gamma=1.2,
        covariance="full",
        draws=1500,
    )


# -- chains -----------------------------------------------------------------------------------------------------------
def chains() -> Iterator[Case]:
    rng = np.random.default_rng(6)
    start, trans = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3)
    emit, row = rng.dirichlet(np.ones(4), 3), rng.integers(4, size=8)
    about = "Log likelihood, marginals of the states and the most probable path, by the sum over all paths."
    expect = {name: EQUAL | {"values": name} for name in ("log_lik", "resp", "path")}
    source = "Rabiner (1989); enumeration"

    def answers(start, trans, log_lik):
        with np.errstate(divide="ignore"):
            found = ref.all_paths(np.log(start), np.log(trans), log_lik)
        return {name: found[name] for name in expect}

    yield case(
        "chain_symbols",
        "chain_paths",
        about,
        source,
        expect,
        {"start": start, "trans": trans, "emit": emit, "row": row},
        answers(start, trans, np.log(emit[:, row]).T),
        emission="symbols",
    )
    ladder = np.array([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])
    first = np.array([1.0, 0.0, 0.0])
    yield case(
        "chain_ladder",
        "chain_paths",
        about + " Some transitions are impossible.",
        source,
        expect,
        {"start": first, "trans": ladder, "emit": emit, "row": row},
        answers(first, ladder, np.log(emit[:, row]).T),
        emission="symbols",
    )
    yield case(
        "chain_impossible",
        "chain_paths",
        "A sequence that no path can have: its log likelihood is minus infinity.",
        source,
        {"log_lik": EQUAL | {"values": "log_lik"}},
        {"start": np.array([0.0, 1.0]), "trans": np.eye(2), "emit": np.eye(2), "row": np.array([1, 0])},
        {"log_lik": -np.inf},
        emission="symbols",
    )
    mean, var = rng.normal(size=(3, 2)) * 2, rng.uniform(0.3, 1.5, (3, 2))
    x = mean[[0, 0, 2, 1, 1, 0, 2]] + rng.normal(size=(7, 2))
    lik = (-0.5 * (x[:, None] - mean) ** 2 / var - 0.5 * np.log(2 * np.pi * var)).sum(axis=2)
    yield case(
        "chain_gaussian",
        "chain_paths",
        about,
        source,
        expect,
        {"start": start, "trans": trans, "mean": mean, "var": var, "row": x},
        answers(start, trans, lik),
        emission="gaussian",
    )
    far = x.copy()
    far[3] += 60.0
    lik = (-0.5 * (far[:, None] - mean) ** 2 / var - 0.5 * np.log(2 * np.pi * var)).sum(axis=2)
    yield case(
        "chain_outlier",
        "chain_paths",
        about + " One row is far from all states.",
        source,
        expect,
        {"start": start, "trans": trans, "mean": mean, "var": var, "row": far},
        answers(start, trans, lik),
        emission="gaussian",
    )
    rows = np.array(list(itertools.product(range(4), repeat=4)))
    yield case(
        "chain_all_sequences",
        "chain_scores",
        "Scores of all sequences of four symbols under fixed parameters: the probabilities sum to one.",
        "enumeration",
        {"log_lik": ONE},
        {"start": start, "trans": trans, "emit": emit, "rows": rows.ravel(), "offsets": 4 * np.arange(len(rows) + 1)}
        | {"log_measure": np.zeros(len(rows))},
        {},
    )


def learned_chains() -> Iterator[Case]:
    rng = np.random.default_rng(7)
    rows = [rng.integers(3, size=7), rng.integers(3, size=5)]
    labels = [rng.integers(2, size=7), rng.integers(2, size=5)]
    prior = {"initial": np.full(2, 0.6), "trans": np.full((2, 2), 0.9), "emit": np.full((2, 3), 0.4)}
    start = {name: value.copy() for name, value in prior.items()}
    for row, own in zip(rows, labels):
        np.add.at(start["emit"], (own, row), 1.0)
    # of transitions only what shares of the states tell
    share = np.bincount(np.concatenate(labels), minlength=2) / 12.0
    start["initial"] += share
    start["trans"] += 12.0 * np.outer(share, share)
    found = ref.chain_steps(rows, start, prior, 10)
    every = np.array(list(itertools.product(range(3), repeat=4)))
    offsets = np.array([0, 7, 12])
    yield case(
        "chain_learned",
        "chain_steps",
        "Variational Bayes of a hidden Markov model of symbols with Dirichlet priors, from labels: pseudo-counts "
        "`start_...` are the prior and the labels' counts, of transitions as if steps were independent. "
        "The objective stands after each local step, and after each global step; a library has one of them or both. "
        "Scores of all sequences of four symbols, `points`, sum to one.",
        "Beal (2003), 3.4; local steps over all paths",
        {
            "local": EQUAL | {"values": "local"},
            "global": EQUAL | {"values": "global"},
            "rises": RISES,
            "log_density": ONE,
        },
        {"rows": np.concatenate(rows), "labels": np.concatenate(labels), "offsets": offsets, "points": every}
        | {"log_measure": np.zeros(len(every))}
        | {f"prior_{name}": value for name, value in prior.items()}
        | {f"start_{name}": value for name, value in start.items()},
        {name: found[name] for name in ("local", "global")},
        steps=10,
    )


# -- topics -----------------------------------------------------------------------------------------------------------
def topics() -> Iterator[Case]:
    rng = np.random.default_rng(8)
    counts = rng.poisson(1.5, (6, 8)).astype(float)
    gamma, lam = rng.gamma(2.0, size=(6, 3)) + 0.3, rng.gamma(2.0, size=(3, 8)) + 0.2
    yield case(
        "topics_bound",
        "topics_bound",
        "Evidence lower bound of LDA at given Dirichlets of documents and topics and the best shares of words.",
        "Hoffman, Blei & Bach (2010), (1)-(3)",
        {"bound": {"rule": "equal", "rtol": 1e-5, "atol": 1e-6, "values": "bound"}},
        {"counts": counts, "gamma": gamma, "lam": lam},
        {"bound": ref.topics_objective(counts, gamma, lam, 0.4, 0.25)},
        alpha=0.4,
        eta=0.25,
        n_topics=3,
    )
    docs = [np.array([0, 1, 1, 0]), np.array([2, 2, 1]), np.array([0, 2, 2, 2])]
    counts = np.array([np.bincount(doc, minlength=3) for doc in docs], float)
    labels, log_joint = ref.all_topics(docs, 2, 3, 0.5, 0.4)
    tokens = {"counts": counts, "rows": np.concatenate(docs), "offsets": np.cumsum([0, *map(len, docs)])}
    chosen = {"alpha": 0.5, "eta": 0.4, "n_topics": 2}
    yield case(
        "topics_evidence",
        "topics_evidence",
        "What a library calls its bound after training is at most the log evidence: the sum over all 2048 assignments.",
        "enumeration",
        {"bound": {"rule": "at most", "atol": 1e-6, "values": "log_evidence"}},
        tokens,
        {"log_evidence": logsumexp(log_joint)},
        **chosen,
    )
    yield case(
        "topics_joint",
        "topics_joint",
        "Log joint probability of words and of the topics of all words, shares and topics integrated out. The library "
        "tells its assignments (`labels`, in the order of `rows`) and its value; the case has the value of each of "
        "the 2048 assignments, in the order of binary numbers.",
        "Griffiths & Steyvers (2004)",
        {"log_joint": EQUAL | {"rule": "equal of labels", "values": "log_joint"}},
        tokens,
        {"log_joint": log_joint},
        **chosen,
    )
    yield case(
        "topics_draws",
        "topics_draws",
        "Draws of the topics of all words; expected is how often each pair of words has one topic.",
        "enumeration",
        {"labels": {"rule": "frequencies", "values": "together", "sigmas": 5.0, "least": 0.002}},
        tokens,
        {"together": ref.together(labels, log_joint)},
        draws=1500,
        **chosen,
    )
    even = np.full((4, 10), 2500.0)
    evidence = ref.log_dirichlet(0.5 + even.sum(axis=0)) - ref.log_dirichlet(np.full(10, 0.5))
    yield case(
        "topics_one",
        "topics_perplexity",
        "One topic of ten words that are equally frequent: the perplexity per word is ten, and a little more since the "
        "topic is learned (`exp` of minus the log evidence per word).",
        "Dirichlet-multinomial distribution",
        {"perplexity": {"rule": "equal", "rtol": 1e-2, "atol": 0.0, "values": "perplexity"}},
        {"counts": even},
        {"perplexity": np.exp(-evidence / even.sum())},
        alpha=0.5,
        eta=0.5,
        n_topics=1,
    )


# -- faults -----------------------------------------------------------------------------------------------------------
def scripts() -> Iterator[Case]:
    rng = np.random.default_rng(9)
    first, second = blobs(rng, 90, 2, 4.0), blobs(rng, 90, 2, 4.0)
    words = [rng.multinomial(30, rng.dirichlet(np.full(12, 0.2)), 30).astype(float) for _ in range(2)]
    data = {"points_0": first, "points_1": second, "counts_0": words[0], "counts_1": words[1]}
    for how in ("truncate", "flip", "empty", "remove"):
        yield case(
            f"files_{how}",
            "script",
            "A model is saved and one of its files damaged, each in turn and at several places. Loading then fails, or "
            "the model answers as before: it neither answers otherwise, nor ends or stops the process.",
            "fault script",
            {"sound": {"rule": "script"}},
            data,
            {},
            steps=[["fit", 0], ["save"], ["damage", how]],
        )
    yield case(
        "files_full_disk",
        "script",
        "A model is saved over an older one on a disk with too little space for it (a limit of the size of files, at "
        "several sizes). Afterwards the old or the new model is there; the new one if saving said nothing.",
        "fault script",
        {"sound": {"rule": "script"}},
        data,
        {},
        steps=[["fit", 0], ["save"], ["full disk", 1]],
    )
    for how in ("not a number", "negative", "wider", "nothing"):
        yield case(
            f"update_{how.replace(' ', '_')}",
            "script",
            f"An update with bad data ({how}) is refused and leaves the model as it was, or changes nothing; the next "
            "update gives what it gives without the bad one.",
            "fault script",
            {"sound": {"rule": "script"}},
            data,
            {},
            steps=[["fit", 0], ["bad update", how], ["update", 1]],
        )


def everything() -> Iterator[Case]:
    """All cases, after the formulas agreed with each other."""
    ref.check_reference()
    for part in (mixtures, merges, sampled_partitions, chains, learned_chains, topics, scripts):
        yield from part()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for made in everything():
        save_case(folder, made)


if __name__ == "__main__":
    main()
