"""Classes of held-out documents: topics that were trained with them, beside logistic regression on topics without.

    python -m benchmarks.response_classes [--topics 40] [--words 2000] [--laps 30] [--seeds 2] [--known 1.0]

20 Newsgroups, by date: 2,000 messages of the first part without their headers, 1,000 of the second are held out; words
as in :mod:`benchmarks.responses`.  ``--known`` is the share of the messages whose class is known.

Printed: accuracy and mean log probability (nats) of the held-out classes, and CPU seconds.

``supervised LDA``          ours, ``responses=``, CategoricalResponse
``LDA + logistic``          ours without, and LogisticRegressionCV on expected shares of tokens
``scikit-learn + logistic`` LatentDirichletAllocation (batch), and LogisticRegressionCV on its shares
"""

from __future__ import annotations

import argparse
import tarfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from benchmarks.responses import Split, counted, read
from benchmarks.topics.corpora import SHARED
from bnp_dask.analysis.topics.completion import token_shares
from bnp_dask.training.train import ConvergenceWarning

N_MESSAGES = 2000, 1000
"""Messages for training and held out."""


def newsgroups(folder: Path, seed: int, n_words: int) -> Split:
    parts = []
    for name, count in zip(("train", "test"), N_MESSAGES, strict=True):
        texts, groups = [], []
        with tarfile.open(folder / "newsgroups20" / f"20news-bydate-{name}.tar.xz", "r|xz") as archive:
            for member in archive:
                if member.isfile():
                    texts.append(read(archive, member).partition("\n\n")[2].lower())
                    groups.append(Path(member.name).parent.name)
        chosen = np.random.default_rng([seed, count]).permutation(len(texts))[:count]
        parts.append(([texts[i] for i in chosen], np.array(groups)[chosen]))
    return counted(*parts[0], *parts[1], n_words)


def trained(x: sparse.csr_array, n_topics: int, seed: int, laps: int, responses: np.ndarray | None) -> bnp.Posterior:
    response = None if responses is None else bnp.CategoricalResponse()
    model = bnp.Model(bnp.LDA(0.5, response=response), bnp.Multinomial())
    schedule = bnp.Memoized(laps=laps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = bnp.train(
            model, x, init=bnp.SampledTopics(n_topics), schedule=schedule, rng=seed, responses=responses,
            batch_size=1000,
        )  # fmt: skip
    return run.posterior


def logistic(train: np.ndarray, test: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probabilities of the classes, ascending; the penalty is chosen by three folds."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.preprocessing import StandardScaler

    scale, some = StandardScaler().fit(train), y != ""
    made = LogisticRegressionCV(Cs=np.logspace(-4, 2, 7), cv=3, scoring="neg_log_loss", max_iter=500)
    found: np.ndarray = made.fit(scale.transform(train[some]), y[some]).predict_proba(scale.transform(test))
    return found


def supervised(n_topics: int, split: Split, seed: int, laps: int) -> np.ndarray:
    return bnp.predict_response(trained(split[0], n_topics, seed, laps, split[1]), split[2]).mean


def then_logistic(n_topics: int, split: Split, seed: int, laps: int) -> np.ndarray:
    posterior = trained(split[0], n_topics, seed, laps, None)
    train, test = (token_shares(posterior, bnp.Batch(part))[0] for part in (split[0], split[2]))
    return logistic(train, test, split[1])


def scikit_learn(n_topics: int, split: Split, seed: int, laps: int) -> np.ndarray:
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(n_topics, max_iter=laps, random_state=seed).fit(split[0])
    return logistic(model.transform(split[0]), model.transform(split[2]), split[1])


METHODS: dict[str, Callable[[int, Split, int, int], np.ndarray]] = {
    "supervised LDA": supervised,
    "LDA + logistic": then_logistic,
    "scikit-learn + logistic": scikit_learn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=40)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--laps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--known", type=float, default=1.0)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--data", type=Path, default=SHARED)
    args = parser.parse_args()
    for seed in range(args.seeds):
        x, y, x_test, y_test = newsgroups(args.data, seed, args.words)
        names = np.unique(y)
        unknown = np.random.default_rng(seed).random(len(y)) >= args.known
        split = x, np.where(unknown, "", y), x_test, y_test
        for method in args.methods.split(","):
            begun = time.process_time()
            found = METHODS[method](args.topics, split, seed, args.laps)
            spent, place = time.process_time() - begun, np.searchsorted(names, y_test)
            accuracy = np.mean(found.argmax(axis=1) == place)
            logs = np.log(found[np.arange(len(place)), place]).mean()
            print(f"seed {seed}: {method:24s} accuracy {accuracy:.3f}  log {logs:.3f}  {spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
