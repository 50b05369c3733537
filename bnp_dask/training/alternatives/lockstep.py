"""Shadows beside the state of a run: begun, driven in lockstep with it, compared with it, and kept in checkpoints.

A shadow depends on its first summary, its seed and the data, and not on the run's steps in the meantime.  So a
checkpoint holds that summary alone, and a resumed run takes the shadow's laps again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bnp_dask.analysis.arguments import MOST_STARTS
from bnp_dask.core.summary import Summary
from bnp_dask.errors import NumericalError
from bnp_dask.inference import Schedule, State, Step, Work
from bnp_dask.inference.bad_batches import remaining
from bnp_dask.inference.gathered import Gathered
from bnp_dask.inference.prior import prior_to_arrays, settings_to_arrays, with_saved_prior
from bnp_dask.inference.shared_reads import SharedReads
from bnp_dask.inference.state import ROUNDING, Loss
from bnp_dask.initialize import InitContext
from bnp_dask.inputs.settings import start_of_seed
from bnp_dask.model import Model
from bnp_dask.moves.base import record
from bnp_dask.moves.memory import Memory, as_start, with_rejected
from bnp_dask.moves.policy import LAP
from bnp_dask.observation.base import Observation
from bnp_dask.store import Checkpoint, MemoryStore
from bnp_dask.structure.nouns import count_of, noun_of
from bnp_dask.training.alternatives.living import Living
from bnp_dask.training.alternatives.priors import same_settings, told
from bnp_dask.training.alternatives.shadow import Shadow
from bnp_dask.training.alternatives.starts import alternative, take_over
from bnp_dask.training.callbacks import logger

SHADOW = "shadow"
"""Kind of alternatives that are shadows, and of the history's rows about them; their name in checkpoints."""

CALM_LAPS = 2.0
"""Calm laps in a row after which a shadow begins: a run ends after five, and shares the others with it."""

TOOK_OVER, BEHIND, OTHER = "took the run's place", "the run was ahead", "it lost other batches than the run"
"""Reasons of shadows that ended."""

KINDS = ("merge", "delete")
"""Moves of a shadow: they make no clusters, so that only the run gives ids to new clusters."""

ADOPTED = (
    "posterior", "total", "visits", "seen", "receipts", "terms", "edits", "plan", "trials", "void", "gathered",
    "pending", "partial", "lap_elbo", "lap_counts",
)  # fmt: skip
"""Parts of a state that come from the shadow once it takes the run's place."""


