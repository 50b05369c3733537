"""Other states of one run: several starts, of which one goes on, and shadows beside it.

Several starts of one run: all take some laps side by side, and the best by the exact objective goes on alone.

Each start has a state and random numbers of its own, so the best start has the bits of a run of that start alone.
All visit batches in one order, so that each is read once for all of them.

Shadows: other states that live beside a run for some laps and take its place if they are better.

A shadow is begun, taken on step by step with the run, compared with it, and kept in checkpoints.  It depends on its
first summary, its seed and the data, and not on the run's steps in the meantime.  So a checkpoint holds that summary
alone, and a resumed run takes the shadow's laps again.

Shadows may begin with other priors: likelihoods of the run's class, whose prior has other settings.  Two states are
compared by their objectives, so both must sum the same terms of the same data.  Settings of a likelihood that describe
its data or their statistics, such as ``center``, therefore stay the same as in the run.

* If the run's prior is learned, the objective is one function of q and of the prior's settings, with the hyperprior
  about the point where the *run's* learning began.  Another prior is then another start of the same climb.
* If it is not, the objective of a state is the bound on the log probability of the data under the prior that the
  state has.  The run then goes for the largest over the priors of the list: empirical Bayes, or the most probable
  of priors that are equally probable beforehand, up to the log of their number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from bnp_dask.analysis import MOST_STARTS
from bnp_dask.core import OPTIONAL, Summary, Survey, register
from bnp_dask.core.survey import without
from bnp_dask.errors import NumericalError, SettingError
from bnp_dask.inference import (
    ROUNDING,
    Gathered,
    Loss,
    Memo,
    Schedule,
    SharedReads,
    State,
    Step,
    Work,
    prior_to_arrays,
    remaining,
    settings_to_arrays,
    with_saved_prior,
)
from bnp_dask.initialize import InitContext, Initialization
from bnp_dask.inputs import hold, lacking, require, shown, start_of_seed, whole_number
from bnp_dask.model import Model
from bnp_dask.moves import LAP, Memory, as_start, record, with_rejected
from bnp_dask.observation import Observation
from bnp_dask.store import Checkpoint, MemoryStore, RunStore
from bnp_dask.structure import count_of, noun_of
from bnp_dask.training.callbacks import Callback, logger, tell_of_batches, tell_of_lap
from bnp_dask.training.history import Rows

LAPS = 10
"""Laps after which the best of several starts goes on alone: a guess that was not compared with others."""

WENT_ON, LEFT = "went on alone", "another start was ahead"
"""Reasons of starts that had not ended by then."""

START = "start"
"""Kind of alternatives that are starts."""

SETTLED = "settled"
"""Name under which checkpoints keep the outcome of the starts."""


@dataclass(frozen=True)
class Settled:
    """Outcome of several starts.

    Parameters
    ----------
    seed
        Seed of the start that goes on.
    starts
        Outcome of each, in order: see :attr:`bnp_dask.TrainResult.alternatives`.
    """

    seed: int
    starts: Sequence[Mapping[str, Any]]


@dataclass
class Track:
    """Track of a run: its state and its history."""

    state: State
    rows: Rows


class Start(Protocol):
    """A run, as far as its several starts need it."""

    work: Work
    schedule: Schedule
    memo: RunStore | MemoryStore
    n_init: int
    room: int

    def with_parts(self, work: Work, memo: MemoryStore) -> Self:
        """The run as one of its starts, with a seed and a memory of its own."""
        ...

    def lap_steps(self, track: Track, clock: float) -> Generator[Step]:
        """Steps of one lap, without checkpoints and without calls of callbacks."""
        ...


S = TypeVar("S", bound=Start)
"""Type of a run."""


def starts_of(run: S) -> tuple[list[S], SharedReads]:
    """A run for each start, with a seed and a memory of its own, and the executor that joins their reads.

    Together they hold as much as the run may hold.
    """
    out, shared = [], SharedReads(run.work.executor)
    for number in range(run.n_init):
        own = run.room // run.n_init
        memo = MemoryStore(own - own // 4)
        seed = start_of_seed(run.work.seed, number)
        work = replace(
            run.work, seed=seed, memo=memo, shelf=None, room=own // 4, executor=shared.for_one(), in_ensemble=True,
        )  # fmt: skip
        out.append(run.with_parts(work, memo))
    return out, shared


def settle(
    runs: Sequence[Start], tracks: Sequence[Track], shared: SharedReads, callbacks: Sequence[Callback], clock: float
) -> tuple[int, Settled, str]:
    """Take laps with all starts; return the best one's number, the outcome, and why a callback stops it, if so."""
    stopped = ""
    for _ in range(LAPS):
        going = [number for number, track in enumerate(tracks) if track.state.finished is None]
        stopped = _lap_of_all([(runs[n], tracks[n]) for n in going], shared, callbacks, clock)
        if going and not stopped:
            leader = tracks[_best(tracks)]
            stopped = tell_of_lap(callbacks, leader.rows[-1], leader.state.posterior)
        if stopped or not going:
            break
    best = _best(tracks)
    facts = [_facts(run, track, n == best, stopped) for n, (run, track) in enumerate(zip(runs, tracks, strict=True))]
    for number, fact in enumerate(facts):
        logger.info(
            "start %d of %d: objective %.10g nats, %s, %s", number + 1, len(runs), fact["elbo"],
            noun_of(runs[number].work.model).count(fact["n_clusters"]),
            fact["reason"],
        )  # fmt: skip
        if number != best:
            runs[number].memo.close()
    return best, Settled(runs[best].work.seed, facts), stopped


