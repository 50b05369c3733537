"""Protocols checked where a guest enters: an instance, and no class, that has every verb."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeGuard, TypeVar

from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import shown

_ABSENT = object()

Role = TypeVar("Role")


def members(protocol: type) -> tuple[str, ...]:
    """Names of the methods and attributes that a protocol declares, in the order of its source."""
    parents = [base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False)]
    names = [name for base in parents for name in (*inspect.get_annotations(base), *vars(base))]
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


def require(name: str, value: Any, protocol: type, example: str) -> None:
    """SettingError unless the value is an instance with all that a protocol declares.

    Parameters
    ----------
    name
        What the user passed it as.
    value
        What was passed.
    protocol
        What it should be.
    example
        How such a thing is made, for the message.
    """
    lacks = lacking(value, protocol)
    if lacks is not None:
        raise SettingError(f"{name}={shown(value)}: {lacks}, such as {example}")


def as_a(value: object, role: type[Role]) -> Role:
    """Part of a model as an instance of a class or protocol, whose verbs its type alone does not promise.

    Whether it has them is checked at the door, where a user's settings are; here it is checked once more.

    Raises
    ------
    SettingError
        The value is something else, or lacks a verb.
    """
    if not is_a(value, role):
        raise SettingError(f"{type(value).__name__} is no {role.__name__}, which this needs")
    return value


def is_a(value: object, role: type[Role]) -> TypeGuard[Role]:
    """``isinstance``, which asks a protocol for each of its verbs anew, from memory where the class of a value has
    them."""
    kind: Any = type(value)
    wanted: Any = role  # classes are keys, which the type checker doubts of protocols
    return _all_are(kind, wanted) or isinstance(value, role)


@cache
def _all_are(kind: type, role: type) -> bool:
    """Whether a class has each verb of a protocol; what instances alone have does not count."""
    is_protocol = getattr(role, "_is_protocol", False)
    return is_protocol and all(getattr(kind, name, None) is not None for name in members(role))


def lacking(value: Any, protocol: type) -> str | None:
    """The first thing that a value lacks of a protocol, in words; None where it has all."""
    if isinstance(value, type):
        return "found a class, needs an instance"
    methods = [name for name in members(protocol) if inspect.isfunction(getattr(protocol, name, None))]
    for member in methods:
        if not callable(getattr(value, member, None)):
            return f"needs an instance with a method {member}()"
    for member in members(protocol):
        if member not in methods and not _has(value, member):
            return f"needs an instance with {member}"
    return None


def _has(value: Any, member: str) -> bool:
    """Whether an attribute is there; a property counts unasked, since its value may not be known yet."""
    if inspect.getattr_static(value, member, _ABSENT) is not _ABSENT:
        return True
    return getattr(value, member, _ABSENT) is not _ABSENT
