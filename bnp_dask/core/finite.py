"""Checks that all numbers of a run pass: statistics, parameters, terms of the objective and gains must be finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.errors import NumericalError

T = TypeVar("T")

FEW = 4096
"""Numbers up to which each is looked at: their sum would take longer."""

ADVICE = (
    "double precision cannot hold this model of these data: rescale the columns, drop values that are far from all "
    "others, or choose a prior of the size of the data"
)


def require_finite_arrays(values: Mapping[str, Any], what: str, ids: np.ndarray | None = None) -> None:
    """NumericalError that names the first array with a number that is not finite.

    Parameters
    ----------
    values
        Arrays by name.
    what
        Name of the values, for the message: ``"statistic"``, ``"patches.zarr batch 3: statistic"``.
    ids
        Cluster ids ``(K,)``, if the arrays have a row for each.
    """
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind != "f" or _is_finite(array):
            continue
        place = np.argwhere(~np.isfinite(array))[0]
        cluster = ""
        if ids is not None and array.ndim and len(array) == len(ids):
            cluster = f" of cluster {ids[place[0]]}"
        raise NumericalError(f"{what} {name!r}{cluster} is {array[tuple(place)]}, not finite; {ADVICE}")


def require_finite_params(params: Any, what: str, ids: np.ndarray) -> None:
    """NumericalError that names a non-finite parameter, from one or several dataclasses of arrays ``(K, ...)``."""
    require_finite_arrays(dict(_arrays(params, "")), f"{what} parameter", ids)


def require_finite_terms(terms: Mapping[str, float], what: str = "the objective's term") -> None:
    """NumericalError that names a term, in nats, that is not finite."""
    for name, value in terms.items():
        if not math.isfinite(value):
            raise NumericalError(f"{what} {name!r} is {value} nats, not finite; {ADVICE}")


def require_finite_rows(values: np.ndarray, batch: Batch, what: str) -> None:
    """NumericalError that names a row of a batch whose values, ``(n,)`` or ``(n, K)``, are not all finite."""
    if not _is_finite(values):
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise NumericalError(f"{batch.name}: {what} of {batch.place(row)}: not finite; {ADVICE}")


def unless_refused(function: Callable[..., T], *args: Any, otherwise: T) -> T:
    """Result of a function, or ``otherwise`` where double precision cannot carry it out."""
    try:
        return function(*args)
    except NumericalError:
        return otherwise


def _is_finite(array: np.ndarray) -> bool:
    if array.size <= FEW:
        return bool(np.isfinite(array).all())
    with np.errstate(over="ignore", invalid="ignore"):
        # a finite sum suffices and needs no boolean array; if it overflows, each number is checked
        return math.isfinite(float(np.sum(array))) or bool(np.isfinite(array).all())


def _arrays(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Arrays in dataclasses and tuples, by their path."""
    if isinstance(value, (np.ndarray, np.floating, float)):
        yield path, value
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _arrays(item, f"{path}[{i}].")
    else:
        kind: Any = type(value)  # classes are cache keys, which the type checker does not accept
        for name in _names(kind):
            yield from _arrays(getattr(value, name), f"{path}{name}")


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass; none of another class."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
