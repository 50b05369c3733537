"""``bnp-dask demo``: real data that every machine has, a real store, a real cluster, and a picture or page."""

from __future__ import annotations

import ast
import colorsys
import contextlib
import inspect
import os
import re
import shlex
import shutil
import sysconfig
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from bnp_dask.allocation import DPMixture, HDPTopics
from bnp_dask.analysis import completion_score, topic_list, word_tokens
from bnp_dask.analysis.predict import predict
from bnp_dask.cli.console import log_lines, open_client, show_bar, size, table
from bnp_dask.cli.jobfile import ClientSpec
from bnp_dask.core import Batch, Location
from bnp_dask.data import Patches, Text, ingest, read_grey
from bnp_dask.data.ingestion.patches import cut
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.inputs import local_path, say
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import Bernoulli, Multinomial, ZeroMeanGaussian, estimates_of
from bnp_dask.reports.plots import lap_positions, new_figure, plot_history, plot_moves
from bnp_dask.reports.run_page import report
from bnp_dask.training import TrainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from bnp_dask.training import History


MARK = ".made-by-bnp-dask-demo"
"""Name of a file that marks a directory that the next demonstration may overwrite."""


def run_demo(
    name: str,
    folder: str | os.PathLike[str] = "bnp-dask-demo",
    patches: int | None = None,
    limit: int | None = None,
    laps: int | None = None,
    workers: int = 2,
    quiet: bool = False,
) -> Path:
    """Run a demonstration from data to a picture, or a page.

    Parameters
    ----------
    name
        ``"patches"``, ``"digits"`` or ``"topics"``.
    folder
        Directory to work in: new, or from earlier demonstrations.  Each has a folder of its name in it, which the next
        one of that name replaces; others are kept.  Git ignores the directory.
    patches
        Patches to cut, for ``"patches"``.
    limit
        Most docstrings to read, for ``"topics"``.
    laps
        Largest number of passes over the data.
    workers
        Processes to start.
    quiet
        Print results only.

    Returns
    -------
    Path
        The picture; for ``"topics"`` the page.

    Raises
    ------
    StoreError
        ``folder`` holds other files, or is not writable.
    SettingError
        An unknown name, or scikit-learn, pillow or matplotlib is not installed.
    """
    plays: dict[str, Callable[[Stage], Path]] = {
        "patches": lambda stage: play_patches(stage, patches),
        "digits": play_digits,
        "topics": lambda stage: play_topics(stage, limit),
    }
    if name not in plays:
        raise SettingError(f"there is no demonstration {name!r}; there are {', '.join(plays)}")
    if patches is not None and name != "patches":
        raise SettingError(f"the demonstration {name!r} cuts no patches; leave their number out")
    if limit is not None and name != "topics":
        raise SettingError(f"the demonstration {name!r} reads no docstrings; leave their limit out")
    started = time.perf_counter()
    with needs_extras():
        stage = Stage(own_folder(folder, name), workers, laps, quiet)
        made = plays[name](stage)
    kind = "page to browse" if made.suffix == ".html" else "picture"
    say(f"{kind}: {os.path.relpath(made)}   ({time.perf_counter() - started:.0f} s in all)")
    say("next:")
    for command in NEXT[name]:
        say(f"  bnp-dask {command.format(folder=shlex.quote(os.path.relpath(stage.folder)))}")
    return made


NEXT = {
    "patches": (
        "inspect {folder}/run",
        "report {folder}/run {folder}/run.html",
        "predict {folder}/run {folder}/patches.zarr {folder}/labels.csv",
    ),
    "digits": (
        "inspect {folder}/run",
        "report {folder}/run {folder}/run.html --images 8x8",
        "predict {folder}/run {folder}/digits.npy {folder}/labels.csv",
    ),
    "topics": (
        "inspect {folder}/run --limit 5",
        "score {folder}/run {folder}/heldout.zarr",
        "predict {folder}/run {folder}/heldout.zarr {folder}/shares.csv --soft",
    ),
}
"""Commands to try after each demonstration, with its folder; a test runs them."""


