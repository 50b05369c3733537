"""Tables for pages, notebooks and pandas, as plain data; the table of topics with their top words.

:mod:`bnp_dask.reports.pages` makes HTML of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bnp_dask._names import method
from bnp_dask.errors import SettingError


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


def pandas_for(call: str) -> Any:
    """The package pandas; SettingError that names ``call`` and says how to install it."""
    try:
        import pandas
    except ImportError as error:
        raise SettingError(f"{call} needs pandas: pip install 'bnp-dask[dataframe]'") from error
    return pandas


HEAD = ("topic", "share", "tokens", "words")
"""Columns of a list of topics."""


@dataclass(frozen=True, eq=False)
class TopicLine:
    """One topic in a list: id, share of all tokens, tokens (None when unknown), words."""

    id: int
    share: float
    tokens: float | None
    words: list[str]


@dataclass(frozen=True, eq=False)
class TopicList(Sequence[TopicLine]):
    """Topics, largest first; a sequence that prints as a table.

    Parameters
    ----------
    lines
        The topics.
    rest
        Line below them, on topics that were left out; empty for none.
    """

    lines: tuple[TopicLine, ...]
    rest: str = ""

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return TopicList(self.lines[index]) if isinstance(index, slice) else self.lines[index]

    def __str__(self) -> str:
        return "\n".join([listed(self._cells()), *([self.rest] if self.rest else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return Table(HEAD, self._cells(), left=(3,), notes=[self.rest] if self.rest else [])._repr_html_()

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [(str(t.id), f"{t.share:.2%}", _tokens(t), " ".join(t.words)) for t in self.lines]


def listed(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """Table of topic, share, tokens and words, as text."""
    cells = [HEAD, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    lines = ["  ".join([*(c.rjust(w) for c, w in zip(row[:3], widths, strict=True)), row[3]]) for row in cells]
    lines.insert(1, "  ".join("-" * w for w in (*widths, 40)))
    return "\n".join(lines)


def _tokens(line: TopicLine) -> str:
    return "?" if line.tokens is None else f"{line.tokens:,.0f}"
