"""Small stand-ins for the parts around a schedule: data in memory, a memo in a dict, tasks run in place."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.inference import State, Work
from bnp_dask.model import Model
from bnp_dask.store import NO_RECEIPT
from tests.batches import Batches


@dataclass
class DictMemo:
    """Summaries by batch and visit."""

    kept: dict = field(default_factory=dict)

    def put_summary(self, batch, visit, arrays, meta=None):
        self.kept[batch, visit] = ({k: np.array(v) for k, v in arrays.items()}, meta or {})
        return NO_RECEIPT

    def get_summary(self, batch, visit, receipt=NO_RECEIPT):
        return self.kept[batch, visit]

    def board(self):
        return None

    def part_files(self):
        raise NotImplementedError("nothing here is large")

    def forget_parts(self, parts):
        assert not parts


class InPlace:
    """Runs a task when its result is asked for."""

    n_workers = 1

    def share(self, name, value):
        return value

    def submit(self, name, function, *args):
        return partial(function, *args)

    def result(self, handle):
        return handle()

    def close(self):
        """Nothing was taken."""


def split(x: np.ndarray, n_batches: int) -> Batches:
    return Batches([Batch(part, name=f"array batch {b}") for b, part in enumerate(np.array_split(x, n_batches))])


def work_on(model: Model, source: Batches, seed: int = 0, memo=None) -> Work:
    survey = combine([survey_batch(b) for b in source.batches])
    return Work(model.with_prior(survey), source, survey, InPlace(), memo or DictMemo(), seed)


def start(work: Work, resp: list[np.ndarray]) -> State:
    """State whose initial summary is that of given responsibilities, one array per batch."""
    ids = np.arange(resp[0].shape[1])
    parts = [work.model.summarize(ids, b, r) for b, r in zip(work.source.batches, resp, strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return State.start(work.model, total, work.source.n_batches)


def rows_of(work: Work, schedule, state: State) -> list[dict]:
    return [step.row for step in schedule.run(work, state) if step.row is not None]
