"""Corpora of millions of documents with known topics, two workers; prints one JSON line per lap, and one at the end.

``python -m benchmarks.topics.million [DOCUMENTS] [LAPS] [FOLDER]``: documents of a known HDP, workers of 1 GB.  The
corpus is drawn piece by piece into a Zarr store, which is removed afterwards; a million documents take about 0.5 GB.

``python -m benchmarks.topics.million virtual [DOCUMENTS] [WORDS] [TOPICS] [LAPS] [FOLDER]``: documents that are made
when they are read (by default 8,200,000 of 140,000 words and 200 topics, 730 million tokens), with default settings but
for ``init=FromSample()``.  The run directory is removed afterwards; that of a FOLDER stays, and the same call goes on
from its last checkpoint.

Topics are matched one to one: ``matched`` have a total variation below 0.3, ``cosine`` a cosine above 0.9.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
import psutil
from distributed import Client, LocalCluster
from scipy import sparse
from scipy.optimize import linear_sum_assignment

import bnp_dask as bnp
from benchmarks.topics.ours import cpu_seconds
from benchmarks.topics.score import MATCHED, completion, matched
from bnp_dask.core.location import Location
from bnp_dask.data.ingestion.writers import CountsWriter

N_WORDS, N_TOPICS, LENGTH = 2000, 30, 40
GAMMA, ALPHA, WORDS = 10.0, 3.0, 0.03
PIECE = 20_000
BATCH = 10_000
LIMIT = "1GB"
COSINE = 0.9


def known_hdp(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the topics by stick breaking, of which the largest are kept, and their words: ``(K,)``, ``(K, V)``."""
    rng = np.random.default_rng(seed)
    sticks = rng.beta(1.0, GAMMA, 400)
    pi = np.sort(sticks * np.concatenate([[1.0], np.cumprod(1.0 - sticks)[:-1]]))[::-1][:N_TOPICS]
    return pi / pi.sum(), rng.dirichlet(np.full(N_WORDS, WORDS), N_TOPICS)


def documents(n_docs: int, seed: int = 0) -> Iterator[sparse.csr_array]:
    """The corpus, piece by piece."""
    pi, phi = known_hdp(seed)
    edges = np.cumsum(phi, axis=1)
    for start in range(0, n_docs, PIECE):
        rng = np.random.default_rng([seed, start])
        n = min(PIECE, n_docs - start)
        shares = np.array([rng.dirichlet(ALPHA * pi) for _ in range(n)])
        counts = rng.multinomial(LENGTH, shares)
        where: list[np.ndarray] = []
        words: list[np.ndarray] = []
        for k in range(N_TOPICS):
            who = np.repeat(np.arange(n), counts[:, k])
            where.append(who)
            words.append(np.minimum(np.searchsorted(edges[k], rng.random(len(who)) * edges[k, -1]), N_WORDS - 1))
        place = np.concatenate(where), np.concatenate(words)
        x = sparse.csr_array((np.ones(len(place[0])), place), shape=(n, N_WORDS))
        x.sum_duplicates()
        yield x


def write(path: Path, n_docs: int) -> None:
    """The corpus as a store."""
    writer = CountsWriter(Location.of(path), np.dtype(np.uint32), 2**62, BATCH)
    for x in documents(n_docs):
        writer.add(x)
    writer.close({"vocabulary": False}, "known HDP")


def memory() -> tuple[int, int]:
    """Memory of this process, now and at most so far, MB."""
    return round(psutil.Process().memory_info().rss / 2**20), round(getrusage(RUSAGE_SELF).ru_maxrss / 2**10)


