"""Texts in the order in which they came, beside gensim's ``update`` and scikit-learn's ``partial_fit``.

``python -m benchmarks.streaming.texts reuters|nips [FILES [K ...]]``: each file (22 of Reuters-21578, 13 volumes
of NIPS) is scored before it is taken in, by the topics learned from those before it: document completion, nats per
token, one evaluator for all (``topics/score.py``) with equal shares of topics, and with each program's own prior.
This package is not told K; the others are given each K.  gensim is left out where it is not installed.  Words are those
of the whole corpus for all programs.

Topics of successive versions are matched by content, one to one; printed is in how many cases the matched topics have
one id: of all topics, and of those that hold at least .1 % of the tokens.
"""

from __future__ import annotations

import gzip
import html
import re
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

import bnp_dask as bnp
from benchmarks.timing import emit
from benchmarks.topics.corpora import SHARED
from benchmarks.topics.score import ALPHA, completion
from bnp_dask.execute import SerialExecutor

LAM = 0.1
WAYS = ((0.0, 0), (1.0, 0), (1.0, 2))
"""``revisit`` and ``laps`` of updates."""

SMALL = 1e-3
"""Share of tokens below which a topic is small."""


def reuters(limit: int) -> list[list[str]]:
    """Titles and bodies of each file."""
    out = []
    for path in sorted((SHARED / "reuters21578").glob("reut2-*.sgm.gz"))[:limit]:
        content = gzip.decompress(path.read_bytes()).decode("latin-1")
        records = re.findall(r"<REUTERS[^>]*>(.*?)</REUTERS>", content, re.DOTALL)
        parts = [re.findall(r"<(TITLE|BODY)>(.*?)</\1>", record, re.DOTALL) for record in records]
        out.append([html.unescape(" ".join(text for _, text in own)) for own in parts])
    return out


def nips(limit: int) -> list[list[str]]:
    """Papers of each volume."""
    out: dict[str, list[str]] = {}
    with tarfile.open(SHARED / "nips12" / "nipstxt.tar.xz", "r:xz") as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.name.endswith(".txt") else None
            if handle is not None and re.search(r"nips\d\d/", member.name):
                out.setdefault(Path(member.name).parent.name, []).append(handle.read().decode("latin-1"))
    return [out[name] for name in sorted(out)][:limit]


def counts(files: list[list[str]]) -> list[sparse.csr_array]:
    """Counts of each file; documents of fewer than two distinct words are left out."""
    words = CountVectorizer(token_pattern="[a-z]{3,}", min_df=10, max_df=0.5)
    words.fit(text for file in files for text in file)
    found = [sparse.csr_array(words.transform(file).astype(np.float64)) for file in files]
    return [x[np.flatnonzero(np.diff(x.indptr) >= 2)] for x in found]


class Learner(Protocol):
    """A program that learns from one file after the other."""

    def learn(self, x: sparse.csr_array) -> None: ...

    def topics(self) -> tuple[np.ndarray, np.ndarray]:
        """Topics ``(K, V)`` and the prior of a document ``(K,)``."""


class Ours:
    """This package, from nothing, K not given."""

    def __init__(self, folder: Path, revisit: float, laps: int) -> None:
        self.store, self.revisit, self.laps = folder / f"run{revisit:g}-{laps}", revisit, laps
        self.posterior: Any = None
        self.fresh: list[float] = []
        self.folder, self.n_files = folder, 0

    def learn(self, x: sparse.csr_array) -> None:
        data = self._stored(x) if self.revisit else x
        if self.posterior is None:
            model, schedule = bnp.Model(bnp.HDPTopics(alpha=ALPHA), bnp.Multinomial(LAM)), bnp.Memoized(laps=10)
            more = {"store": self.store, "client": SerialExecutor(), "batch_size": 250}
            self.posterior = bnp.train(model, data, schedule=schedule, **more).posterior  # type: ignore[arg-type]
        else:
            facts = {"revisit": self.revisit, "laps": self.laps, "batch_size": 250}
            found = bnp.update(self.store, data, client=SerialExecutor(), **facts)  # type: ignore[arg-type]
            self.posterior = found.posterior
            self.fresh.append(found.fresh)

    def _stored(self, x: sparse.csr_array) -> Path:
        """A file of its own, so that it can be visited again."""
        self.n_files += 1
        place = self.folder / f"{self.store.name}-{self.n_files}.npz"
        sparse.save_npz(place, x.tocsr())
        bnp.ingest(place, place.with_suffix(".zarr"), batch_size=250)
        return place.with_suffix(".zarr")

    def topics(self) -> tuple[np.ndarray, np.ndarray]:
        lam, weights = self.posterior.observation.lam, np.asarray(self.posterior.weights)
        return lam / lam.sum(axis=1, keepdims=True), ALPHA * weights / weights.sum()


