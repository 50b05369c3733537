"""Feeds: data that arrive one after the other, from any source that two functions can read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import shown
from bnp_dask.training.growing.incoming.pieces import Piece


@dataclass(frozen=True)
class Feed:
    """Data that arrive one after the other, such as messages of a queue.

    A run records the position of each taken piece with the version that holds it.  So a piece delivered again is taken
    once, and nothing is lost if a process dies between the two.

    Parameters
    ----------
    name
        Name of the feed: a run may take in several.
    after
        Function that returns the positions after a position, in order, as text; called with None before the first.
        Positions that the run has are skipped.
    read
        Function that returns the data at a position: anything that :func:`bnp_dask.as_source` takes except paths, with
        ``columns=`` or ``groups=`` given to it if needed.  Each is a piece of its own, read once.
    """

    name: str
    after: Callable[[str | None], Iterable[str]]
    read: Callable[[str], Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SettingError(f"name={shown(self.name)}: needs the name of a feed")
        for name, function in (("after", self.after), ("read", self.read)):
            if not callable(function):
                raise SettingError(f"{name}={shown(function)}: needs a function of a position")

    def pieces(self, taken: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
        """Pieces that a run does not have, given all its pieces as ``taken``; each is read when it is opened."""
        known = [piece["item"][1] for piece in taken if (piece.get("item") or [""])[0] == self.name]
        seen = set(known)
        for position in self.after(known[-1] if known else None):
            if not isinstance(position, str):
                raise SettingError(f"feed {self.name!r}: position {shown(position)} is no text")
            if position not in seen:
                seen.add(position)
                yield Piece(partial(self.read, position), None, (self.name, position))
