"""Until clusters are calm, moves plan at the same time: what is sent when, who may have which cluster, what is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.allocation import HDPHMM, DPMixture, HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.inference import lap as laps
from bnp_dask.inference.lap import plan_lap
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.base import BirthProposal, DeleteProposal, Draft, PlanContext, Turn
from bnp_dask.moves.delete import SET, refine
from bnp_dask.moves.memory import Memory, Sweep
from bnp_dask.moves.merge import pair_empty
from bnp_dask.moves.pairs import gains_of_pairs
from bnp_dask.moves.policy import DECISION, LAP, DeletePolicy
from bnp_dask.observation import DiagGaussian, Gaussian, Multinomial
from tests.moves.parts import blobs, paused, prepare, start_random

MOVES = (Birth(per_lap=3, fresh=3, sample=300, refine=6), Merge(), Delete(per_lap=2, absorbers=2))


class Noting(SerialExecutor):
    """Notes what is sent, and whose result is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[tuple[str, str]] = []

    def submit(self, name, function, *args):
        self.notes.append(("sent", name.split("-")[0]))
        return super().submit(name, function, *args)

    def result(self, handle):
        self.notes.append(("asked", handle.name.split("-")[0]))
        return super().result(handle)


class Asks:
    """A move that has tasks run, some times, and tells what it does."""

    at_batch = False

    def __init__(self, kind: str, rounds: int, told: list[str]) -> None:
        self.kind, self.rounds, self.told = kind, rounds, told

    def is_urgent(self, context):
        return False

    def prepare(self, context):
        self.told.append(f"{self.kind} prepares")

    def turn(self, context):
        return Turn.BIRTHS if self.kind == "birth" else Turn.USUAL

    def plan(self, context):
        self.told.append(f"{self.kind} begins")
        for i in range(self.rounds):
            found = yield [(f"{self.kind}-{i}-{j}", divmod, (10 * i + j, 10)) for j in range(3)]
            assert found == [(i, j) for j in range(3)]
        self.told.append(f"{self.kind} ends")


def context_of(executor, calm=False, grows=False, model=None, batches=None):
    """A context in which four clusters are free, with atoms of each."""
    work = prepare(model or Model(DPMixture(2.0), DiagGaussian()), batches or blobs(), moves=(), executor=executor)
    state = start_random(work, 4)
    for _ in Memoized(1, window=2).run(work, state):
        pass
    value, batch = state.posterior.summary, work.source.batches[0]
    return PlanContext(
        model=work.model,
        posterior=state.posterior,
        value=value,
        source=work.source,
        survey=work.survey,
        executor=executor,
        memory=Memory(99, grows=grows),
        lap=2,
        seed=0,
        pair_gains=lambda: gains_of_pairs(work.model, state.posterior, value),
        draft=Draft(free=set(value.ids.tolist())),
        atoms={int(i): batch for i in value.ids},
        calm=calm,
    )


@pytest.mark.parametrize("together", [True, False])
def test_moves_begin_while_tasks_of_others_run(together):
    executor, told = Noting(), []
    context = context_of(executor, calm=not together)
    assert context.side_by_side == together
    executor.notes.clear()
    moves = [Asks("birth", 2, told), Asks("other", 0, told), Asks("delete", 1, told)]
    plan_lap(moves, context)
    begins = [f"{kind} begins" for kind in ("birth", "delete", "other")]  # lap 2 turns the order of the others round
    if together:
        assert told[:3] == begins[:2] + ["other begins"]
        first = executor.notes.index(("asked", "birth"))
        assert ("sent", "delete") in executor.notes[:first]
    else:
        assert told[:5] == ["birth begins", "birth ends", "delete begins", "delete ends", "other begins"]
        assert executor.notes.index(("sent", "delete")) > max(
            i for i, note in enumerate(executor.notes) if note == ("asked", "birth")
        )
    assert sorted(told[:6]) == sorted([*begins, *(name.replace("begins", "ends") for name in begins)])
    assert sum(note == ("sent", "birth") for note in executor.notes) == 6


