"""Collapsed Gibbs sampling of KOS (Neal 2000, Alg. 3), in one process, beside a sampler that opens clusters well.

``python -m tests.benchmarks.streaming.collapsed SPLIT SWEEPS``: JSON lines, every fifth sweep the held-out score of the
partition as in :mod:`tests.benchmarks.streaming.filters`.  Dirichlet process, from the clusters of one pass.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import numpy as np
from numba import njit

import bnp_dask as bnp
from bnp_dask.kernels.streaming.counts import log_predictive_counts
from tests.benchmarks.streaming.filters import PRIORS, parted

ROOM = 200
"""Clusters at most."""


@njit
def move(words, held, times, k, table, totals, counts):
    """Add a document to a cluster, or take it out."""
    counts[k] += times
    for j in range(len(words)):
        table[words[j], k] += times * held[j]
        totals[k] += times * held[j]


@njit
def sweep(rows, prior, mass, tables, place, uniform, order):
    """Draw the cluster of each document given those of all others."""
    indptr, indices, data = rows
    table, totals, counts = tables
    room, total = len(totals), prior.sum()
    logs, factors = np.empty(room + 1), np.empty(room + 1)
    for i in order:
        words, held = indices[indptr[i] : indptr[i + 1]], data[indptr[i] : indptr[i + 1]]
        move(words, held, -1.0, place[i], table, totals, counts)
        log_predictive_counts(words, held, prior, total, 1, table, totals, room, factors, logs)
        free = -1
        for k in range(room):
            if counts[k] > 0.5:
                logs[k] += np.log(counts[k])
            elif free < 0:
                free = k
                logs[k] += np.log(mass)
            else:
                logs[k] = -np.inf
        shares = np.cumsum(np.exp(logs[:room] - logs[:room].max()))
        place[i] = np.searchsorted(shares, uniform[i] * shares[-1], side="right")
        move(words, held, 1.0, place[i], table, totals, counts)


def main(split: int, sweeps: int) -> None:
    held, rest, base = parted(split)
    model = bnp.Model(PRIORS["DP"], bnp.Multinomial(0.1))
    first = bnp.train(model, rest, schedule=bnp.Filter(), batch_size=1000).posterior
    place = np.unique(bnp.predict(first, rest), return_inverse=True)[1].astype(np.int64)
    rows = (rest.indptr.astype(np.int64), rest.indices.astype(np.int64), rest.data.astype(float))
    tables = (np.zeros((rest.shape[1], ROOM)), np.zeros(ROOM), np.zeros(ROOM))
    for i, k in enumerate(place):
        own = slice(rows[0][i], rows[0][i + 1])
        move(rows[1][own], rows[2][own], 1.0, k, *tables)
    rng, start = np.random.default_rng(0), time.process_time()
    prior = np.full(rest.shape[1], 0.1)
    for lap in range(1, sweeps + 1):
        sweep(rows, prior, model.allocation.gamma, tables, place, rng.random(len(place)), rng.permutation(len(place)))
        if lap % 5 == 0:
            live = np.flatnonzero(tables[2] > 0.5)
            live = live[np.argsort(-tables[2][live])]
            summary = first.model.empty_summary(np.arange(len(live)))
            values = {**summary.values, "N": tables[2][live], "x": tables[0][:, live].T.copy()}
            found = first.model.global_step(replace(summary, values=values))
            line = {"sweep": lap, "clusters": len(live), "gain": bnp.score(found, held) * 686 - base}
            print(json.dumps({**line, "cpu_seconds": time.process_time() - start}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