def own_folder(folder: str | os.PathLike[str], name: str) -> Path:
    """An empty directory for one demonstration in the directory of all; an earlier one of that name is removed."""
    path = local_path(folder).absolute()
    if path.exists() and not path.is_dir():
        raise StoreError(f"{folder} is a file; the demonstration needs a directory: choose another one with --dir")
    try:
        if path.exists() and any(path.iterdir()) and not (path / MARK).is_file():
            raise StoreError(
                f"{path} exists and was not made by a demonstration; nothing in it was touched. Choose another "
                "directory with --dir"
            )
        path.mkdir(parents=True, exist_ok=True)
        (path / MARK).touch()
        (path / ".gitignore").write_text("*\n")
        path /= name
        _clear(path)
        path.mkdir(exist_ok=True)
        (path / MARK).touch()
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}; choose another directory with --dir") from error
    return path


def _clear(path: Path) -> None:
    """Remove files of an earlier demonstration; StoreError if there are other files."""
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / MARK).is_file():
        raise StoreError(
            f"{path} exists and was not made by a demonstration; nothing in it was touched. Choose another directory "
            "with --dir"
        )
    for child in path.iterdir():
        if child.name == MARK:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


@contextlib.contextmanager
def needs_extras(what: str = "the demonstration") -> Iterator[None]:
    """Turn a missing scikit-learn or pillow into an error that names the package to install."""
    try:
        yield
    except ImportError as error:
        raise SettingError(
            f'{what} needs scikit-learn, pillow and matplotlib ({error}): pip install "bnp-dask[all]"'
        ) from error


__all__ = ["Stage", "needs_extras", "own_folder", "run_demo", "size"]


