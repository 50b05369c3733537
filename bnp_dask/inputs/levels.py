"""Levels: the values of a categorical column, and the conversion of entries to positions among them.

Batches hold numbers only.  An entry of such a column is the position of its level, 0 to L - 1, or NaN if missing.
The levels are found when the data are opened, and kept with the names of the columns
(:attr:`bnp_dask.core.columns.Columns.levels`): new data are read by the levels of training alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bnp_dask.errors import DataError, nearest

Level = str | bool | int | float
"""A text, a truth value or a number."""

Levels = tuple[Level, ...]
"""All levels of a column in order: texts by their characters, numbers by size, categories as they were declared."""

MOST_LEVELS = 1000
"""Most levels of a column: posteriors name them all, and each cluster has a number for each."""

SHOWN = 8
"""Most levels that a message lists."""


def is_text(levels: Iterable[Level]) -> bool:
    """Whether levels are texts rather than numbers; False without levels."""
    return any(isinstance(level, str) for level in levels)


def ordered_levels(values: Collection[Level], name: str, column: str) -> Levels:
    """Levels of a column from the distinct values in its rows.

    Raises
    ------
    DataError
        There are none, or more than :data:`MOST_LEVELS`, or texts beside numbers.
    """
    texts = [v for v in values if isinstance(v, str)]
    if texts and len(texts) < len(values):
        other = next(v for v in values if not isinstance(v, str))
        raise DataError(
            f"{name}: column {column!r} holds texts ({texts[0]!r}) and numbers ({other!r}); its levels need to be of "
            f"one kind: df[{column!r}].astype(str)"
        )
    return checked_levels(tuple(sorted(values)), name, column)


def checked_levels(levels: Levels, name: str, column: str) -> Levels:
    """The levels; DataError if there are none, or too many."""
    if not levels:
        raise DataError(f"{name}: column {column!r} has no value in any row, so it has no levels; leave it out")
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"{name}: column {column!r} has more than {MOST_LEVELS:,} distinct values, such as {few_levels(levels)}; "
            "Categorical is for columns of few levels. Leave out a column that names its rows, give measurements a "
            "Gaussian and counts a Poisson; of a pandas category that is mostly unused, "
            f"df[{column!r}].cat.remove_unused_categories()"
        )
    return levels


def few_levels(levels: Sequence[Level]) -> str:
    """The first levels, joined for a message."""
    text = ", ".join(map(repr, levels[:SHOWN]))
    return text + (f", ... ({len(levels)} in all)" if len(levels) > SHOWN else "")


def unseen(name: str, row: int, column: str, value: object, levels: Levels) -> DataError:
    """The error for an entry that is not a level."""
    near = nearest(value, [v for v in levels if isinstance(v, str)]) if isinstance(value, str) else ""
    return DataError(
        f"{name}: row {row}, column {column!r} is {value!r}, which is none of its levels: {few_levels(levels)}{near}. "
        "Correct or drop such rows, or train on data that have the level, or whose column is a pandas category that "
        "declares it"
    )


def as_level(value: float) -> Level:
    """A number as a level: an int if it is whole, however it was stored."""
    return int(value) if float(value).is_integer() else float(value)


@dataclass(frozen=True, eq=False)
class Codes:
    """Conversion of numbers in one column to positions among its levels.

    Parameters
    ----------
    column
        Name, for messages.
    values
        Numbers that stand for levels, ascending, ``(L,)``.
    places
        Position of each among the levels, ``(L,)``; -1 for a number that is not a level.
    levels
        All levels.
    said
        Meaning of each of the values, for messages.
    """

    column: str
    values: np.ndarray
    places: np.ndarray
    levels: Levels
    said: Levels

    @staticmethod
    def of_numbers(column: str, levels: Levels) -> Codes:
        """For data that hold the levels themselves, as numbers."""
        values = np.array(levels, np.float64)
        order = np.argsort(values, kind="stable")
        return Codes(column, values[order], order, levels, tuple(levels[i] for i in order))

    @staticmethod
    def between(column: str, found: Levels, wanted: Levels) -> Codes:
        """For data that hold positions among other levels."""
        place = {level: i for i, level in enumerate(wanted)}
        places = np.array([place.get(level, -1) for level in found], np.int64)
        return Codes(column, np.arange(len(found), dtype=np.float64), places, wanted, found)

    def apply(self, x: np.ndarray, name: str) -> np.ndarray:
        """Positions of the levels of entries ``(n,)``, NaN for missing entries.

        DataError for an entry that is not a level; it gives the row in the batch ``name``.
        """
        at = np.minimum(np.searchsorted(self.values, x), len(self.values) - 1)
        missing = np.isnan(x)
        wrong = ~missing & ((self.values[at] != x) | (self.places[at] < 0))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            known = self.values[at[row]] == x[row]
            raise unseen(name, row, self.column, self.said[at[row]] if known else as_level(x[row]), self.levels)
        return np.where(missing, np.nan, self.places[at])
