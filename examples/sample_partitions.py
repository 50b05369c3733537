"""How sure is a clustering?  Draws of partitions of the iris flowers: how often two of them share a cluster.

The left picture has the flowers in the order of the clusters of the point estimate, and is dark where two of them were
in one cluster in most draws; the right one counts clusters sweep by sweep, a line for each chain.

    python examples/sample_partitions.py partitions.png
"""

import sys

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_iris

import bnp_dask as bnp

mpl.use("Agg")
import matplotlib.pyplot as plt

LAPS, BURN_IN, CHAINS = 400, 100, 3
LEAST = 5
"""Flowers that a cluster has to hold to be counted."""


def sample(x: np.ndarray, laps: int = LAPS, burn_in: int = BURN_IN) -> bnp.TrainResult:
    """Draws of the partition of all rows."""
    schedule = bnp.Gibbs(laps=laps, burn_in=burn_in, thin=2, chains=CHAINS, rows=range(len(x)))
    return bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, schedule=schedule, rng=0)


def n_large(result: bnp.TrainResult) -> np.ndarray:
    """Clusters of at least :data:`LEAST` flowers in each draw, ``(chains, draws)``."""
    labels = result.draws.labels
    counts = [[np.unique(draw, return_counts=True)[1] for draw in chain] for chain in labels]
    return np.array([[int((sizes >= LEAST).sum()) for sizes in chain] for chain in counts])


def draw(result: bnp.TrainResult, x: np.ndarray, path: str) -> None:
    """The two pictures."""
    order = np.argsort(bnp.predict(result.posterior, x), kind="stable")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    shown = left.imshow(result.draws.co_clustering()[np.ix_(order, order)], cmap="gray_r", vmin=0.0, vmax=1.0)
    figure.colorbar(shown, ax=left, label="share of draws in one cluster")
    left.set(title="pairs of flowers", xlabel="flower", ylabel="flower")
    for number, chain in enumerate(n_large(result)):
        right.plot(chain, lw=0.8, label=f"chain {number}")
    right.set(title=f"clusters of {LEAST} flowers or more", xlabel="draw", ylabel="clusters")
    right.yaxis.get_major_locator().set_params(integer=True)
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(path: str) -> None:
    x = load_iris().data
    result = sample(x)
    large = n_large(result)
    shares = {int(k): f"{(large == k).mean():.2f}" for k in np.unique(large)}
    print(f"{large.size} draws; share with so many clusters of {LEAST} or more: {shares}")
    print(f"point estimate: {len(np.unique(bnp.predict(result.posterior, x)))} clusters")
    draw(result, x, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "partitions.png")
