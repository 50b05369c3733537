"""Topics whose number is learned, by default settings, from several starts, beside LDA of tomotopy told its number.

``python -m tests.benchmarks.topics.learned CORPUS [--starts default,1,50,200] [--seeds 0,1,2] [--cache FOLDER]``
prints a JSON line per run and asserts nothing.  ``1`` is ``RandomExamples(1)``, others are ``SampledTopics(number)``.
With ``--peer-python PYTHON`` tomotopy's LDA is run as well, for each of ``--peer-clusters`` and ``--peer-etas``.

Scores are nats per held-out token.  ``own`` is document completion with the prior of topics that the program itself
learned, as a user of the program would predict; ``bnp_score`` is that by ``bnp.score``, which holds out other words of
the same documents and so is no match for figures of other programs; ``even`` is that with half a count shared
equally by all topics, which gives rare topics the weight of common ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation import HDPTopics
from bnp_dask.initialize import Initialization, SampledTopics
from tests.benchmarks.topics.corpora import REAL, Corpus, load
from tests.benchmarks.topics.ours import Watch, cpu_seconds, topics_of
from tests.benchmarks.topics.score import completion

PEER = """
import sys, time, numpy as np, tomotopy
from scipy import sparse
x = sparse.load_npz(sys.argv[1]); k, eta, seed = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
model = tomotopy.LDAModel(k=k, alpha=0.5 / k, eta=eta, seed=seed)
for d in range(x.shape[0]):
    span = slice(x.indptr[d], x.indptr[d + 1])
    words = np.repeat(x.indices[span], x.data[span].astype(int))
    if len(words):
        model.add_doc([str(w) for w in words])
cpu = time.process_time()
for passes in (100, 200, 400):
    model.train(passes - (0 if passes == 100 else passes // 2), workers=2)
    phi = np.zeros((k, x.shape[1]))
    places = np.array([int(w) for w in model.used_vocabs])
    for t in range(k):
        phi[t, places] = model.get_topic_word_dist(t)
    used = time.process_time() - cpu
    np.savez(f"{sys.argv[2]}/{passes}.npz", phi=np.maximum(phi, 1e-12), alpha=model.alpha, cpu=used)
"""


def part_of(corpus: Corpus, n_documents: int | None, seed: int) -> Corpus:
    """The corpus with so many of its training documents; words that they lack are left out of the test too."""
    if n_documents is None or n_documents >= corpus.train.shape[0]:
        return corpus
    chosen = np.random.default_rng([seed, 2]).choice(corpus.train.shape[0], n_documents, replace=False)
    train = corpus.train[np.sort(chosen)]
    seen = np.flatnonzero(np.asarray(train.sum(axis=0)) > 0)
    train, test = sparse.csr_array(train[:, seen]), sparse.csr_array(corpus.test[:, seen])
    return Corpus(f"{corpus.name}, {n_documents} documents", train, test)


def start_of(name: str) -> Initialization | None:
    """A start by its name on the command line."""
    if name == "default":
        return None
    return bnp.RandomExamples(1) if name == "1" else SampledTopics(int(name))


def ours(corpus: Corpus, start: str, seed: int) -> dict[str, Any]:
    """One run with all else at its default; scores after some laps and at the end."""
    watch, model = Watch(), bnp.Model(HDPTopics(), bnp.Multinomial())
    settings = {} if start == "default" else {"init": start_of(start)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clock, cpu = time.perf_counter(), cpu_seconds()
        result = bnp.train(model, corpus.train, callbacks=[watch], rng=seed, **settings)  # type: ignore[arg-type]
        clock, cpu = time.perf_counter() - clock, cpu_seconds() - cpu
        by_score = float(bnp.score(result.posterior, corpus.test))
    last = watch.laps[-1]
    laps = [lap for lap in watch.laps if lap[0]["lap"] in (1, 2, 4, 8, 16, 32, 64)] + [last]
    alpha = result.posterior.model.allocation.alpha
    scores = []
    for row, lam, _, weights in laps:
        prior = alpha * weights / weights.sum()
        scores.append((row["lap"], round(completion(corpus.test, topics_of(lam), prior), 4), round(row["elbo"])))
    return {
        "program": "bnp_dask", "corpus": corpus.name, "start": start, "seed": seed, "K": len(last[1]),
        "objective": round(float(last[0]["elbo"])), "laps": int(last[0]["lap"]), "reason": result.reason,
        "own": scores[-1][1], "bnp_score": round(by_score, 4),
        "even": round(completion(corpus.test, topics_of(last[1])), 4),
        "cpu": round(cpu, 1), "seconds": round(clock, 1), "after_laps": scores,
    }  # fmt: skip


def peer(python: str, corpus: Corpus, k: int, eta: float, seed: int) -> Iterator[dict[str, Any]]:
    """tomotopy's LDA after 100, 200 and 400 passes, in a process of its own; its alpha is learned."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "x.npz"
        sparse.save_npz(data, corpus.train)
        subprocess.run([python, "-c", PEER, str(data), folder, str(k), str(eta), str(seed)], check=True)
        for path in sorted(Path(folder).glob("[0-9]*.npz")):
            with np.load(path) as found:
                phi, alpha, cpu = topics_of(found["phi"]), found["alpha"].astype(np.float64), float(found["cpu"])
            yield {
                "program": "tomotopy-lda", "corpus": corpus.name, "K": k, "eta": eta, "seed": seed,
                "passes": int(path.stem), "own": round(completion(corpus.test, phi, alpha), 4),
                "even": round(completion(corpus.test, phi), 4), "cpu": round(cpu, 1),
            }  # fmt: skip


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=REAL)
    parser.add_argument("--starts", default="default,1,50,200")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--cache", type=Path, help="folder that keeps the counts")
    parser.add_argument("--documents", type=int, help="take no more training documents than that, drawn uniformly")
    parser.add_argument("--peer-python")
    parser.add_argument("--peer-clusters", default="100,200")
    parser.add_argument("--peer-etas", default="0.01,0.02,0.05,0.1")
    args = parser.parse_args()
    for seed in map(int, args.seeds.split(",")):
        corpus = part_of(load(args.corpus, seed, args.cache), args.documents, seed)
        for start in [s for s in args.starts.split(",") if s]:
            print(json.dumps(ours(corpus, start, seed)), flush=True)
        if args.peer_python:
            for k in map(int, args.peer_clusters.split(",")):
                for eta in map(float, args.peer_etas.split(",")):
                    for line in peer(args.peer_python, corpus, k, eta, seed):
                        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
