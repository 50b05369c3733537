"""Checks for meaningless or contradictory settings, before anything is read or started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from bnp_dask.core.frozen import thawed
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import flag, one_of, path_text, positive_number, shown, whole_number
from bnp_dask.model import Model, Posterior

EXAMPLES = {
    "init": "BregmanKMeans(25)",
    "schedule": "Memoized(laps=50)",
    "moves": "[Birth(), Merge(), Delete()]",
    "callbacks": "[Progress()]",
}
"""Example of each argument, for messages."""

MOST_PARTS = 1_000
"""Most moves or callbacks of one call: an iterator may have no end."""

MOST_STARTS = 10_000
"""Most starts of one call: each is a whole run."""


def listed(name: str, value: Any) -> tuple[Any, ...]:
    """Parts as a tuple; SettingError for a single part, or text.  None gives an empty tuple."""
    if value is None:
        return ()
    if isinstance(value, (str, Mapping, np.ndarray)) or not isinstance(value, Iterable):
        raise SettingError(f"{name}={shown(value)}: needs a list, such as {EXAMPLES[name]}, or () for none")
    found = tuple(islice(value, MOST_PARTS + 1))
    if len(found) > MOST_PARTS:
        raise SettingError(f"{name}={shown(value)}: goes on after {MOST_PARTS} parts; needs a list that ends")
    return found


def check_run(
    store: Any, resume: Any, checkpoint_minutes: Any, on_bad_batch: Any, job: Any = None, n_init: Any = 1
) -> None:
    """Raise SettingError for meaningless or contradictory settings of a run."""
    if store is not None:
        path_text("store", store)
    if flag("resume", resume) and store is None:
        raise SettingError("resume=True needs store=, the run directory to resume from")
    one_of("on_bad_batch", on_bad_batch, ("raise", "skip"))
    positive_number("checkpoint_minutes", checkpoint_minutes, "number of minutes")
    if not (job is None or isinstance(job, str)):
        raise SettingError(f"job is a {type(job).__name__}; needs the text of a job file")
    whole_number("n_init", n_init, 1, MOST_STARTS, "a whole number of starts")


def require_posterior(value: Any) -> Posterior:
    """Return the posterior with arrays of the kernels' types; SettingError if ``value`` is not a posterior."""
    if not isinstance(value, Posterior):
        held = isinstance(getattr(value, "posterior", None), Posterior)
        hint = ": pass result.posterior" if held else ", such as result.posterior, or the result of bnp_dask.load"
        raise SettingError(f"posterior is a {type(value).__name__}; needs a Posterior{hint}")
    return thawed(value)


def require_chains(model: Model, what: str) -> None:
    """SettingError unless the model is a hidden Markov model."""
    if not model.structure.is_ordered:
        raise SettingError(
            f"{what} is for hidden Markov models, whose steps follow one another; this is a "
            f"{type(model.allocation).__name__}"
        )
