"""Gibbs sampling as a schedule: sweeps of all batches, and the draws that are kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnp_dask.allocation.base import SampledAllocation
from bnp_dask.core.registry import register
from bnp_dask.core.totals import RunningTotal
from bnp_dask.errors import SettingError
from bnp_dask.execute.ordered import in_order
from bnp_dask.inputs.settings import hold, shown, whole_number
from bnp_dask.model import Model
from bnp_dask.observation.base import numbers_per_cluster
from bnp_dask.observation.interface.drawing import SampledObservation
from bnp_dask.observation.missing.entries import ENTROPY
from bnp_dask.sampling.chain import add_batch, begin_sweep, draw_clusters, end_sweep, first_chain
from bnp_dask.sampling.draws import Draws, draw_to_arrays, draws_from
from bnp_dask.sampling.sweep import Drawn, Labels, Swept, Task, sweep
from bnp_dask.schedules.base import IDLE, Step, history_row
from bnp_dask.schedules.engine.bad_batches import instead, reader_of, require_enough
from bnp_dask.schedules.engine.chains import Chain, Sampler
from bnp_dask.schedules.engine.pipeline import is_slight
from bnp_dask.schedules.engine.state import Loss, State, Work

logger = logging.getLogger("bnp_dask")

SAMPLED = "sampled"
"""Reason of a run that has made all of its sweeps."""

ROWS = 200
"""Rows whose clusters are noted, by default."""


@register
@dataclass(frozen=True)
class Gibbs:
    """Draw partitions and parameters from their posterior: sweeps of all atoms, each given parameters drawn before.

    Parameters
    ----------
    laps
        Sweeps of the data, those of ``burn_in`` among them.
    burn_in
        Sweeps before the first draw is kept.  Default: half of ``laps``.
    thin
        Every how many sweeps a draw is kept; each holds the statistics of its clusters.
    chains
        Independent chains.  All are swept with one read of each batch, and start from one initialisation.
    window
        Batches in flight; here it changes nothing but how busy workers are.
    rows
        Rows of the data whose clusters are kept with each draw: so many, evenly spread, or which ones.  The point
        estimate and :meth:`Draws.co_clustering <bnp_dask.sampling.draws.Draws.co_clustering>` are about these.

    Notes
    -----
    For ``FiniteMixture``, ``DPMixture`` and ``NGGPMixture`` with likelihoods that draw their parameters, that is all of
    this package.  There is no truncation: weights of clusters without atoms are drawn down to the least slice (see
    :mod:`bnp_dask.allocation.measure`).  Weights of atoms are how often they are there, whole numbers.

    ``result.draws`` are the draws.  ``result.posterior`` is the point estimate, clusters by falling size: the posterior
    of weights and parameters given the partition that :meth:`Draws.point <bnp_dask.sampling.draws.Draws.point>` chooses
    among the draws.  What uses a posterior, such as :func:`bnp_dask.predict` and :func:`bnp_dask.score`, uses that;
    :meth:`Draws.posterior <bnp_dask.sampling.draws.Draws.posterior>` gives that of any draw, to average over.

    The history's objective is the log probability of partition and data of the first chain, with weights and parameters
    integrated out, in nats: it goes up and down.  Columns besides the usual: ``log_joint``, the same number.  In a
    ``FiniteMixture`` it is that of assignments to clusters that are told apart.

    References
    ----------
    Walker 2007; Kalli, Griffin & Walker 2011; Griffin & Walker 2011; Favaro & Teh 2013 for the law of U.
    """

    laps: int = 1000
    burn_in: int | None = None
    thin: int = 5
    chains: int = 1
    window: int = 8
    rows: int | tuple[int, ...] = ROWS
    decides_moves = False

    def __post_init__(self) -> None:
        for name in ("laps", "thin", "chains", "window"):
            hold(self, name, whole_number(name, getattr(self, name), 1))
        if self.burn_in is not None:
            hold(self, "burn_in", whole_number("burn_in", self.burn_in))
        if isinstance(self.rows, (list, tuple, range, np.ndarray)):
            hold(self, "rows", tuple(whole_number("rows", row) for row in self.rows))
        else:
            hold(self, "rows", whole_number("rows", self.rows, 1))
        if self.rows == ():
            raise SettingError("rows=(): needs one row at least")
        if self.laps // self.thin * self.thin <= self._burnt:
            raise SettingError(
                f"laps={self.laps}, burn_in={self._burnt}, thin={self.thin}: no draw would be kept, since every "
                f"{self.thin}th sweep after the first {self._burnt} is; needs more laps"
            )

    @property
    def _burnt(self) -> int:
        return self.laps // 2 if self.burn_in is None else self.burn_in

    def _keeps(self, lap: int) -> bool:
        """Whether the draw of a lap (from 1) is kept."""
        return lap > self._burnt and lap % self.thin == 0

    def check(self, model: Model) -> None:
        """SettingError unless the model can be sampled."""
        if not isinstance(model.allocation, SampledAllocation):
            raise SettingError(
                f"Gibbs(): {type(model.allocation).__name__} is not sampled; use FiniteMixture(...), DPMixture(...) or "
                "NGGPMixture(...), or another schedule"
            )
        if not isinstance(model.observation, SampledObservation):
            raise SettingError(
                f"Gibbs(): {type(model.observation).__name__} says not how to draw its parameters; it needs a method "
                "at_draw(params, rng)"
            )
        if any(name.split(".")[-1] == ENTROPY for name in model.observation.fields):
            raise SettingError(
                'Gibbs(): Gaussian(missing="marginalise") has expectations in place of missing entries, which no '
                'sampler may; use DiagGaussian(missing="marginalise"), or another schedule'
            )
        if model.reproducible:
            raise SettingError("Gibbs(): reproducible=True is not kept by samplers; leave it out")
        if model.estimate != "posterior":
            raise SettingError(f'Gibbs(): draws from a posterior, so that estimate="{model.estimate}" has no meaning')

    def run(self, work: Work, state: State) -> Iterator[Step]:
        self.check(work.model)
        if work.moves:
            raise SettingError("Gibbs() changes the number of clusters itself; leave moves out")
        if state.sampler is None:
            assert state.posterior.summary is not None
            start = state.posterior.summary
            state.sampler = Sampler([first_chain(work.model, start) for _ in range(self.chains)])
        places = self._places(work)
        n_batches, chains = work.source.n_batches, state.sampler.chains
        while state.finished is None:
            drawn = _drawn(work, chains, state.lap)
            if state.position == 0:
                for chain, own in zip(chains, drawn, strict=True):
                    begin_sweep(work.model, chain, own, len(places))
            for batch, swept in _swept(work, state, drawn, places, self.window):
                _take(work, state, batch, swept, places)
                state.position += 1
                if state.position < n_batches:
                    yield Step(state, IDLE, None, lap_end=False)
            self._end_lap(work, state)
            row = history_row(state, state.lap - 1, None, exact=False, action=SAMPLED, moves=[])
            if state.lap >= self.laps:
                self._finish(work, state)
            yield Step(state, IDLE, row, lap_end=True)

    def _places(self, work: Work) -> np.ndarray:
        """Batch and row of each noted row of the data, ``(R, 2)``."""
        ends = np.cumsum(work.survey.batch_atoms)
        n = int(ends[-1])
        if isinstance(self.rows, int):
            rows = np.unique(np.linspace(0, n - 1, min(self.rows, n)).astype(np.int64))
        else:
            rows = np.array(self.rows, np.int64)
            if rows.max() >= n:
                raise SettingError(f"Gibbs(rows={shown(self.rows)}): row {rows.max()} is not there; the data have {n}")
        batch = np.searchsorted(ends, rows, side="right")
        return np.stack([batch, rows - (ends - work.survey.batch_atoms)[batch]], axis=1)

    def _end_lap(self, work: Work, state: State) -> None:
        """Totals of all chains, and the draw where it is kept."""
        assert state.sampler is not None
        rows = [end_sweep(work.model, chain) for chain in state.sampler.chains]
        first = state.sampler.chains[0]
        state.posterior = work.model.global_step(first.total)
        state.total = RunningTotal(first.total)
        state.terms = {"log_joint": first.log_joint}
        state.lap, state.position, state.step = state.lap + 1, 0, state.step + 1
        if self._keeps(state.lap):
            arrays = draw_to_arrays(
                [(c.total, c.log_joint, own) for c, own in zip(state.sampler.chains, rows, strict=True)]
            )
            part = work.memo.part_files().put(f"draw-{state.lap}", arrays)
            state.sampler.draws.append((state.lap, part))

    def _finish(self, work: Work, state: State) -> None:
        """The point estimate becomes the posterior; draws of what is burn-in now, after laps were added, go."""
        assert state.sampler is not None
        gone = [part for lap, part in state.sampler.draws if lap <= self._burnt]
        work.memo.forget_parts(gone)
        state.sampler.draws = [(lap, part) for lap, part in state.sampler.draws if lap > self._burnt]
        draws = kept_draws(work, state, self)
        assert draws is not None
        state.posterior = draws.posterior(*draws.point())
        assert state.posterior.summary is not None
        state.total = RunningTotal(state.posterior.summary)
        state.finished = SAMPLED


def kept_draws(work: Work, state: State, schedule: Gibbs) -> Draws | None:
    """The draws that a run has kept; None where it has none."""
    if state.sampler is None or not state.sampler.draws:
        return None
    places = schedule._places(work)
    starts = np.cumsum(work.survey.batch_atoms) - work.survey.batch_atoms
    files = work.memo.part_files()
    laps = np.array([lap for lap, _ in state.sampler.draws])
    held = [files.get(part) for _, part in state.sampler.draws]
    return draws_from(work.model, work.seed, laps, starts[places[:, 0]] + places[:, 1], held)


def _drawn(work: Work, chains: Sequence[Chain], lap: int) -> tuple[Drawn, ...]:
    n_atoms = max(work.survey.batch_atoms, default=0)
    weight = work.survey.total_weight
    return tuple(draw_clusters(work.model, c, i, lap, work.seed, n_atoms, weight) for i, c in enumerate(chains))


def _swept(
    work: Work, state: State, drawn: tuple[Drawn, ...], places: np.ndarray, window: int
) -> Iterator[tuple[int, Swept]]:
    """Batches from the position of a run on, swept, in order."""
    left = range(state.position, work.source.n_batches)
    numbers = sum(len(d.ids) for d in drawn) * numbers_per_cluster(work.model.observation)
    shared: Any = drawn
    if not is_slight(len(left), numbers):
        shared = work.executor.share(f"drawn-lap{state.lap}", drawn)
    lap = state.lap

    def tasks() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
        for batch in left:
            task = _task(work, state, batch, places)
            before = _labels(work, state, batch, len(drawn))
            yield (
                f"sweep-lap{lap}-batch{batch}",
                sweep,
                (work.model, shared, reader_of(work, state, batch), task, before),
            )

    yield from zip(left, in_order(work.executor, tasks(), window), strict=True)


def _task(work: Work, state: State, batch: int, places: np.ndarray) -> Task:
    alive = batch not in state.lost
    rows = places[places[:, 0] == batch, 1] if alive else np.zeros(0, np.int64)
    checksum = None
    if work.unread is not None and work.unread[batch] and alive:
        checksum = int(work.survey.checksums[batch])
    empty = instead(work, batch) if work.skips and alive else None
    return Task(f"{work.source.name} batch {batch}", batch, work.seed, rows, checksum, empty)


def _labels(work: Work, state: State, batch: int, n_chains: int) -> tuple[Labels, ...] | None:
    """Clusters of a batch's atoms after its last sweep; None before the first."""
    if state.visits[batch] < 0:
        return None
    arrays, _ = work.memo.get_summary(batch, int(state.visits[batch]), state.receipt(batch))
    return tuple(Labels(arrays[f"names{c}"], arrays[f"places{c}"]) for c in range(n_chains))


def _take(work: Work, state: State, batch: int, swept: Swept, places: np.ndarray) -> None:
    """Add a batch to all chains, and keep the clusters of its atoms."""
    assert state.sampler is not None
    if work.unread is not None:
        work.unread[batch] = False
    arrays: dict[str, np.ndarray] = {}
    own = np.flatnonzero(places[:, 0] == batch)
    if swept.lost:
        state.lost[batch] = Loss(swept.lost, state.lap + 1, state.step + 1)
        logger.warning("skipped from lap %d on: %s", state.lap + 1, swept.lost)
        require_enough(work, state.lost)
    for number, (chain, found) in enumerate(zip(state.sampler.chains, swept.chains, strict=True)):
        labels = swept.rows[number]
        add_batch(chain, found, own[: len(labels)], labels)
        arrays |= {f"names{number}": found.labels.names, f"places{number}": found.labels.places}
    visit = int(state.visits[batch]) + 1
    state.note(batch, visit, len(state.edits), work.memo.put_summary(batch, visit, arrays))
