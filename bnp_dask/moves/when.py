"""Laps in which moves act: from a lap on, or only in some laps."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from bnp_dask.errors import SettingError
from bnp_dask.inputs import MOST, hold, shown, whole_number
from bnp_dask.moves.base import Move


@runtime_checkable
class Scheduled(Protocol):
    """Move that may not act in every lap.  Moves without these settings act in every lap.

    Laps are counted from 0: lap ``n`` comes after ``n`` others.
    """

    @property
    def laps(self) -> range | tuple[int, int] | None:
        """First lap in which the move acts, and first lap in which it no longer does; None for no such limits."""
        ...

    @property
    def start(self) -> int:
        """First lap in which the move may act."""
        ...


def hold_laps(move: Any) -> None:
    """Check and convert the laps in which a move acts; SettingError if they are invalid."""
    hold(move, "start", whole_number("start", move.start))
    if move.laps is None:
        return
    first, stop = _limits(move.laps)
    first, stop = whole_number("laps[0]", first), whole_number("laps[1]", stop)
    if stop <= max(first, move.start):
        raise SettingError(f"laps={shown(move.laps)}, start={move.start}: no lap is left; leave the move out instead")
    hold(move, "laps", (first, stop))


def acts(move: Move, lap: int) -> bool:
    """Whether a move acts in a lap."""
    first, stop = _when(move)
    return first <= lap < stop


def is_to_come(move: Move, lap: int) -> bool:
    """Whether the first lap in which a move acts is later than this one."""
    return lap < _when(move)[0]


def _when(move: Move) -> tuple[int, int]:
    if not isinstance(move, Scheduled):
        return 0, MOST
    first, stop = (0, MOST) if move.laps is None else _limits(move.laps)
    return max(first, move.start), stop


def _limits(laps: Any) -> tuple[int, int]:
    if isinstance(laps, range) and laps.step == 1:
        return laps.start, laps.stop
    if isinstance(laps, (tuple, list)) and len(laps) == 2:
        return laps[0], laps[1]
    raise SettingError(f"laps={shown(laps)}: needs a range of laps in a row, such as range(0, 20)")
