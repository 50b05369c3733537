"""Public names with their signatures: ``python tests/face/public_names.py`` writes ``public_names.txt`` anew."""

from __future__ import annotations

import inspect
from pathlib import Path

import bnp_dask
from bnp_dask._names import PUBLIC

RECORDED = Path(__file__).with_name("public_names.txt")


def lines() -> list[str]:
    """A line for each public name, and one for each public method of a class."""
    found = []
    for name in sorted(PUBLIC):
        value = getattr(bnp_dask, name)
        if not callable(value):
            found.append(name)
            continue
        found.append(f"{name}{_signature(value)}")
        if isinstance(value, type):
            found += [f"{name}.{member}" for member in _members(value)]
    return found


def _signature(value: object) -> str:
    """Names and defaults of the parameters; without types, which say nothing about who may call it."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(bare))


def _members(cls: type) -> list[str]:
    """Public methods and properties, those of its own package that it inherits too."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("bnp_dask")]
    names = sorted({name for base in ours for name in vars(base) if not name.startswith("_")})
    return [_member(name, inspect.getattr_static(cls, name)) for name in names]


def _member(name: str, value: object) -> str:
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    return f"{name}{_signature(function)}" if inspect.isfunction(function) else name


if __name__ == "__main__":
    RECORDED.write_text("\n".join(lines()) + "\n")