# -- The folder of a demonstration, and its training there --------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Folder, training and output of a demonstration.

    Parameters
    ----------
    folder
        Its own directory.
    workers
        Processes to start.
    laps
        Limit of laps, or None for the demonstration's own.
    quiet
        Print results only.
    """

    folder: Path
    workers: int
    laps: int | None
    quiet: bool

    def say(self, line: str) -> None:
        """Print a line, unless quiet."""
        say(line, self.quiet)

    def path(self, name: str) -> str:
        """A file in the directory, as it is shown and opened."""
        return os.path.relpath(self.folder / name)

    def tell_of_end(self, result: TrainResult) -> None:
        """Say how much more passes over the data would gain, if the run stopped at its limit."""
        if not result.converged and result.reason.startswith("limit") and len(result.history) > 1:
            laps = [row["elbo"] for row in result.history if "elbo" in row and row.get("lap")]
            gain = (laps[-1] - laps[-2]) / max(abs(laps[-2]), 1e-300) if len(laps) > 1 else 0.0
            say(
                f"not converged yet: the last pass raised the objective by {gain:.2%}; more passes (--laps "
                f"{2 * int(result.history[-1]['lap'])}) split and unite a few more clusters"
            )

    def train(self, model: Model, store: str, init: Any, schedule: Any) -> TrainResult:
        """Train on a store with a cluster of processes that lives as long as the training."""
        import warnings

        from bnp_dask.training import ConvergenceWarning, Progress
        from bnp_dask.training.train import train

        callbacks = [Progress()] if show_bar(self.quiet) else []
        with (
            warnings.catch_warnings(),
            open_client(ClientSpec(workers=self.workers), self.quiet) as client,
            log_lines(self.quiet),
        ):
            # a demonstration stops early on purpose, and prints that
            warnings.simplefilter("ignore", ConvergenceWarning)
            return train(
                model,
                store,
                init=init,
                schedule=schedule,
                moves=[Birth(), Merge(), Delete()],
                client=client,
                store=self.path("run"),
                callbacks=callbacks,
                rng=0,
            )


# -- The final pictures of demonstrations, and the clusters of pictures that they show ----------------------------


FLAT = 0.02
"""Contrast below which a cluster is called flat, in shares of white."""
ORIENTED = 0.4
"""Coherence above which a cluster is called an edge."""


@dataclass(frozen=True, eq=False)
class Look:
    """Appearance of a cluster of patches.

    Parameters
    ----------
    share
        Expected share of patches.
    contrast
        Root mean square of a pixel, in shares of white.
    angle
        Direction of its edges, degrees, 0 to 180: 0 is horizontal.
    coherence
        0: no direction.  1: all edges have one direction.
    directions
        Leading eigenvectors of the covariance, ``(3, 8, 8)``.
    samples
        Patches drawn from the cluster, ``(3, 8, 8)``.
    color
        Red, green, blue: the angle as hue, the coherence as saturation, the contrast as brightness.
    """

    share: float
    contrast: float
    angle: float
    coherence: float
    directions: np.ndarray
    samples: np.ndarray
    color: tuple[float, float, float]

    @property
    def words(self) -> str:
        """The cluster in two words."""
        if self.contrast < FLAT:
            return "flat"
        return f"edges at {self.angle:.0f} deg" if self.coherence > ORIENTED else "texture"


@dataclass(frozen=True, eq=False)
class Card:
    """A cluster: share, description, mean image ``(8, 8)``, its four most certain members ``(4, 8, 8)``."""

    share: float
    words: str
    mean: np.ndarray
    members: np.ndarray


INK, FAINT = "#1a202c", "#718096"
DPI = 100


def patches_picture(
    path: Path,
    photographs: Sequence[np.ndarray],
    colored: Sequence[np.ndarray],
    looks: Sequence[Look],
    history: History,
    n_atoms: int,
) -> Path:
    """Photographs beside their clusters, the clusters, and the objective over the run.

    Parameters
    ----------
    path
        PNG to write.
    photographs, colored
        Grey images ``(427, 640)`` and the color of the cluster of each patch, ``(420, 633, 3)``.
    looks
        Clusters by falling share.
    history, n_atoms
        History and number of atoms of the run.
    """
    figure = new_figure(13.0, 11.4)
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.05)
    top, middle, bottom = figure.subfigures(3, 1, squeeze=False, height_ratios=(4.1, 4.9, 2.4)).flat
    top.suptitle(
        "Two photographs, and the cluster of every 8x8 patch: hue is the direction of edges (grey: none), "
        "brightness the contrast",
        fontsize=12,
        color=INK,
    )
    axes = top.subplot_mosaic([["photo0", "color0", "color1"], ["photo1", "color0", "color1"]], width_ratios=(1, 2, 2))
    for i, (photograph, color) in enumerate(zip(photographs, colored)):
        axes[f"photo{i}"].imshow(photograph, cmap="gray", vmin=0.0, vmax=1.0)
        axes[f"color{i}"].imshow(color, interpolation="nearest")
    for ax in axes.values():
        ax.set_axis_off()
    _look_cards(middle, looks)
    left, centre, right = bottom.subplots(1, 3, width_ratios=(4, 4, 3))
    _objective(left, history, n_atoms)
    left.set_title(f"Objective over all {n_atoms:,} patches (nats per patch)", loc="left", fontsize=11)
    plot_moves(history, centre)
    clusters = history["n_clusters"]
    centre.set_title(f"From {clusters[0]} cluster to {clusters[-1]}: accepted moves per lap", loc="left", fontsize=11)
    _shares(right, [look.share for look in looks], [look.color for look in looks])
    figure.savefig(path, dpi=DPI)
    return path


def _objective(ax: Axes, history: History, n_atoms: int) -> None:
    """The objective per atom after the end of lap 2: the laps before are the climb from a random start."""
    x, _ = lap_positions(history)
    shown = x >= min(2.0, x.max())
    ax.plot(x[shown], history["elbo"][shown] / n_atoms, color="#2b6cb0", linewidth=1.8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    ax.set_xlabel("lap")


def _look_cards(figure: Any, looks: Sequence[Look]) -> None:
    figure.suptitle(
        "The largest clusters.  Above: the three directions of largest variance;  below: three patches drawn from it",
        fontsize=12,
        color=INK,
    )
    grid = figure.subplots(3, 8)
    for ax in grid.flat:
        ax.set_axis_off()
    for ax, look in zip(grid.flat, looks):
        rows = [_strip(look.directions, each=True), _strip(look.samples, each=False)]
        ax.imshow(_stack(rows), cmap="gray", vmin=-1.0, vmax=1.0, interpolation="nearest")
        ax.set_title(f"{look.share:.1%}  {look.words}", fontsize=8.5, color=INK, pad=7)
        ax.plot([0.0, 1.0], [1.03, 1.03], transform=ax.transAxes, color=look.color, linewidth=4, clip_on=False)


def _strip(images: np.ndarray, each: bool) -> np.ndarray:
    """Images side by side, scaled to -1 .. 1 each or together, with gaps of missing values."""
    largest = np.abs(images).max(axis=(1, 2), keepdims=True) if each else np.abs(images).max()
    scaled = images / np.maximum(largest, 1e-300)
    gap = np.full((images.shape[1], 1), np.nan)
    return np.hstack([piece for image in scaled for piece in (image, gap)][:-1])


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    gap = np.full((1, rows[0].shape[1]), np.nan)
    return np.vstack([piece for row in rows for piece in (row, gap)][:-1])


def _shares(ax: Axes, shares: Sequence[float], colors: Sequence[Any]) -> None:
    ax.bar(np.arange(1, len(shares) + 1), np.array(shares) * 100, color=colors, edgecolor=FAINT, linewidth=0.4)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title("Share of each cluster (%)", loc="left", fontsize=11)
    ax.set_xlabel("cluster, by share")
    ax.set_xlim(0.3, len(shares) + 0.7)


def digits_picture(path: Path, cards: Sequence[Card], history: History, title: str) -> Path:
    """Clusters of digits as their mean and four of their members, and the objective over the run."""
    columns = 8
    rows = -(-len(cards) // columns)
    figure = new_figure(13.0, 1.25 * rows + 3.2)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.25 * rows + 0.6, 2.4)).flat
    top.suptitle(title, fontsize=12, color=INK)
    grid = np.atleast_2d(top.subplots(rows, columns))
    for ax in grid.flat:
        ax.set_axis_off()
    for ax, card in zip(grid.flat, cards):
        gap = np.full((17, 1), np.nan)
        members = _stack([_strip_plain(card.members[:2]), _strip_plain(card.members[2:])])
        mean = np.kron(card.mean, np.ones((2, 2)))
        mean = np.vstack([mean, np.full((1, 16), np.nan)])
        ax.imshow(np.hstack([mean, gap, members]), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        ax.set_title(f"{card.share:.1%}:  {card.words}", fontsize=8.5, color=INK, pad=3)
    left, right = bottom.subplots(1, 2, width_ratios=(3, 2))
    plot_history(history, "elbo", left)
    plot_moves(history, right)
    clusters = history["n_clusters"]
    right.set_title(f"From {clusters[0]} cluster to {clusters[-1]}: accepted moves per lap", loc="left", fontsize=11)
    figure.savefig(path, dpi=DPI)
    return path


def _strip_plain(images: np.ndarray) -> np.ndarray:
    return np.hstack([images[0], np.full((8, 1), np.nan), images[1]])


# -- Small pieces of photographs: a mixture of zero-mean Gaussians over 8x8 patches -------------------------------


SIDE = 8
PATCHES = 100_000
PATCH_BATCHES = 20
PATCH_LAPS = 12
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
PATCHES_SHOWN = 24


def play_patches(stage: Stage, n_patches: int | None) -> Path:
    """Cut, train, look."""
    photographs = load_photographs()
    there = sum((p.shape[0] - SIDE + 1) * (p.shape[1] - SIDE + 1) for p in photographs)
    wanted = min(PATCHES if n_patches is None else n_patches, there)
    stage.say(f"{wanted:,} grey patches of 8x8 pixels, cut from the photographs {' and '.join(PHOTOGRAPHS)}")
    store = stage.path("patches.zarr")
    found = ingest(photograph_folder(), store, patches=Patches(SIDE, wanted), batch_size=-(-wanted // PATCH_BATCHES))
    stage.say(str(found))
    model = Model(DPMixture(gamma=10.0), ZeroMeanGaussian())
    laps = PATCH_LAPS if stage.laps is None else stage.laps
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
        [looks[k] for k in order[:PATCHES_SHOWN]],
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


# -- Ways of writing digits: a mixture of rows of bits over scikit-learn's 8x8 digits -----------------------------


DIGIT_LAPS = 60
BATCH = 300
INK_LEVEL = 8
"""Grey value, of 16, from which a pixel counts as ink."""
DIGITS_SHOWN = 40


def play_digits(stage: Stage) -> Path:
    """Store, train, look."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    bits = (digits.data >= INK_LEVEL).astype(np.uint8)
    stage.say(f"{len(bits):,} handwritten digits of 8x8 pixels, ink or no ink")
    np.save(stage.folder / "digits.npy", bits)
    store = stage.path("digits.zarr")
    found = ingest(stage.path("digits.npy"), store, batch_size=BATCH)
    stage.say(str(found))
    model = Model(DPMixture(gamma=5.0), Bernoulli())
    laps = DIGIT_LAPS if stage.laps is None else stage.laps
    result = stage.train(model, store, BregmanKMeans(1), Memoized(laps=laps))
    posterior = result.posterior
    stage.tell_of_end(result)
    resp = predict(posterior, bits.astype(np.float64), soft=True)
    label = resp.argmax(axis=1)
    probability = estimates_of(posterior.model.observation, posterior.observation, None)["probability"].values
    cards = make_cards(posterior.weights, probability, resp, bits, digits.target)
    right = sum(np.bincount(digits.target[label == k]).max() for k in np.unique(label))
    say(f"{result.reason}, {result.seconds:.0f} s, {len(cards)} clusters with digits; the largest:")
    say(table(("share", "true digits (never shown to the model)"), [(f"{c.share:.1%}", c.words) for c in cards[:12]]))
    title = (
        f"{len(cards)} ways of writing a digit: mean and four members of each cluster.  {right / len(bits):.0%} of the "
        "digits agree with most of their cluster"
    )
    return digits_picture(stage.folder / "digits.png", cards[:DIGITS_SHOWN], result.history, title)


