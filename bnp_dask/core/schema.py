"""Whether content of a file has the types that its readers need.

A checksum says that a file is as it was written, and not that this package wrote it.  So the files of a run declare
their fields, as a ``TypedDict`` or a dataclass, and :func:`fault` walks once over what was read, before anything uses
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from bnp_dask.inputs import shown


@dataclass(frozen=True)
class Between:
    """Least and largest value of a number in a file; NaN is never between."""

    low: float
    high: float


Id = Annotated[int, Between(-(2**62), 2**62)]
"""Id of a cluster, or another whole number of 64 bits."""

Whole = Annotated[int, Between(0, 2**62)]
"""Number of things."""

Seed = Annotated[int, Between(0, 2**256)]
"""Seed of random numbers: those of several starts of a run take more than 64 bits."""

Finite = Annotated[float, Between(-1.7e308, 1.7e308)]
"""A number that is neither NaN nor infinite."""

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null", None: "null"}
_TOP = "the content"


def fault(value: Any, kind: Any, place: str = "") -> str | None:
    """The first place at which JSON differs from its declared type, in words; None if it fits.

    Parameters
    ----------
    value
        Plain data, as read.
    kind
        Its type: None, bool, int, float, str, Any, ``Literal``, list, tuple (a list in JSON), dict, a union of these, a
        ``TypedDict`` or a dataclass (a mapping in JSON), or a number ``Annotated`` with :class:`Between`.
    place
        Path of the value, for the message.

    Returns
    -------
    str or None
        Field, what was found, and what is needed.  Further fields of a ``TypedDict`` are ignored, since a later version
        may have added them; a dataclass has no others.

    Examples
    --------
    >>> fault({"state": {"lap": -1}}, dict[str, dict[str, Whole]])
    'state.lap is -1; needs a whole number from 0 to 4.61169e+18'
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return None
    if origin is Annotated:
        wrong = fault(value, args[0], place)
        return wrong or (None if args[1].low <= value <= args[1].high else _wrong(value, kind, place))
    if origin in (Union, UnionType):
        faults = [fault(value, one, place) for one in args]
        deeper = [one for one in faults if one is not None and not one.startswith(f"{place or _TOP} is ")]
        return None if None in faults else deeper[0] if len(deeper) == 1 else _wrong(value, kind, place)
    if origin is Literal:
        return None if any(type(value) is type(one) and value == one for one in args) else _wrong(value, kind, place)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            return _wrong(value, kind, place)
        kinds = args if origin is tuple and args[1:] != (...,) else args[:1] * len(value)
        if len(kinds) != len(value):
            return _wrong(value, kind, place)
        return _first(fault(own, one, f"{place}[{i}]") for i, (own, one) in enumerate(zip(value, kinds, strict=True)))
    if origin is dict:
        if not isinstance(value, Mapping):
            return _wrong(value, kind, place)
        return _first(fault(own, args[1], _inside(place, name)) for name, own in value.items())
    if is_typeddict(kind) or is_dataclass(kind):
        return _fault_of_record(value, kind, place)
    fits = isinstance(value, (int, float) if kind is float else NoneType if kind is None else kind)
    return None if fits and (kind is bool or not isinstance(value, bool)) else _wrong(value, kind, place)


def _fault_of_record(value: Any, kind: Any, place: str) -> str | None:
    if not isinstance(value, Mapping):
        return _wrong(value, kind, place)
    known, needed = _fields(kind)
    missing = [name for name in needed if name not in value]
    further = [name for name in value if name not in known] if is_dataclass(kind) else []
    if missing or further:
        what = f"lacks {', '.join(missing)}" if missing else f"also has {shown(further)}"
        return f"{place or _TOP} {what}; needs {', '.join(known)}"
    return _first(fault(value[name], own, _inside(place, name)) for name, own in known.items() if name in value)


@lru_cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Types of the fields of a record, and the fields that it needs."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        may_lack = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        bare = {name: get_args(hint)[0] if name in may_lack else hint for name, hint in hints.items()}
        return bare, tuple(name for name in hints if name not in may_lack)
    own = [f for f in fields(kind) if f.init]
    needed = (f.name for f in own if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: hints[f.name] for f in own}, tuple(needed)


def _first(faults: Iterable[str | None]) -> str | None:
    return next((one for one in faults if one is not None), None)


def _inside(place: str, name: str) -> str:
    return f"{place}.{shown(name)[1:-1]}" if place else shown(name)[1:-1]


def _wrong(value: Any, kind: Any, place: str) -> str:
    return f"{place or _TOP} is {shown(value)}; needs {_in_words(kind)}"


def _in_words(kind: Any) -> str:
    """A type as messages name it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_in_words(args[0])} from {args[1].low:g} to {args[1].high:g}"
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_in_words, args)))
    if origin is Literal:
        return " or ".join(map(repr, args))
    if origin is tuple and args[1:] != (...,):
        return f"a list of {len(args)}"
    if origin in (list, tuple):
        return f"a list, each {_in_words(args[0])}"
    return _NAMES.get(kind) or ("a mapping" if origin is dict else f"a mapping with {', '.join(_fields(kind)[0])}")
