"""The document step alone, in CPU seconds: against scikit-learn's, dense against shrinking, and with ``top=8``."""

from __future__ import annotations

import dataclasses
import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import psi

import bnp_dask as bnp
from benchmarks.timing import keep_memory
from benchmarks.topics.corpora import Corpus, synthetic
from benchmarks.topics.ours import topics_of
from benchmarks.topics.score import ALPHA, completion
from bnp_dask.allocation import LDA, DocumentStep
from bnp_dask.allocation.document_step import GroupStep, document_step
from bnp_dask.core.batch import Batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.initialize import AnchorWords
from bnp_dask.observation.checks import cluster_fastest
from bnp_dask.structure.tokens import lay_out

NONE = np.zeros((0, 2), np.int64)

TOLERANCES = (0.2, 0.15, 0.1, 0.07, 0.05, 0.045, 0.04, 0.035, 0.03, 0.025, 0.02, 0.015, 0.01)
"""Tried for the one that comes as near to the end of many sweeps as scikit-learn does; and the last is the default."""


def emit(name: str, **facts: Any) -> None:
    """Print one figure."""
    print(json.dumps({"name": name, **facts}, default=float), flush=True)


def cpu_seconds(function: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Least CPU time of some calls, after one that is not counted, and what they return."""
    seconds, (out,) = in_turns([function], repeats)
    return float(seconds.min()), out


def in_turns(functions: Sequence[Callable[[], Any]], repeats: int = 15) -> tuple[np.ndarray, list[Any]]:
    """CPU time of calls that take turns, ``(functions, repeats)``, after a round that is not counted; what they return.

    A machine's speed drifts by a third within minutes, and all of a round have the same.
    """
    out = [function() for function in functions]
    seconds = np.empty((len(functions), repeats))
    for i in range(repeats):
        for j, function in enumerate(functions):
            start = time.process_time()
            function()
            seconds[j, i] = time.process_time() - start
    return seconds, out


def beliefs(corpus: Corpus) -> np.ndarray:
    """E[log phi] of topics that were seen with the tokens of the whole corpus, ``(K, V)``."""
    lam = 0.1 + corpus.truth * corpus.train.sum() / len(corpus.truth)
    return cluster_fastest(psi(lam) - psi(lam.sum(axis=1, keepdims=True)))  # as the model keeps it


def our_step(x: sparse.csr_array, log_phi: np.ndarray, step: DocumentStep) -> GroupStep:
    """Tokens of some documents shared out among topics, with all sums."""
    laid = lay_out(Batch(x))
    table = log_phi.T[laid.words]
    k = len(log_phi)
    return document_step(step, np.full(k, ALPHA / k), 0.0, laid.tokens, table, NONE, np.zeros((0, k), bool), None)


def proportions(step: GroupStep, n_topics: int) -> np.ndarray:
    """Expected counts of topics in each document, ``(D, K)``, from the states."""
    states = step.states
    assert states is not None
    out = np.zeros((states.n_groups, n_topics))
    out[np.repeat(np.arange(states.n_groups), np.diff(states.offsets)), states.cluster] = states.count
    return out


def their_step(x: sparse.csr_matrix, table: np.ndarray, sweeps: int, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's E-step with statistics."""
    from sklearn.decomposition._lda import _update_doc_distribution

    k = len(table)
    return _update_doc_distribution(x, table, ALPHA / k, sweeps, tolerance, True, None)


def between(a: np.ndarray, b: np.ndarray) -> float:
    """Mean total variation of document-topic proportions."""
    a, b = a / a.sum(axis=1, keepdims=True), b / b.sum(axis=1, keepdims=True)
    return float(0.5 * np.abs(a - b).sum(axis=1).mean())


def against_sklearn() -> None:
    """Equal numbers of sweeps, and equal convergence: distance from the end of many sweeps."""
    for k, n_docs in ((100, 1000), (200, 600), (500, 300)):
        corpus = synthetic(n_docs, n_topics=k, n_test=10)
        log_phi = beliefs(corpus)
        table, theirs = np.exp(log_phi), sparse.csr_matrix(corpus.train)
        sweeps = 20
        cold = DocumentStep(start="cold", sweeps=sweeps, tolerance=-1.0, restarts=0, shrink=False)
        lean = dataclasses.replace(cold, shrink=True)
        ours = [partial(our_step, corpus.train, log_phi, step) for step in (cold, lean)]
        seconds, _ = in_turns([*ours, partial(their_step, theirs, table, sweeps, 0.0)])
        a, b, c = np.median(seconds, axis=1)
        dense, ratio = np.median(seconds[2] / seconds[:2], axis=1)
        emit(
            "document step, equal sweeps", K=k, sweeps=sweeps, docs_per_s=n_docs / b, dense_docs_per_s=n_docs / a,
            sklearn_docs_per_s=n_docs / c, ratio=ratio, dense_ratio=dense,
        )  # fmt: skip
        gamma, _ = their_step(theirs, table, 2000, 1e-9)
        end = our_step(corpus.train, log_phi, DocumentStep(sweeps=2000, tolerance=1e-9, restarts=0))
        end_counts, end_theirs = proportions(end, k), gamma - ALPHA / k
        gamma, _ = their_step(theirs, table, 100, 1e-3)
        off = between(gamma - ALPHA / k, end_theirs)

        def converge(tolerance: float) -> GroupStep:
            return our_step(corpus.train, log_phi, DocumentStep(sweeps=100, tolerance=tolerance, restarts=0))  # noqa: B023

        reached = {t: between(proportions(converge(t), k), end_counts) for t in TOLERANCES}
        as_far = max(t for t in TOLERANCES if reached[t] <= off)
        tolerances = sorted({as_far, DocumentStep().tolerance})
        seconds, _ = in_turns(
            [*(partial(converge, t) for t in tolerances), partial(their_step, theirs, table, 100, 1e-3)]
        )
        middle = np.median(seconds, axis=1)
        for i, tolerance in enumerate(tolerances):
            how = "as near to the end" if tolerance == as_far else "with our default"
            emit(
                f"document step, {how}", K=k, tolerance=tolerance, docs_per_s=n_docs / middle[i],
                sklearn_docs_per_s=n_docs / middle[-1], ratio=np.median(seconds[-1] / seconds[i]),
                distance=reached[tolerance], sklearn_distance=off,
            )  # fmt: skip


def default_step(program: str, k: int, n_docs: int) -> tuple[float, float]:
    """CPU milliseconds a document with the default tolerance, without restarts, and distance from the end.

    ``program`` is ``"ours"`` or ``"scikit-learn"``; the median of five.
    """
    corpus = synthetic(n_docs, n_topics=k, n_test=10)
    log_phi = beliefs(corpus)

    def ours(sweeps: int, tolerance: float) -> np.ndarray:
        step = DocumentStep(sweeps=sweeps, tolerance=tolerance, restarts=0)
        return proportions(our_step(corpus.train, log_phi, step), k)

    table, theirs = np.exp(log_phi), sparse.csr_matrix(corpus.train)

    def sklearn(sweeps: int, tolerance: float) -> np.ndarray:
        return np.asarray(their_step(theirs, table, sweeps, tolerance)[0] - ALPHA / k)

    run, sweeps, tolerance = {
        "ours": (ours, DocumentStep().sweeps, DocumentStep().tolerance),
        "scikit-learn": (sklearn, 100, 1e-3),
    }[program]
    (seconds,), (reached,) = in_turns([partial(run, sweeps, tolerance)], 5)
    return 1e3 * float(np.median(seconds)) / n_docs, between(reached, run(2000, 1e-9))


def shrinking() -> None:
    """Dense against active topics only."""
    for k, n_docs in ((200, 600), (500, 300), (1000, 200)):
        corpus = synthetic(n_docs, n_topics=k, n_test=10)
        log_phi = beliefs(corpus)
        lean = DocumentStep(start="cold", sweeps=100, tolerance=0.01, restarts=0)
        dense = dataclasses.replace(lean, shrink=False)
        a, _ = cpu_seconds(lambda: our_step(corpus.train, log_phi, lean))  # noqa: B023
        b, _ = cpu_seconds(lambda: our_step(corpus.train, log_phi, dense))  # noqa: B023
        kept = dataclasses.replace(lean, start="best")
        x = our_step(corpus.train, log_phi, kept)
        y = our_step(corpus.train, log_phi, dataclasses.replace(kept, shrink=False))
        apart = between(proportions(x, k), proportions(y, k))
        emit("shrinking", K=k, factor=b / a, docs_per_s=n_docs / a, total_variation=apart)


def top_eight() -> None:
    """Loss in held-out nats per word, and what is stored."""
    corpus = synthetic(3000, n_test=500)
    scores = {}
    for top in (None, 8, 4):
        model = bnp.Model(LDA(ALPHA, DocumentStep(top=top)), bnp.Multinomial(lam=0.1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = bnp.train(
                model, corpus.train, init=AnchorWords(50), schedule=bnp.Memoized(laps=8), client=SerialExecutor()
            )
        assert made.posterior.summary is not None
        scores[top] = completion(corpus.test, topics_of(made.posterior.observation.lam))
        stored = made.posterior.model.local_step(made.posterior, Batch(corpus.train[:500]))
        share = np.count_nonzero(stored["x"]) / stored["x"].size
        row = made.history[-1]
        emit("top", top=top, score=scores[top], loss=scores[None] - scores[top], elbo=row["elbo"], summary_share=share)


def main() -> None:
    """All of it."""
    keep_memory()
    against_sklearn()
    shrinking()
    top_eight()


if __name__ == "__main__":
    main()
