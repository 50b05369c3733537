"""Sections of a job file and their settings, to tell where a setting belongs that stands in the wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from bnp_dask._names import ALLOCATIONS, INITIALIZATIONS, MOVES, OBSERVATIONS, SCHEDULES, Group
from bnp_dask.cli.job_parts import ClientSpec, DataSpec, UpdateSpec
from bnp_dask.cli.settings import known_settings
from bnp_dask.training.alternatives.shadow import Shadow


def place_of_setting(name: str, top: type) -> str:
    """A hint that says in which section a setting of this name belongs, with an example; empty if there is none.

    ``top`` is the class of the settings at the top of a job file.
    """
    for section, kind, cls in _sections(top):
        if name in known_settings(cls):
            if not section:
                return f"; {name!r} belongs to the top of the file"
            inside = f"{name}: ..." if kind is None else f"type: {kind}, {name}: ..."
            shape = f"[{{{inside}}}]" if section == "moves" else f"{{{inside}}}"
            *above, last = section.split(".")
            example = f"{last}: {shape}"
            for word in reversed(above):
                example = f"{word}: {{{example}}}"
            return f"; {name!r} belongs to {section!r}, such as {example}"
    return ""


def _sections(top: type) -> Iterator[tuple[str, str | None, type]]:
    """Name of each section, name of the class whose settings it has if it may have several, and the class."""
    yield "", None, top
    yield from _of("schedule", SCHEDULES, "Memoized")
    yield "data", None, DataSpec
    yield from _of("model.allocation", ALLOCATIONS, "DPMixture")
    yield from _of("model.observation", OBSERVATIONS, "Gaussian")
    yield from _of("init", INITIALIZATIONS, "BregmanKMeans")
    yield from _of("moves", MOVES, "Birth")
    yield "client", None, ClientSpec
    yield "update", None, UpdateSpec
    yield "shadow", None, Shadow


def _of(section: str, known: Group, usual: str) -> Iterator[tuple[str, str, type]]:
    """The classes of a section, the usual one first."""
    for kind in sorted(known, key=lambda name: (name != usual, name)):
        yield section, kind, getattr(import_module(known[kind]), kind)
