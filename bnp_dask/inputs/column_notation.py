"""References of settings to columns: by position in slice notation, or by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from bnp_dask.errors import SettingError, nearest
from bnp_dask.inputs.settings import shown

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