def _lap_of_all(
    going: Sequence[tuple[Start, Track]], shared: SharedReads, callbacks: Sequence[Callback], clock: float
) -> str:
    """Take one lap of all starts, step by step; return why a callback stops the run, if one does."""
    with contextlib.ExitStack() as stack:
        laps = [stack.enter_context(contextlib.closing(run.lap_steps(track, clock))) for run, track in going]
        n_batches = going[0][0].work.source.n_batches if going else 0
        while laps:
            steps = [next(steps) for steps in laps]
            shared.send()
            if any(step.opens for step in steps):
                continue
            done = min(n_batches if step.lap_end else step.state.position for step in steps)
            if why := tell_of_batches(callbacks, done):
                return why
            laps = [lap for lap, step in zip(laps, steps, strict=True) if not step.lap_end]
    return ""


def take_over(memo: Memo, ours: Memo, state: State, room: int, after: np.ndarray | None = None) -> None:
    """Move everything that a state refers to from ``memo`` into ``ours``; ``room`` as in the work.

    ``after`` are the visits ``(B,)`` of the state that it replaces: its own visits come after them.
    """
    for batch in np.flatnonzero(state.visits >= 0).tolist():
        visit = int(state.visits[batch])
        arrays, meta = memo.get_summary(batch, visit, state.receipt(batch))
        new = visit if after is None else max(visit, int(after[batch]) + 1)
        state.note(batch, new, int(state.seen[batch]), ours.put_summary(batch, new, arrays, meta))
    if state.gathered.parts():
        state.gathered.move(memo.part_files(), ours.part_files())
    if state.gathered.held > room:
        state.gathered.write(ours.part_files())


def ended(state: State, schedule: Schedule) -> str:
    """Reason why a run has ended."""
    return state.finished if state.finished not in (None, "laps") else f"limit of {schedule.laps} laps"


def _best(tracks: Sequence[Track]) -> int:
    """The start with the highest objective, the first of equals; the first start if none has taken a lap."""
    values = [track.state.elbo if track.state.lap > 0 else -np.inf for track in tracks]
    return int(np.argmax(values))


