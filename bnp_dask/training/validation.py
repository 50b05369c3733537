"""Checks of the parts that ``train`` is given: instances with all verbs, of classes that files can name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bnp_dask.analysis.base import EXAMPLES
from bnp_dask.core.encoding import to_spec
from bnp_dask.core.registry import REGISTRY
from bnp_dask.data.base import Source
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization
from bnp_dask.inputs.protocols import require
from bnp_dask.inputs.settings import shown
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.training.callbacks import Callback


def check_parts(model: Any, init: Any, schedule: Any, moves: Sequence[Any], callbacks: Sequence[Any]) -> None:
    """SettingError unless these are instances of the right classes; ``init`` and ``schedule`` may be None."""
    if not isinstance(model, Model):
        raise SettingError(f"model={shown(model)}: needs a Model, such as Model(DPMixture(gamma=1.0), Gaussian())")
    if init is not None:
        require("init", init, Initialization, EXAMPLES["init"])
    if schedule is not None:
        require("schedule", schedule, Schedule, EXAMPLES["schedule"])
        if model.learn_prior in ("diagonal", "full") and not schedule.decides_moves:
            raise SettingError(
                f"{type(schedule).__name__}() has no exact objective to learn a prior with; use Memoized() or "
                'FullBatch(), or Model(..., learn_prior="never")'
            )
        if model.learn_concentrations == "always" and not schedule.decides_moves:
            raise SettingError(
                f"{type(schedule).__name__}() has no exact objective to learn concentrations with; use Memoized() or "
                'FullBatch(), or Model(..., learn_concentrations="never")'
            )
    for move in moves:
        require("moves", move, Move, EXAMPLES["moves"])
    for one in callbacks:
        require("callbacks", one, Callback, EXAMPLES["callbacks"])


def require_savable(model: Model, init: Any, schedule: Any, moves: Sequence[Any], kept: bool) -> None:
    """StoreError, before anything is computed, for objects that could not be written to a file or not be read again.

    A model is always checked, since its posterior is the result of training; the rest if the run is ``kept``.
    """
    parts = {"init": init, "schedule": schedule, "moves": list(moves)} if kept else {}
    to_spec({"model": model, **parts}, REGISTRY)


def require_savable_parameters(posterior: Posterior) -> None:
    """StoreError, before the first lap, for parameters that could not be saved."""
    to_spec(posterior, REGISTRY)


def facts_of(source: Source) -> dict[str, Any]:
    """Identity of the data, as a run directory keeps it; StoreError for values that do not survive JSON."""
    facts = source.describe()
    try:
        same = json.loads(json.dumps(facts, allow_nan=False)) == facts
    except (TypeError, ValueError):
        same = False
    if not same:
        raise StoreError(
            f"{source.name}: {type(source).__name__}.describe() gives {shown(facts)}, which JSON does not give back; "
            "needs a dict with text, numbers, lists and dicts in it"
        )
    return facts
