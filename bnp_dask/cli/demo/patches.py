"""Small pieces of photographs: a mixture of zero-mean Gaussians over 8x8 patches."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np

from bnp_dask.allocation import DPMixture
from bnp_dask.analysis.predict import predict
from bnp_dask.cli.console import table
from bnp_dask.cli.demo.pictures import Look, patches_picture
from bnp_dask.cli.demo.stage import Stage
from bnp_dask.core import Location
from bnp_dask.data import Patches, ingest, read_grey
from bnp_dask.data.ingestion.patches import cut
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs import say
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import ZeroMeanGaussian, estimates_of

SIDE = 8
PATCHES = 100_000
BATCHES = 20
LAPS = 12
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
SHOWN = 24


def play(stage: Stage, n_patches: int | None) -> Path:
    """Cut, train, look."""
    photographs = load_photographs()
    there = sum((p.shape[0] - SIDE + 1) * (p.shape[1] - SIDE + 1) for p in photographs)
    wanted = min(PATCHES if n_patches is None else n_patches, there)
    stage.say(f"{wanted:,} grey patches of 8x8 pixels, cut from the photographs {' and '.join(PHOTOGRAPHS)}")
    store = stage.path("patches.zarr")
    found = ingest(photograph_folder(), store, patches=Patches(SIDE, wanted), batch_size=-(-wanted // BATCHES))
    stage.say(str(found))
    model = Model(DPMixture(gamma=10.0), ZeroMeanGaussian())
    laps = LAPS if stage.laps is None else stage.laps
    result = stage.train(model, store, BregmanKMeans(1), Memoized(laps=laps, tolerance=1e-3))
    posterior = result.posterior
    stage.tell_of_end(result)
    say(f"{result.reason}, {result.seconds:.0f} s, {posterior.n_clusters} clusters; the largest:")
    order = np.argsort(-posterior.weights, kind="stable")
    looks = look_at(posterior)
    rows = [(f"{posterior.ids[k]}", f"{looks[k].share:.1%}", f"{looks[k].contrast:.1%}", looks[k].words) for k in order]
    say(table(("cluster", "share", "contrast", "looks like"), rows[:12]))
    stage.say("assigning every patch of both photographs for the picture ...")
    labels = [label_image(posterior, photograph) for photograph in photographs]
    return patches_picture(
        stage.folder / "patches.png",
        photographs,
        [np.array([look.color for look in looks])[image] for image in labels],
        [looks[k] for k in order[:SHOWN]],
        result.history,
        wanted,
    )


# -- data ------------------------------------------------------------------------------------------------------
def photograph_folder() -> Path:
    """Folder of scikit-learn's sample photographs, which are its only images."""
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "images"


def load_photographs() -> list[np.ndarray]:
    """Scikit-learn's two sample photographs in grey, ``(427, 640)`` each, 0 to 1."""
    folder = photograph_folder()
    return [read_grey(Location.of(folder / name)) for name in PHOTOGRAPHS]


def all_patches(photograph: np.ndarray) -> np.ndarray:
    """Every 8x8 patch, row by row, minus its own mean, ``(n, 64)``."""
    return cut(photograph, SIDE)


def label_image(posterior: Posterior, photograph: np.ndarray) -> np.ndarray:
    """Position of the cluster of the patch around each pixel, ``(420, 633)``."""
    ids = predict(posterior, all_patches(photograph))
    order = np.argsort(posterior.ids)
    places = order[np.searchsorted(posterior.ids[order], ids)]
    return places.reshape(np.array(photograph.shape) - SIDE + 1)


# -- results ---------------------------------------------------------------------------------------------------
def look_at(posterior: Posterior) -> list[Look]:
    """Appearance of each cluster, in the order of the posterior."""
    n = posterior.n_clusters
    matrices = estimates_of(posterior.model.observation, posterior.observation, None)["covariance"].values
    contrast = np.array([np.sqrt(np.trace(c) / len(c)) for c in matrices])
    # contrasts are spread over three orders of magnitude: brightness follows their logarithm
    brightness = np.clip(0.12 + 0.88 * np.log(contrast / 0.004) / np.log(0.2 / 0.004), 0.12, 1.0)
    rng = np.random.default_rng(0)
    return [_look(posterior.weights[k], matrices[k], contrast[k], float(brightness[k]), rng) for k in range(n)]


def _look(share: float, matrix: np.ndarray, contrast: float, brightness: float, rng: np.random.Generator) -> Look:
    angle, coherence = edge_direction(matrix)
    values, vectors = np.linalg.eigh(matrix)
    leading = vectors[:, ::-1][:, :3].T.reshape(3, SIDE, SIDE)
    samples = (vectors * np.sqrt(np.maximum(values, 0.0))) @ rng.standard_normal((len(values), 3))
    color = colorsys.hsv_to_rgb(angle / 180.0, float(np.clip(2.0 * coherence - 0.3, 0.0, 1.0)), brightness)
    return Look(float(share), float(contrast), angle, coherence, leading, samples.T.reshape(3, SIDE, SIDE), color)


def edge_direction(matrix: np.ndarray) -> tuple[float, float]:
    """Direction of edges in degrees and its coherence, from the expected products of pixel differences."""
    # differences of 2 x 2 pixels, both about the centre of the four; others would separate diagonals worse
    pixels = np.eye(SIDE * SIDE).reshape(SIDE, SIDE, -1)
    a, b, c, d = pixels[:-1, :-1], pixels[:-1, 1:], pixels[1:, :-1], pixels[1:, 1:]
    right = (b - a + d - c).reshape(-1, SIDE * SIDE)
    down = (c - a + d - b).reshape(-1, SIDE * SIDE)
    xx, yy, xy = (np.sum((a @ matrix) * b) for a, b in ((right, right), (down, down), (right, down)))
    gradient = 0.5 * np.arctan2(2.0 * xy, xx - yy)
    coherence = np.hypot(xx - yy, 2.0 * xy) / (xx + yy)
    # an edge runs across its gradient; rows of an image count downwards, angles upwards
    return float(np.degrees(np.pi / 2 - gradient) % 180.0), float(coherence)
