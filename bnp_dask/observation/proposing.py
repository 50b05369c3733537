"""A likelihood for each column of a table, proposed from its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from unicodedata import category

import numpy as np

from bnp_dask.errors import DataError, SettingError, nearest, warn
from bnp_dask.inputs import MOST_LEVELS, shown
from bnp_dask.observation.base import Observation
from bnp_dask.observation.categorical import Categorical
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.negative_binomial import STRONG, NegativeBinomial, dispersion_of
from bnp_dask.observation.poisson import Poisson

if TYPE_CHECKING:
    from bnp_dask.data import Looked


FEW_VALUES = 10
"""Most distinct values for which numbers that are no counts, such as answers from 1 to 5 or four doses, are levels."""

REPEATS = 5
"""Least rows for each distinct value, on average, from which fractions, or texts of which some are numbers, are levels:
values that come again so often were chosen and not measured.

This, ``LEAST_SHARED`` and ``MOST_TIES`` were looked at on 616 tables of the packages pydataset, vega_datasets and
statsmodels, and tried on drawn columns besides, on no other tables.
"""

LEAST_SHARED = 2
"""Least rows for each distinct text, on average, for which texts are levels: if most occur once, they name rows."""

MOST_TIES = 3.0
"""Ties that are expected among the rows from which whole numbers without any are taken as names of rows.

Of n numbers drawn evenly from a range of R there are n^2 / (2 R) ties on average, and none with a probability of exp of
minus that, here 5 %.  Measurements crowd somewhere and have more.  So years, ranks and numbered persons are names;
populations and incomes, which are far apart, are not.
"""

MOST_COUNTS = 1000
"""Largest count: greater whole numbers are taken as measurements."""

SPREAD = 0.8
"""Counts of a mixture of Poissons have a variance of at least their mean; below this share of it, which leaves room for
chance, they are something else."""

NEAR_ZERO = 2.0
"""Counts reach down to zero: their 5 % quantile is at most so many square roots of the mean.

