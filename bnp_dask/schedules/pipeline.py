"""Batches in flight: submitted in order, taken in order, a fixed number at a time.

The posterior a batch is computed with is that after folding the batch ``window`` places before it, whoever
computes it and however long that takes: a run depends on data, settings, seed and window only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.data.base import Reader
from bnp_dask.errors import BatchError
from bnp_dask.execute.base import Handle
from bnp_dask.model import Posterior, Trial, Visit
from bnp_dask.moves.base import Gather, Plan, Split
from bnp_dask.moves.birth import gather_atoms, visit_and_split
from bnp_dask.schedules.state import Work
from bnp_dask.states import GroupStates

Kept = Callable[[int], GroupStates | None]
"""Where the groups of a batch stood at its last visit."""


def visit(
    posterior: Posterior,
    reader: Reader,
    pairs: np.ndarray,
    trials: tuple[Trial, ...],
    split: Split | None,
    gather: Gather,
    seed: int,
    states: GroupStates | None,
) -> Visit:
    """The task: read one batch, assign its atoms, summarize them, and carry out the lap's trials."""
    batch = reader()
    if split is not None:
        return visit_and_split(posterior, batch, pairs, trials, split, seed)
    if states is None:
        found = posterior.model.visit(posterior, batch, pairs, trials, gather.targets)
    else:
        found = posterior.model.visit(posterior, batch, pairs, trials, gather.targets, states)
    return gather_atoms(posterior.model, found, batch, gather, seed)


def nothing_kept(batch: int) -> None:
    """Every visit starts from nothing."""


@dataclass
class Pipeline:
    """The batches of one lap, from submission to folding.

    Parameters
    ----------
    work
        What does not change.
    lap
        For the names of tasks.
    order
        Batches in the order of this lap, ``(B,)``.
    window
        Batches in flight.
    position
        How many batches of the lap were folded before.
    ready
        What was found in the next batches before (a resumed run).
    plan
        What the lap's tasks track beside their summaries.
    kept
        Where the groups of a batch start; asked when the batch is submitted.
    """

    work: Work
    lap: int
    order: np.ndarray
    window: int
    position: int = 0
    ready: list[Visit] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    kept: Kept = nothing_kept
    _queue: deque[Any] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._queue.extend(self.ready)
        self._trials: Any = tuple(replace(t, beliefs=t.beliefs.light()) for t in self.plan.trials)
        if self._trials:
            self._trials = self.work.executor.share(f"trials-lap{self.lap}", self._trials)

    def fill(self, posterior: Posterior) -> None:
        """Submit batches computed with ``posterior`` until the window is full or the lap is."""
        first = self.position + len(self._queue)
        last = min(self.position + self.window, len(self.order))
        light = posterior.light()
        if last - first > 1:
            light = self.work.executor.share(f"posterior-lap{self.lap}-position{first}", light)
        for place in range(first, last):
            self._queue.append(self.submit(light, int(self.order[place])))

    def submit(self, posterior: Any, batch: int) -> Handle:
        """Start the local step of one batch."""
        split = self.plan.splits.get(batch)
        gather = replace(self.plan.gather, key=(self.lap, 13, batch))
        reader = self.work.source.reader(batch)
        args = (posterior, reader, self.plan.pairs, self._trials, split, gather, self.work.seed, self.kept(batch))
        return self.work.executor.submit(f"local_step-lap{self.lap}-batch{batch}", visit, *args)

    def take(self) -> tuple[int, Visit]:
        """Wait for the next batch of the lap: its index and what was found in it."""
        batch = int(self.order[self.position])
        summary = self.open(batch, self._queue.popleft())
        self.position += 1
        return batch, summary

    def open(self, batch: int, held: Visit | Handle) -> Visit:
        """What is behind a handle, checked to be finite."""
        if isinstance(held, Visit):
            return held
        found: Visit = self.work.executor.result(held)
        bad = [name for name, value in found.summary.values.items() if not np.isfinite(value).all()]
        if bad:
            raise BatchError(
                f"{self.work.source.name} batch {batch}: statistics {bad} are not finite. The data overflow float64 "
                "or the model cannot represent them: rescale the data or choose a stronger prior"
            )
        return found

    def settle(self) -> list[Visit]:
        """Wait for everything in flight and keep it: what a checkpoint must hold."""
        batches = self.order[self.position : self.position + len(self._queue)]
        self._queue = deque(self.open(int(b), held) for b, held in zip(batches, self._queue, strict=True))
        return list(self._queue)
