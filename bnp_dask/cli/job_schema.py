"""JSON schema of job files, for editors: made from the declared types that check a job file, and from docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from bnp_dask._names import Group
from bnp_dask.allocation.base import Allocation
from bnp_dask.allocation.levy import Intensity
from bnp_dask.allocation.response import Response
from bnp_dask.cli.jobfile import ClientSpec, DataSpec, Top, UpdateSpec
from bnp_dask.cli.settings import (
    ALLOCATION,
    INIT,
    INTENSITY,
    MOVE,
    OBSERVATION,
    RESPONSE,
    SCHEDULE,
    SOURCE,
    known_settings,
)
from bnp_dask.initialize import Initialization
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Observation
from bnp_dask.training.alternatives import Shadow

Schema = dict[str, Any]

ROLES: Mapping[str, Group] = {
    "Allocation": ALLOCATION.known,
    "Observation": OBSERVATION.known,
    "Intensity": INTENSITY.known,
    "Response": RESPONSE.known,
    "Initialization": INIT.known,
    "Schedule": SCHEDULE.known,
    "Move": MOVE.known,
}
"""Roles of objects in a job file, with their possible names."""

SCALARS: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}

GUEST: Schema = {
    "type": "object",
    "description": "A class of another package, by its module.",
    "properties": {"type": {"type": "string", "pattern": r"\."}},
    "required": ["type"],
}


def schema_text() -> str:
    """The schema as JSON, as ``bnp-dask schema`` prints it and ``docs/job.schema.json`` holds it."""
    return json.dumps(job_schema(), indent=1) + "\n"


def job_schema() -> Schema:
    """JSON schema (draft 7) of a job file.

    It contains names, types, and required settings; numbers out of range are found when the job is read.
    """
    named = (*ROLES.values(), SOURCE.known)
    classes = {kind: getattr(import_module(known[kind]), kind) for known in named for kind in sorted(known)}
    own = {kind: _settings(cls, kind) for kind, cls in classes.items()}
    roles = {role: _any_of(_of_role(known)) for role, known in ROLES.items()}
    numbers: Schema = {"type": "array", "items": {"anyOf": [{"type": "number"}, _reference("numbers")]}, "minItems": 1}
    top = _settings(Top)
    parts = {
        "model": _reference("Model"),
        "data": _any_of([{"type": "string"}, _reference("Data"), *map(_reference, sorted(SOURCE.known)), GUEST]),
        "init": _any_of([_reference("Initialization"), {"type": "null"}]),
        "schedule": _any_of([_reference("Schedule"), {"type": "null"}]),
        "moves": _any_of([{"type": "array", "items": _reference("Move")}, {"type": "null"}]),
        "client": _any_of([_reference("Client"), GUEST, {"type": "null"}]),
        "shadow": _any_of([_reference("Shadow"), {"type": "null"}]),
        "update": _any_of([_reference("Update"), {"type": "null"}]),
    }
    top["properties"] |= {name: _with(top["properties"][name], schema) for name, schema in parts.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Job file of bnp-dask",
        **top,
        "definitions": {
            "Model": _settings(Model),
            "Data": _settings(DataSpec),
            "Client": _settings(ClientSpec),
            "Shadow": _settings(Shadow),
            "Update": _settings(UpdateSpec),
            "numbers": numbers,
            **roles,
            **own,
        },
    }


def _of_role(known: Group) -> list[Schema]:
    short: list[Schema] = [{"enum": sorted(known)}, {"type": "string", "pattern": r"^[^.]+(\.[^.]+)+$"}]
    return [*short, *(_reference(kind) for kind in sorted(known)), GUEST]


def _settings(cls: type, kind: str | None = None) -> Schema:
    """Settings of a dataclass; with its ``type`` if it has the name ``kind``."""
    said, required = _said(cls), []
    properties: dict[str, Schema] = {}
    if kind is not None:
        properties["type"] = {"const": kind}
        required.append("type")
    for name, setting in known_settings(cls).items():
        schema = of_type(setting.hint)
        if schema is None:
            continue
        known: Schema = {"description": said[name]} if name in said else {}
        if isinstance(setting.default, (bool, int, float, str)):
            known["default"] = setting.default
        properties[name] = _with(known, schema)
        if setting.is_required:
            required.append(name)
    found: Schema = {"type": "object", "description": _plain((inspect.getdoc(cls) or "").split("\n\n")[0])}
    found |= {"properties": properties, "additionalProperties": False}
    return {**found, "required": required} if required else found


def of_type(hint: Any) -> Schema | None:
    """Values that a job file may give for a declared type; None if there are none.

    One branch for each branch that checks the value (``settings.py``).
    """
    if hint is object:
        return {}
    if hint is Allocation:
        return _reference("Allocation")
    if hint is Observation:
        return _reference("Observation")
    if hint is Intensity:
        return _reference("Intensity")
    if hint is Response:
        return _reference("Response")
    if hint is Initialization:
        return _reference("Initialization")
    if hint in (Posterior, Path):
        return {"type": "string"}
    if hint in (np.ndarray, Any):
        return _any_of([{"type": "number"}, _reference("numbers"), {"type": "string", "pattern": r"\.npy$"}])
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) in (Union, types.UnionType):
        options = [schema for option in get_args(hint) if (schema := of_type(option)) is not None]
        return _any_of(options) if any(o != {"type": "null"} for o in options) else None
    if isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping):
        return {"type": "object", "additionalProperties": of_type(get_args(hint)[1])}
    if get_origin(hint) in (tuple, Sequence):
        return {"type": "array", "items": of_type(get_args(hint)[0])}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _settings(hint)
    return {"type": SCALARS[hint]} if hint in SCALARS else None


def _any_of(options: list[Schema]) -> Schema:
    flat = [part for option in options for part in (option["anyOf"] if list(option) == ["anyOf"] else [option])]
    alone = [option for i, option in enumerate(flat) if option not in flat[:i]]
    return alone[0] if len(alone) == 1 else {"anyOf": alone}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/definitions/{name}"}


def _with(known: Schema, schema: Schema) -> Schema:
    """A schema with a description and similar keys beside it; readers ignore keys beside a bare reference."""
    return {**known, "allOf": [schema]} if known and "$ref" in schema else {**known, **schema}


def _said(cls: type) -> dict[str, str]:
    """Description of each parameter in a docstring, as plain text."""
    _, _, section = (inspect.getdoc(cls) or "").partition("Parameters\n----------\n")
    section = re.split(r"\n\n?\w[\w ]*\n-{3,}\n", section)[0]
    found: dict[str, str] = {}
    for names, text in re.findall(r"^(\S[^\n]*)\n((?:[ ]+[^\n]*\n?|\n)*)", section, re.MULTILINE):
        found |= dict.fromkeys((name.strip() for name in names.split(",")), _plain(text))
    return found


def _plain(text: str) -> str:
    """Text in one line without marks of reStructuredText."""
    return " ".join(re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", lambda m: m[1] or m[2], text).split())