def _facts(run: Start, track: Track, is_best: bool, stopped: str) -> dict[str, Any]:
    state = track.state
    if state.finished is not None:
        reason = ended(state, run.schedule)
    else:
        reason = stopped or (WENT_ON if is_best else LEFT)
    return alternative(START, run.work.seed, 0, state, reason)


def alternative(kind: str, seed: int, begun: int, state: State, reason: str) -> dict[str, Any]:
    """Row of :attr:`~bnp_dask.TrainResult.alternatives` for a state before which ``begun`` laps were taken."""
    return {
        "kind": kind, "seed": seed, "begun": begun, "lap": state.lap, "elbo": state.elbo,
        "n_clusters": state.posterior.n_clusters, "reason": reason,
    }  # fmt: skip


def settled_from_saved(saved: Mapping[str, Any]) -> Settled:
    """Outcome of several starts from a checkpoint; older checkpoints know no kinds."""
    return Settled(saved["seed"], [{"kind": START, "begun": 0, **start} for start in saved["starts"]])


@register
@dataclass(frozen=True)
class Shadow:
    """A second state beside the state of a run, in the same read of each batch, which may take its place.

    Many changes do not pay in one lap: new clusters have to settle, and old ones to be merged away.  So once clusters
    are calm a shadow begins.  It lives some laps with merges and deletes of its own, and takes the place of the run's
    state if its exact objective on all data is higher by then; else it is dropped, and the run is as it would have been
    without.  So the objective never falls.

    Unless ``init`` is given, it begins with all births made that the data rejected one by one since the last shadow.
    Each of its laps costs about as much as one of the run's without births: a lap with a shadow took 1.92 to 1.95
    times the processor time of one without (60 full Gaussians, 100,000 points).  On 6,000 points of 60 overlapping
    clusters in the plane it won 20, 0 and 0 nats with full covariances (three seeds) and 0, 0.2 and 0 with diagonal
    ones, in 1.0 to 2.1 times the time of the run: births beside neighbours now find the changes
    with which shadows won up to 25 nats before.

    With another ``prior``, a quarter and four times the scale of a Gaussian's default, fixed priors win 154 to 204 nats
    on wine, whose held-out score rises by 0.4 to 1.1 nats per row, and 2 to 17 on iris, crabs, faithful and galaxies,
    where the score moves either way (three seeds).  A third of the default pseudo-counts of words wins 10,900 of
    3.17 million nats on KOS and 0.002 nats per held-out token, in 2.4 times the time.  Nothing is won on
    the 60 clusters above, nor by learned priors (0.3 nats on crabs, less elsewhere): learning ends at the same point.

    Parameters
    ----------
    laps
        Laps of a shadow.
    tries
        Shadows in a row that may fail before there is no other; with ``prior`` as many as there are priors.
    init
        Starting point in place of rejected births, such as another start or more clusters: ``BregmanKMeans(40)``.
    prior
        Other priors, one for each shadow in turn: likelihoods of the run's class with other settings, such as
        ``[Multinomial(0.05), Multinomial(0.4, common=0.6)]``.  Open settings are set from the data, as the run's
        own is.  A shadow begins with the run's clusters, and with births that were rejected, unless ``init`` is given.
        If it takes the run's place, the run has its prior from there on.  If the run's prior is not learned, the
        objective then belongs to the prior in force: it is the highest over the priors (empirical Bayes), and never
        falls.  If it is learned (``Model(..., learn_prior=...)``), the objective is one for all of its settings, and a
        shadow is another start of learning.
    """

    laps: int = 12
    tries: int = 2
    init: Initialization | None = None
    prior: Sequence[Observation] | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        hold(self, "laps", whole_number("laps", self.laps, 1))
        hold(self, "tries", whole_number("tries", self.tries, 1))
        if self.init is not None:
            require("init", self.init, Initialization, "a start, such as BregmanKMeans(25)")
        if self.prior is not None:
            hold(self, "prior", _likelihoods(self.prior))


