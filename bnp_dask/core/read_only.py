"""Values that leave the engine: read-only for their reader, without a copy.

A callback, a result or an estimator gets read-only views of the engine's arrays, in mappings that cannot be changed.
The engine never writes into these arrays afterwards, so that a reader may keep them and finds the same numbers later.

Kernels are compiled for writable arrays; read-only arrays would need a second compilation.  A value that comes back
from its reader, to score data or to start a run, is :func:`thawed` first; its arrays share the same memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np

T = TypeVar("T")


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed; JSON, pickle and pandas treat it as any dict."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this mapping is read-only; dict(...) of it makes one that may be changed")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed; JSON, pickle, pandas and ``==`` take it for the list that it is."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("this list is read-only; list(...) of it makes one that may be changed")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore[assignment]
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


def frozen(value: T) -> T:
    """The value with all arrays in it read-only, and with mappings and lists that cannot be changed.

    Arrays are views of the value's arrays; dataclasses, mappings and sequences that hold arrays are new objects.
    """
    return _mapped(value, _read_only)


def thawed(value: T) -> T:
    """The value with writable arrays in place of arrays that :func:`frozen` made read-only."""
    return _mapped(value, _writable)


def _read_only(array: np.ndarray) -> np.ndarray:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.setflags(write=False)
    return view


def _writable(array: np.ndarray) -> np.ndarray:
    if array.flags.writeable:
        return array
    view = array.view()
    try:
        view.setflags(write=True)
    except ValueError:  # the memory itself cannot be written: a file's, or another process's
        return array
    return view


_PLAIN = frozenset({str, int, float, bool, type(None), range})
"""Classes whose values hold no array; most values are of these, and are not asked what else they are."""


def _mapped(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """The value with every array changed; the same object if no array and no container had to change."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, Mapping):
        items = {name: _mapped(item, change) for name, item in value.items()}
        same = isinstance(value, FrozenDict) and all(items[name] is item for name, item in value.items())
        return value if same else FrozenDict(items)
    if isinstance(value, (list, tuple)):
        parts = [_mapped(item, change) for item in value]
        same = all(a is b for a, b in zip(parts, value, strict=True))
        if same and isinstance(value, (FrozenList, tuple)):
            return value
        if isinstance(value, list):
            return FrozenList(parts)
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    if is_dataclass(value) and not isinstance(value, type):
        # all its attributes, including cached properties
        held = getattr(value, "__dict__", None) or {own.name: getattr(value, own.name) for own in fields(value)}
        changed = {name: new for name, item in held.items() if (new := _mapped(item, change)) is not item}
        out = copy.copy(value) if changed else value
        for name, new in changed.items():
            object.__setattr__(out, name, new)
        return out
    return value
