"""A living shadow: a state beside the state of a run, taken on step by step with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bnp_dask.core.summary import Summary
from bnp_dask.errors import NumericalError
from bnp_dask.inference import Schedule, State, Step, Work
from bnp_dask.inference.state import Loss
from bnp_dask.model import Model
from bnp_dask.store import MemoryStore


@dataclass
class Living:
    """A living shadow: its first summary, the number of laps of the run before it, and its present state.

    ``prior`` is its own prior in words; None if it began with the run's prior.
    """

    begun: int
    first: Summary
    model: Model
    work: Work
    memo: MemoryStore
    state: State
    steps: Iterator[Step]
    prior: str | None
    is_in_lap: bool = False
    refused: str = ""

    @classmethod
    def begin(
        cls,
        work: Work,
        schedule: Schedule,
        laps: int,
        model: Model,
        first: Summary,
        begun: int,
        lost: Mapping[int, Loss],
        prior: str | None,
    ) -> Living:
        """The state before the first of so many laps; ``lost`` are batches that the run left out.

        NumericalError if its first statistics give numbers that are not finite.
        """
        assert isinstance(work.memo, MemoryStore)
        state = State.start(model, first, work.source.n_batches)
        state.lost = {batch: replace(loss, lap=0, step=0) for batch, loss in lost.items() if loss.lap <= begun}
        own: Any = schedule
        return cls(begun, first, model, work, work.memo, state, replace(own, laps=laps).run(work, state), prior)

    def is_over(self, state: State) -> bool:
        """Whether it has lived its laps or settled, or the run, whose ``state`` this is, has no more."""
        return bool(self.refused) or self.state.finished is not None or state.finished == "laps"

    def go_to(self, position: float) -> None:
        """Open the lap if it is not open, and go on until so many of its batches are folded, or all of them.

        Numbers that are not finite end the shadow, and do not concern the run.
        """
        while not self.refused and (not self.is_in_lap or self.state.position < position):
            try:
                step = next(self.steps)
            except NumericalError as error:
                self.refused = f"refused: {error}"
                return
            self.is_in_lap = not step.lap_end
            if step.lap_end:
                self.memo.forget({(int(b), int(v)) for b, v in enumerate(self.state.visits)})
                return
