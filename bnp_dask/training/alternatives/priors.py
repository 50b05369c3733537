"""Other priors that shadows begin with: likelihoods of the run's class, whose prior has other settings.

Two states are compared by their objectives, so both must sum the same terms of the same data.  Settings of a likelihood
that describe its data or their statistics, such as ``center``, therefore stay the same as in the run.

* If the run's prior is learned, the objective is one function of q and of the prior's settings, with the hyperprior
  about the point where the *run's* learning began.  Another prior is then another start of the same climb.
* If it is not, the objective of a state is the bound on the log probability of the data under the prior that the
  state has.  The run then goes for the largest over the priors of the list: empirical Bayes, or the most probable
  of priors that are equally probable beforehand, up to the log of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from bnp_dask.core.survey import Survey
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import shown
from bnp_dask.model import Model
from bnp_dask.observation.base import Observation
from bnp_dask.training.alternatives.shadow import Shadow

SHARED = ("center", "fractional", "grain", "lags", "levels", "missing", "normalize", "null", "variance")
"""Settings of likelihoods that describe their data or statistics, or known facts, and not a prior."""


def require_priors(model: Model, priors: Sequence[Observation]) -> None:
    """SettingError unless the likelihoods are of the model's class, and states under them can be compared."""
    kind = type(model.observation)
    for number, given in enumerate(priors):
        if type(given) is not kind:
            raise SettingError(
                f"shadow: prior[{number}] is {told(given)}, but the run's likelihood is {kind.__name__}; needs "
                f"{kind.__name__}(...) with other settings of its prior"
            )
    if priors and model.estimate == "map":
        raise SettingError(
            'shadow: prior needs estimate="posterior": point estimates have no objective that could be compared '
            "between priors"
        )


def other_priors(shadow: Shadow | None, model: Model, survey: Survey) -> tuple[Observation, ...]:
    """The priors of shadows with open settings filled in: from the run's prior, or set from the data in the same way.

    Parameters
    ----------
    shadow
        Setting of shadows, None if there are none.
    model
        Model of the run, its prior set from the data.
    survey
        Known facts about the data.

    Raises
    ------
    SettingError
        Another value of a setting that must be the run's, or a setting of the prior that is neither number nor array.
    """
    priors = (shadow.prior if shadow is not None else None) or ()
    return tuple(_ready(model.observation, given, survey, f"shadow: prior[{i}]") for i, given in enumerate(priors))


def _ready(own: Any, given: Any, survey: Survey, place: str) -> Observation:
    common = {f.name: getattr(own, f.name) for f in fields(given) if f.name in SHARED}
    for name, value in common.items():
        asked = getattr(given, name)
        is_open = asked is None or asked is False
        if not (is_open or _is_same(asked, value)):
            raise SettingError(
                f"{place} is {told(given)}, but {name} is no setting of its prior and {shown(value)} in the run; "
                "leave it out"
            )
    ready: Observation = replace(given, **common).with_prior(survey)
    for f in fields(given):
        mine, other = getattr(own, f.name), getattr(ready, f.name)
        if not _is_same(mine, other) and not isinstance(other, (int, float, np.ndarray)):
            raise SettingError(
                f"{place} is {told(given)}, whose setting {f.name} is neither a number nor an array; only likelihoods "
                "whose prior is set by numbers and arrays can have others beside it"
            )
    return ready


def told(likelihood: Any) -> str:
    """A likelihood as text, with only the settings that were given."""
    given = ((f.name, getattr(likelihood, f.name), f.default) for f in fields(likelihood) if f.init)
    parts = [f"{name}={shown(value)}" for name, value, default in given if value is not default]
    return f"{type(likelihood).__name__}({', '.join(parts)})"


def same_settings(one: Any, other: Any) -> bool:
    """Whether two likelihoods of one class have the same settings."""
    return all(_is_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def _is_same(a: Any, b: Any) -> bool:
    """Whether two settings are equal, numbers standing for arrays of them."""
    try:
        return bool(np.all(np.asarray(a) == np.asarray(b)))
    except (TypeError, ValueError):
        return a is b