@pytest.mark.parametrize(("n_workers", "ahead"), [(1, LAP.in_flight), (40, 80)])
def test_tasks_of_moves_are_sent_ahead_as_far_as_workers_need_them(n_workers, ahead, monkeypatch):
    """Two for each worker: further results would only take memory."""
    monkeypatch.setattr(Noting, "n_workers", n_workers)
    executor = Noting()
    context = context_of(executor)
    executor.notes.clear()
    for _ in laps._run([(f"work-{i}", divmod, (i, 10)) for i in range(200)], context):
        pass
    assert executor.notes.index(("asked", "work")) == ahead


def test_only_mixtures_do():
    """Of topics deletes need no tasks, and births of sequences' states look into batches."""
    context = context_of(SerialExecutor())
    assert context.side_by_side
    for other in (Model(HDPTopics(), Multinomial()), Model(HDPHMM(), DiagGaussian())):
        context.model = other
        assert not context.side_by_side


class Splits:
    """A birth of one cluster that waits for a task, and then succeeds or not."""

    kind, at_batch = "birth", False

    def turn(self, context):
        return Turn.BIRTHS

    def __init__(self, target: int, succeeds: bool) -> None:
        self.target, self.succeeds = target, succeeds

    def is_urgent(self, context):
        return False

    def prepare(self, context):
        pass

    def plan(self, context):
        context.draft.at_stake.add(self.target)
        yield [("split-1", divmod, (1, 1))]
        context.draft.at_stake.discard(self.target)
        if self.succeeds:
            context.propose(BirthProposal((self.target,), (90, 91), Exchange("birth", (self.target,))))


@pytest.mark.parametrize("is_taken", [False, True])
def test_small_clusters_leave_their_prior_mass_to_future_ones_in_one_trial_of_a_lap(is_taken):
    """Clusters 2 and 3 hold next to nothing; ``is_taken``: a set of others already does so."""
    context = context_of(SerialExecutor())
    context.value = context.value.exchange((2, 3), context.value.take([2, 3]).scale(1e-9))
    context.atoms = {3: context.source.batches[0]}
    if is_taken:
        context.proposals.append(DeleteProposal((2,), (0, 1), Exchange("set", (2, 0, 1)), 8, remembered_as=SET))
    for _ in Delete().plan(context):
        pass
    (trial,) = context.trials
    assert trial.donors[0] == 3 and trial.freed == (() if is_taken else (3,))
    assert context.proposals[-1].edit.shifts is not is_taken


def test_deletes_that_are_refined_are_proposed_again_first():
    """As many as a lap has, with their statistics, where they and their receivers are free; splits are not deletes."""
    context = context_of(SerialExecutor())
    part = context.value.take([3])
    context.memory.sweeps = {
        0: Sweep((3,), part, -1.0, 0.0, 1),
        1: Sweep((), part, -1.0, 0.0, 1, remembered_as="birth"),
        2: Sweep((9,), part, -1.0, 0.0, 1),  # a receiver that another move has
    }
    assert Delete().turn(context) is Turn.REFINED
    for _ in Delete(per_lap=1).plan(context):
        pass
    (proposal,), (trial,) = context.proposals, context.trials
    assert (proposal.targets, proposal.others, proposal.remembered_as) == ((0,), (3,), "delete")
    assert trial.donors == (0, 3) and trial.beliefs.ids.tolist() == [3]
    assert context.free == {1, 2}


@pytest.mark.parametrize("targets", [(0,), (0, 2)])
def test_atoms_of_a_small_target_that_no_receiver_has_go_to_the_nearest(targets):
    context = context_of(SerialExecutor())
    gains = context.pair_gains()[0]
    receivers = [i for i in range(4) if i not in targets]
    for order in (receivers, receivers[::-1]):
        Delete(sweeps=5)._propose(context, targets, context.value.take(order))
        assert context.trials[-1].rest == max(receivers, key=lambda i: gains[i])
        assert context.proposals[-1].sweeps == (5 if len(targets) == 1 else 1)  # what failed together is tried alone


