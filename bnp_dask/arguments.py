"""Checks of what ``train`` is given, before anything is read or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bnp_dask.errors import SettingError
from bnp_dask.model import Model, Posterior
from bnp_dask.settings import flag, one_of, path_text, positive_number, require_methods, shown

EXAMPLES = {
    "init": "BregmanKMeans(25)",
    "schedule": "Memoized(laps=50)",
    "moves": "[Birth(), Merge(), Delete()]",
    "callbacks": "[Progress()]",
}
"""What an argument may be, for messages."""


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Some parts, one after another; SettingError for a single one, or text.  None has none."""
    if value is None:
        return ()
    if isinstance(value, (str, Mapping, np.ndarray)) or not isinstance(value, Iterable):
        raise SettingError(f"{name}={shown(value)}: needs a list, such as {EXAMPLES[name]}, or () for none")
    return tuple(value)


def check_parts(model: Any, init: Any, schedule: Any, moves: Sequence[Any], callbacks: Sequence[Any]) -> None:
    """SettingError unless these are instances of what they should be."""
    if not isinstance(model, Model):
        raise SettingError(f"model={shown(model)}: needs a Model, such as Model(DPMixture(gamma=1.0), Gaussian())")
    require_methods("init", init, ("start",), EXAMPLES["init"])
    require_methods("schedule", schedule, ("run",), EXAMPLES["schedule"])
    for move in moves:
        require_methods("moves", move, ("plan", "prepare"), EXAMPLES["moves"])
    for one in callbacks:
        require_methods("callbacks", one, ("on_start", "on_batch", "on_lap", "on_end"), EXAMPLES["callbacks"])


def check_run(store: Any, resume: Any, checkpoint_minutes: Any, on_bad_batch: Any, job: Any = None) -> None:
    """SettingError for settings of a run that say nothing, or contradict one another."""
    if store is not None:
        path_text("store", store)
    if flag("resume", resume) and store is None:
        raise SettingError("resume=True needs store=, the run directory to resume from")
    one_of("on_bad_batch", on_bad_batch, ("raise", "skip"))
    positive_number("checkpoint_minutes", checkpoint_minutes, "number of minutes")
    if not (job is None or isinstance(job, str)):
        raise SettingError(f"job is a {type(job).__name__}; needs the text of a job file")


def require_posterior(value: Any) -> Posterior:
    """The value; SettingError unless it is a posterior."""
    if not isinstance(value, Posterior):
        held = isinstance(getattr(value, "posterior", None), Posterior)
        hint = ": pass result.posterior" if held else ", such as result.posterior, or what bnp_dask.load reads"
        raise SettingError(f"posterior is a {type(value).__name__}; needs a Posterior{hint}")
    return value