def make_cards(
    weights: np.ndarray, mean: np.ndarray, resp: np.ndarray, bits: np.ndarray, digit: np.ndarray
) -> list[Card]:
    """One card for each cluster that is the most probable one of some digit, by falling share."""
    label = resp.argmax(axis=1)
    cards = []
    for k in np.argsort(-weights, kind="stable"):
        members = np.flatnonzero(label == k)
        if len(members) == 0:
            continue
        counts = np.bincount(digit[members], minlength=10)
        best = np.argsort(-counts, kind="stable")[:2]
        words = ", ".join(f"{d} ({counts[d] / counts.sum():.0%})" for d in best if counts[d])
        # members nearest to the mean; a cluster of fewer than four shows some twice
        near = members[np.argsort(((bits[members] - mean[k]) ** 2).sum(axis=1), kind="stable")]
        shown = bits[np.resize(near, 4)].reshape(4, 8, 8)
        cards.append(Card(float(weights[k]), words, mean[k].reshape(8, 8), shown))
    return cards


# -- Topics of Python's documentation: docstrings of the standard library and of installed packages ---------------
# Every Python machine has this English corpus.  Sources are parsed, never imported: no code of other packages runs.


START = 20
"""Number of initial topics; moves decide the final number."""

TOPIC_LAPS = 15
TOPIC_BATCHES = 8
HELD_OUT = 10
"""One document in this many is held out and scored."""

