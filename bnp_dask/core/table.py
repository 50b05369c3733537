"""Tables for pages and notebooks, as plain data; :mod:`bnp_dask.reports.pages` makes HTML of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bnp_dask._names import method


@dataclass(frozen=True)
class Table:
    """A table of text.

    Parameters
    ----------
    head
        Names of the columns; empty for a table of facts, whose first column names them.
    rows
        Cells, ``(n, m)``; the first cell of a row is its header.
    left
        Positions of the columns of text, which are aligned to the left.
    caption
        Line above the table.
    notes
        Lines below it.
    bars
        Length of a bar after the second cell of each row, 0 to 1, ``(n,)``; empty for none.
    fold
        Line that is shown in place of the table until a reader unfolds it; empty for a table that is always shown.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = ()
    caption: str = ""
    notes: Sequence[str] = ()
    bars: Sequence[float] = ()
    fold: str = ""

    kind = "table"

    def _repr_html_(self) -> str:
        return str(method("tables_html")(self))