def _likelihoods(value: object) -> tuple[Observation, ...]:
    """One likelihood or more; SettingError for anything else."""
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, (str, np.ndarray)) else (value,)
    for number, one in enumerate(found):
        lack = lacking(one, Observation)
        if lack is not None:
            raise SettingError(
                f"prior[{number}]={shown(one)}: {lack}; needs likelihoods with other settings of their prior, such as "
                "[Multinomial(0.05), Multinomial(0.4, common=0.6)]"
            )
    if not found:
        raise SettingError("prior=(): needs likelihoods, such as [Multinomial(0.05)], or None for the run's own prior")
    return found


# -- other priors --------------------------------------------------------------------------------------------------
SHARED = ("center", "fractional", "grain", "lags", "levels", "missing", "normalize", "null", "variance")
"""Settings of likelihoods that describe their data or statistics, or known facts, and not a prior."""


def require_priors(model: Model, priors: Sequence[Observation]) -> None:
    """SettingError unless the likelihoods are of the model's class, and states under them can be compared."""
    kind = type(model.observation)
    for number, given in enumerate(priors):
        if type(given) is not kind:
            raise SettingError(
                f"shadow: prior[{number}] is {told(given)}, but the run's likelihood is {kind.__name__}; needs "
                f"{kind.__name__}(...) with other settings of its prior"
            )
    if priors and model.estimate == "map":
        raise SettingError(
            'shadow: prior needs estimate="posterior": point estimates have no objective that could be compared '
            "between priors"
        )


def other_priors(shadow: Shadow | None, model: Model, survey: Survey) -> tuple[Observation, ...]:
    """The priors of shadows with open settings filled in: from the run's prior, or set from the data in the same way.

    Parameters
    ----------
    shadow
        Setting of shadows, None if there are none.
    model
        Model of the run, its prior set from the data.
    survey
        Known facts about the data.

    Raises
    ------
    SettingError
        Another value of a setting that must be the run's, or a setting of the prior that is neither number nor array.
    """
    priors = (shadow.prior if shadow is not None else None) or ()
    return tuple(_ready(model.observation, given, survey, f"shadow: prior[{i}]") for i, given in enumerate(priors))


def _ready(own: Any, given: Any, survey: Survey, place: str) -> Observation:
    common = {f.name: getattr(own, f.name) for f in fields(given) if f.name in SHARED}
    for name, value in common.items():
        asked = getattr(given, name)
        is_open = asked is None or asked is False
        if not (is_open or _is_same(asked, value)):
            raise SettingError(
                f"{place} is {told(given)}, but {name} is no setting of its prior and {shown(value)} in the run; "
                "leave it out"
            )
    ready: Observation = replace(given, **common).with_prior(survey)
    for f in fields(given):
        mine, other = getattr(own, f.name), getattr(ready, f.name)
        if not _is_same(mine, other) and not isinstance(other, (int, float, np.ndarray)):
            raise SettingError(
                f"{place} is {told(given)}, whose setting {f.name} is neither a number nor an array; only likelihoods "
                "whose prior is set by numbers and arrays can have others beside it"
            )
    return ready


def told(likelihood: Any) -> str:
    """A likelihood as text, with only the settings that were given."""
    given = ((f.name, getattr(likelihood, f.name), f.default) for f in fields(likelihood) if f.init)
    parts = [f"{name}={shown(value)}" for name, value, default in given if value is not default]
    return f"{type(likelihood).__name__}({', '.join(parts)})"