class ScikitLearn:
    """Online variational Bayes of scikit-learn, which is told how many documents there will be."""

    def __init__(self, k: int, total: int) -> None:
        prior = {"doc_topic_prior": ALPHA / k, "topic_word_prior": LAM}
        self.k, self.model = k, LatentDirichletAllocation(k, total_samples=total, random_state=0, **prior)

    def learn(self, x: sparse.csr_array) -> None:
        for start in range(0, x.shape[0], 128):
            self.model.partial_fit(sparse.csr_matrix(x[start : start + 128]))

    def topics(self) -> tuple[np.ndarray, np.ndarray]:
        lam = self.model.components_
        return lam / lam.sum(axis=1, keepdims=True), np.full(self.k, ALPHA / self.k)


class Gensim:
    """``LdaModel.update``."""

    def __init__(self, k: int, n_words: int) -> None:
        names = {i: str(i) for i in range(n_words)}
        more = {"alpha": [ALPHA / k] * k, "eta": LAM, "chunksize": 250, "random_state": 0}
        self.k, self.model = k, import_module("gensim.models").LdaModel(num_topics=k, id2word=names, **more)

    def learn(self, x: sparse.csr_array) -> None:
        corpus = import_module("gensim.matutils").Sparse2Corpus(sparse.csr_matrix(x), documents_columns=False)
        self.model.update([[(int(i), float(n)) for i, n in document] for document in corpus])

    def topics(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.get_topics(), np.full(self.k, ALPHA / self.k)


def same_ids(before: Any, after: Any) -> Iterator[tuple[bool, bool]]:
    """Of each pair of topics matched by content: whether they have one id, and whether they are not small."""
    one, other = (p.observation.lam / p.observation.lam.sum(axis=1, keepdims=True) for p in (before, after))
    cost = np.array([0.5 * np.abs(other - row).sum(axis=1) for row in one])
    large = [p.summary["N"] >= SMALL * p.summary["N"].sum() for p in (before, after)]
    for i, j in zip(*linear_sum_assignment(cost), strict=True):
        yield bool(before.ids[i] == after.ids[j]), bool(large[0][i] and large[1][j])


def follow(name: str, learner: Learner, files: list[sparse.csr_array], **facts: Any) -> list[float]:
    """Score each file before it is learned from."""
    equal, own, began, pairs, before, n_topics = [], [], time.process_time(), [], None, 0
    scoring = 0.0
    for number, x in enumerate(files):
        if number:
            start = time.process_time()
            phi, prior = learner.topics()
            n_topics = len(phi)
            equal.append(completion(x, phi))
            own.append(completion(x, phi, prior))
            scoring += time.process_time() - start
        learner.learn(x)
        if isinstance(learner, Ours):
            if before is not None:
                pairs += list(same_ids(before, learner.posterior))
            before = learner.posterior
    more: dict[str, Any] = {"K": n_topics, "cpu_seconds": round(time.process_time() - began - scoring), **facts}
    more |= {"own_prior": round(float(np.mean(own)), 4), "by_file": [round(value, 3) for value in equal]}
    if isinstance(learner, Ours):
        more["fresh"] = round(float(np.mean(learner.fresh)), 4)
    emit(f"score of files to come, {name}", float(np.mean(equal)), "nats per token", len(equal), **more)
    if pairs:
        found = np.array(pairs)
        large = found[found[:, 1], 0]
        emit(f"matched topics with one id, {name}", found[:, 0].mean(), "share", len(found), large=float(large.mean()))
    return equal


def main(corpus: str, limit: int = 100, *given: int) -> None:
    warnings.simplefilter("ignore")
    files = counts({"reuters": reuters, "nips": nips}[corpus](limit))
    about = {"corpus": corpus, "n_files": len(files), "words": files[0].shape[1]}
    total = sum(x.shape[0] for x in files)
    with tempfile.TemporaryDirectory() as folder:
        ours = [follow(f"bnp_dask, revisit={r:g}, laps={n}", Ours(Path(folder), r, n), files, **about) for r, n in WAYS]
    for k in given or (50, 100):
        others = {"scikit-learn": follow("scikit-learn", ScikitLearn(k, total), files, **about)}
        if find_spec("gensim") is not None:
            others["gensim"] = follow("gensim", Gensim(k, files[0].shape[1]), files, **about)
        for name, scores in others.items():
            for (revisit, laps), own in zip(WAYS, ours, strict=True):
                above = sum(a > b for a, b in zip(own, scores, strict=True))
                facts = {"revisit": revisit, "laps": laps, "of": len(scores), "K": k}
                emit(f"files that bnp_dask expects better than {name}", above, "files", 1, **facts)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