READ_TOLD = 4000
"""Docstrings between two lines about how many were read."""

TOPICS_SHOWN, WORDS = 40, 8
PATTERN = r"(?u)\b[a-z]{3,}\b"
"""Words of letters; names with underscores and numbers are code."""


def play_topics(stage: Stage, limit: int | None) -> Path:
    """Read, count, train, score, and write the page."""
    train, heldout = collect(stage, LIMIT if limit is None else limit)
    store, other = stage.path("docstrings.zarr"), stage.path("heldout.zarr")
    # words of very few documents tell little about topics, and words of many tell nothing
    text = Text(stop_words=stop_words(), min_df=max(2, len(train) // 1500), max_df=0.1, token_pattern=PATTERN)
    stage.say(str(ingest(train, store, text=text, batch_size=-(-len(train) // TOPIC_BATCHES))))
    ingest(heldout, other, vocabulary=store)
    laps = TOPIC_LAPS if stage.laps is None else stage.laps
    result = stage.train(Model(HDPTopics(), Multinomial()), store, BregmanKMeans(START), Memoized(laps=laps))
    posterior = result.posterior
    stage.tell_of_end(result)
    lines = topic_list(posterior, WORDS)
    say(f"{result.reason}, {result.seconds:.0f} s, from {START} topics to {len(lines)}; the largest:")
    say(
        table(
            ("topic", "share", "words"),
            [(f"{t.id}", f"{t.share:.1%}", " ".join(t.words)) for t in lines[:TOPICS_SHOWN]],
        )
    )
    if len(lines) > TOPICS_SHOWN:
        say(f"... and {len(lines) - TOPICS_SHOWN} more")
    stage.say("scoring the documents that were kept apart ...")
    found, plain = completion_score(posterior, other), completion_score(one_topic(posterior), other)
    say(
        f"{found.n_documents:,} documents that were kept apart: a fifth of the distinct words of each, predicted from "
        f"the rest, scores {found.score:.3f} nats per token (frequencies of words alone: {plain.score:.3f})"
    )
    stage.say("writing the page ...")
    page = stage.folder / "topics.html"
    report(stage.path("run"), page)
    return page


def collect(stage: Stage, limit: int) -> tuple[list[Docstring], list[Docstring]]:
    """Documents to train on, and held-out ones."""
    stage.say("reading docstrings of the standard library and the installed packages (sources are parsed, not run)")
    documents = []
    for document in docstrings(limit):
        documents.append(document)
        if len(documents) % READ_TOLD == 0:
            stage.say(f"{len(documents):,} docstrings so far")
    packages = Counter(d.metadata["package"] for d in documents)
    stage.say(f"{len(documents):,} docstrings of {len(packages)} packages")
    held = np.arange(len(documents)) % HELD_OUT == 0
    return [d for d, h in zip(documents, held) if not h], [d for d, h in zip(documents, held) if h]


def one_topic(posterior: Posterior) -> Posterior:
    """Posterior with a single topic that has all tokens: the frequencies of words."""
    tokens = sparse.csr_array(np.asarray(word_tokens(posterior))[None])
    model = posterior.model
    return model.global_step(model.summarize(np.zeros(1, np.int64), Batch(tokens), np.ones((1, 1))))


LEAST_WORDS = 15
"""Least words of a docstring: shorter ones carry little information."""

LIMIT = 15_000
"""Most documents."""

FILE_BYTES = 2 * 2**20
"""Largest source: larger ones are generated tables, not prose."""

BEGIN = 140
"""Characters of the beginning that are kept as metadata."""

SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "testing", "_test", "_tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
    | {"node_modules", "lib2to3", "_vendor", "vendor", "vendored", "_vendored_packages", "externals", "extern"}
)
"""Tests, and copies of packages inside of others."""

_PROMPT = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)
"""Lines of examples, which are code."""

_WORD = re.compile(r"[A-Za-z]{2,}")

PYTHON_WORDS = tuple(
    """
    abc abstract add added additional all allow allowed allows alternatively and any appropriate are arg args
    argument arguments array array_like arrays assert associated attr attribute attributes automatically
    available axis bar based behavior behaviour bool boolean bound bytes call callable callback called calling
    calls case cases cause class classes classmethod cls code com compatibility compatible contain containing
    contains corresponding create created creates current currently custom data dataframe def default defaults
    defined defines definition deprecated desired detail details dict dictionary different directly disable do
    doc docs docstring doctest documentation does doesn don done dtype each effect either element elements else
    enable ensure error errors etc example examples exception exceptions existing exists expected explicit
    explicitly extra false field fields find first float following follows foo for form format from full func
    function functions general generally get gets getting github given gives handle has hasn have help here http
    https implementation implementations implemented implements import imports include included includes
    including indicate indicates indicating individual inf info information initial initialize input inputs
    instance instances instead int integer intended internal into invalid ipython is isinstance isn it item
    items iter iterable iterator itself just key keyword kwarg kwargs last len let like list lists longer made
    main make makes making may mean means meant message meth method methods mode modified module modules more
    multiple must name named names nan ndarray necessary need needed needs new none normal normally not note
    notes np number numbers numpy obj object objects of old one ones only operation optional optionally options
    or org original other otherwise output outputs overridden override own package packages pair pandas param
    parameter parameters params parent pass passed passing pd perform performed performs place plt possible
    present previous private produce property provide provided provides providing public purpose py pydata
    python raise raised raises ref reference references related removed replace represent representation
    representing represents require required requires respectively result results ret retrieve return returned
    returning returns rtype run same scipy section see seealso self set sets shape should similar simple simply
    since single size sklearn some specific specified specifies specify static str string strings sub subclass
    subclasses such support supported supports taken takes than that the their them then there these they this
    three throw to true try tuple tuples two type typeerror types typically typing undefined underlying unique
    unless unused up update updated use used useful user uses using usually valid value valueerror values var
    variable variables various versionadded versionchanged via void warning was way well were when whether which
    while will with within without won work works would wrapper www yes yield yields you your
    """.split()  # noqa: SIM905
)
"""Words of documentation itself, which are independent of the subject."""


class Docstring(NamedTuple):
    """One docstring: qualified name, text, and metadata of its origin."""

    id: str
    text: str
    metadata: dict[str, Any]


def stop_words() -> list[str]:
    """Stop words of this corpus: scikit-learn's English ones, Python's names of types, and :data:`PYTHON_WORDS`."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return sorted(ENGLISH_STOP_WORDS.union(PYTHON_WORDS))


def docstrings(
    limit: int | None = LIMIT,
    roots: Sequence[str | os.PathLike[str]] | None = None,
) -> Iterator[Docstring]:
    """Docstrings of modules, classes and functions, one document each, in alphabetical order of files.

    Texts of few words are left out (:data:`LEAST_WORDS`); so are tests, and repeated texts.

    Parameters
    ----------
    limit
        Most documents.  If there are more, packages take turns, a file each, so that none dominates; None for all.
    roots
        Folders of sources.  Default: the standard library, then the installed packages.

    Yields
    ------
    Docstring
        ``(id, text, metadata)``, with ids such as ``"json.decoder.JSONDecoder.decode"``, and the metadata ``package``,
        ``kind`` (module, class or function) and ``begins``, the first words.  A list of them is ready for
        :func:`bnp_dask.ingest`.
    """
    folders = [Path(root) for root in (roots if roots is not None else default_roots())]
    seen_texts: set[int] = set()
    seen_ids: set[str] = set()
    given = 0
    for name, path in _in_turn(folders):
        for found in _of_file(name, path):
            mark = hash_of(found.text)
            if mark in seen_texts or found.id in seen_ids:
                continue
            seen_texts.add(mark)
            seen_ids.add(found.id)
            yield found
            given += 1
            if limit is not None and given >= limit:
                return


def default_roots() -> list[Path]:
    """The standard library and the folders of installed packages."""
    paths = sysconfig.get_paths()
    found: list[Path] = []
    for key in ("stdlib", "purelib", "platlib"):
        path = Path(paths[key])
        if path not in found:
            found.append(path)
    return found


def hash_of(text: str) -> int:
    """A number for a text, the same in every process; blank space does not count."""
    from hashlib import blake2b

    return int.from_bytes(blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=8).digest())


def _in_turn(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Qualified names and paths of sources; packages take turns, one file each, until all are done."""
    queues = []
    for folder in folders:
        packages: dict[str, list[tuple[str, Path]]] = {}
        for name, path in _sources(folder):
            packages.setdefault(name.split(".")[0], []).append((name, path))
        queues += [iter(packages[package]) for package in sorted(packages)]
    while queues:
        left = []
        for queue in queues:
            item = next(queue, None)
            if item is not None:
                yield item
                left.append(queue)
        queues = left


def _sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Modules below a folder, alphabetically: qualified name and path."""
    for folder, below, files in os.walk(root):
        below[:] = sorted(d for d in below if d not in SKIPPED_FOLDERS and d.isidentifier())
        parts = Path(folder).relative_to(root).parts
        for file in sorted(files):
            stem = file.removesuffix(".py")
            if stem == file or not stem.isidentifier() or stem.startswith("test_") or stem.endswith("_test"):
                continue
            names = [*parts] if stem == "__init__" else [*parts, stem]
            if names and stem != "conftest":
                yield ".".join(names), Path(folder) / file


def _of_file(module: str, path: Path) -> Iterator[Docstring]:
    try:
        if path.stat().st_size > FILE_BYTES:
            return
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return
        with warnings.catch_warnings():
            # new Pythons warn of escapes in old sources
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = module.split(".")[0]
    for name, kind, text in _walk(tree, module):
        clean = _PROMPT.sub("", inspect.cleandoc(text))
        if len(_WORD.findall(clean)) >= LEAST_WORDS:
            whole = clean.encode("utf-8", "replace").decode()
            begins = textwrap.shorten(whole, BEGIN, placeholder=" …")
            yield Docstring(name, whole, {"package": package, "kind": kind, "begins": begins})


def _walk(tree: ast.Module, module: str) -> Iterator[tuple[str, str, str]]:
    """Qualified name, kind and docstring of a module's definitions, in the order of the source."""
    waiting: list[tuple[str, str, Any]] = [(module, "module", tree)]
    while waiting:
        name, kind, node = waiting.pop()
        body = node.body
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            text = body[0].value.value
            if isinstance(text, str):
                yield name, kind, text
        if kind == "function":
            # functions inside functions are not documentation
            continue
        below = []
        for child in _definitions(body):
            inner = "class" if isinstance(child, ast.ClassDef) else "function"
            below.append((f"{name}.{child.name}", inner, child))
        waiting += reversed(below)


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions among statements, including statements under ``if`` and ``try``."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _definitions([*node.body, *node.orelse])