A single Poisson of mean 13 just does, and one of a greater mean is a Gaussian to within its skewness of 0.28.  Whole
numbers farther up, such as ages of adults or a pulse, are measurements.  Derived so, not tuned; checked on generated
columns and on the whole numbers of wine, diabetes, linnerud, Old Faithful and digits.
"""

LONG_TAIL = 4.0
"""Ratio of the lengths of the upper and lower half of the middle 90 % from which a tail is long.  It is 1 for a
Gaussian, 2.3 for an exponential distribution, 5.2 for the exponential of a standard Gaussian."""

NO_VALUE = "no value"

LEAST_ROWS = 20
"""Least rows from which a column of distinct texts or whole numbers is taken as names of rows."""

Group = tuple[tuple[str, ...], Observation]
"""Columns and their likelihood."""

Kind = type[Categorical] | type[Gaussian] | type[NegativeBinomial] | type[Poisson]


KINDS: tuple[Kind, ...] = (Gaussian, Poisson, NegativeBinomial, Categorical)
"""Likelihoods in the order of their groups."""


@dataclass(frozen=True)
class Proposal:
    """Likelihood of a column, None to leave it out; why; whether it lacks entries, and may be given a likelihood."""

    kind: Kind | None
    why: str = ""
    lacks: bool = False
    may_be_given: bool = True


def proposed_groups(
    table: Any, given: Mapping[str, Observation]
) -> tuple[list[tuple[tuple[str, ...], Observation]], bool]:
    """Groups of columns and their likelihoods, and whether columns are left out; warns which, and why.

    Columns of one kind are one group; each ``given`` column is a group of its own.
    """
    columns, found = _proposals(table, given)
    groups: list[Group] = []
    for kind in KINDS:
        own = tuple(name for name, each in found.items() if each.kind is kind)
        if own:
            lacks = any(found[name].lacks for name in own)
            groups.append((own, kind(missing="marginalise") if lacks else kind()))
    groups += [((name,), part) for name, part in given.items()]
    left = [f"{name!r} ({each.why})" for name, each in found.items() if each.kind is None]
    named = {c.name: c.role for c in columns if c.role and c.name in found and found[c.name].kind is not None}
    if not groups:
        raise DataError(f"the table has no column to learn from: {', '.join(left)}")
    if named:
        told = ", ".join(f"{name!r} seems to be {role} by its name" for name, role in named.items())
        warn(f"{told}, and becomes a feature; leave it out: Product.of(table[[...]])")
    if left:
        first = next((name for name, each in found.items() if each.kind is None and each.may_be_given), None)
        advice = f"; give one a likelihood to have it: Product.of(table, {first}=Categorical())"
        warn(f"columns are left out: {', '.join(left)}{'' if first is None else advice}")
    return groups, bool(left)


@dataclass(frozen=True)
class Choices:
    """Likelihoods chosen for the columns of a table, a row for each column; ``print`` shows them as a table.

    Parameters
    ----------
    rows
        Column, likelihood (empty for a column that is left out), and the reason.
    """

    rows: tuple[tuple[str, str, str], ...]

    def __repr__(self) -> str:
        lines = [("column", "likelihood", "why"), *((name, kind or "left out", why) for name, kind, why in self.rows)]
        first, second = (max(len(line[i]) for line in lines) for i in (0, 1))
        return "\n".join(f"{a:{first}}  {b:{second}}  {c}".rstrip() for a, b, c in lines)


def choices(table: Any, given: Mapping[str, Observation]) -> Choices:
    """The likelihood of each column of a table, and why."""
    columns, found = _proposals(table, given)
    rows = []
    for column in columns:
        if column.name in given:
            rows.append((column.name, as_code(given[column.name]), "given"))
            continue
        each = found[column.name]
        part = None if each.kind is None else (each.kind(missing="marginalise") if each.lacks else each.kind())
        rows.append((column.name, "" if part is None else as_code(part), each.why))
    return Choices(tuple(rows))


def _proposals(table: Any, given: Mapping[str, Observation]) -> tuple[list[Looked], dict[str, Proposal]]:
    """The columns of a table, and proposals for columns without a given likelihood."""
    # imported here, as the mathematics loads no Arrow
    from bnp_dask.data import looked_columns

    columns = looked_columns(table, list(given))
    names = [column.name for column in columns]
    gone = next((name for name in given if name not in names), None)
    if gone is not None:
        raise SettingError(f"{gone}={shown(given[gone])}: the table has no column {gone!r}{nearest(gone, names)}")
    return columns, {column.name: proposal(column) for column in columns if column.name not in given}


def proposal(column: Looked) -> Proposal:
    """The likelihood proposed for a column of a table."""
    if column.left_out:
        # such as times; row numbers and ids are numbers or texts, which a user may want
        return Proposal(None, column.why, may_be_given=column.is_level and column.why != NO_VALUE)
    values = column.values
    present = values.dropna()
    lacks = len(present) < len(values)
    if len(present) == 0:
        return Proposal(None, NO_VALUE, may_be_given=False)
    try:
        n_distinct = int(present.nunique())
    except TypeError:  # lists and the like
        why = f"{type(present.iloc[0]).__name__}s; those of numbers are features of one Gaussian() for them alone"
        return Proposal(None, why, may_be_given=False)
    if n_distinct == 1:
        return Proposal(None, f"always {present.iloc[0]!s}", may_be_given=False)
    if column.are_numbers:
        numbers = present.to_numpy(np.float64)
        # numbers among texts and objects, and beside missing ones, have become floats
        may_be_whole = column.may_be_whole or lacks
        is_whole = may_be_whole and bool(np.all(numbers == np.floor(numbers)))
        return _of_numbers(numbers, n_distinct, is_whole, lacks, bool(column.role))
    if not column.is_level:
        return Proposal(None, column.why or f"neither numbers nor texts but {values.dtype}", may_be_given=False)
    if column.bad is not None:
        # a sign of percent or of a currency says that numbers are meant
        signs = any(c == "%" or category(c) == "Sc" for text in present.unique() for c in str(text))
        if signs or n_distinct > FEW_VALUES or len(present) < REPEATS * n_distinct:
            raise column.bad
        return Proposal(Categorical, f"{n_distinct} levels, not all of them numbers", lacks)
    if n_distinct > MOST_LEVELS or (len(present) >= LEAST_ROWS and len(present) < LEAST_SHARED * n_distinct):
        among = "" if n_distinct == len(present) else f" in {len(present)} rows"
        return Proposal(None, f"{n_distinct} distinct texts{among}")
    return Proposal(Categorical, f"{n_distinct} levels", lacks)


def _of_numbers(values: np.ndarray, n_distinct: int, is_whole: bool, lacks: bool, has_role: bool) -> Proposal:
    if not np.isfinite(values).all():
        return Proposal(Gaussian, "infinite numbers", lacks)  # which it refuses, naming the row; levels would take them
    repeats = len(values) >= max(LEAST_ROWS, REPEATS * n_distinct)
    if not is_whole:
        if n_distinct <= FEW_VALUES and repeats:
            return Proposal(Categorical, f"{n_distinct} numbers that come again and again", lacks)
        return Proposal(Gaussian, "fractions" + _tail(values), lacks)
    if n_distinct == len(values) >= LEAST_ROWS and (has_role or _ties(values) > MOST_TIES):
        return Proposal(None, "a whole number of its own in each row")
    if n_distinct == 2:
        return Proposal(Categorical, "two whole numbers", lacks)
    no_counts = _no_counts(values)
    if not no_counts:
        kind, why = _of_counts(values)
        if kind is not Gaussian or n_distinct > FEW_VALUES:
            return Proposal(kind, why, lacks)
        no_counts = why.removeprefix("whole numbers, ")
    if n_distinct <= FEW_VALUES:
        return Proposal(Categorical, f"{n_distinct} whole numbers, {no_counts}", lacks)
    return Proposal(Gaussian, f"whole numbers, {no_counts}{_tail(values)}", lacks)


def _ties(values: np.ndarray) -> float:
    """Number of pairs of equal values expected if whole numbers were spread evenly over their range."""
    return len(values) ** 2 / (2.0 * (float(values.max() - values.min()) + 1.0))


def _no_counts(values: np.ndarray) -> str:
    """Why whole numbers are no counts; empty if they may be."""
    if values.min() < 0:
        return "some negative"
    if values.max() > MOST_COUNTS:
        return f"up to {values.max():.0f}"
    mean, variance = float(values.mean()), float(values.var())
    if variance < SPREAD * mean:
        return f"variance {variance:.3g} below the mean {mean:.3g}"
    low = float(np.quantile(values, 0.05))
    if low > NEAR_ZERO * np.sqrt(mean):
        return f"far from zero: 95 % are at least {low:.0f}"
    return ""


def _of_counts(values: np.ndarray) -> tuple[Kind, str]:
    """Likelihood of whole numbers that may be counts, the simplest that the evidence does not refuse; and why."""
    different, times = np.unique(values, return_counts=True)
    found = dispersion_of(different, times.astype(np.float64))
    counts = min(found.poisson, found.negative_binomial)
    if found.gaussian < counts - STRONG:
        return Gaussian, f"whole numbers, no counts by {_nats(counts - found.gaussian)}"
    if found.negative_binomial < found.poisson - STRONG:
        return NegativeBinomial, f"counts that vary more than a few Poissons, by {_nats(found.poisson - counts)}"
    return Poisson, f"counts from {different[0]:.0f} to {different[-1]:.0f}"


def _nats(difference: float) -> str:
    return f"{difference / 2:.0f} nats"


def _tail(values: np.ndarray) -> str:
    """Advice for a column of positive numbers with a long upper tail; empty for others."""
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    if values.min() < 0 or high - middle <= LONG_TAIL * (middle - low):
        return ""
    return "; a long tail: consider " + ("np.log" if values.min() > 0 else "np.log1p")


def as_code(part: Observation) -> str:
    """An observation model as the call that makes it, without settings at their defaults."""
    settings = []
    for f in fields(part):  # type: ignore[arg-type]
        value = getattr(part, f.name)
        if f.init and not (value is f.default or (isinstance(value, (int, float, str)) and value == f.default)):
            settings.append(f"{f.name}={shown(value)}")
    return f"{type(part).__name__}({', '.join(settings)})"
