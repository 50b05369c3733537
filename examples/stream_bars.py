"""Bars in one pass: images seen once, clusters opened as they come, united or not, and refined by more passes.

200 images of 8 x 8 pixels are multinomial draws of 50 counts from one of 16 bars on a baseline (Tank, Foti & Fox 2015,
section 4.1); the prior of clusters is a normalized inverse Gaussian process.  Draws expected images of the clusters.

    python examples/stream_bars.py bars.png
"""

import sys

import matplotlib as mpl
import numpy as np

import bnp_dask as bnp

mpl.use("Agg")
import matplotlib.pyplot as plt

WIDTH, LENGTH, IMAGES = 8, 50, 200


def bars() -> np.ndarray:
    """Pixel probabilities of all horizontal and vertical bars, ``(16, 64)``."""
    out = np.full((2 * WIDTH, WIDTH, WIDTH), 0.15)
    for i in range(WIDTH):
        out[i, i, :] += 1.0
        out[WIDTH + i, :, i] += 1.0
    flat = out.reshape(2 * WIDTH, -1)
    return flat / flat.sum(axis=1, keepdims=True)


def images(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Counts ``(200, 64)`` and the bar behind each image."""
    rng, truth = np.random.default_rng(seed), bars()
    label = rng.integers(len(truth), size=IMAGES)
    return np.array([rng.multinomial(LENGTH, truth[z]) for z in label], float), label


def n_held(result: bnp.TrainResult) -> int:
    """Clusters that hold half an image or more."""
    return int(np.sum(result.posterior.summary["N"] >= 0.5))


def draw(results: dict[str, bnp.TrainResult], path: str) -> None:
    """Expected images of the clusters, largest first, one row of pictures for each run."""
    wide = max(n_held(result) for result in results.values())
    figure, axes = plt.subplots(len(results), wide, figsize=(0.55 * wide, 0.95 * len(results)), squeeze=False)
    for row, (name, result) in zip(axes, results.items(), strict=True):
        summary, lam = result.posterior.summary, result.posterior.observation.lam
        order = np.argsort(-summary["N"])
        for axis in row:
            axis.axis("off")
        for axis, k in zip(row, order[: n_held(result)], strict=False):
            axis.imshow((lam[k] / lam[k].sum()).reshape(WIDTH, WIDTH), cmap="gray_r", vmin=0.0, vmax=0.1)
            axis.set_title(f"{summary['N'][k]:.0f}", fontsize=6)
        row[0].text(-0.1, 1.75, name, transform=row[0].transAxes, fontsize=8)
    figure.subplots_adjust(hspace=0.9, top=0.86)
    figure.savefig(path, dpi=150)


def main(path: str) -> None:
    counts, fresh = images()[0], images(seed=1)[0]
    model = bnp.Model(bnp.NGGPMixture(a=1.0, sigma=0.5, tau=1.0), bnp.Multinomial(0.5))
    schedules = {
        "one pass": bnp.Filter(),
        "one pass, clusters that are one are united": bnp.Filter(merge=1.0),
        "expectation propagation": bnp.ExpectationPropagation(laps=30, window=1, count_tolerance=1e-3),
    }
    results = {name: bnp.train(model, counts, schedule=s, batch_size=20) for name, s in schedules.items()}
    for name, result in results.items():
        nats = bnp.score(result.posterior, fresh)
        print(f"{name}: {n_held(result)} clusters, {nats:.4f} nats per new image")
    draw(results, path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "bars.png")
