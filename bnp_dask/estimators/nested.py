"""Settings of an estimator's parts, such as ``observation__kappa``, for ``get_params``, ``set_params`` and searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from bnp_dask.errors import SettingError, nearest
from bnp_dask.inputs.settings import shown


def with_nested(own: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator, and the settings of parameters that are parts of models: ``init__n_clusters``."""
    found = dict(own)
    for name, value in own.items():
        if is_dataclass(value) and not isinstance(value, type):
            found |= {f"{name}__{f.name}": getattr(value, f.name) for f in fields(value) if f.init}
    return found


def split_nested(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Parameters without, and with, two underscores in their names; the latter by parameter and setting."""
    plain = {name: value for name, value in params.items() if "__" not in name}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in params.items():
        if "__" in name:
            own, _, setting = name.partition("__")
            nested.setdefault(own, {})[setting] = value
    return plain, nested


def set_nested(estimator: Any, nested: Mapping[str, dict[str, Any]], named: Callable[[], Any]) -> None:
    """Set settings of parts, which are replaced; ``named`` is the likelihood of an estimator that has its name.

    SettingError for a parameter without settings, or a setting that the part does not have.
    """
    for name, settings in nested.items():
        value = vars(estimator).get(name)
        part = named() if name == "observation" and isinstance(value, str) else value
        if not is_dataclass(part) or isinstance(part, type):
            raise SettingError(f"{name}={shown(value)} has no settings; needs a part such as Gaussian() or Memoized()")
        known = [f.name for f in fields(part) if f.init]
        wrong = next((setting for setting in settings if setting not in known), None)
        if wrong is not None:
            raise SettingError(
                f"{name}__{wrong}: {type(part).__name__} has no setting {wrong!r}{nearest(wrong, known)}; it has "
                f"{', '.join(known)}"
            )
        setattr(estimator, name, replace(part, **settings))
