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

    def text(self) -> str:
        """The table for a terminal: numbers to the right, a last column of text to the left, a rule below the head."""
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        last = len(self.head) - 1
        lines = []
        for row in cells:
            sides = enumerate(zip(row, widths, strict=True))
            aligned = [cell.ljust(width) if i in self.left else cell.rjust(width) for i, (cell, width) in sides]
            lines.append("  ".join(aligned).rstrip())
        widths[-1] = len(self.head[-1]) if last in self.left else widths[-1]
        lines.insert(1, "  ".join("-" * w for w in widths))
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        return str(method("tables_html")(self))
