"""Checks that a user's object, an instance and not a class, has every member of a protocol."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeGuard, TypeVar

from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import shown

_ABSENT = object()

Role = TypeVar("Role")


@cache
def members(protocol: type) -> tuple[str, ...]:
    """Names of the methods and attributes that a protocol declares, in the order of its source."""
    parents = [base for base in reversed(protocol.__mro__) if getattr(base, "_is_protocol", False)]
    names = [name for base in parents for name in (*inspect.get_annotations(base), *vars(base))]
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_")))


def require(name: str, value: Any, protocol: type, example: str) -> None:
    """SettingError unless the value is an instance with all members of a protocol.

    Parameters
    ----------
    name
        Name of the argument.
    value
        Value of the argument.
    protocol
        Required protocol.
    example
        Example of a valid value, for the message.
    """
    lacks = lacking(value, protocol)
    if lacks is not None:
        raise SettingError(f"{name}={shown(value)}: {lacks}, such as {example}")


def as_a(value: object, role: type[Role]) -> Role:
    """Part of a model as an instance of a class or protocol whose members its declared type does not promise.

    The members were checked with the user's settings; this checks them once more.

    Raises
    ------
    SettingError
        The value is something else, or lacks a member.
    """
    if not is_a(value, role):
        raise SettingError(f"{type(value).__name__} is no {role.__name__}, which this needs")
    return value


def is_a(value: object, role: type[Role]) -> TypeGuard[Role]:
    """``isinstance`` that caches the answer by class: the plain one checks each member of a protocol at every
    call."""
    kind: Any = type(value)
    wanted: Any = role  # classes are cache keys, which the type checker does not accept for protocols
    absent = _absent_from(kind, wanted)
    if absent is None:
        return isinstance(value, role)
    if not absent:
        return True
    own = getattr(value, "__dict__", {})  # what a class lacks, an instance may have; None may be a value
    return all(name in own or hasattr(kind, name) for name in absent) and isinstance(value, role)


@cache
def _absent_from(kind: type, role: type) -> tuple[str, ...] | None:
    """Members of a protocol that a class lacks, or that are None there; None if the role is no protocol."""
    if not getattr(role, "_is_protocol", False):
        return None
    return tuple(name for name in members(role) if getattr(kind, name, None) is None)


def lacking(value: Any, protocol: type) -> str | None:
    """The first member of a protocol that a value lacks, in words; None if it lacks none."""
    if isinstance(value, type):
        return "found a class, needs an instance"
    kind: Any = type(value)
    role: Any = protocol  # classes are cache keys, as in is_a()
    if _is_able(kind, role):
        return None
    methods = _methods(protocol)
    for member in methods:
        if not callable(getattr(value, member, None)):
            return f"needs an instance with a method {member}()"
    for member in members(protocol):
        if member not in methods and not _has(value, member):
            return f"needs an instance with {member}"
    return None


@cache
def _methods(protocol: type) -> tuple[str, ...]:
    """Members of a protocol that are methods."""
    return tuple(name for name in members(protocol) if inspect.isfunction(getattr(protocol, name, None)))


@cache
def _is_able(kind: type, protocol: type) -> bool:
    """Whether instances of a class lack no member of a protocol, as far as the class shows it."""
    if not all(callable(getattr(kind, name, None)) for name in _methods(protocol)):
        return False
    return all(inspect.getattr_static(kind, name, _ABSENT) is not _ABSENT for name in members(protocol))


def _has(value: Any, member: str) -> bool:
    """Whether an attribute exists; a property counts without evaluation, since its value may not be known yet."""
    if inspect.getattr_static(value, member, _ABSENT) is not _ABSENT:
        return True
    return getattr(value, member, _ABSENT) is not _ABSENT
