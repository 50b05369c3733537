"""Topics with their top words, as a sequence that prints as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bnp_dask.core.table import Table

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

    def __iter__(self) -> Iterator[TopicLine]:
        return iter(self.lines)

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
