"""Clusters of texts by the directions of their embeddings: 20 Newsgroups in 50 dimensions, against k-means of 20.

    python -m tests.benchmarks.embeddings [--laps 25]

Words in 5 to half of the documents, no English stop words, sublinear tf-idf, 50 components of the truncated SVD, rows
divided by their lengths; 18,846 documents of 20 groups, headers included.  One seed, a loaded machine:

                     K    NMI    ARI   CPU s
    k-means of 20   20   .470   .319     4.4
    VonMisesFisher 222   .421   .145    64.6   25 laps, not converged, K rising

Newsgroups are no clusters of that kind: each is many of its own, of 3 to 500 documents with concentrations of 50 to
1,700.  The number of groups is not found, and k-means that is told it agrees better with them.
"""

from __future__ import annotations

import argparse
import tarfile
import time
import warnings
from pathlib import Path

import numpy as np

import bnp_dask as bnp

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "newsgroups20"


def newsgroups() -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors ``(n, 50)`` and the group of each."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts, groups = [], []
    for part in ("train", "test"):
        with tarfile.open(DATA / f"20news-bydate-{part}.tar.xz", "r|xz") as archive:
            for member in archive:
                if member.isfile():
                    texts.append(archive.extractfile(member).read().decode("latin-1"))  # type: ignore[union-attr]
                    groups.append(member.name.split("/")[-2])
    counts = TfidfVectorizer(max_df=0.5, min_df=5, stop_words="english", sublinear_tf=True).fit_transform(texts)
    x = TruncatedSVD(50, random_state=0).fit_transform(counts)
    lengths = np.linalg.norm(x, axis=1)
    known = lengths > 1e-9
    return x[known] / lengths[known, None], np.unique(groups, return_inverse=True)[1][known]


def main() -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    parser = argparse.ArgumentParser()
    parser.add_argument("--laps", type=int, default=25)
    laps = parser.parse_args().laps
    warnings.simplefilter("ignore")
    x, groups = newsgroups()

    def ours() -> np.ndarray:
        model = bnp.Model(bnp.DPMixture(), bnp.VonMisesFisher())
        result = bnp.train(model, x, batch_size=5_000, schedule=bnp.Memoized(laps=laps))
        return np.asarray(bnp.predict(result.posterior, x))

    ways = {"k-means of 20": lambda: KMeans(20, n_init=3, random_state=0).fit_predict(x), "VonMisesFisher": ours}
    for name, way in ways.items():
        start = time.process_time()
        labels = way()
        scores = normalized_mutual_info_score(groups, labels), adjusted_rand_score(groups, labels)
        seconds = time.process_time() - start
        print(f"{name:16} K {len(np.unique(labels)):4} NMI {scores[0]:.3f} ARI {scores[1]:.3f} {seconds:6.1f} CPU s")


if __name__ == "__main__":
    main()