@pytest.mark.parametrize("kind", [DiagGaussian, Gaussian])
@pytest.mark.parametrize(("apart", "rises"), [(0.0, True), (9.0, False)])
def test_absorbing_clusters_are_re_estimated_on_samples_and_tell_what_a_delete_gains(kind, apart, rises):
    """Two clusters of one blob become one; those of two blobs lose much."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 2))
    x[60:] += 40.0
    x[:25] += apart
    batch = Batch(x)
    model = Model(DPMixture(1.0), kind()).with_prior(survey_batch(batch))
    labels = np.repeat([0, 1, 2], [25, 35, 30])
    summary = model.summarize(np.array([4, 5, 6]), batch, np.eye(3)[labels])
    pool = [Batch(x[labels == k]) for k in range(3)]
    for few in (pool, pool[:2]):  # of the second receiver no atoms were gathered: its own stay
        found, gain = refine(model, few, summary, 20, DeletePolicy())
        assert found.ids.tolist() == [5, 6] and found["N"] == pytest.approx([60.0, 30.0], abs=0.5)
        whole = model.best_objective(model.local_step(model.global_step(found), batch))
        assert (gain > 0) is rises
        if not rises:
            assert gain == pytest.approx(whole - model.best_objective(summary), abs=1.0)
    own, nothing = refine(model, [pool[0].take(np.arange(0)), *pool[1:]], summary, 20, DeletePolicy())
    assert nothing == 0.0 and own["N"].tolist() == [35.0, 30.0]


def test_a_cluster_of_less_than_half_an_atom_is_paired_in_every_lap():
    context = context_of(SerialExecutor())
    counts = context.value["N"]
    counts[2] = LAP.unused
    pair_empty(context)
    assert not context.proposals
    counts[2] = 0.99 * LAP.unused
    pair_empty(context)
    (proposal,) = context.proposals
    gains = context.pair_gains()[2]
    assert (proposal.edit.keep, proposal.edit.drop, proposal.again) == (int(gains.argmax()), 2, True)


def test_a_set_of_clusters_vanishes_in_one_trial_of_all_others():
    context = context_of(SerialExecutor())
    context.memory.sweeps = {1: Sweep((0, 3), context.value.take([0, 3]), -1.0, 0.0, 1, (2,), SET)}
    for _ in Delete(per_lap=1).plan(context):
        pass
    proposal, trial = context.proposals[0], context.trials[0]
    assert (proposal.targets, proposal.others, proposal.remembered_as) == ((1, 2), (0, 3), SET)
    assert proposal.edit.shifts and proposal.is_set and proposal.sweeps == Delete().sweeps
    assert trial.donors == (1, 2, 0, 3) and trial.freed == (1, 2) and trial.beliefs.ids.tolist() == [0, 3]
    assert trial.name == proposal.edit.trial and not context.free & {1, 2}


@pytest.mark.parametrize("calm", [True, False])
def test_topics_that_hold_next_to_nothing_go_as_a_set_once_clusters_are_calm(calm):
    rng = np.random.default_rng(0)
    batches = [Batch(sparse.csr_array(rng.poisson(2.0, (20, 8)).astype(float))) for _ in range(2)]
    context = context_of(SerialExecutor(), calm, model=Model(HDPTopics(), Multinomial(lam=0.1)), batches=batches)
    value = context.value
    value.values["N"][...] = [400.0, 0.1, 500.0, 300.0]
    for _ in Delete().plan(context):
        pass
    sets = [(p.targets, p.others) for p in context.proposals if p.remembered_as == SET]
    assert sets == ([((1,), (0, 2, 3))] if calm else [])


def test_splits_at_batches_take_clusters_in_turn():
    """The number of the lap says which comes first, so that none is always last."""
    context = context_of(SerialExecutor())
    birth = Birth(where="batch", per_lap=4, min_atoms=1.0)
    firsts = []
    for lap in range(2, 6):
        context.lap, context.draft = lap, Draft(free=set(range(4)))
        birth.plan_at(context, [0, 4, 5])
        splits = context.draft.splits
        assert set(splits) == {0, 4, 5} and len({split.target for split in splits.values()}) == 3
        firsts.append(splits[0].target)
    assert sorted(firsts) == [0, 1, 2, 3]


@pytest.mark.parametrize("succeeds", [True, False])
@pytest.mark.parametrize("target", range(4))
def test_a_birth_wins_over_a_delete_that_began_meanwhile(succeeds, target, monkeypatch):
    """All four clusters are concerned by the delete; if the birth fails it goes on."""
    monkeypatch.setattr(
        "bnp_dask.moves.delete.Delete._absorbing_set", lambda self, c, t, others, most: set(others.tolist())
    )
    monkeypatch.setattr("bnp_dask.moves.delete.DECISION", replace(DECISION, hopeless=np.inf))
    context = context_of(SerialExecutor())
    plan = plan_lap([Delete(per_lap=1, absorbers=3), Splits(target, succeeds)], context)
    kinds = [p.kind for p in plan.proposals]
    assert kinds == (["birth"] if succeeds else ["delete"])
    assert not context.memory.failures and not plan.given_up
    assert context.free == (set(range(4)) - {target} if succeeds else set())


def test_merges_leave_alone_what_is_at_stake():
    context = context_of(SerialExecutor())
    value = context.value.exchange((0, 1), context.value.take([0, 1]).scale(0.0))  # all but two are empty
    context.value, context.pair_gains = value, lambda: gains_of_pairs(context.model, context.posterior, value)
    pairs = plan_lap([Merge()], context).pairs
    assert {0, 1} <= set(pairs.ravel().tolist())
    context = replace(context, draft=Draft(free=set(range(4)), at_stake={0}))
    pairs = plan_lap([Merge()], context).pairs
    assert len(pairs) and 0 not in pairs


def test_what_grows_is_left_to_births():
    """Targets of births are not even looked at by others, where births have been succeeding."""
    seen = {}
    for grows in (False, True):
        context = context_of(SerialExecutor(), grows=grows)
        planning = Birth(per_lap=4, sample=100, min_atoms=1).plan(context)
        tasks = list(next(planning))
        seen[grows] = len(tasks), len(context.free), len(context.draft.at_stake)
        assert context.memory.grows == grows
        with pytest.raises(StopIteration):
            planning.send([None] * 4)
        assert not context.memory.grows and not context.draft.at_stake and len(context.free) == 4
    assert seen == {False: (4, 4, 4), True: (4, 0, 4)}


@pytest.fixture
def contexts(monkeypatch):
    """Every lap's context and its plan, whether moves planned together, and whether they grow."""
    made = []
    plan_lap = laps.plan_lap

    def watch(moves, context):
        together = context.side_by_side
        plan = plan_lap(moves, context)
        made.append((context, plan, together, context.memory.grows))
        return plan

    monkeypatch.setattr(laps, "plan_lap", watch)
    return made


