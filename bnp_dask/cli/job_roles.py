"""Classes that a job file may name, by purpose."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from bnp_dask._names import ALLOCATIONS, INITIALIZATIONS, INTENSITIES, MOVES, OBSERVATIONS, SCHEDULES, Group
from bnp_dask.allocation.base import Allocation
from bnp_dask.allocation.levy import Intensity
from bnp_dask.core.registry import REGISTRY
from bnp_dask.data.base import Source
from bnp_dask.errors import SettingError, StoreError, near
from bnp_dask.execute.base import Executor
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization
from bnp_dask.inputs.lines import SHOWN, shortened
from bnp_dask.inputs.settings import shown
from bnp_dask.moves import Move
from bnp_dask.observation.base import Observation


@dataclass(frozen=True, eq=False)
class Role:
    """Purpose of a class: names in this package, the protocol to follow, and an example for messages."""

    known: Group
    protocol: type
    example: str


ALLOCATION = Role(ALLOCATIONS, Allocation, "DPMixture")
INTENSITY = Role(INTENSITIES, Intensity, "GeneralizedGamma")
OBSERVATION = Role(OBSERVATIONS, Observation, "Gaussian")
INIT = Role(INITIALIZATIONS, Initialization, "RandomExamples")
SCHEDULE = Role(SCHEDULES, Schedule, "Memoized")
MOVE = Role(MOVES, Move, "Merge")
SOURCE = Role({}, Source, "sqlite_rows.SqliteRows")
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
