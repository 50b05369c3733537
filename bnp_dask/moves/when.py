"""When moves act: from a lap on, or in some laps alone."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import MOST, hold, shown, whole_number
from bnp_dask.moves.base import Move


@runtime_checkable
class Scheduled(Protocol):
    """A move that does not act in every lap.  Moves without these settings do.

    Laps are counted from 0: lap ``n`` comes after ``n`` others.
    """

    @property
    def laps(self) -> range | tuple[int, int] | None:
        """First lap in which it acts, and the first in which it does so no more; None for no such limits."""
        ...

    @property
    def start(self) -> int:
        """Lap in which it acts first."""
        ...


def hold_laps(move: Any) -> None:
    """Take over when a move acts; SettingError for laps that are none."""
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
    """Whether a move acts in a later lap than this one first."""
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
