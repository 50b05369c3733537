"""Responses of held-out documents: topics that were trained with them, beside ridge regression on topics without.

    python -m benchmarks.responses [--sets imdb,nips] [--topics 20] [--words 2000] [--laps 30] [--seeds 3] [--data DIR]

``imdb``   2,000 film reviews, their rating (1 to 10); 1,000 of the other half are held out
``nips``   1,740 papers, their volume (0 to 12); a fifth is held out

Words: lower case, three letters or more, in ten documents or more, without English stop words; the most frequent
``--words``.
Printed: the share of the held-out variance that is explained (predictive R2), its mean over seeds, and CPU seconds.

``supervised LDA, HDP``  ours, ``responses=``; HDP learns the number of topics
``LDA, HDP + ridge``     ours without, and RidgeCV on expected shares of tokens
``scikit-learn + ridge`` LatentDirichletAllocation (batch), and RidgeCV on its shares
"""

from __future__ import annotations

import argparse
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.topics.corpora import SHARED
from bnp_dask.analysis.topics.completion import token_shares
from bnp_dask.training.train import ConvergenceWarning

ALPHAS = np.logspace(-4, 4, 17)
"""Strengths among which RidgeCV chooses by leave-one-out errors."""

N_IMDB = 2000, 1000
"""Reviews for training and held out."""

Split = tuple[sparse.csr_array, np.ndarray, sparse.csr_array, np.ndarray]


def imdb(folder: Path, seed: int, n_words: int) -> Split:
    parts = []
    for name, count in zip(("train", "test"), N_IMDB, strict=True):
        texts, ratings = [], []
        with tarfile.open(folder / "imdb" / f"aclImdb_{name}.tar.xz", "r|xz") as archive:
            for member in archive:
                if member.isfile() and Path(member.name).parent.name in ("pos", "neg"):
                    texts.append(read(archive, member).replace("<br />", " "))
                    ratings.append(float(Path(member.name).stem.split("_")[1]))
        chosen = np.random.default_rng([seed, count]).permutation(len(texts))[:count]
        parts.append(([texts[i] for i in chosen], np.array(ratings)[chosen]))
    return counted(*parts[0], *parts[1], n_words)


def nips(folder: Path, seed: int, n_words: int) -> Split:
    texts, volumes = [], []
    with tarfile.open(folder / "nips12" / "nipstxt.tar.xz", "r|xz") as archive:
        for member in archive:
            if member.isfile() and Path(member.name).parent.name.startswith("nips"):
                texts.append(read(archive, member))
                volumes.append(float(Path(member.name).parent.name[4:]))
    order, n_test = np.random.default_rng(seed).permutation(len(texts)), len(texts) // 5
    test, train = order[:n_test], order[n_test:]
    y = np.array(volumes)
    return counted([texts[i] for i in train], y[train], [texts[i] for i in test], y[test], n_words)


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file is not None
    return file.read().decode("latin-1")


def counted(train: list[str], y: np.ndarray, test: list[str], y_test: np.ndarray, n_words: int) -> Split:
    """Counts of the words of training."""
    from sklearn.feature_extraction.text import CountVectorizer

    words = CountVectorizer(token_pattern="[a-z]{3,}", min_df=10, stop_words="english", max_features=n_words)
    x = words.fit_transform(train).astype(np.float64)
    return sparse.csr_array(x), y, sparse.csr_array(words.transform(test).astype(np.float64)), y_test


# -- methods --------------------------------------------------------------------------------------------------------
def trained(
    x: sparse.csr_array, n_topics: int | None, seed: int, laps: int, responses: np.ndarray | None = None
) -> Any:
    allocation = bnp.HDPTopics() if n_topics is None else bnp.LDA(0.5)
    init = None if n_topics is None else bnp.SampledTopics(n_topics)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = bnp.train(
            bnp.Model(allocation, bnp.Multinomial()),
            x,
            init=init,
            schedule=bnp.Memoized(laps=laps),
            rng=seed,
            responses=responses,
            batch_size=1000,
        )
    return run.posterior


def supervised(n_topics: int | None, split: Split, seed: int, laps: int) -> tuple[np.ndarray, int]:
    x, y, x_test, _ = split
    posterior = trained(x, n_topics, seed, laps, y)
    return bnp.predict_response(posterior, x_test).mean, posterior.n_clusters


def then_ridge(n_topics: int | None, split: Split, seed: int, laps: int) -> tuple[np.ndarray, int]:
    x, y, x_test, _ = split
    posterior = trained(x, n_topics, seed, laps)
    shares = (token_shares(posterior, bnp.Batch(part))[0] for part in (x, x_test))
    return ridge(*shares, y), posterior.n_clusters


def scikit_learn(n_topics: int, split: Split, seed: int, laps: int) -> tuple[np.ndarray, int]:
    from sklearn.decomposition import LatentDirichletAllocation

    x, y, x_test, _ = split
    model = LatentDirichletAllocation(n_topics, max_iter=laps, random_state=seed).fit(x)
    return ridge(model.transform(x), model.transform(x_test), y), n_topics


def ridge(train: np.ndarray, test: np.ndarray, y: np.ndarray) -> np.ndarray:
    from sklearn.linear_model import RidgeCV

    found: np.ndarray = RidgeCV(alphas=ALPHAS).fit(train, y).predict(test)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="imdb,nips")
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--laps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="")
    parser.add_argument("--data", type=Path, default=SHARED)
    args = parser.parse_args()
    k: int = args.topics
    laps: int = args.laps
    methods: dict[str, Callable[[Split, int], tuple[np.ndarray, int]]] = {
        "supervised LDA": lambda split, seed: supervised(k, split, seed, laps),
        "LDA + ridge": lambda split, seed: then_ridge(k, split, seed, laps),
        "scikit-learn + ridge": lambda split, seed: scikit_learn(k, split, seed, laps),
        "supervised HDP": lambda split, seed: supervised(None, split, seed, laps),
        "HDP + ridge": lambda split, seed: then_ridge(None, split, seed, laps),
    }
    for name in args.sets.split(","):
        rows: dict[str, list[tuple[float, float, int]]] = {}
        for seed in range(args.seeds):
            split = {"imdb": imdb, "nips": nips}[name](args.data, seed, args.words)
            y = split[3]
            for method, run in methods.items():
                if args.methods and method not in args.methods.split(","):
                    continue
                begun = time.process_time()
                found, n_topics = run(split, seed)
                r2 = 1.0 - float(np.mean((found - y) ** 2) / np.var(y))
                rows.setdefault(method, []).append((r2, time.process_time() - begun, n_topics))
                print(
                    f"{name} seed {seed}: {method:22s} R2 {r2:.3f}  K {n_topics}  {rows[method][-1][1]:.0f} s",
                    flush=True,
                )
        for method, found_all in rows.items():
            print(f"{name}: {method:22s} mean R2 {np.mean([r for r, *_ in found_all]):.3f} of {len(found_all)} seeds")


if __name__ == "__main__":
    main()
