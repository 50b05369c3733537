"""Score of held-out documents after each lap, next to scikit-learn's online LDA after each pass; asserts nothing.

``python -m benchmarks.topics.plot CORPUS OUT.png [LAPS]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy import sparse

from benchmarks.topics import ours
from benchmarks.topics.corpora import Corpus, load
from benchmarks.topics.peers import ALPHA, ETA
from benchmarks.topics.score import completion

ONLINE_BATCH = 128
"""Documents of a step of the online method: its default."""


def online_scores(corpus: Corpus, n_topics: int, passes: int, seed: int = 0) -> list[float]:
    """Scores of scikit-learn's online LDA, passes over the documents in a new order each."""
    from sklearn.decomposition import LatentDirichletAllocation

    x = sparse.csr_matrix(corpus.train)
    model = LatentDirichletAllocation(
        n_topics, doc_topic_prior=ALPHA / n_topics, topic_word_prior=ETA, learning_method="online",
        total_samples=x.shape[0], random_state=seed,
    )  # fmt: skip
    rng, out = np.random.default_rng(seed), []
    for _ in range(passes):
        order = rng.permutation(x.shape[0])
        for start in range(0, len(order), ONLINE_BATCH):
            model.partial_fit(x[order[start : start + ONLINE_BATCH]])
        out.append(completion(corpus.test, model.components_ / model.components_.sum(axis=1, keepdims=True)))
    return out


def draw(corpus: Corpus, lines: dict[str, list[float]], path: Path) -> None:
    """One line per program."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
    for (name, scores), style in zip(lines.items(), ("o-", "s-", "^--"), strict=False):
        axes.plot(range(1, len(scores) + 1), scores, style, label=name, markersize=4)
    axes.set_xlabel("passes over the documents")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("nats per held-out token")
    axes.set_title(f"Document completion, {corpus.name}: {corpus.train.shape[0]:,} documents")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)


def main(name: str, out: str, laps: str = "8") -> None:
    """Train both and draw."""
    corpus = load(name)
    settings = ours.Ours(
        n_clusters=300, start="anchors", lam=0.4, common=0.6, restarts=0, laps=int(laps), where="threads",
        batch_docs=-(-corpus.train.shape[0] // 10),
    )  # fmt: skip
    found = ours.run(settings, corpus)
    mine = [lap["score"] for lap in found["laps_run"]]
    lines = {f"bnp_dask, K={found['K']} found": mine}
    lines["scikit-learn online, K=50 given"] = online_scores(corpus, 50, int(laps))
    print(json.dumps({"corpus": name, **lines}), flush=True)
    draw(corpus, lines, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
