"""Settings of a model in one line, without the numbers of its arrays."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

ITEMS = 4
"""Items of a list that are written out."""


def brief(value: Any) -> str:
    """A value as one line of code: settings that are not the defaults, and arrays by their shapes.

    Examples
    --------
    >>> brief([1.0, np.zeros((3, 2)), "auto"])
    "[1.0, array (3, 2), 'auto']"
    """
    if is_dataclass(value) and not isinstance(value, type):
        changed = [f for f in fields(value) if f.init and not _is_default(getattr(value, f.name), f.default)]
        settings = ", ".join(f"{f.name}={brief(getattr(value, f.name))}" for f in changed)
        return f"{type(value).__name__}({settings})"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.item():.6g}" if np.size(value) == 1 else f"array {np.shape(value)}"
    if isinstance(value, (list, tuple)):
        more = [f"... {len(value) - ITEMS} more"] if len(value) > ITEMS else []
        inside = ", ".join([*map(brief, value[:ITEMS]), *more])
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if len(value) == 1 else f"({inside})"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _is_default(value: Any, default: Any) -> bool:
    if default is MISSING or isinstance(value, np.ndarray):
        return False
    return value is default or (type(value) is type(default) and bool(value == default))