class Watch:
    """Topics found and memory of all processes after each lap."""

    def __init__(self, client: Client, truth: np.ndarray) -> None:
        self.client, self.truth = client, truth
        self.phi = np.zeros((0, truth.shape[1]))
        self.said: dict[str, Any] = {}

    def on_start(self, info: Any) -> None:
        """Nothing to do."""

    def on_batch(self, done: int) -> None:
        """Nothing to do."""

    def on_lap(self, row: dict[str, Any], posterior: bnp.Posterior) -> None:
        """Print where the run stands."""
        lam = posterior.observation.lam
        self.phi = lam / lam.sum(axis=1, keepdims=True)
        workers = self.client.run(memory).values()
        said = {"lap": row["lap"], "seconds": round(row["seconds"], 1), "K": len(lam), "elbo": row["elbo"]}
        said |= {"sample": row["sample"]} if "sample" in row else {}
        said["matched"] = int((matched(self.phi, self.truth) < MATCHED).sum())
        said["cosine"] = int((cosines(self.phi, self.truth) > COSINE).sum())
        said |= {"worker_MB": [now for now, _ in workers], "worker_peak_MB": [most for _, most in workers]}
        said |= dict(zip(("coordinator_MB", "coordinator_peak_MB"), memory(), strict=True))
        self.said = {**said, "cpu_seconds": round(cpu_seconds(), 1)}
        print(json.dumps(self.said), flush=True)

    def on_end(self, reason: str) -> None:
        """Nothing to do."""


def main(n_docs: str = "1000000", laps: str = "10", folder: str | None = None) -> None:
    """Write, train from one topic, say what was found, and tidy up."""
    place = Path(tempfile.mkdtemp(prefix="million-", dir=folder))
    try:
        started = time.perf_counter()
        write(place / "corpus.zarr", int(n_docs))
        print(json.dumps({"documents": int(n_docs), "written_s": round(time.perf_counter() - started, 1)}), flush=True)
        with (
            warnings.catch_warnings(),
            LocalCluster(
                n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, memory_limit=LIMIT
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            warnings.simplefilter("ignore")
            watch = Watch(client, known_hdp()[1])
            result = bnp.train(
                bnp.Model(bnp.HDPTopics(GAMMA, ALPHA), bnp.Multinomial()), str(place / "corpus.zarr"),
                init=bnp.RandomExamples(1), schedule=bnp.Memoized(laps=int(laps), window=4), client=client,
                moves=[bnp.Birth(), bnp.Merge(), bnp.Delete()], store=place / "run", callbacks=[watch], rng=0,
            )  # fmt: skip
        truth = watch.truth
        test = next(documents(PIECE, seed=0))[:2000]
        found = int((matched(watch.phi, truth) < MATCHED).sum())
        scores = {"score": completion(test, watch.phi), "truth": completion(test, truth)}
        said = {
            "K": result.posterior.n_clusters,
            "matched": found,
            "of": N_TOPICS,
            "seconds": result.history[-1]["seconds"],
        }
        print(json.dumps({**said, **scores}), flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def cosines(phi: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Cosine of each true topic ``(T, V)`` and the topic matched with it."""
    one, other = (table / np.sqrt(np.square(table).sum(axis=1, keepdims=True)) for table in (phi, truth))
    both = one @ other.T
    return both[linear_sum_assignment(both, maximize=True)]


def virtual(
    n_docs: str = "8200000",
    n_words: str = "140000",
    n_topics: str = "200",
    laps: str = "100",
    folder: str | None = None,
) -> None:
    """Train on virtual documents from a sample, and say what was found."""
    data = bnp.VirtualTopics(int(n_docs), int(n_words), int(n_topics))
    truth = np.array([data.topic(k) for k in range(data.n_topics)])
    place, started = Path(tempfile.mkdtemp(prefix="virtual-") if folder is None else folder), time.perf_counter()
    try:
        with warnings.catch_warnings(), bnp.local_client(2, dashboard=None) as client:
            warnings.simplefilter("ignore")
            watch = Watch(client, truth)
            bnp.train(
                bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), data, init=bnp.FromSample(),
                schedule=bnp.Memoized(laps=int(laps)), client=client, store=place / "run",
                resume=(place / "run").exists(), callbacks=[watch], rng=0,
            )  # fmt: skip
            took = {"documents": data.n_rows, "words": data.n_words, "of": data.n_topics}
            took |= {"all_seconds": round(time.perf_counter() - started, 1), "all_cpu_seconds": round(cpu_seconds(), 1)}
        print(json.dumps({"result": "virtual", **took, **watch.said}), flush=True)
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    virtual(*sys.argv[2:]) if sys.argv[1:2] == ["virtual"] else main(*sys.argv[1:])
