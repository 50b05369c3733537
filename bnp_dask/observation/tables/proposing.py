"""A likelihood for each column of a table, proposed from its values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.inputs.arrow_streams import as_frame
from bnp_dask.inputs.levels import MOST_LEVELS
from bnp_dask.inputs.settings import shown
from bnp_dask.observation.base import Observation
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.poisson import Poisson
from bnp_dask.observation.tables.categorical import Categorical

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
    frame = _as_frame(table)
    names = [str(name) for name in frame.columns]
    gone = next((name for name in given if name not in names), None)
    if gone is not None:
        raise SettingError(f"{gone}={shown(given[gone])}: the table has no column {gone!r}{nearest(gone, names)}")
    found = {name: proposal(frame.iloc[:, i]) for i, name in enumerate(names) if name not in given}
    groups: list[Group] = []
    for kind in (Gaussian, Poisson, Categorical):
        own = tuple(name for name, each in found.items() if each.kind is kind)
        if own:
            lacks = any(found[name].lacks for name in own)
            groups.append((own, kind(missing="marginalise") if lacks else kind()))
    groups += [((name,), part) for name, part in given.items()]
    left = [f"{name!r} ({each.why})" for name, each in found.items() if each.kind is None]
    if not groups:
        raise DataError(f"no column of the table says anything about clusters: {', '.join(left)}")
    if left:
        first = next(name for name, each in found.items() if each.kind is None)
        warnings.warn(
            f"columns are left out: {', '.join(left)}; give one a likelihood to have it: "
            f"Product.of(table, {first}=Categorical())",
            stacklevel=3,
        )
    return groups, bool(left)


def _as_frame(table: Any) -> Any:
    """The table as a pandas DataFrame."""
    table = as_frame(table)
    if type(table).__module__.split(".")[0] == "pandas" and type(table).__name__ == "DataFrame":
        return table
    if callable(getattr(table, "to_pandas", None)):
        return table.to_pandas()
    raise DataError(
        f"a {type(table).__name__}; needs a pandas DataFrame, or a table that has to_pandas() or an Arrow stream, "
        "of which the first 100,000 rows say enough: pandas.read_csv(path, nrows=100_000), ddf.head(100_000)"
    )


def proposal(column: Any) -> Proposal:
    """The likelihood proposed for a column of a pandas DataFrame."""
    from pandas import CategoricalDtype
    from pandas.api.types import is_bool_dtype, is_numeric_dtype, is_string_dtype

    values = column.dropna()
    lacks = len(values) < len(column)
    if len(values) == 0:
        return Proposal(None, "no value")
    try:
        n_distinct = int(values.nunique())
    except TypeError:  # lists and the like
        return Proposal(None, f"neither numbers nor texts but {type(values.iloc[0]).__name__}")
    if n_distinct == 1:
        return Proposal(None, f"always {values.iloc[0]!s}")
    if is_numeric_dtype(column.dtype) and not is_bool_dtype(column.dtype):
        return _of_numbers(values.to_numpy(np.float64), n_distinct, column.dtype.kind in "iu", lacks)
    texts = isinstance(column.dtype, CategoricalDtype) or is_bool_dtype(column.dtype) or is_string_dtype(values)
    if not texts:
        return Proposal(None, f"neither numbers nor texts but {column.dtype}")
    if n_distinct > MOST_LEVELS or (n_distinct == len(values) >= LEAST_ROWS):
        return Proposal(None, f"{n_distinct} distinct texts")
    return Proposal(Categorical, lacks=lacks)


def _of_numbers(values: np.ndarray, n_distinct: int, is_integer: bool, lacks: bool) -> Proposal:
    # pandas makes floats of whole numbers of which some are missing
    whole = is_integer or (lacks and bool(np.all(values == np.floor(values))))
    if not whole:
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
