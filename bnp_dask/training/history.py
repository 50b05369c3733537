"""The history of a run: one row per step, read-only.

Recent rows are kept as they are, older rows compressed, because a long run has a million.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bnp_dask.core import frozen, pandas_for
from bnp_dask.errors import SettingError

if TYPE_CHECKING:
    import pandas
    import xarray


class History(Sequence[Mapping[str, Any]]):
    """One row per step of a run, in order.

    ``history["elbo"]`` is a column as an array, ``(n_steps,)``; ``history[3]`` is a row; ``history[2:5]`` is a
    history.  Rows need not have the same entries: a number that a row lacks is NaN in its column.

    In ``exact`` rows of a memoized or full-batch run, the objective is accounted for: ``elbo`` equals the previous
    row's plus ``gain``, the effect of assigning the row's batches anew, plus the gains of its accepted ``moves``
    (births, merges, deletes, the sorting of clusters by size, and better priors), to rounding.  Rows with batches that
    were left out begin a new account.

    Parameters
    ----------
    rows
        Mappings from names to numbers and lists, one for each step; copied.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        self._rows = rows if isinstance(rows, Rows) else Rows(rows)

    @property
    def columns(self) -> list[str]:
        """Names of all entries, in the order in which they first occur."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    @overload
    def __getitem__(self, key: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, key: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, slice):
            return History(self._rows[key])
        if isinstance(key, (int, np.integer)):
            return self._rows[key]
        if key not in self:
            raise KeyError(f"no column {key!r} in the history; it has {', '.join(self.columns) or 'no rows'}")
        return _column([row.get(key) for row in self._rows])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._rows)

    def __contains__(self, key: object) -> bool:
        return any(key in row for row in self._rows) if isinstance(key, str) else key in self._rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"History({len(self)} steps; columns {', '.join(self.columns) or 'none'})"

    def moves(self) -> list[dict[str, Any]]:
        """Every proposal to change the clusters, in order: lap, kind, targets, others, gain (nats), accepted, why."""
        return [{"lap": row.get("lap"), **move} for row in self for move in row.get("moves", ())]

    def to_pandas(self) -> pandas.DataFrame:
        """The history as a DataFrame, one row per step."""
        rows = [dict(row) for row in self._rows]
        return pandas_for("to_pandas").DataFrame(rows, columns=self.columns)

    def to_xarray(self) -> xarray.Dataset:
        """Columns of numbers, NaN for rows that have none, along the dimension ``row``."""
        try:
            import xarray
        except ImportError as error:
            raise SettingError("to_xarray needs xarray: pip install 'bnp-dask[xarray]'") from error
        found = {name: self[name] for name in self.columns}
        return xarray.Dataset({name: ("row", value) for name, value in found.items() if value.dtype.kind in "biuf"})

    def to_json(self) -> str:
        """The history as JSON lines: one object per step, numbers in full precision."""
        return "".join(json.dumps(plain(row)) + "\n" for row in self._rows)

    @staticmethod
    def from_json(lines: str) -> History:
        """Inverse of :meth:`to_json`."""
        return History([json.loads(line) for line in lines.splitlines() if line.strip()])


def _column(values: list[Any]) -> np.ndarray:
    present = [v for v in values if v is not None]
    numbers = all(isinstance(v, (bool, int, float, np.number, np.bool_)) for v in present)
    if numbers and len(present) == len(values):
        return np.array(values)
    if numbers:
        return np.array([np.nan if v is None else v for v in values], np.float64)
    out = np.empty(len(values), object)
    out[:] = values
    return out


# -- rows, compressed ----------------------------------------------------------------------------------------------
BLOCK = 512
"""Rows that are compressed together; they take about a tenth of the memory of their mappings."""

Row = Mapping[str, Any]


class Rows(Sequence[Row]):
    """Append-only sequence of rows.

    Rows are returned read-only.  Numbers keep all their bits; in older rows they are Python numbers, and lists and
    arrays are tuples.

    Parameters
    ----------
    rows
        The first rows.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._packed: list[bytes] = []
        self._last: list[Row] = []
        self._open: tuple[int, list[Row]] = (-1, [])
        for row in rows:
            self.append(row)

    def append(self, row: Row) -> None:
        """Add a row."""
        self._last.append(frozen(row))
        if len(self._last) == 2 * BLOCK:
            self._packed.append(zlib.compress(json.dumps([plain(row) for row in self._last[:BLOCK]]).encode()))
            del self._last[:BLOCK]

    def __len__(self) -> int:
        return BLOCK * len(self._packed) + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        yield from chain.from_iterable(self._block(i) for i in range(len(self._packed)))
        yield from self._last

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        block, within = divmod(place, BLOCK)
        return (
            self._block(block)[within] if block < len(self._packed) else self._last[place - BLOCK * len(self._packed)]
        )

    def _block(self, number: int) -> list[Row]:
        """Rows of one block; the last block is kept open for successive reads."""
        if self._open[0] != number:
            self._open = number, [frozen(row) for row in json.loads(zlib.decompress(self._packed[number]))]
        return self._open[1]


def plain(value: Any) -> Any:
    """NumPy numbers and arrays as JSON types; NaN and infinities stay floats, which json writes as words."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return value
