"""From the text of a job file to objects: each setting is converted to the type that its field declares."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from bnp_dask._names import (
    ALLOCATIONS,
    INITIALIZATIONS,
    INTENSITIES,
    MOVES,
    OBSERVATIONS,
    RESPONSES,
    SCHEDULES,
    SOURCES,
    Group,
)
from bnp_dask.allocation.base import Allocation
from bnp_dask.allocation.levy import Intensity
from bnp_dask.allocation.response import Response
from bnp_dask.core import REGISTRY
from bnp_dask.data import Source
from bnp_dask.errors import SettingError, StoreError, near
from bnp_dask.execute.base import Executor
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization
from bnp_dask.inputs import local_path, place_in_file, require, shortened, shown
from bnp_dask.inputs.lines import SHOWN
from bnp_dask.model import Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import Observation
from bnp_dask.training.results import load


# -- classes that a job file may name, by purpose ------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Role:
    """Purpose of a class: names in this package, the protocol to follow, and an example for messages."""

    known: Group
    protocol: type
    example: str


ALLOCATION = Role(ALLOCATIONS, Allocation, "DPMixture")
INTENSITY = Role(INTENSITIES, Intensity, "GeneralizedGamma")
RESPONSE = Role(RESPONSES, Response, "GaussianResponse")
OBSERVATION = Role(OBSERVATIONS, Observation, "Gaussian")
INIT = Role(INITIALIZATIONS, Initialization, "RandomExamples")
SCHEDULE = Role(SCHEDULES, Schedule, "Memoized")
MOVE = Role(MOVES, Move, "Merge")
SOURCE = Role(SOURCES, Source, "sqlite_rows.SqliteRows")
EXECUTOR = Role({}, Executor, "pool.Pool")


def class_of(role: Role, kind: str, path: str) -> type:
    """The class of a name: a class of this package, or, if its module is given, a registered one."""
    if kind in role.known:
        return getattr(importlib.import_module(role.known[kind]), kind)
    if "." in kind:
        try:
            return REGISTRY.find(kind)
        except StoreError as error:
            raise SettingError(f"{path}: there is no {shown(kind)}: {error}") from error
    hint = nearest(kind, role.known) if role.known else f"; needs the class with its module, such as {role.example}"
    raise SettingError(f"{path}: there is no {shown(kind)}{hint}")


def nearest(name: Any, known: Any) -> str:
    """``"; did you mean 'gamma'?"``, or the list of known names."""
    close = near(short_name(name), map(str, known))
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; there are {', '.join(str(k) for k in known)}"


def short_name(name: Any) -> str:
    """A name, shortened for messages."""
    return shortened(str(name), SHOWN)


# -- settings ------------------------------------------------------------------------------------------------------
class UnknownSettingError(SettingError):
    """A name that is no setting of the section it stands in."""

    def __init__(self, where: str, name: str, hint: str) -> None:
        super().__init__(f"{where}: there is no such setting{hint}")
        self.where, self.name = where, name


def object_of(role: Role, value: Any, path: str, folder: Path) -> Any:
    """An object of one of the classes of a role, from ``{type: Name, ...}`` or ``Name``."""
    kind, given = kind_and_settings(value, path)
    made = build(class_of(role, kind, path), given, path, folder)
    require(path, made, role.protocol, role.example)
    return made


def kind_and_settings(value: Any, path: str) -> tuple[str, dict[str, Any]]:
    given = dict(mapping(short(value, "type"), path))
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        close = near("type", [k for k in given if isinstance(k, str)])
        hint = "" if close is None else f" (found {shown(close)})"
        raise SettingError(f"{path}: needs 'type', the name of a class{hint}, such as {{type: DPMixture}}")
    return kind, given


def build(cls: type, value: Any, path: str, folder: Path) -> Any:
    """An object of ``cls`` from its settings."""
    values = settings_of(cls, mapping(value, path), path, folder)
    try:
        return cls(**values)
    except (ArithmeticError, TypeError, ValueError) as error:  # a SettingError, or NumPy's own about an array
        raise SettingError(f"{path}: {error}") from error


def settings_of(cls: type, given: Mapping[str, Any], path: str, folder: Path) -> dict[str, Any]:
    """Values for the fields of a dataclass, each checked against its type."""
    known = known_settings(cls)
    for name in given:
        if name not in known:
            raise UnknownSettingError(_join(path, name), str(name), nearest(name, known))
    missing = [n for n, setting in known.items() if setting.is_required and n not in given]
    if missing:
        raise SettingError(f"{_join(path, missing[0])}: is missing, and needed")
    return {n: _convert(v, known[n].hint, _join(path, n), folder) for n, v in given.items()}


@dataclass(frozen=True)
class Setting:
    """A setting of a class for job files: its declared type, whether it is required, and else its default."""

    hint: Any
    is_required: bool
    default: Any = None


def known_settings(cls: type) -> dict[str, Setting]:
    """Settings of a dataclass by name: its fields, and second names of these that its own ``__init__`` takes."""
    hints = typing.get_type_hints(cls)
    parameters = inspect.signature(cls).parameters
    found = {}
    for f in dataclasses.fields(cls):
        if f.init:
            is_required = parameters[f.name].default is inspect.Parameter.empty
            default = None if f.default is dataclasses.MISSING else f.default
            found[f.name] = Setting(hints[f.name], is_required, default)
    second = [name for name in parameters if name not in found]
    if second:
        own = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
        found |= {name: Setting(own[name], False) for name in second}
    return found


def _convert(value: Any, hint: Any, path: str, folder: Path) -> Any:
    """A value of a YAML file as the declared type of a field; SettingError if it has another type."""
    if hint is object:
        return value
    if hint is Allocation:
        return object_of(ALLOCATION, value, path, folder)
    if hint is Observation:
        return object_of(OBSERVATION, value, path, folder)
    if hint is Intensity:
        return object_of(INTENSITY, value, path, folder)
    if hint is Response:
        return object_of(RESPONSE, value, path, folder)
    if hint is Initialization:
        return object_of(INIT, value, path, folder)
    if hint is Posterior:
        return load(absolute(_text(value, path), folder, path))
    if hint is Path:
        return Path(absolute(_text(value, path), folder, path))
    if hint in (np.ndarray, Any):
        return _array(value, path, folder)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise SettingError(
                f"{path}: {shown(value)} is none of {', '.join(get_args(hint))}{nearest(value, get_args(hint))}"
            )
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), path, folder)
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        item = get_args(hint)[1]
        return {k: _convert(v, item, f"{path}[{short_name(k)}]", folder) for k, v in mapping(value, path).items()}
    if get_origin(hint) in (tuple, Sequence):
        if not isinstance(value, list):
            raise SettingError(f"{path}: found {shown(value)}, needs a list, such as [a, b]")
        return tuple(_convert(v, get_args(hint)[0], f"{path}[{i}]", folder) for i, v in enumerate(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, path, folder)
    return _scalar(value, hint, path)


def _convert_union(value: Any, options: tuple[Any, ...], path: str, folder: Path) -> Any:
    if value is None and types.NoneType in options:
        return None
    is_number = isinstance(value, (int, float))
    fits = [o for o in options if o is not types.NoneType]
    if is_number:  # a number stays a number if the class takes both numbers and arrays
        fits.sort(key=lambda o: o not in (bool, int, float))
    else:
        fits.sort(key=lambda o: o in (bool, int, float))
    errors = []
    for option in fits:
        try:
            return _convert(value, option, path, folder)
        except SettingError as error:
            errors.append(error)
    raise errors[0]


def _scalar(value: Any, hint: Any, path: str) -> Any:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "nothing"}
    if hint not in names:
        raise SettingError(f"{path}: cannot be given in a job file; use Python for it")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise SettingError(f"{path}: found {shown(value)}, needs {names[hint]}")
    return value


def _array(value: Any, path: str, folder: Path) -> np.ndarray:
    if isinstance(value, str):
        try:
            found = np.load(absolute(value, folder, path), allow_pickle=False)
        except SettingError:
            raise
        except Exception as error:  # NumPy raises nearly anything on damaged bytes
            raise SettingError(f"{path}: cannot read {shown(value)} as a .npy file: {error}") from error
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
            raise SettingError(f"{path}: {shown(value)} holds no array of numbers; write one with numpy.save")
        return found
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if isinstance(value, bool) or array.size == 0:
        raise SettingError(
            f"{path}: found {shown(value)}, needs numbers: a list, a list of lists, or the path of a .npy file"
        )
    return array


def mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{path}: found {shown(value)}, needs settings, such as 'name: value'")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise SettingError(f"{path}: found {shown(value)}, needs text")
    return value


def short(value: Any, name: str) -> Any:
    """``Name`` is short for ``{name: Name}``."""
    return {name: value} if isinstance(value, str) else value


def _join(path: str, name: Any) -> str:
    return f"{path}.{short_name(name)}" if path else short_name(name)


def absolute(path: str, folder: Path, where: str) -> str:
    if "://" in path or "::" in path:
        return place_in_file(path, where)
    try:
        return os.path.abspath(folder / local_path(path))
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from error
