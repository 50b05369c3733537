"""Section of a page that shows clusters: images if features are pixels, else the distinguishing features."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.predict import assign_batch
from bnp_dask.analysis.running import for_batches
from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, Source
from bnp_dask.errors import BnpDaskError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.settings import shown as in_words
from bnp_dask.model import Posterior
from bnp_dask.reports import describe
from bnp_dask.reports.mixtures import pictures, telling
from bnp_dask.reports.mixtures.parts import LevelValues, Normals, Parts, Values, parts_of
from bnp_dask.reports.pages import Paragraph, Picture, Section
from bnp_dask.reports.plots import plot_clusters
from bnp_dask.store import RunStore, holds_run
from bnp_dask.structure.nouns import noun_of

if TYPE_CHECKING:
    from distributed import Client

FEATURES = 3
"""Features that are drawn against each other."""

TABLE = 20
"""Features in a table."""

COLUMNS = 6
"""Columns of levels that are drawn."""

ATOMS = 2000
"""Atoms that a picture shows."""

BATCHES = 16
"""Number of batches from which these are read."""

LEAST = 64
"""Features of the smallest images that are detected."""

NEAR = 0.5
"""Difference of neighbouring pixels, as a share of the difference of any two, below which features are pixels.

Chosen on clusters of 8 x 8 digits (0.32 to 0.45) and of white noise (0.70 at least with Gaussian noise, 0.52 with
lognormal, of 16,000 draws each of 1 to 20 clusters and 64 or 256 features); checked on clusters of MNIST (28 x 28) and
of patches of photographs (8 x 8, 12 x 12), which are below it, and of the indicators of 64 levels, which are above it.
"""


# -- atoms --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Some:
    """Task: evenly spaced atoms of a batch, and the ids of their clusters."""

    n: int

    def __call__(self, posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
        batch: Batch = reader()
        label = assign_batch(posterior, batch)["label"]
        rows = np.unique(np.linspace(0, batch.n_atoms - 1, min(self.n, batch.n_atoms)).astype(np.int64))
        return np.asarray(batch.x[rows], np.float64), np.asarray(label)[rows]


def atoms_for(
    posterior: Posterior, what: Any, data: Any, client: Client | Executor | str | None
) -> pictures.Atoms | None:
    """Atoms to draw: from the given data, else from the training data of a run directory; None if there are none.

    Evenly spaced ones from evenly spaced batches.  Nothing is read for a likelihood without means and variances;
    SettingError if its data are given.
    """
    if parts_of(posterior).normals is None:
        if data is not None:
            kind = type(posterior.model.observation).__name__
            raise SettingError(f"data= is for documents, sequences and atoms with means and variances; {kind} has none")
        return None
    if data is not None:
        return _atoms(posterior, open_for(posterior, data), client)
    if not isinstance(what, (str, os.PathLike)) or not holds_run(what):
        return None
    try:
        source = open_for(posterior, str(RunStore.view(what).settings.get("data", {}).get("path", "")))
        return _atoms(posterior, source, client)
    except (BnpDaskError, OSError):  # gone or changed since: the page omits them
        return None


def _atoms(posterior: Posterior, source: Source, client: Client | Executor | str | None) -> pictures.Atoms | None:
    chosen = np.unique(np.linspace(0, source.n_batches - 1, min(BATCHES, source.n_batches)).astype(np.int64))
    task = _Some(-(-ATOMS // max(len(chosen), 1)))
    found = for_batches(posterior, source, client, task, "picture", chosen.tolist())
    if not found:
        return None
    return pictures.Atoms(np.concatenate([x for x, _ in found]), np.concatenate([label for _, label in found]))


# -- sections -----------------------------------------------------------------------------------------------------
def cluster_sections(
    posterior: Posterior,
    names: Sequence[str] | None,
    limit: int,
    read: Callable[[], pictures.Atoms | None] | None = None,
    images: tuple[int, int] | bool | None = None,
) -> list[Section]:
    """Pictures of clusters: images if features are pixels, else the distinguishing features; none for other kinds.

    ``read`` gives the atoms to draw, if there are any.  ``images`` is the shape of requested images, or whether they
    are shown; by default they are shown if features are clearly pixels.

    Raises
    ------
    SettingError
        Features do not fill images of that shape, or the likelihood has no parameters to draw as an image.
    """
    found = _images(posterior, images)
    return found or _telling(posterior, names, limit, None if read is None else read())


def _telling(
    posterior: Posterior, names: Sequence[str] | None, limit: int, atoms: pictures.Atoms | None
) -> list[Section]:
    shown = pictures.Shown.of(posterior, names, limit)
    parts = parts_of(posterior)
    content: list[Any] = []
    if parts.normals is not None:
        content += _pairs(shown, parts.normals, pictures.cluster_colors(posterior.ids, posterior.weights), atoms)
    for values in parts.values:
        content += _table(shown, values)
    content += _levels(shown, parts)
    return [Section(f"What tells {shown.noun.many} apart", content)] if content else []


def _pairs(shown: pictures.Shown, normals: Normals, colors: Any, atoms: pictures.Atoms | None) -> list[Any]:
    distance = telling.of_normals(normals.mean[shown.order], normals.variance[shown.order])
    chosen = telling.telling(distance, shown.weights, FEATURES)
    n, of, noun = len(chosen), normals.mean.shape[1], shown.noun
    which = f"The {n} features, of {of}, that tell {noun.many} apart best" if n < of else "All features"
    points = "" if atoms is None else f" Points: {len(atoms.x):,} {noun.atoms}, in the colour of their {noun.one}."
    note = f"{which}: ellipses of two standard deviations, and densities times shares.{points}"
    return [Paragraph(note), Picture(pictures.plot_pairs(shown, normals, chosen, colors, atoms), note)]


def _table(shown: pictures.Shown, values: Values) -> list[Any]:
    chosen = telling.telling(telling.of_values(values.kind, values.value[shown.order]), shown.weights, TABLE)
    note = f"{shown.noun.many.capitalize()} by {pictures.SCALES[values.kind]}"
    note += _best(shown, len(chosen), values.value.shape[1], ", the")
    return [Paragraph(f"{note}."), Picture(pictures.plot_values(shown, values, chosen), note)]


def _levels(shown: pictures.Shown, parts: Parts) -> list[Any]:
    if not parts.levels:
        return []
    distance = np.stack([telling.of_levels(column.value[shown.order]) for column in parts.levels])
    chosen: list[LevelValues] = [parts.levels[i] for i in telling.telling(distance, shown.weights, COLUMNS)]
    note = f"Probabilities of levels in each {shown.noun.one}"
    note += _best(shown, len(chosen), len(parts.levels), ", in the")
    return [Paragraph(f"{note}."), Picture(pictures.plot_levels(shown, chosen), note)]


def _best(shown: pictures.Shown, n: int, of: int, begin: str) -> str:
    return f"{begin} {n} of {of} columns that tell {shown.noun.many} apart best" if n < of else ""


def _images(posterior: Posterior, images: tuple[int, int] | bool | None) -> list[Section]:
    if images is False:
        return []
    if not (images is None or images is True or (isinstance(images, tuple) and len(images) == 2)):
        raise SettingError(f"images={in_words(images)}: needs rows and columns, such as (8, 8), True, False or None")
    shape = image_shape(posterior) if images is None else None if images is True else images
    if images is None and shape is None:
        return []
    picture = plot_clusters(posterior, shape=shape)
    noun = noun_of(posterior.model).many.capitalize()
    caption = f"{noun} as images (id: share); for zero-mean Gaussians the four directions of largest variance"
    return [Section("Images", [Paragraph(caption), Picture(picture.figure, caption)])]


def image_shape(posterior: Posterior) -> tuple[int, int] | None:
    """Rows and columns of square images of which the features are clearly the pixels; None if they are not.

    Features with names are not pixels.  Others are if neighbours in both directions are much more alike, over all
    clusters, than any two features, and features one row apart more alike than features half a row apart.  This
    excludes spectra and other curves, which are smooth in one direction.
    """
    if posterior.feature_names is not None:
        return None
    difference = _differences(posterior)
    side = 0 if difference is None else round(len(difference) ** 0.5)
    if difference is None or side * side != len(difference) or len(difference) < LEAST:
        return None
    place = np.arange(side * side).reshape(side, side)
    across = difference[place[:, 1:], place[:, :-1]].mean()
    down = difference[place[1:], place[:-1]].mean()
    half = np.diagonal(difference, side // 2).mean()
    any_two = difference.sum() / (len(difference) * (len(difference) - 1))
    return (side, side) if across + down < 2.0 * NEAR * any_two and down < half else None


def _differences(posterior: Posterior) -> np.ndarray | None:
    """Mean squared difference of pairs of features, ``(D, D)``: over clusters' means, or within zero-mean clusters."""
    observation, params = posterior.model.observation, posterior.observation
    means = describe.means(observation, params)
    if means is not None:
        second = means.T @ (posterior.weights[:, None] * means)
    else:
        found = describe.covariances(observation, params)
        if found is None:
            return None
        second = np.einsum("k,kij->ij", posterior.weights, found)
    squares = np.diagonal(second)
    difference: np.ndarray = np.maximum(squares[:, None] + squares[None, :] - 2.0 * second, 0.0)
    return difference
