"""Few known labels: accuracy on all other rows, beside training without and beside scikit-learn's label propagation.

    python -m benchmarks.labels [--sets digits,newsgroups,words] [--labels 1,5,20] [--seeds 2] [--news FOLDER]

All methods see the same features: digits 15 principal components; newsgroups (100 posts of each of 20 groups, without
headers) 15 dimensions of a latent semantic analysis, unit vectors; words the counts of these posts themselves, of which
propagation sees unit vectors and, as ``tf-idf``, weighted ones.  ``labels`` of each class are drawn at random.

``classes``    a cluster for each label: ``labels=``, ``init=FromNothing()``, ``moves=()``
``labelled``   DPMixture of Gaussians with ``labels=``; free clusters take the nearest label (``label_of``); no words
``majority``   the same without labels; a cluster takes the label of most labelled rows in it, or none
``nearest``    as majority, but clusters without a labelled row take the nearest label, also by ``label_of``
``LP, LS``     LabelPropagation, LabelSpreading with 7 neighbours (knn) or a Gaussian kernel of the median squared
               distance to the seventh neighbour (rbf)
"""

from __future__ import annotations

import argparse
import tarfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.observation.base import KNOWN
from bnp_dask.observation.labelled import Labelled
from bnp_dask.training.train import ConvergenceWarning


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    found = load_digits()
    return PCA(15, random_state=0).fit_transform(found.data), found.target


def posts(folder: Path) -> tuple[list[str], np.ndarray]:
    """Texts of 100 posts of each group, without headers, and their groups."""
    texts: dict[str, list[str]] = {}
    with tarfile.open(folder / "20news-bydate-train.tar.xz") as archive:
        for member in archive:
            group = Path(member.name).parent.name
            if member.isfile() and len(texts.setdefault(group, [])) < 100:
                file = archive.extractfile(member)
                assert file is not None
                texts[group].append(file.read().decode("latin-1").partition("\n\n")[2])
    groups = sorted(texts)
    y = np.repeat(np.arange(len(groups)), [len(texts[group]) for group in groups])
    return [text for group in groups for text in texts[group]], y


def newsgroups(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    texts, y = posts(folder)
    x = TfidfVectorizer(stop_words="english", sublinear_tf=True, min_df=3, max_df=0.3).fit_transform(texts)
    return normalize(TruncatedSVD(15, random_state=0).fit_transform(x)), y


def words(folder: Path) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Counts of the words of posts that have any."""
    from sklearn.feature_extraction.text import CountVectorizer

    texts, y = posts(folder)
    x = CountVectorizer(stop_words="english", min_df=3, max_df=0.3).fit_transform(texts)
    some = np.asarray(x.sum(axis=1)).ravel() > 0
    return x[some].astype(np.float64), y[some]


def some_labels(y: np.ndarray, count: int, seed: int) -> np.ndarray:
    """``count`` random labels of each class, -1 elsewhere."""
    rng, out = np.random.default_rng(seed), np.full(len(y), -1)
    for label in np.unique(y):
        out[rng.choice(np.flatnonzero(y == label), count, replace=False)] = label
    return out


def trained(x: np.ndarray, seed: int, labels: np.ndarray | None = None) -> bnp.Posterior:
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())
    return bnp.train(model, x, labels=labels, rng=seed, schedule=bnp.Memoized(laps=40)).posterior


def of_classes(x: Any, seed: int, labels: np.ndarray) -> bnp.Posterior:
    """Trained with a cluster for each label and no other: all classes are known."""
    likelihood = bnp.Multinomial() if sparse.issparse(x) else bnp.Gaussian()
    model, schedule = bnp.Model(bnp.DPMixture(), likelihood), bnp.Memoized(laps=100)
    return bnp.train(model, x, labels=labels, init=bnp.FromNothing(), moves=(), schedule=schedule, rng=seed).posterior


def named(posterior: bnp.Posterior, x: Any, nearest: bool = True) -> np.ndarray:
    """Label of each row, ``(n,)``."""
    place = {int(i): k for k, i in enumerate(posterior.ids)}
    return bnp.label_of(posterior, nearest)[[place[int(i)] for i in bnp.predict(posterior, x)]]


def by_majority(posterior: bnp.Posterior, x: np.ndarray, labels: np.ndarray) -> bnp.Posterior:
    """A posterior that was trained without labels, with those of most labelled rows of each cluster."""
    names = np.unique(labels[labels >= 0])
    place = {int(i): k for k, i in enumerate(posterior.ids)}
    rows = np.array([place[int(i)] for i in bnp.predict(posterior, x)])
    known = np.zeros((posterior.n_clusters, len(names)))
    for n in np.flatnonzero(labels >= 0):
        known[rows[n], np.searchsorted(names, labels[n])] += 1.0
    most = np.where(known.max(axis=1, keepdims=True) > 0, np.eye(len(names))[known.argmax(axis=1)], 0.0)
    observation, summary = Labelled(posterior.model.observation, tuple(names.tolist())), posterior.summary
    assert summary is not None
    model = replace(posterior.model, observation=observation, reference=None)
    return model.global_step(replace(summary, fields=model.fields, values={**summary.values, KNOWN: most}))


def peers(x: Any, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Labels of all rows by propagation and by spreading."""
    from sklearn.neighbors import NearestNeighbors
    from sklearn.semi_supervised import LabelPropagation, LabelSpreading

    seventh = NearestNeighbors(n_neighbors=8).fit(x).kneighbors(x)[0][:, -1]
    ways = {"knn": {"kernel": "knn", "n_neighbors": 7}, "rbf": {"kernel": "rbf", "gamma": 1.0 / np.median(seventh**2)}}
    kinds = {"LP": LabelPropagation, "LS": LabelSpreading}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows that no label reaches
        return {
            f"{kind} {way}": cls(max_iter=1000, **given).fit(x, labels).transduction_
            for kind, cls in kinds.items()
            for way, given in ways.items()
        }


def main() -> None:
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="digits")
    parser.add_argument("--labels", default="1,5,20")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--news", type=Path, default=Path("20news"))
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in args.sets.split(","):
        if name == "digits":
            x, y = digits()
        else:
            x, y = (words if name == "words" else newsgroups)(args.news)
        is_words = sparse.issparse(x)
        for seed in range(args.seeds):
            plain = None if is_words else trained(x, seed)
            for count in map(int, args.labels.split(",")):
                labels = some_labels(y, count, seed)
                found, end = {"classes": named(of_classes(x, seed, labels), x)}, ""
                if plain is None:
                    found |= peers(normalize(x), labels)
                    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(x)
                    found |= {f"{way} tf-idf": own for way, own in peers(weighted, labels).items()}
                else:
                    start = time.process_time()
                    posterior = trained(x, seed, labels)
                    spent = time.process_time() - start
                    told = by_majority(plain, x, labels)
                    found |= {"labelled": named(posterior, x), "majority": named(told, x, False)}
                    found |= {"nearest": named(told, x), **peers(x, labels)}
                    end = f"  K {posterior.n_clusters} ({plain.n_clusters} without)  {spent:.0f} CPU s"
                rest = labels < 0
                row = "  ".join(f"{way} {np.mean(own[rest] == y[rest]):.3f}" for way, own in found.items())
                print(f"{name} {count:2d} a class, seed {seed}: {row}{end}", flush=True)


if __name__ == "__main__":
    main()