def grow(executor=None, laps_=8):
    """From one cluster to many."""
    work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(1600, d=4, k=12, spread=9.0), 0, MOVES, executor)
    state = start_random(work, 1)
    return work, state, Memoized(laps_, window=2)


def test_clusters_are_in_one_proposal_while_many_plan(contexts):
    work, state, schedule = grow()
    for _ in schedule.run(work, state):
        pass
    assert state.posterior.n_clusters == 12
    assert sum(together for _, _, together, _ in contexts) >= 2
    kinds = set()
    for _, plan, together, _ in contexts:
        donors = [i for p in plan.proposals if isinstance(p.edit, Exchange) for i in p.edit.donors]
        pairs = [i for p in plan.proposals if p.kind == "merge" for i in p.targets]
        assert len(donors) == len(set(donors)) and not set(donors) & set(pairs)
        if together:
            kinds |= {p.kind for p in plan.proposals} | {row["kind"] for row in plan.given_up}
    assert {"birth", "delete"} <= kinds


@pytest.mark.long
def test_the_same_bits_and_pauses():
    """The plan depends on what tasks find and not on when."""
    work, state, schedule = grow()
    rows = [step.row for step in schedule.run(work, state)]
    work, state, _ = grow(ThreadExecutor(3))
    assert [step.row for step in schedule.run(work, state)] == rows
    kept = 0
    for stop in range(1, len(rows), 9):
        work, state, _ = grow()
        first, again = paused(work, state, schedule, stop)
        assert again.memory.grows == state.memory.grows
        kept += again.memory.grows
        assert first + [step.row for step in schedule.run(work, again)] == rows, f"pause after step {stop}"
    assert kept >= 2


@pytest.mark.long
def test_growing_is_what_small_runs_found(contexts):
    work, state, schedule = grow(laps_=20)
    for _ in schedule.run(work, state):
        pass
    last, seen = False, set()
    for context, plan, together, grows in contexts:
        assert together == (not context.calm)
        found = sum(p.kind == "birth" for p in plan.proposals)
        failed = sum(row["kind"] == "birth" and row["why"].startswith("no split") for row in plan.given_up)
        if not context.calm:  # then no more are tried than may be proposed
            last = 2 * found >= found + failed if found + failed else last
            assert grows == last
        last = grows
        seen.add(grows)
    assert seen == {False, True} and not grows