def same_settings(one: Any, other: Any) -> bool:
    """Whether two likelihoods of one class have the same settings."""
    return all(_is_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


def _is_same(a: Any, b: Any) -> bool:
    """Whether two settings are equal, numbers standing for arrays of them."""
    try:
        return bool(np.all(np.asarray(a) == np.asarray(b)))
    except (TypeError, ValueError):
        return a is b


# -- one shadow ----------------------------------------------------------------------------------------------------
@dataclass
class RunningShadow:
    """A shadow under way: its first summary, the number of laps of the run before it, and its present state.

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
    ) -> RunningShadow:
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


# -- the shadows of a run ------------------------------------------------------------------------------------------
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
class Shadows:
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
    _running: RunningShadow | None = None

    @classmethod
    def of_run(
        cls, setting: Shadow, work: Work, schedule: Schedule, room: int, priors: tuple[Observation, ...] = ()
    ) -> Shadows:
        """Shadows of a run, none of which has begun; the run itself must use ``work`` of the returned object."""
        shared = SharedReads(work.executor)
        own = replace(work, executor=shared.for_one(), in_ensemble=True)
        return cls(setting, own, schedule, shared, room, priors)

    def steps(self, steps: Iterator[Step], state: State) -> Iterator[Step]:
        """Steps of the run, while its shadows take theirs; shadows replace ``state``."""
        if self.setting.init is None and state.memory.rejected is None:
            state.memory.rejected = {}
        for step in steps:
            if self._running is not None:
                self._running.go_to(np.inf if step.lap_end else state.position)
            self.shared.send()
            if step.lap_end:
                step = self._settled(step, state)
            if not step.opens:
                yield step

    # -- from lap to lap ----------------------------------------------------------------------------------------
    def _settled(self, step: Step, state: State) -> Step:
        """The last step of a lap of the run, after a shadow was judged or begun if it is due."""
        records: list[dict[str, Any]] = []
        if self._running is not None and self._running.is_over(state):
            records.append(self._judged(self._running, state))
        while state.finished is None or state.finished == "converged":
            if self._running is None and not self._begin(state):
                break
            if self._running is None or state.finished is None:
                break
            while not self._running.is_over(state):  # the run has nothing left to do but to wait
                self._running.go_to(np.inf)
            records.append(self._judged(self._running, state))
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
            self._running = self._made(work, model, first, state.lap, state.lost)
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
            source, survey = remaining(work, state), without(work.survey, sorted(state.lost))
            context = InitContext(model, source, survey, self.shared.executor, work.rng(0, "init"))
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

    def _made(self, work: Work, model: Model, first: Summary, begun: int, lost: Mapping[int, Loss]) -> RunningShadow:
        prior = told(self.setting.prior[self._number]) if self.setting.prior else None
        return RunningShadow.begin(work, self.schedule, self.setting.laps, model, first, begun, lost, prior)

    def _judged(self, shadow: RunningShadow, state: State) -> dict[str, Any]:
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
        self._running = None
        new = state.posterior.ids
        gone, born = np.setdiff1d(old, new), np.setdiff1d(new, old)
        why = "the objective rises" if better else "the objective would fall" if known else f"not decided: {reason}"
        return record(SHADOW, tuple(gone.tolist()), tuple(born.tolist()), gain, better, why) | prior

    def _take_place(self, shadow: RunningShadow, state: State) -> None:
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
            "begun": None if self._running is None else self._running.begun,
        }

    def to_arrays(self, state: State) -> dict[str, np.ndarray]:
        """Arrays by name: the prior in force if others are possible, and the first summary of a shadow under way."""
        out = settings_to_arrays(state.model) if self.priors else {}
        if self._running is None:
            return out
        out |= {f"{SHADOW}/{name}": array for name, array in self._running.first.to_arrays().items()}
        return out | {f"{SHADOW}_{name}": array for name, array in prior_to_arrays(self._running.model).items()}

    def restore(self, checkpoint: Checkpoint, state: State) -> None:
        """Go on from a checkpoint: a shadow under way takes its laps again, up to the run's position."""
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
        self._running = self._made(work, model, Summary.from_arrays(model.fields, own), begun, state.lost)
        for _ in range(begun, state.lap):
            self._running.go_to(np.inf)


def _is_plain(state: State) -> bool:
    """Whether all batches are kept and weigh one, so that another state of the same data can be compared."""
    return state.sealed is None and state.weights is None
