"""Log lines about clusters as narrow as the resolution of the data, or with one row many times."""

from __future__ import annotations

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.kernels.gaussian.quadratic import n_packed
from bnp_dask.model import Posterior
from bnp_dask.moves.policy import LAP
from bnp_dask.observation.base import RoundedObservation
from bnp_dask.observation.labelled import Labelled, unlabelled
from bnp_dask.observation.priors import rounding_variance
from bnp_dask.reports.describe import variances
from bnp_dask.structure.nouns import noun_of
from bnp_dask.training.callbacks import logger

MANY = 0.5
"""Share of the clusters that must be so narrow before a line is logged."""

SAME = 1e-8
"""Share of the squared distance of clusters' means below which a variance is taken for the variance of one value:
a guess, tried on synthetic tables alone."""


def tell_of_grain(posterior: Posterior) -> None:
    """Log the line, if there is one."""
    line = grain_line(posterior) or copies_line(posterior)
    if line is not None:
        logger.warning("%s", line)


def grain_line(posterior: Posterior) -> str | None:
    """Share of the clusters no wider than rounding, and their columns, as a line; None if most are wider.

    A cluster is that narrow in a column if less than half of its variance there is its own, beside the rounding
    variance.
    """
    observation, summary = posterior.model.observation, posterior.summary
    params = posterior.observation
    if isinstance(observation, Labelled):
        observation, params = observation.part, params.part
    if not isinstance(observation, RoundedObservation) or summary is None:
        return None
    rounding, spread = rounding_variance(observation.grain), variances(observation, params)
    used = summary["N"] > LAP.nobody
    if rounding is None or spread is None or not used.any():
        return None
    sunk = (spread[used] < 2.0 * rounding) & (rounding > 0)
    n_sunk, columns = int(sunk.any(axis=1).sum()), np.flatnonzero(sunk.any(axis=0))
    if n_sunk < MANY * used.sum():
        return None
    names = None if posterior.columns is None else posterior.columns.shown
    named = columns[:10].tolist() if names is None else [names[i] for i in columns[:10]]
    steps = ", ".join(f"{step:.4g}" for step in np.unique(np.asarray(observation.grain)[columns])[:3])
    return (
        f"{n_sunk} of {int(used.sum())} {noun_of(posterior.model).many} are no wider than the resolution of column(s) "
        f"{named}, whose values lie on a grid of {steps}: they tell recorded values apart. If that is "
        "not wanted, drop these columns, or give a larger grain"
    )


def copies_line(posterior: Posterior) -> str | None:
    """Number of clusters that hold copies of one row each, as a line; None if most hold different rows.

    Twelve clusters of 100 rows, each row 20 times, end as 1,089 clusters if the copies count
    (:mod:`bnp_dask.training.copies`): 20 equal values without any noise between them are evidence of a cluster, to any
    model of continuous values, and weights of rows count like copies.
    """
    summary = posterior.summary
    rounded = isinstance(unlabelled(posterior.model.observation), RoundedObservation)
    if summary is None or not rounded or "x" not in summary.fields:
        return None
    n, same = summary["N"], _holds_copies(summary)
    used = n > LAP.nobody
    if same.sum() < 2 or same.sum() < MANY * used.sum():
        return None
    return (
        f"{int(same.sum())} of {int(used.sum())} {noun_of(posterior.model).many} hold copies of one row each, "
        f"{n[same].mean():.3g} on average: rows that are equal to the last digit count as evidence. If the copies say "
        'nothing, take every row once: bnp.ingest(..., deduplicate="once")'
    )


def _holds_copies(summary: Summary) -> np.ndarray:
    """Whether each cluster holds two atoms or more and all are equal in every column, ``(K,)``."""
    n, x, squares = summary["N"], summary["x"], summary["xx"]
    d = x.shape[1]
    if squares.shape[1] == n_packed(d):  # upper triangles, row by row: take the diagonal
        squares = squares[:, np.cumsum([0, *range(d, 1, -1)])]
    mean = x / np.maximum(n, 1.0)[:, None]
    # the median: the variance of the means would show only a row far away that is a cluster of its own
    apart = np.median((mean - np.median(mean, axis=0)) ** 2, axis=0)
    own = squares - x * mean
    found: np.ndarray = (n >= 2.0) & (own <= SAME * n[:, None] * apart).all(axis=1)
    return found
