"""Rows of a history, read-only: recent rows as they are, older rows compressed, because a long run has a million."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, overload

import numpy as np

from bnp_dask.core.frozen import frozen

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