@dataclass
class Beside:
    """Shadows of one run, one at a time.

    Parameters
    ----------
    setting
        Settings of the shadows.
    work
        Work of the run; its executor shares its reads.
    schedule
        Schedule of the run.
    shared
        The executor behind both.
    room
        Bytes of single batches that a shadow may hold in memory.
    priors
        Likelihoods with the priors that shadows begin with in turn, ready; none if they begin with the run's prior.
    rows
        Outcome of each shadow that ended: see :attr:`bnp_dask.TrainResult.alternatives`.
    """

    setting: Shadow
    work: Work
    schedule: Schedule
    shared: SharedReads
    room: int
    priors: tuple[Observation, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    _failed: int = 0
    _turn: int = 0
    _living: Living | None = None

    @classmethod
    def of_run(
        cls, setting: Shadow, work: Work, schedule: Schedule, room: int, priors: tuple[Observation, ...] = ()
    ) -> Beside:
        """Shadows of a run, none of which has begun; the run itself must use ``work`` of the returned object."""
        shared = SharedReads(work.executor)
        own = replace(work, executor=shared.for_one(), lockstep=True)
        return cls(setting, own, schedule, shared, room, priors)

    def steps(self, steps: Iterator[Step], state: State) -> Iterator[Step]:
        """Steps of the run, while its shadows take theirs; shadows replace ``state``."""
        if self.setting.init is None and state.memory.rejected is None:
            state.memory.rejected = {}
        for step in steps:
            if self._living is not None:
                self._living.go_to(np.inf if step.lap_end else state.position)
            self.shared.send()
            if step.lap_end:
                step = self._settled(step, state)
            if not step.opens:
                yield step

    # -- from lap to lap ----------------------------------------------------------------------------------------
    def _settled(self, step: Step, state: State) -> Step:
        """The last step of a lap of the run, after a shadow was judged or begun if it is due."""
        records: list[dict[str, Any]] = []
        if self._living is not None and self._living.is_over(state):
            records.append(self._judged(self._living, state))
        while state.finished is None or state.finished == "converged":
            if self._living is None and not self._begin(state):
                break
            if self._living is None or state.finished is None:
                break
            while not self._living.is_over(state):  # the run has nothing left to do but to wait
                self._living.go_to(np.inf)
            records.append(self._judged(self._living, state))
        if not records or step.row is None:
            return step
        row = {**step.row, "elbo": state.elbo, **state.terms, "n_clusters": state.posterior.n_clusters}
        return replace(step, row={**row, "moves": [*step.row["moves"], *records]})

    def _begin(self, state: State) -> bool:
        """Begin a shadow if one is due; return whether there is one now."""
        due = state.finished == "converged" or state.calm_laps >= CALM_LAPS
        most = len(self.priors) or self.setting.tries
        if not due or self._failed >= most or not _is_plain(state):
            return False
        first, work = None, self._work_of(len(self.rows) + 1, state.lap)
        while first is None and self._failed < most:
            self._turn += 1
            model = self._model_of_turn(state.model)
            first = self._first(model, work, state)
            if first is None and not self.priors:
                break  # births may be rejected yet
            self._failed += first is None
        if first is None:
            return False
        try:
            self._living = self._made(work, model, first, state.lap, state.lost)
        except NumericalError as error:
            logger.info("no shadow after lap %d: %s", state.lap, error)
            self._failed += 1
            return False
        logger.info("a shadow begins after lap %d with %s", state.lap, noun_of(model).count(first.n_clusters))
        return True

    def _model_of_turn(self, model: Model) -> Model:
        """The run's model with the prior whose turn it is; unchanged if that prior is in force."""
        if not self.priors:
            return model
        other = self.priors[self._number]
        return model if same_settings(other, model.observation) else replace(model, observation=other)

    @property
    def _number(self) -> int:
        """Number of the prior whose turn it is."""
        return (self._turn - 1) % len(self.priors)

    def _first(self, model: Model, work: Work, state: State) -> Summary | None:
        """Statistics that a shadow begins with; None if they would equal the state of the run."""
        if self.setting.init is not None:
            source = remaining(work, state)
            context = InitContext(model, source, work.survey, self.shared.executor, work.rng(0, "init"))
            first = self.setting.init.start(context)
            return replace(first, ids=np.array(state.memory.new_ids(first.n_clusters), np.int64))
        value = state.total.value().without_pairs()
        found = with_rejected(model, value, state.memory)
        state.memory.rejected = {}
        return as_start(model, [value]) if found is None and model is not state.model else found

    def _work_of(self, number: int, lap: int) -> Work:
        seed = start_of_seed(self.work.seed, MOST_STARTS + number)
        moves = tuple(move for move in self.work.moves if move.kind in KINDS)
        room = self.room // 4
        memo = MemoryStore(self.room - room)
        return replace(
            self.work, seed=seed, moves=moves, memo=memo, shelf=None, room=room, executor=self.shared.for_one(),
            first_lap=self.work.first_lap + lap,
        )  # fmt: skip

    def _made(self, work: Work, model: Model, first: Summary, begun: int, lost: Mapping[int, Loss]) -> Living:
        prior = told(self.setting.prior[self._number]) if self.setting.prior else None
        return Living.begin(work, self.schedule, self.setting.laps, model, first, begun, lost, prior)

    def _judged(self, shadow: Living, state: State) -> dict[str, Any]:
        """The history's row of a shadow that is over, after it took the run's place if it is better."""
        theirs, old = shadow.state, state.posterior.ids
        known = theirs.lap > 0 and theirs.lost.keys() == state.lost.keys() and not shadow.refused
        gain = theirs.elbo - state.elbo if known else None
        better = gain is not None and gain > ROUNDING * sum(abs(term) for term in state.terms.values())
        reason = TOOK_OVER if better else BEHIND if known else shadow.refused or OTHER
        prior = {} if shadow.prior is None else {"prior": shadow.prior}
        self.rows.append(alternative(SHADOW, shadow.work.seed, shadow.begun, theirs, reason) | prior)
        logger.info(
            "shadow of lap %d: objective %.10g nats, %s, %s",
            shadow.begun,
            theirs.elbo,
            count_of(theirs.posterior),
            reason,
        )
        pays = gain is not None and better and gain > LAP.calm_gain * float(state.total.value()["N"].sum())
        self._failed = 0 if pays else self._failed + 1
        if better:
            self._take_place(shadow, state)
        shadow.memo.close()
        self._living = None
        new = state.posterior.ids
        gone, born = np.setdiff1d(old, new), np.setdiff1d(new, old)
        why = "the objective rises" if better else "the objective would fall" if known else f"not decided: {reason}"
        return record(SHADOW, tuple(gone.tolist()), tuple(born.tolist()), gain, better, why) | prior

    def _take_place(self, shadow: Living, state: State) -> None:
        """The run goes on from the shadow's state, in its own memory."""
        self.work.memo.forget_parts(state.gathered.parts())
        shadow.state.gathered, shadow.state.pending = Gathered(), {}
        take_over(shadow.memo, self.work.memo, shadow.state, self.work.room, state.visits)
        for name in ADOPTED:
            setattr(state, name, getattr(shadow.state, name))
        next_id = max(state.memory.next_id, shadow.state.memory.next_id)
        state.memory = Memory(next_id, dormant=state.memory.dormant, rejected=state.memory.rejected)
        state.memory.rejected = None if state.memory.rejected is None else {}
        state.calm, state.calm_laps = False, 0.0
        if state.finished == "converged":
            state.finished = None

    # -- checkpoints --------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """State without arrays, as JSON."""
        return {
            "rows": self.rows,
            "failed": self._failed,
            "turn": self._turn,
            "begun": None if self._living is None else self._living.begun,
        }

    def to_arrays(self, state: State) -> dict[str, np.ndarray]:
        """Arrays by name: the prior in force if others are possible, and the first summary of a living shadow."""
        out = settings_to_arrays(state.model) if self.priors else {}
        if self._living is None:
            return out
        out |= {f"{SHADOW}/{name}": array for name, array in self._living.first.to_arrays().items()}
        return out | {f"{SHADOW}_{name}": array for name, array in prior_to_arrays(self._living.model).items()}

    def restore(self, checkpoint: Checkpoint, state: State) -> None:
        """Go on from a checkpoint: a living shadow takes its laps again, up to the run's position."""
        saved: Mapping[str, Any] = checkpoint.state.get(SHADOW, {})
        self.rows, self._failed = list(saved.get("rows", ())), saved.get("failed", 0)
        self._turn = saved["turn"]
        begun = saved.get("begun")
        if begun is None:
            return
        own, prior = (
            {name.removeprefix(mark): array for name, array in checkpoint.arrays.items() if name.startswith(mark)}
            for mark in (f"{SHADOW}/", f"{SHADOW}_")
        )
        model = with_saved_prior(self._model_of_turn(state.model), prior)
        work = self._work_of(len(self.rows) + 1, begun)
        self._living = self._made(work, model, Summary.from_arrays(model.fields, own), begun, state.lost)
        for _ in range(begun, state.lap):
            self._living.go_to(np.inf)


def _is_plain(state: State) -> bool:
    """Whether all batches are kept and weigh one, so that another state of the same data can be compared."""
    return state.sealed is None and state.weights is None
