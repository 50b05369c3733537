"""One line about clusters that are as narrow as the resolution of the data allows."""

from __future__ import annotations

import numpy as np

from bnp_dask.model import Posterior
from bnp_dask.moves.lap_policy import LAP
from bnp_dask.observation.base import RoundedObservation
from bnp_dask.observation.priors import rounding_variance
from bnp_dask.reports.describe import variances
from bnp_dask.training.callbacks import logger

MANY = 0.5
"""Share of the clusters that must be so narrow before anything is said."""


def tell_of_grain(posterior: Posterior) -> None:
    """Log the line, where there is anything to tell."""
    line = grain_line(posterior)
    if line is not None:
        logger.warning("%s", line)


def grain_line(posterior: Posterior) -> str | None:
    """Which share of the clusters is no wider than rounding, and in which columns; None where most are wider.

    A cluster is that narrow in a column if less than half of its variance there is its own, beside that of rounding.
    """
    observation, summary = posterior.model.observation, posterior.summary
    if not isinstance(observation, RoundedObservation) or summary is None:
        return None
    rounding, spread = rounding_variance(observation.grain), variances(observation, posterior.observation)
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
        f"{n_sunk} of {int(used.sum())} clusters are no wider than the resolution of column(s) "
        f"{named}, whose values lie on a grid of {steps}: they tell recorded values apart. If that is "
        "not wanted, drop these columns, or give a larger grain"
    )
