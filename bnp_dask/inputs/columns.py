"""Levels: the values of a categorical column, and the conversion of entries to positions among them.

Batches hold numbers only.  An entry of such a column is the position of its level, 0 to L - 1, or NaN if missing.
The levels are found when the data are opened, and kept with the names of the columns
(:attr:`bnp_dask.core.columns.Columns.levels`): new data are read by the levels of training alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from bnp_dask.errors import DataError, SettingError, nearest
from bnp_dask.inputs.settings import shown

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


# -- References of settings to columns: by position in slice notation, or by name ---------------------------------


ColumnGroup = str | int | slice | range | tuple[int, ...] | tuple[str, ...]
"""Columns by position: ``(0, 1, 4)``, ``range(0, 3)``, ``slice(0, 3)``, ``5``, or as text ``"0:3, 5"``; or by name:
``"age"``, ``("age", "visits")``, or as text ``"age, visits"``."""

Key = str | tuple[str, ...]
"""Columns of a group as stored: positions as text, or names."""

MOST_COLUMNS = 2**31
"""Most columns that data may have."""

MOST_LISTED = 2**20
"""Most columns of one group that are listed one by one: an iterator may have no end."""

_PIECE = re.compile(r"-?\d+|-?\d*:-?\d*(:-?\d*)?")


def is_positions(key: Key) -> bool:
    """Whether columns are given in slice notation."""
    return isinstance(key, str) and all(_PIECE.fullmatch(piece) for piece in key.split(","))


def as_key(columns: ColumnGroup) -> Key:
    """Columns in the stored notation: positions as ``"0:3,5"``; names unchanged."""
    if isinstance(columns, str):
        bare = columns.replace(" ", "")
        return bare if is_positions(bare) else columns.strip()
    if isinstance(columns, slice):
        bounds = ["" if bound is None else str(bound) for bound in (columns.start, columns.stop)]
        return ":".join(bounds if columns.step is None else [*bounds, str(columns.step)])
    named = list(islice(columns, MOST_LISTED + 1)) if isinstance(columns, Iterable) else []
    if len(named) > MOST_LISTED:
        raise SettingError(f"columns {shown(columns)}: goes on after {MOST_LISTED:,} columns; needs a list that ends")
    if named and all(isinstance(c, str) for c in named):
        return tuple(map(str, named))
    try:
        positions = np.atleast_1d(np.array(columns, np.float64))
    except (TypeError, ValueError):
        positions = np.array([np.nan])
    whole = positions.ndim == 1 and len(positions) > 0 and np.isfinite(positions).all()
    if not whole or (positions != np.floor(positions)).any() or positions.min() < 0 or positions.max() > MOST_COLUMNS:
        raise SettingError(
            f'columns {shown(columns)}: needs positions, such as (0, 1), range(3), 5 or "0:3,5", or names, such as '
            '"age" or ("age", "visits"), and not both in one group'
        )
    numbers = positions.astype(np.int64)
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}:{run[-1] + 1}" for run in runs)


def written(names: tuple[str, ...]) -> Key:
    """Columns in readable form: text if commas and digits leave no doubt, else the names."""
    text = ", ".join(names)
    plain = not is_positions(text.replace(" ", "")) and not any("," in n or n != n.strip() for n in names)
    return text if plain else names


def positions(key: Key, n_features: int) -> np.ndarray:
    """Positions among ``n_features`` columns from a text in slice notation."""
    pieces = []
    for piece in key.split(",") if isinstance(key, str) else ():
        try:
            bounds = [int(bound) if bound else None for bound in piece.split(":")]
        except ValueError:
            bounds = []
        if len(bounds) == 1 and bounds[0] is not None:
            bounds.append(bounds[0] + 1)
        if len(bounds) not in (2, 3) or bounds[2:] == [0]:
            raise _no_names(key)
        if any(bound is not None and abs(bound) > n_features for bound in bounds[:2]):
            raise SettingError(f"columns {_shown(key)}: the data have {n_features} columns, numbered from 0")
        pieces.append(np.arange(n_features)[slice(*bounds)])
    if not pieces:
        raise _no_names(key)
    found = np.concatenate(pieces)
    if len(found) == 0:
        raise SettingError(f"columns {_shown(key)} name none of the {n_features} columns of the data")
    return found


def resolve(key: Key, names: Sequence[str] | None) -> Key:
    """Positions, as text, in place of names; SettingError for a missing name, or one that may also be a position."""
    if names is None:
        if not is_positions(key):
            raise _no_names(key)
        return key
    place = {name: i for i, name in enumerate(names)}
    if isinstance(key, tuple):
        return _at(key, key, place)
    if is_positions(key):
        _refuse_ambiguous(key, place)
        return key
    pieces = [piece.strip() for piece in key.split(",")]
    if key in place and (len(pieces) == 1 or not all(piece in place for piece in pieces)):
        return _at((key,), key, place)
    if key in place:
        raise SettingError(
            f"columns {_shown(key)}: may be the column of that name, or several; say which: ({key!r},) or "
            f"{tuple(pieces)}"
        )
    return _at(tuple(pieces) if any(piece in place for piece in pieces) else (key,), key, place)


def _refuse_ambiguous(key: str, place: dict[str, int]) -> None:
    """SettingError if a position is also the name of a column at another position."""
    for piece in dict.fromkeys([key, *key.split(",")]):
        if piece in place and piece != str(place[piece]):
            position = f'"{piece}:{int(piece) + 1}"' if piece.isdecimal() else "numbers"
            raise SettingError(
                f"columns {_shown(key)}: {piece!r} may be a position, or the column of that name, which is at position "
                f"{place[piece]}; say which: {position} or ({piece!r},)"
            )


def _at(wanted: Sequence[str], key: Key, place: dict[str, int]) -> Key:
    gone = next((name for name in wanted if name not in place), None)
    if gone is not None:
        mixed = " (positions and names are not mixed in one group)" if is_positions(gone.replace(" ", "")) else ""
        raise SettingError(f"columns {_shown(key)}: the data have no column {gone!r}{nearest(gone, place)}{mixed}")
    return as_key(tuple(place[name] for name in wanted))


def _no_names(key: Key) -> SettingError:
    return SettingError(
        f"columns {_shown(key)}: the data have no names; needs positions in the notation of slices, such as "
        '"0:3,5", or data with names: a table, or as_source(x, columns=Columns.of(["age", ...]))'
    )


def _shown(key: Key) -> str:
    return f'"{key}"' if isinstance(key, str) else str(key)


def quoted(key: Key) -> str:
    """Columns as written in code."""
    return str(key) if isinstance(key, tuple) else json.dumps(key, ensure_ascii=False)
