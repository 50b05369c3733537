"""Training with labels that are known for some atoms: the likelihood, the data and the start that respect them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bnp_dask.data.base import Source
from bnp_dask.data.labels import labels_of, with_labels
from bnp_dask.errors import SettingError
from bnp_dask.inference import FullBatch, Memoized, Schedule, Stochastic
from bnp_dask.initialize import Initialization
from bnp_dask.initialize.labelled import LabelledStart
from bnp_dask.model import Model
from bnp_dask.observation.labelled import Labelled

SCHEDULES = (Memoized, FullBatch, Stochastic)
"""Schedules whose local steps look at each atom's log likelihoods, to which labels add a term."""


def with_known_labels(
    model: Model, source: Source, labels: Any, schedule: Schedule, shadow: Any = None
) -> tuple[Model, Source]:
    """Model and data with the labels ``(n,)`` of the atoms.

    Raises
    ------
    SettingError
        A topic model, a schedule that seats atoms in another way, or clusters that another likelihood would compete
        with.
    DataError
        Labels that are no labels, or not one for each atom.
    """
    require_labels(model, schedule, shadow)
    known = labels_of(labels)
    return replace(model, observation=Labelled(model.observation, known.names)), with_labels(source, known)


def require_labels(model: Model, schedule: Schedule, shadow: Any = None) -> None:
    """SettingError unless a run with labels makes sense for these parts."""
    if model.structure.has_shares:
        raise SettingError(
            f"labels: {type(model.allocation).__name__} gives each document several topics, so that a label of a "
            "document forbids none; train a mixture, DPMixture(...), in which a document is one atom"
        )
    if not isinstance(schedule, SCHEDULES):
        raise SettingError(
            f"labels: {type(schedule).__name__}() seats atoms without the likelihood of their labels; use Memoized(), "
            "FullBatch() or Stochastic()"
        )
    if isinstance(schedule, Memoized) and schedule.delay < 1.0:
        raise SettingError(
            f"labels: Memoized(delay={schedule.delay:g}) re-estimates clusters before every batch was visited, and a "
            "label whose atoms are in later batches would own none; use delay=1.0"
        )
    if shadow is not None and shadow.prior is not None:
        raise SettingError("labels: Shadow(prior=...) compares likelihoods without labels; use Shadow() or no shadow")


def start_with_labels(model: Model, init: Initialization) -> Initialization:
    """The initialization, with a cluster for every label of the model, if it has labels."""
    return LabelledStart(init) if isinstance(model.observation, Labelled) else init
