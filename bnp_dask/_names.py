"""Modules of all public names, read from ``__init__.pyi``, for the package, estimators and job files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

Group = Mapping[str, str]
"""Public names and the modules that define them."""


def names_in_stub(folder: Path) -> Group:
    """Module of each name that the stub of a package, ``__init__.pyi``, imports."""
    stub = ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return MappingProxyType({a.name: node.module for node in imports for a in node.names if node.module is not None})


def lazily(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are imported at their first use.

    The stub beside ``file``, the package's ``__init__.py``, lists the names and the modules that define them.
    """
    places = names_in_stub(Path(file).parent)

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        value = getattr(__import__(places[name], fromlist=(name,)), name)  # as ``from``, which finds modules too
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(places), sorted(places)


PUBLIC: Group = names_in_stub(Path(__file__).parent)
"""All public names and their modules."""


def _of(*packages: str) -> Group:
    """Public names that some packages define."""
    homes = {f"bnp_dask.{package}" for package in packages}
    return MappingProxyType({name: module for name, module in sorted(PUBLIC.items()) if module in homes})


ALLOCATIONS = _of("allocation")
INTENSITIES = _of("allocation.levy")
RESPONSES = _of("allocation.response")
OBSERVATIONS = _of("observation")
SCHEDULES = _of("inference", "inference.streaming", "inference.sampling")
INITIALIZATIONS = _of("initialize", "moves.start")
MOVES = _of("moves")
SOURCES = _of("data.sources.virtual")


@lru_cache
def model_parts() -> Group:
    """Names and modules of parts of models and of starts: a file may name a class that nothing has imported yet."""
    folder = Path(__file__).parent
    chapters = [names_in_stub(folder / chapter) for chapter in ("allocation", "initialize", "observation")]
    return MappingProxyType({name: module for chapter in chapters for name, module in chapter.items()})


METHODS: Group = MappingProxyType(
    {
        "certainty": "bnp_dask.training.certainty",
        "model_html": "bnp_dask.reports.run_page",
        "posterior_html": "bnp_dask.reports.run_page",
        "result_html": "bnp_dask.reports.run_page",
        "save": "bnp_dask.training.results",
        "tables_html": "bnp_dask.reports.pages",
        "update_html": "bnp_dask.reports.run_page",
        "to_xarray": "bnp_dask.training.results",
        "topic_list": "bnp_dask.analysis.topics",
    }
)
"""Functions of upper layers that save and show posteriors and results, which refer to them only by name."""


def method(name: str) -> Callable[..., Any]:
    """A function of :data:`METHODS`, whose module is imported at this call."""
    found: Callable[..., Any] = getattr(import_module(METHODS[name]), name)
    return found
