"""Truncation-free stochastic inference against that with a truncation, as in Figures 3 and 4 of Wang & Blei 2012.

``python -m benchmarks.streaming.truncation_free KIND CORPUS LAPS SIZES [TRUNCATED_SIZES]``: KIND is ``mixture``
or ``topics``, CORPUS ``kos``, ``newsgroups20`` or ``imdb``, SIZES are documents in a minibatch such as ``1,10,500``.
JSON lines: score of held-out documents, clusters, CPU seconds of training.

Scores are nats per held-out word as in S.3 (:func:`bnp_dask.word_score`), of topics that of document completion too.
Settings are those of section 3:
eta = 0.5 and a = 1 for mixtures, eta = 0.01 and a = b = 1 for topics, 300 clusters for ``Stochastic``, which starts
from random documents.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

import bnp_dask as bnp
from benchmarks.topics.corpora import Corpus, load

MODELS = {
    "mixture": bnp.Model(bnp.DPMixture(1.0), bnp.Multinomial(0.5)),
    "topics": bnp.Model(bnp.HDPTopics(1.0, 1.0), bnp.Multinomial(0.01)),
}
TRUNCATION, BATCH = 300, 500


def measure(kind: str, corpus: Corpus, name: str, size: int, schedule: object, batch: int, init: object) -> None:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bnp.train(MODELS[kind], corpus.train, schedule=schedule, batch_size=batch, init=init, moves=())
    seconds = time.process_time() - start
    posterior = result.posterior
    score = bnp.word_score(posterior, corpus.test)
    held = int(np.sum(posterior.summary["N"] >= 1.0))
    line = {"schedule": name, "minibatch": size, "score": score, "clusters": held, "cpu_seconds": seconds}
    if kind == "topics":
        line["completion"] = bnp.score(posterior, corpus.test)
    print(json.dumps({"kind": kind, "corpus": corpus.name, "laps": schedule.laps, **line}), flush=True)


def main(kind: str, name: str, laps: int, sizes: str, truncated: str = "") -> None:
    corpus = load(name)
    for size in (int(s) for s in sizes.split(",") if s):
        measure(kind, corpus, "free", size, bnp.TruncationFreeSVI(laps=laps, minibatch=size), BATCH, None)
    for size in (int(s) for s in truncated.split(",") if s):
        schedule = bnp.Stochastic(laps=laps, window=1, decay=0.6, delay=1.0)
        measure(kind, corpus, "truncated", size, schedule, size, bnp.RandomExamples(TRUNCATION))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:6])
