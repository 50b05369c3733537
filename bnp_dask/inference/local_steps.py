"""Local steps of batches, and the change of the total that they make together.

From top to bottom: the request of a local step (:class:`LocalStep`), the task of a worker (:func:`local_steps`), and
the coordinator that submits tasks and collects changes (:class:`LocalSteps`).

A worker that reaches the run directory reads the results of the last visit there, writes the results of this visit, and
sends the difference.  If it cannot reach the directory, may not write, or finds the disk full, its results come back
whole and the coordinator does the rest, to the same bits.  The task decides this batch by batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from bnp_dask.core import Batch, GroupStates, require_finite_arrays
from bnp_dask.data import SMALL_BYTES
from bnp_dask.errors import StoreError
from bnp_dask.execute import Handle, Load, Posted, collected, in_turn, is_remote, opened, post, submitted
from bnp_dask.inference.batch_memo import Keeps, Left, MemoSlot
from bnp_dask.inference.reduction import FAN, Change, change_of, joined, reduced, reduced_for_us, sums_left
from bnp_dask.inference.state import State, Work, recall, recall_left, recall_states, remember
from bnp_dask.inference.visit import Request, leave_out, request_of, subtract, visit
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Gather, Split, gather_atoms, visit_and_split
from bnp_dask.observation import numbers_per_cluster
from bnp_dask.store import Receipt
from bnp_dask.structure import Trial, Visit, room_for

SMALL_EFFORT = 1e8
"""Products in the local step of a batch below which the overhead of a separate task, some 20 ms, is too much."""

ROUND_EFFORT = 4 * SMALL_EFFORT
"""Products of all batches of a task up to which it visits more than ``FAN`` batches: about a tenth of a second."""

SLIGHT = 2**19
"""Numbers up to which parameters are sent with each task, and changes come back from each.  Separate tasks to
distribute parameters and to add changes would wait for a free worker twice for every group of batches."""

SLIGHT_TRIALS = 2**24
"""Numbers, in the parameters of a lap's trials times the number of batches (128 MB), up to which these parameters are
sent with each task.  Dask gives a task to a worker that holds its inputs: if trials were sent once, all tasks of a lap
would start on the worker that holds them, and the other workers would have to take tasks over."""

FEW = 16
"""Tasks of a group up to which ``SLIGHT`` applies; with more, the coordinator leaves the adding to workers."""

AT_ONCE = 2**22
"""Numbers up to which the changes of a group arrive in one message (32 MB)."""

TOGETHER = 8
"""Whole results that arrive in one message, if they hold no more than ``AT_ONCE`` numbers: each message takes some
10 ms."""

AHEAD = 4
"""Tasks for each worker that are out at most while results come back whole: enough for it to work while the coordinator
takes results of others and folds a group."""


@dataclass(frozen=True, eq=False)
class LocalStep:
    """Local step of one batch, with its part in the lap's plan; see :class:`~bnp_dask.moves.base.Plan`.

    Parameters
    ----------
    request
        The batch.
    pairs
        Pairs of clusters whose unions are tracked, ``(M, 2)``.
    split
        Birth that the batch tries by itself; None: none.
    gather
        Atoms that are gathered for births.
    weight
        Weight of the batch; results are scaled by it.
    assigns
        Whether assignments may be kept in place of statistics.
    slot
        Place in the run directory of the results of the last visit and of this one; None: results come back whole.
    states, left
        States of groups, and assignments, from the last visit, for workers that do not reach the run directory.
    has_states
        Whether ``states`` are known: they are also None if groups have no states yet.
    """

    request: Request
    pairs: np.ndarray
    split: Split | None = None
    gather: Gather = field(default_factory=Gather)
    weight: float = 1.0
    assigns: bool = False
    slot: MemoSlot | None = None
    states: GroupStates | None = None
    left: Left | None = None
    has_states: bool = True

    @property
    def first_load(self) -> Load[Batch] | None:
        """The reader, if it may be called before the task runs."""
        return self.request.first_load

    def can_do_without(self, model: Model) -> bool:
        """Whether a worker that does not reach the run directory can still visit the batch."""
        return self.has_states or not model.keeps_states or self.slot is None or self.slot.old < 0


def local_steps(
    posterior: Posterior | Posted, trials: tuple[Trial, ...] | Posted, *steps: LocalStep
) -> Change | Unsummed:
    """The task: local steps of some batches, and the sum of their changes as far as the worker can compute it."""
    try:
        beliefs, proposals = opened(posterior), opened(trials)
    except StoreError as error:
        return Unsummed(tuple(Unkept(step.request.batch, None, str(error), is_unread=True) for step in steps))
    with in_turn([step.request.reader for step in steps]):
        found = added(*[_kept(beliefs, proposals, step) for step in steps])
    return found.with_atoms_in_one() if isinstance(found, Change) else found


def _kept(posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep) -> Change | Unkept:
    """Local step of a batch, between reading the last visit's results and writing this visit's."""
    model, slot, batch = posterior.model, step.slot, step.request.batch
    if slot is None:
        return Unkept(batch, local_step(posterior, trials, step, step.states, step.left))
    old, states, left, why = None, step.states, step.left, ""
    try:
        kept = slot.read(model)
        left = kept if kept.needs_batch else None
        old, states = None if left else kept.total(model), kept.states(model)
    except StoreError as error:
        why = str(error)
        if not step.can_do_without(model):
            return Unkept(batch, None, why)
    found = local_step(posterior, trials, step, states, left)
    try:
        receipt = None if why else slot.write(model, found)
    except StoreError as error:
        why = str(error)
    if why:
        return Unkept(batch, found, why)
    return change_of(found, old if left is None else found.before, batch, receipt)


def local_step(
    posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep, states: GroupStates | None, left: Left | None
) -> Visit:
    """Read one batch, assign its atoms, summarize them, and carry out the lap's trials.

    ``states`` are the states of its groups; ``left`` holds the assignments of its last visit, whose statistics are
    recomputed from its data.
    """

    def compute(batch: Batch) -> Visit:
        found = visit_batch(posterior, batch, trials, step, states)
        return found if left is None else replace(found, before=left.total(posterior.model, lambda: batch))

    return visit(posterior.model, step.request, compute, lambda why: lose_batch(posterior, trials, step, why))


def lose_batch(posterior: Posterior, trials: tuple[Trial, ...], step: LocalStep, why: str) -> Visit:
    """Visit of a batch that is left out: the visit of a batch without atoms."""
    assert step.request.empty is not None
    alone = replace(step, split=None, assigns=False)
    return replace(visit_batch(posterior, step.request.empty(), trials, alone, None), lost=why)


def visit_batch(
    posterior: Posterior, batch: Batch, trials: tuple[Trial, ...], step: LocalStep, states: GroupStates | None
) -> Visit:
    """Local step, trials and gathering on a batch in memory."""
    model, request = posterior.model, step.request
    if step.split is not None:
        found = visit_and_split(posterior, batch, step.pairs, trials, step.split, request.seed, states)
    else:
        room = room_for(model.observation, posterior.n_clusters, batch.n_atoms) if step.assigns else 0
        found = model.visit(posterior, batch, step.pairs, trials, step.gather.clusters, states, room)
        found = gather_atoms(model, found, batch, step.gather, request.seed)
    sums = {"": found.summary, **{f"trial {name}: ": part for name, part in found.parts.items()}}
    sums |= {} if found.newborn is None else {"newborn clusters: ": found.newborn}
    for name, summary in sums.items():
        require_finite_arrays(summary.values, f"{request.name}: {name}statistic", summary.ids)
        require_finite_arrays(summary.pair_values, f"{request.name}: {name}statistic of pairs")
    return found if step.weight == 1.0 else found.scaled(step.weight)


@dataclass(frozen=True, eq=False)
class Unkept:
    """A batch whose results the coordinator keeps.

    Parameters
    ----------
    batch
        Its number.
    found
        The visit for the coordinator to keep; None if the batch was not visited because the states of its groups or
        the posterior were missing.
    why
        The worker's error at the run directory; empty if it had nothing to keep.
    is_unread
        Whether the posterior was missing.
    """

    batch: int
    found: Visit | None
    why: str = ""
    is_unread: bool = False


@dataclass(frozen=True, eq=False)
class Unsummed:
    """Changes that wait to be added, in this order, because the coordinator has to compute some of them.

    ``parts`` are added as :func:`~bnp_dask.inference.reduction.joined` adds.
    """

    parts: tuple[Change | Unkept | Unsummed, ...]

    @property
    def unkept(self) -> list[Unkept]:
        """Results that the coordinator has to keep, in order."""
        out: list[Unkept] = []
        for part in self.parts:
            if isinstance(part, Unsummed):
                out += part.unkept
            elif isinstance(part, Unkept):
                out.append(part)
        return out


def added(*parts: Change | Unkept | Unsummed) -> Change | Unsummed:
    """The task that adds the results of other tasks, as far as they can be added yet."""
    changes = [part for part in parts if isinstance(part, Change)]
    return joined(*changes) if len(changes) == len(parts) else Unsummed(parts)


def unkept_of(parts: Iterable[Change | Unkept | Unsummed]) -> list[Unkept]:
    """Results of some tasks that the coordinator has to keep."""
    return [unkept for part in parts if isinstance(part, Unsummed) for unkept in part.unkept]


# -- the coordinator ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kept:
    """A visit that a worker has written: its number, and the receipt of its file."""

    visit: int
    receipt: Receipt


@dataclass(frozen=True, eq=False)
class Taken:
    """A group of batches that were visited with one posterior.

    Parameters
    ----------
    batches
        Their numbers, in the order of the lap.
    seen
        Number of changes of clusters in that posterior.
    change
        Their joint change of the total.
    written
        Visits that workers have written.
    visits
        The other visits, to be kept by the coordinator.
    keeps
        Results of these that are kept.
    attempt
        1, or 2 if the group was sent back once.
    has_lost
        Whether batches of the group went bad.  They have left the run, and are in ``batches`` only.
    """

    batches: tuple[int, ...]
    seen: int
    change: Change
    written: dict[int, Kept]
    visits: list[tuple[int, Visit]]
    keeps: Keeps = Keeps.STATISTICS
    attempt: int = 1
    has_lost: bool = False


@dataclass(eq=False)
class InFlight:
    """A group in flight: its batches, the posterior behind it, and the tasks that compute its change.

    Parameters
    ----------
    batches
        Their numbers, in the order of the lap.
    basis, beliefs
        The posterior, and the argument of the tasks that stands for it.
    seen
        Number of changes of clusters in the posterior.
    attempt
        1, or 2 if the group was sent back once.
    numbers
        Numbers of the visits that workers may write, by batch.
    rounds
        Batches of each task: first the batches that try a birth of their own, one by one.
    n_own
        Number of these.
    at_once
        Whether all other changes fit into one message.
    in_turn
        Whether its tasks are sent a few at a time.
    tasks
        The tasks that have been sent, in order.
    sums
        Tasks that add the changes of the batches that try no birth; None if they are added here.
    """

    batches: tuple[int, ...]
    basis: Posterior
    beliefs: Any
    seen: int
    attempt: int
    numbers: dict[int, int]
    rounds: list[list[LocalStep]]
    n_own: int
    at_once: bool = False
    in_turn: bool = False
    tasks: list[Handle] = field(default_factory=list)
    sums: list[Handle] | None = None

    @property
    def unsent(self) -> int:
        """Number of tasks that are still to be sent."""
        return len(self.rounds) - len(self.tasks)


@dataclass(eq=False)
class LocalSteps:
    """Visits of batches, for their joint change of the total.

    If results come back whole, the tasks of a group are sent a few for each worker at a time, however large the window
    is: each carries the memo of its batch, and its result waits on a worker until it is fetched.

    Parameters
    ----------
    work, state
        Facts of the run, and its state.
    n_batches
        Batches that are visited in all.
    keeps
        Results of a visit that are kept for the next visit of its batch.
    is_whole
        Whether whole visits are wanted, not only their changes.
    """

    work: Work
    state: State
    n_batches: int
    keeps: Keeps = Keeps.STATISTICS
    is_whole: bool = False
    _waiting: deque[InFlight] = field(default_factory=deque)
    _out: int = 0

    def __post_init__(self) -> None:
        trials = self.state.plan.trials
        self._most_atoms = max(self.work.survey.batch_atoms, default=0)
        self._plain = tuple(replace(t, beliefs=t.beliefs.for_visits(self._most_atoms)) for t in trials)
        numbers = sum(t.beliefs.n_clusters for t in trials) * numbers_per_cluster(self.work.model.observation)
        is_slight = numbers * self.n_batches <= SLIGHT_TRIALS
        self._trials = self._argument(f"trials-lap{self.state.lap}", self._plain, is_slight) if trials else ()

    @property
    def replaces(self) -> bool:
        """Whether a visit's statistics replace the statistics of its batch's last visit."""
        return self.keeps is not Keeps.STATES

    def submit(self, batches: tuple[int, ...], basis: Posterior, seen: int, attempt: int = 1) -> InFlight:
        """Start the tasks of a group; no two attempts write the same file."""
        executor, reach = self.work.executor, self.work.reach
        steps = [self._step(batch, seen, attempt) for batch in batches]
        own = [[step] for step in steps if step.split is not None]
        rounds = self._rounds([step for step in steps if step.split is None], basis.n_clusters)
        numbers = basis.n_clusters * numbers_per_cluster(self.work.model.observation)
        slight = is_slight(len(own) + len(rounds), numbers)
        name = f"posterior-lap{self.state.lap}-batch{batches[0]}"
        beliefs = self._argument(name, basis.for_visits(self._most_atoms), slight)
        kept = {step.request.batch: step.slot.new for step in steps if step.slot is not None}
        group = InFlight(
            batches=batches,
            basis=basis,
            beliefs=beliefs,
            seen=seen,
            attempt=attempt,
            numbers=kept,
            rounds=[*own, *rounds],
            n_own=len(own),
        )
        by_workers = bool(kept) and not reach.is_rare
        if not by_workers and not self.work.in_ensemble and attempt == 1:
            group.in_turn = True
            self._waiting.append(group)
            self._send_more()
            return group
        self._send(group, group.unsent)
        if by_workers and not slight:
            most = sums_left(len(rounds), executor.n_workers, numbers)
            group.sums = reduced_for_us(group.tasks[group.n_own :], self._add, most)
        n_messages = len(rounds) if group.sums is None else len(group.sums)
        group.at_once = by_workers and n_messages * numbers <= AT_ONCE
        return group

    def _argument(self, name: str, value: Any, is_slight: bool) -> Any:
        """Argument of tasks that stands for a value: a file that they read, the value itself, or a shared one."""
        if is_remote(self.work.executor) and self.work.reach.reads_posts:
            try:
                board = self.work.memo.board()
                if board is not None:
                    return post(board, name, value)
            except StoreError as error:
                self.work.reach.note_unread(str(error))
        return value if is_slight else self.work.executor.share(name, value)

    def _send_more(self) -> None:
        """Send waiting tasks, in order, until there are enough for all workers."""
        room = AHEAD * max(1, self.work.executor.n_workers) - self._out
        while self._waiting and room > 0:
            group = self._waiting[0]
            n = min(room, group.unsent)
            self._send(group, n)
            self._out, room = self._out + n, room - n
            if not group.unsent:
                self._waiting.popleft()

    def _send(self, group: InFlight, n: int) -> None:
        """Send the next ``n`` tasks of a group."""
        start = len(group.tasks)
        rounds = [[self._complete(step, group.seen) for step in some] for some in group.rounds[start : start + n]]
        group.tasks += self._started(group.beliefs, self._trials, rounds)

    def _started(self, beliefs: Any, trials: Any, rounds: list[list[LocalStep]], first: bool = False) -> list[Handle]:
        """Submitted tasks, one for each round of batches."""
        tasks = [(self._name(some[0].request.batch), local_steps, (beliefs, trials, *some)) for some in rounds]
        return submitted(self.work.executor, tasks, first)

    def _add(self, groups: list[Sequence[Handle]]) -> list[Handle]:
        """Tasks that each add some changes."""
        return submitted(self.work.executor, [(f"add-lap{self.state.lap}", added, tuple(some)) for some in groups])

    def _name(self, batch: int) -> str:
        return f"local_step-lap{self.state.lap}-batch{batch}"

    def _rounds(self, pieces: list[LocalStep], n_clusters: int) -> list[list[LocalStep]]:
        """Batches of each task: if a task costs more than its work, it visits batches whose changes would be added
        first anyway.

        Every worker thread still gets a task of each group.
        """
        if any(step.slot is None for step in pieces):  # a whole visit is as much as a message should hold
            return [[step] for step in pieces]
        numbers = n_clusters * numbers_per_cluster(self.work.model.observation)
        size = batches_of_task(
            len(pieces), _effort(self.work, n_clusters), max(1, self.work.executor.n_workers), numbers
        )
        return [pieces[i : i + size] for i in range(0, len(pieces), size)]

    def _step(self, batch: int, seen: int, attempt: int = 1, is_whole: bool = False) -> LocalStep:
        """Local step of a batch; :meth:`_complete` adds its last visit's results if ``has_states``."""
        work, state, plan = self.work, self.state, self.state.plan
        split = plan.splits.get(batch)
        is_whole = is_whole or work.shelf is None or self.is_whole or split is not None
        slot = None if is_whole else self._slot(batch, seen, attempt)
        return LocalStep(
            request=request_of(work, state, batch),
            pairs=plan.pairs,
            split=split,
            gather=replace(plan.gather, key=(self.state.lap, 13, batch)),
            weight=state.weight(batch),
            assigns=self._assigns(batch),
            slot=slot,
            has_states=slot is None or work.reach.is_rare,
        )

    def _complete(self, step: LocalStep, seen: int) -> LocalStep:
        """A local step as it is sent: with its last visit's results, unless its worker reads them itself."""
        if not step.has_states:
            return step
        batch = step.request.batch
        states = recall_states(self.work, self.state, batch, seen)
        left = recall_left(self.work, self.state, batch, seen) if self.replaces else None
        return replace(step, states=states, left=left)

    def _slot(self, batch: int, seen: int, attempt: int) -> MemoSlot:
        state = self.state
        assert self.work.shelf is not None
        old = int(state.visits[batch])
        return MemoSlot(
            shelf=self.work.shelf,
            batch=batch,
            old=old,
            receipt=state.receipt(batch),
            new=old + attempt,
            edits=tuple(state.edits[int(state.seen[batch]) : seen]),
            keeps=self.keeps,
        )

    def _assigns(self, batch: int) -> bool:
        """Whether assignments of a batch may be kept; then its data may be needed whenever its statistics are."""
        readable = self.work.readable
        return self.replaces and readable is not None and bool(readable[batch]) and batch not in self.state.lost

    def collect(self, group: InFlight) -> Taken:
        """Wait for a group's tasks.  Batches that went bad leave the run, and the total.

        From now on they are kept as batches without atoms, so nothing is subtracted twice, whether or not the rest of
        the group is folded.
        """
        taken, work, state = self.results(group), self.work, self.state
        lost = dict(taken.change.lost)
        if not lost:
            return taken
        if self.replaces:
            subtract(work, state, [batch for batch in lost if state.visits[batch] >= 0])
        leave_out(work, state, lost)
        for batch, kept in taken.written.items():
            if batch in lost:
                state.note(batch, kept.visit, taken.seen, kept.receipt)
        for batch, found in taken.visits:
            if batch in lost:
                keeps = Keeps.STATISTICS if self.replaces else Keeps.STATES
                remember(work, state, batch, found, taken.seen, keeps=keeps)
        return replace(
            taken,
            change=replace(taken.change, lost=()),
            written={batch: kept for batch, kept in taken.written.items() if batch not in lost},
            visits=[(batch, found) for batch, found in taken.visits if batch not in lost],
            has_lost=True,
        )

    def results(self, group: InFlight) -> Taken:
        """Wait for a group's tasks.  Batches that try a birth of their own are added last; nothing else is done."""
        found: list[tuple[int, Visit]] = []
        unkept: list[str] = []

        def changes(results: Iterable[Change | Unkept | Unsummed]) -> Iterator[Change]:
            for part in results:
                missing = unkept_of([part])
                unkept.extend(one.why for one in missing if one.why)
                yield self._finished(group, part, self._found_at_last(group, missing), found)

        if group.in_turn:
            results = self._results_in_turn(group)
            own = list(changes(islice(results, group.n_own)))
        else:
            own = list(changes(collected(self.work.executor, group.tasks[: group.n_own], False)))
            rest = group.tasks[group.n_own :] if group.sums is None else group.sums
            results = collected(self.work.executor, rest, group.at_once)
        main = reduced(changes(results), lambda some: joined(*some))
        whole = joined(*([] if main is None else [main]), *own)
        self.work.reach.note(len(group.numbers) - len(unkept), unkept)
        written = {batch: Kept(group.numbers[batch], receipt) for batch, receipt in whole.written}
        return Taken(
            batches=group.batches,
            seen=group.seen,
            change=whole,
            written=written,
            visits=found,
            keeps=self.keeps,
            attempt=group.attempt,
        )

    def _results_in_turn(self, group: InFlight) -> Iterator[Change | Unkept | Unsummed]:
        """Results of a group in order, each followed by the next tasks that wait to be sent."""
        numbers = group.basis.n_clusters * numbers_per_cluster(self.work.model.observation)
        size, done = max(1, min(TOGETHER, AT_ONCE // max(1, numbers))), 0
        while done < len(group.rounds):
            some = group.tasks[done : done + size]
            done += len(some)
            for value in collected(self.work.executor, some, at_once=len(some) > 1):
                self._out -= 1
                self._send_more()
                yield value

    def _keep_here(self, group: InFlight, batch: int, seen: Visit, found: list[tuple[int, Visit]]) -> Change:
        """The change by a visit that came back whole; the visit is appended to ``found``."""
        found.append((batch, replace(seen, before=None)))
        old = seen.before
        if old is None and self.replaces and self.state.visits[batch] >= 0:
            old = recall(self.work, self.state, batch, group.seen)
        return change_of(seen, old, batch)

    def _found_at_last(self, group: InFlight, missing: Sequence[Unkept]) -> dict[int, Visit]:
        """Visits of batches whose results the coordinator keeps; missing ones are made now."""
        for one in missing:
            if one.is_unread:
                self.work.reach.note_unread(one.why)
        late = [self._step(one.batch, group.seen, is_whole=True) for one in missing if one.found is None]
        if not late:
            return {one.batch: one.found for one in missing if one.found is not None}
        numbers = group.basis.n_clusters * numbers_per_cluster(self.work.model.observation)
        beliefs: Any = group.basis.for_visits(self._most_atoms)
        if not is_slight(len(late), numbers):
            beliefs = self.work.executor.share(f"posterior-lap{self.state.lap}-again", beliefs)
        rounds = [[self._complete(step, group.seen)] for step in late]
        parts = map(self.work.executor.result, self._started(beliefs, self._plain, rounds, first=True))
        return {one.batch: one.found for one in [*missing, *unkept_of(parts)] if one.found is not None}

    def _finished(
        self,
        group: InFlight,
        part: Change | Unkept | Unsummed,
        visits: Mapping[int, Visit],
        found: list[tuple[int, Visit]],
    ) -> Change:
        """Change by some tasks, with the rest computed here and added in the tasks' order."""
        if isinstance(part, Change):
            return part
        if isinstance(part, Unkept):
            return self._keep_here(group, part.batch, visits[part.batch], found)
        return joined(*[self._finished(group, one, visits, found) for one in part.parts])


def is_slight(n_tasks: int, numbers: int) -> bool:
    """Whether the inputs and results of some tasks, ``numbers`` each, are small enough to pass through the coordinator.

    Their results are added here in the order in which tasks would add them: the bits are the same.
    """
    return n_tasks <= 1 or (n_tasks <= FEW and n_tasks * numbers <= SLIGHT)


def batches_of_task(n_batches: int, effort: float, n_workers: int, numbers: int) -> int:
    """Batches that a task visits.

    Parameters
    ----------
    n_batches
        Batches of the group.
    effort
        Products in the local step of a batch.
    n_workers
        Worker threads; each gets a task of the group.
    numbers
        Numbers in a summary.
    """
    size = FAN if effort < SMALL_EFFORT and n_batches >= FAN * n_workers else 1
    if size > 1 and is_slight(n_batches // size, numbers):
        most = min(n_batches // n_workers, ROUND_EFFORT / max(effort, 1.0))
        while 2 * size <= most:
            size *= 2
    return size


def _effort(work: Work, n_clusters: int) -> float:
    """Products in the local step of a batch of average size; infinite if no batch counts as small.

    Groups and sequences take many steps.
    """
    model, share = work.model, 1.0 / work.source.n_batches
    if work.survey.nbytes * share > SMALL_BYTES:
        return np.inf
    return model.structure.effort(model, work.survey.n_atoms * share, n_clusters)
