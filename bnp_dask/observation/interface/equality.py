"""Equality of likelihoods by their settings."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def compared_by_settings(cls: type[T]) -> type[T]:
    """Class decorator: instances of a frozen dataclass are equal if all fields are, arrays number by number.

    Copies, also through a file or another process, are then equal to their originals.
    """

    def equals(self: Any, other: object) -> Any:
        return _same(self, other) if type(other) is cls else NotImplemented

    # arrays have no hash; settings that differ only in these share one
    def hashed(self: Any) -> int:
        return hash((cls, tuple(f.name for f in fields(self) if getattr(self, f.name) is None)))

    cls.__eq__ = equals  # type: ignore[method-assign, assignment]
    cls.__hash__ = hashed  # type: ignore[method-assign, assignment]
    return cls


def _same(a: Any, b: Any) -> bool:
    if type(a) is type(b) and is_dataclass(a):
        return all(_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return a is b or (isinstance(a, str) and isinstance(b, str) and a == b)
    return bool(np.array_equal(a, b))
