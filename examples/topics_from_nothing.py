"""Topics that appear as documents come: truncation-free stochastic inference, which starts from no topic at all.

1,000 documents of 100 words are drawn from one to three of ten topics, the bars of a 5 x 5 square (Griffiths & Steyvers
2004).  Draws the topics in use after each batch of the first pass, and expected topics at the end.

    python examples/topics_from_nothing.py topics.png
"""

import sys

import matplotlib as mpl
import numpy as np
from scipy import sparse

import bnp_dask as bnp

mpl.use("Agg")
import matplotlib.pyplot as plt

SIDE, DOCUMENTS, LENGTH, BATCH, LAPS = 5, 1000, 100, 100, 5


def bars() -> np.ndarray:
    """Word probabilities of horizontal and vertical bars, ``(10, 25)``."""
    rows = np.kron(np.eye(SIDE), np.full(SIDE, 1.0 / SIDE))
    columns = rows.reshape(SIDE, SIDE, SIDE).transpose(0, 2, 1).reshape(SIDE, -1)
    return np.concatenate([rows, columns])


def documents(seed: int = 0) -> sparse.csr_array:
    """Counts of words, ``(1000, 25)``."""
    rng, topics = np.random.default_rng(seed), bars()
    out = np.empty((DOCUMENTS, SIDE * SIDE))
    for d in range(DOCUMENTS):
        own = rng.choice(len(topics), rng.integers(1, 4), replace=False)
        out[d] = rng.multinomial(LENGTH, rng.dirichlet(np.ones(len(own))) @ topics[own])
    return sparse.csr_array(out)


def draw(posterior: bnp.Posterior, history: bnp.History, path: str) -> None:
    """Topics over documents, and expected topics by falling size with their share of tokens."""
    figure = plt.figure(figsize=(9.0, 3.2))
    left, right = figure.subfigures(1, 2, width_ratios=[1.0, 1.6])
    axis = left.subplots()
    axis.step(BATCH * np.arange(1, len(history) + 1), [row["n_clusters"] for row in history], where="post")
    axis.axhline(len(bars()), color="0.7", zorder=0)
    axis.set(xlabel="documents visited", ylabel="topics", ylim=(0.0, None))
    left.subplots_adjust(bottom=0.2, left=0.2)
    lam, tokens = posterior.observation.lam, posterior.summary["N"]
    axes = right.subplots(2, 6).ravel()
    for axis in axes:
        axis.axis("off")
    for k, axis in zip(np.argsort(-tokens), axes, strict=False):
        axis.imshow((lam[k] / lam[k].sum()).reshape(SIDE, SIDE), cmap="gray_r", vmin=0.0, vmax=1.0 / SIDE)
        axis.set_title(f"{tokens[k] / tokens.sum():.1%}", fontsize=8)
    figure.savefig(path, dpi=150)


def main(path: str) -> None:
    model = bnp.Model(bnp.HDPTopics(gamma=1.0, alpha=1.0), bnp.Multinomial(0.05))
    schedule = bnp.TruncationFreeSVI(laps=LAPS, minibatch=10, burn_in=20)
    result = bnp.train(model, documents(), schedule=schedule, batch_size=BATCH)
    posterior = result.posterior
    found = int(np.sum(posterior.summary["N"] > 0.01 * posterior.summary["N"].sum()))
    score = bnp.score(posterior, documents(seed=1))
    print(
        f"{found} topics of more than a hundredth of all tokens, {score:.4f} nats per held-out token of new documents"
    )
    draw(posterior, result.history, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "topics.png")
