"""A likelihood for each column of a table, proposed from its values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.inputs.levels import MOST_LEVELS
from bnp_dask.inputs.settings import shown
from bnp_dask.observation.base import Observation
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.poisson import Poisson
from bnp_dask.observation.tables.categorical import Categorical

if TYPE_CHECKING:
    from bnp_dask.data.sources.held import Looked

FEW_VALUES = 10
"""Most distinct values for which whole numbers that are no counts, such as answers from 1 to 5, are levels."""

MOST_COUNTS = 1000
"""Largest count: greater whole numbers are taken as measurements."""

SPREAD = 0.8
"""Counts of a mixture of Poissons have a variance of at least their mean; below this share of it, which leaves room for
chance, they are something else."""

LEAST_ROWS = 20
"""Least rows from which a column of distinct texts or whole numbers is taken as names of rows."""

Group = tuple[tuple[str, ...], Observation]
"""Columns and their likelihood."""

Kind = type[Categorical] | type[Gaussian] | type[Poisson]


@dataclass(frozen=True)
class Proposal:
    """Likelihood of a column, or the reason to leave it out; and whether it lacks entries."""

    kind: Kind | None
    why: str = ""
    lacks: bool = False


def proposed_groups(
    table: Any, given: Mapping[str, Observation]
) -> tuple[list[tuple[tuple[str, ...], Observation]], bool]:
    """Groups of columns and their likelihoods, and whether columns are left out; warns which, and why.

    Columns of one kind are one group; each ``given`` column is a group of its own.
    """
    # imported here, as the mathematics loads no Arrow
    from bnp_dask.data.sources.held import looked_columns

    columns = looked_columns(table, list(given))
    names = [column.name for column in columns]
    gone = next((name for name in given if name not in names), None)
    if gone is not None:
        raise SettingError(f"{gone}={shown(given[gone])}: the table has no column {gone!r}{nearest(gone, names)}")
    found = {column.name: proposal(column) for column in columns if column.name not in given}
    groups: list[Group] = []
    for kind in (Gaussian, Poisson, Categorical):
        own = tuple(name for name, each in found.items() if each.kind is kind)
        if own:
            lacks = any(found[name].lacks for name in own)
            groups.append((own, kind(missing="marginalise") if lacks else kind()))
    groups += [((name,), part) for name, part in given.items()]
    left = [f"{name!r} ({each.why})" for name, each in found.items() if each.kind is None]
    named = {c.name: c.role for c in columns if c.role and c.name in found and found[c.name].kind is not None}
    if not groups:
        raise DataError(f"no column of the table says anything about clusters: {', '.join(left)}")
    if named:
        told = ", ".join(f"{name!r} seems to be {role} by its name" for name, role in named.items())
        warnings.warn(f"{told}, and becomes a feature; leave it out: Product.of(table[[...]])", stacklevel=3)
    if left:
        first = next(name for name, each in found.items() if each.kind is None)
        warnings.warn(
            f"columns are left out: {', '.join(left)}; give one a likelihood to have it: "
            f"Product.of(table, {first}=Categorical())",
            stacklevel=3,
        )
    return groups, bool(left)


def proposal(column: Looked) -> Proposal:
    """The likelihood proposed for a column of a table."""
    if column.left_out:
        return Proposal(None, column.why)
    values = column.values
    present = values.dropna()
    lacks = len(present) < len(values)
    if len(present) == 0:
        return Proposal(None, "no value")
    try:
        n_distinct = int(present.nunique())
    except TypeError:  # lists and the like
        return Proposal(None, f"neither numbers nor texts but {type(present.iloc[0]).__name__}")
    if n_distinct == 1:
        return Proposal(None, f"always {present.iloc[0]!s}")
    if column.are_numbers:
        numbers = present.to_numpy(np.float64)
        # numbers among texts and objects, and beside missing ones, have become floats
        may_be_whole = column.may_be_whole or lacks
        return _of_numbers(numbers, n_distinct, may_be_whole and bool(np.all(numbers == np.floor(numbers))), lacks)
    if not column.is_level:
        return Proposal(None, column.why or f"neither numbers nor texts but {values.dtype}")
    if n_distinct > MOST_LEVELS or (n_distinct == len(present) >= LEAST_ROWS):
        return Proposal(None, f"{n_distinct} distinct texts")
    return Proposal(Categorical, lacks=lacks)


def _of_numbers(values: np.ndarray, n_distinct: int, is_whole: bool, lacks: bool) -> Proposal:
    if not is_whole:
        return Proposal(Gaussian, lacks=lacks)
    if n_distinct == len(values) >= LEAST_ROWS:
        return Proposal(None, "a whole number of its own in each row")
    if n_distinct == 2:
        return Proposal(Categorical, lacks=lacks)
    if values.min() >= 0 and values.max() <= MOST_COUNTS and values.var() >= SPREAD * values.mean():
        return Proposal(Poisson, lacks=lacks)
    return Proposal(Categorical if n_distinct <= FEW_VALUES else Gaussian, lacks=lacks)


def as_code(part: Observation) -> str:
    """An observation model as the call that makes it, without settings at their defaults."""
    settings = []
    for f in fields(part):  # type: ignore[arg-type]
        value = getattr(part, f.name)
        if f.init and not (value is f.default or (isinstance(value, (int, float, str)) and value == f.default)):
            settings.append(f"{f.name}={shown(value)}")
    return f"{type(part).__name__}({', '.join(settings)})"
