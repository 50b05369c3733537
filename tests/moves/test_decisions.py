"""Decisions at their boundary: what gains nothing, what loses a little, what comes after an accepted proposal."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.certainty import lines
from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Field, Links, Merge, RunningTotal, Summary, replay
from bnp_dask.core.survey import survey_batch
from bnp_dask.initialize import Responsibilities
from bnp_dask.model import Model
from bnp_dask.moves import Delete
from bnp_dask.moves.base import BirthProposal, DeleteProposal, MergeProposal, Plan
from bnp_dask.moves.judge import (
    Born,
    Judge,
    _Clusters,
    _is_clear,
    _links_to,
    _only_empty,
    _Shares,
    _sorted,
    _steps_to_come,
    gains_of,
    is_better,
)
from bnp_dask.moves.memory import WHOLE, Memory, Sweep
from bnp_dask.moves.policy import DECISION, LAP
from bnp_dask.observation import DiagGaussian
from bnp_dask.structure.base import OF_GROUPS, Trial
from bnp_dask.training.train import train
from tests.chains.parts import KINDS, model_of


def entropies(resp):
    return -np.where(resp > 0, resp * np.log(np.where(resp > 0, resp, 1.0)), 0.0).sum(axis=0)


def assigned(model, batch, ids, resp):
    """Statistics of atoms with their entropy."""
    summary = model.summarize(np.array(ids), batch, resp)
    return replace(summary, values={**summary.values, "H": entropies(resp)})


def objective(model, summary):
    return sum(model.elbo(model.global_step(summary), summary).values())


@pytest.fixture
def two_blobs():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(40, 2)), rng.normal(size=(30, 2)) + 9.0])
    batch = Batch(x)
    return Model(DPMixture(1.0), DiagGaussian()).with_prior(survey_batch(batch)), batch


# -- proposals that gain nothing ----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["merge", "delete"])
def test_an_empty_cluster_goes_because_fewer_are_as_good(two_blobs, kind):
    """The last of a DP mixture costs nothing: without it the objective is the same to rounding."""
    model, batch = two_blobs
    resp = np.zeros((70, 3))
    resp[:40, 0] = resp[40:, 1] = 1.0
    pairs = np.array([[0, 2]])
    value = assigned(model, batch, (0, 1, 2), resp)
    tracked = replace(value.with_pairs(pairs), pair_values={"H": np.zeros(1)})
    receiver = value.take([0])
    edit = Merge(0, 2) if kind == "merge" else Exchange("t", (2, 0))
    plan = Plan(pairs, (), (MergeProposal(edit) if kind == "merge" else DeleteProposal((2,), (0,), edit),))
    decision = Judge(model, Memory(9)).decide(tracked, {"t": receiver}, plan)
    (record,) = decision.records
    assert abs(record["gain"]) < 1e-12 * abs(objective(model, value))
    assert record["accepted"] and record["why"] == "as good with fewer clusters"
    assert decision.edits == [edit]


def test_a_cluster_that_stands_for_no_atom_goes_where_other_gains_pay_for_it(two_blobs):
    """What its prior takes of the atoms raises the objective by a little, again and again for each such cluster."""
    batch = Batch(np.ascontiguousarray(two_blobs[1].x[:, :1]))
    model = Model(DPMixture(1.0), DiagGaussian()).with_prior(survey_batch(batch))
    resp = np.zeros((70, 3))
    resp[:40, 0] = resp[40:, 1] = 1.0
    value, pairs = assigned(model, batch, (0, 1, 2), resp), np.array([[0, 2], [0, 1]])
    for _ in range(20):
        value = model.local_step(model.global_step(value), batch)
    value = model.local_step(model.global_step(value), batch, pairs)
    assert value["N"][2] < LAP.unused

    def united(a, b, spare):
        plan = Plan(pairs, (), (MergeProposal(Merge(a, b)),))
        return Judge(model, Memory(9)).decide(value, {}, plan, spare).records[0]

    lost = -united(0, 2, 0.0)["gain"]
    assert lost < 2.0 * value["N"][2]  # its atoms cost about a nat each
    assert lost > 0 and not united(0, 2, 0.0)["accepted"] and not united(0, 2, 0.5 * lost)["accepted"]
    assert united(0, 2, 2.0 * lost)["accepted"]
    assert not united(0, 1, 1e9)["accepted"]


@pytest.mark.long
def test_a_run_keeps_no_cluster_of_less_than_half_an_atom():
    """Crossing lines: clusters of 0.12, 0.04 and 0.01 atoms stayed at the end, at 0.15 nats in all."""
    problem = lines(3, 500)
    found, known = (
        train(problem.model, problem.data, init=init, rng=0) for init in (None, Responsibilities(problem.truth))
    )
    assert found.posterior.n_clusters == known.posterior.n_clusters == problem.k
    assert abs(found.history[-1]["elbo"] - known.history[-1]["elbo"]) < 0.05


def test_gains_pay_for_one_cluster_that_stands_for_no_atom_only_once(two_blobs):
    """A step and its decisions never lower the objective together."""
    batch = Batch(np.ascontiguousarray(two_blobs[1].x[:, :1]))
    model = Model(DPMixture(1.0), DiagGaussian()).with_prior(survey_batch(batch))
    resp = np.zeros((70, 4))
    resp[:40, 0] = resp[40:, 1] = 1.0
    value, pairs = assigned(model, batch, (0, 1, 2, 3), resp), np.array([[0, 2], [1, 3]])
    for _ in range(20):
        value = model.local_step(model.global_step(value), batch)
    value = model.local_step(model.global_step(value), batch, pairs)
    plan = Plan(pairs, (), tuple(MergeProposal(Merge(*pair)) for pair in ((0, 2), (1, 3))))

    def decided(spare):
        records = Judge(model, Memory(9)).decide(value, {}, plan, spare).records
        assert spare + sum(record["gain"] for record in records if record["accepted"]) >= 0.0
        return [record["accepted"] for record in records]

    lost = [-record["gain"] for record in Judge(model, Memory(9)).decide(value, {}, plan, 1.0).records]
    assert min(lost) > 0.0 and value["N"][2:].max() < LAP.unused
    assert decided(0.9 * min(lost)) == [False, False]
    assert decided(max(lost) + 0.5 * min(lost)) == [True, False]
    assert decided(0.25) == [True, True]


def test_a_birth_that_gains_nothing_is_not_taken(two_blobs):
    model, batch = two_blobs
    resp = np.zeros((70, 2))
    resp[:40, 0] = resp[40:, 1] = 1.0
    value = assigned(model, batch, (0, 1), resp)
    nothing = value.take([1]).insert_empty([7])  # the same cluster, and an empty one
    part = replace(nothing, ids=np.array([6, 7]))
    plan = Plan(proposals=(BirthProposal((1,), (6, 7), Exchange("t", (1,))),))
    decision = Judge(model, Memory(9)).decide(value, {"t": part}, plan)
    (record,) = decision.records
    assert abs(record["gain"]) < 1e-12 * abs(objective(model, value))
    assert not record["accepted"] and not decision.edits


def test_a_gain_that_is_not_finite_is_refused_remembered_and_changes_nothing(two_blobs, monkeypatch):
    model, batch = two_blobs
    value = assigned(model, batch, (0, 1), np.eye(2)[np.arange(70) // 40])
    part, memory, plain = value.take([1]), Memory(9), Model.allocation_terms

    def cursed(self, summary):
        return {**plain(self, summary), "entropy": np.inf} if summary.n_clusters == 1 else plain(self, summary)

    monkeypatch.setattr(Model, "allocation_terms", cursed)
    plan = Plan(proposals=(DeleteProposal((0,), (1,), Exchange("t", (0, 1))),))
    decision = Judge(model, memory).decide(value, {"t": part}, plan)
    (record,) = decision.records
    assert not record["accepted"] and record["gain"] is None and not decision.edits
    assert record["why"].startswith("refused: the gain of the edit 'Exchange' is")
    assert memory.failed("delete", (0,), [40.0], 0.1) == 1


def test_gains_of_edits_alone_are_those_of_decisions(two_blobs):
    model, batch = two_blobs
    value = assigned(model, batch, (0, 1, 2), np.eye(3)[np.arange(70) // 25])
    part = assigned(model, batch, (0,), np.ones((70, 1)))
    pairs = np.array([[0, 1]])
    tracked = replace(value.with_pairs(pairs), pair_values={"H": np.zeros(1)})
    edits = [Merge(0, 1), Exchange("t", (1, 2, 0))]
    found = gains_of(model, tracked, {"t": part}, edits)
    assert found[0] == pytest.approx(objective(model, tracked.merge(0, 1)) - objective(model, value))
    assert found[1] == pytest.approx(objective(model, part) - objective(model, value))


def test_links_of_newborn_clusters_are_zero_to_what_the_batch_did_not_know():
    part = Summary(np.array([-1, -2]), {}, {})
    values = {"steps": np.arange(12.0).reshape(2, 2, 3) + 1.0}
    part = replace(part, links=Links(np.array([6, 1, 3]), np.array([8]), values))
    found = _links_to(np.array([1, 8, 3, 5, 6]), [8], part)
    assert found.rest.tolist() == [1, 3, 5, 6] and found.donors.tolist() == [8]
    assert found.values["steps"][:, :, [0, 1, 3]].tolist() == values["steps"][:, :, [1, 2, 0]].tolist()
    assert not found.values["steps"][:, :, 2].any()
    assert _links_to(np.array([1, 8]), [8], replace(part, links=None)) is None


# -- births at a batch --------------------------------------------------------------------------------------------
def test_a_birth_at_a_batch_forgets_unions_of_its_target_and_leaves_the_total_alone(two_blobs):
    """Unions of newborn clusters with others are unknown; those of other clusters stay."""
    model, batch = two_blobs
    whole, pairs = Batch(np.concatenate([batch.x, batch.x[:20] - 40.0])), np.array([[0, 1], [1, 2], [0, 2]])
    first = model.summarize(np.arange(3), whole, np.eye(3)[np.repeat([0, 1, 2], [40, 30, 20])])
    value = model.local_step(model.global_step(first), whole, pairs)
    newborn = model.summarize(np.array([-1, -2]), Batch(whole.x[:40]), np.eye(2)[np.arange(40) % 2])
    total, terms = RunningTotal(value), model.elbo(model.global_step(value), value)
    shares = _Shares(model, total, terms, [(value, newborn)], 0)
    assert shares.total.high.pairs.tolist() == shares.parts[0][0].pairs.tolist() == [[1, 2]]
    assert total.high.pairs.tolist() == pairs.tolist()
    plain = _Shares(model, RunningTotal(value.without_pairs()), terms, [(value.without_pairs(), newborn)], 0)
    assert shares.evaluate([None, None]).gain == pytest.approx(plain.evaluate([None, None]).gain, abs=1e-9)
    apart = _Shares(model, RunningTotal(value.without_pairs_of((0,))), terms, [(value, newborn)], 0)
    assert apart.total.high.pairs.tolist() == [[1, 2]]


def test_of_newborn_clusters_the_one_most_like_the_target_stays_it_first(two_blobs):
    model, batch = two_blobs
    whole = Batch(np.concatenate([batch.x, batch.x[:20] - 40.0]))
    value = assigned(model, whole, (0, 5), np.eye(2)[(np.arange(90) >= 70).astype(int)])
    some = Batch(np.concatenate([batch.x[:6] + 30.0, batch.x[:30], batch.x[:4] - 40.0]))
    newborn = assigned(model, some, (-1, -2, -3), np.eye(3)[np.repeat([0, 1, 2], [6, 30, 4])])
    terms = model.elbo(model.global_step(value), value)
    shares = _Shares(model, RunningTotal(value), terms, [(value, newborn)], 0)
    homes = shares.likely_homes([5], stays=True)
    assert homes[0] == (1, [0]) and sorted(j for j, _ in homes) == [0, 1, 2]
    assert dict(homes)[2] == [5, 0]  # a recent cluster in the same place is tried before the target
    assert shares.likely_homes([5], stays=False) == [(0, []), (1, []), (2, [5])]
    assert shares.likely_homes([], stays=False) == [(0, []), (1, []), (2, [])]


@pytest.mark.parametrize("share", [1e-9, 1e-3, 0.1])
def test_a_birth_at_a_batch_of_parts_that_are_alike_is_not_taken(two_blobs, share):
    model, batch = two_blobs
    value = assigned(model, batch, (0,), np.ones((70, 1)))
    newborn = assigned(model, batch, (-1, -2), np.tile([1.0 - share, share], (70, 1)))
    terms = model.elbo(model.global_step(value), value)
    decision = Judge(model, Memory(3)).decide_split(RunningTotal(value), terms, [(value, newborn)], 0)
    born, gain = decision.born, decision.gain
    alone = newborn.insert_empty([0]).take([0, -1, -2])
    assert gain == pytest.approx(objective(model, alone) - objective(model, value), abs=1e-9)
    assert gain < 0 and born is None


def test_a_birth_at_a_batch_is_taken_from_the_first_nat_on_that_it_gains(two_blobs):
    """Part of a blob moves away, until two clusters are better than one: by less than a nat first."""
    model, batch = two_blobs
    part, found = np.arange(40) < 15, []
    for far in np.linspace(0.0, 3.0, 120):
        moved = Batch(batch.x[:40] + np.where(part[:, None], far, 0.0))
        value = assigned(model, moved, (0,), np.ones((40, 1)))
        newborn = assigned(model, moved, (-1, -2), np.eye(2)[part.astype(int)])
        terms = model.elbo(model.global_step(value), value)
        decision = Judge(model, Memory(3)).decide_split(RunningTotal(value), terms, [(value, newborn)], 0)
        born, gain = decision.born, decision.gain
        assert (born is not None) == (gain > 0)
        if born is not None:
            assert objective(model, born.total.value()) - objective(model, value) == pytest.approx(gain)
        found.append(gain)
    found = np.array(found)
    assert ((found > -0.5) & (found < 0)).any() and ((found > 0) & (found < 0.5)).any()


def test_a_newborn_cluster_that_stays_in_the_target_is_united_with_no_other(two_blobs):
    model, batch = two_blobs
    value = assigned(model, batch, (0, 5), np.eye(2)[np.arange(70) // 40])
    some = Batch(np.concatenate([batch.x[:6], batch.x[:30] + 20.0]))
    newborn = assigned(model, some, (-1, -2), np.eye(2)[np.repeat([0, 1], [6, 30])])
    terms = model.elbo(model.global_step(value), value)
    shares = _Shares(model, RunningTotal(value), terms, [(value, newborn)], 0)
    assert [shares.evaluate(owner).united for owner in ([0, None], [5, None], [None, None])] == [(), (5,), ()]
    assert shares.evaluate([0, 5]).new_ids == () and shares.evaluate([None, 0], [8]).new_ids == (8,)


def test_two_recent_clusters_may_be_homes_the_likeliest_first(two_blobs):
    model, _ = two_blobs
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(9, 2)) + at for at in (0.0, 9.0, 9.3, 8.9)]
    whole = Batch(np.concatenate(parts))
    value = assigned(model, whole, (0, 3, 4, 6), np.eye(4)[np.repeat(np.arange(4), 9)])
    newborn = assigned(model, Batch(rng.normal(size=(9, 2)) + 9.0), (-1,), np.ones((9, 1)))
    terms = model.elbo(model.global_step(value), value)
    ((j, homes),) = _Shares(model, RunningTotal(value), terms, [(value, newborn)], 0).likely_homes([3, 4, 6], False)
    both = value.exchange([], newborn)
    gains = {i: gain_of_union(model, both, i, -1) for i in (3, 4, 6)}
    assert min(gains.values()) > 0 and (j, homes) == (0, sorted(gains, key=lambda i: -gains[i])[:2])


def gain_of_union(model, value, keep, drop):
    terms = dict(zip(value.ids.tolist(), model.best_data_terms(value).tolist(), strict=True))
    union = value.without_pairs().unite(keep, drop, None)
    return model.best_data_terms(union)[union.position(keep)] - terms[keep] - terms[drop]


# -- the order of clusters --------------------------------------------------------------------------------------------
def test_the_row_of_an_order_says_whether_the_objective_rises(two_blobs, monkeypatch):
    """Sticks are broken in order: the small cluster first costs, the large one first gains."""
    model, batch = two_blobs
    value = assigned(model, batch, (0, 1), np.eye(2)[(np.arange(70) < 65).astype(int)])
    (row,) = _sorted(_Clusters(model, value, {}, 0.0))
    assert row["accepted"] and row["targets"] == [1, 0] and row["gain"] > 0 and row["why"] == "the objective rises"
    monkeypatch.setattr(_Clusters, "attempt", lambda *_: (-5.0, False))
    (row,) = _sorted(_Clusters(model, value, {}, 0.0))
    assert not row["accepted"] and row["gain"] == -5.0 and row["why"] == "the objective would fall"
    monkeypatch.setattr(_Clusters, "attempt", lambda *_: (-1e-12, False))
    assert _sorted(_Clusters(model, value, {}, 0.0)) == []


def test_newborn_clusters_are_put_where_their_size_is_expected(two_blobs):
    """They come last, but the one that stays is the smallest."""
    model, batch = two_blobs
    value = assigned(model, batch, (0, 1), np.eye(2)[(np.arange(70) >= 66).astype(int)])
    part = assigned(model, Batch(batch.x[:66]), (6, 7), np.eye(2)[(np.arange(66) >= 40).astype(int)])
    plan = Plan(proposals=(BirthProposal((0,), (6, 7), Exchange("t", (0,))),))
    decision = Judge(model, Memory(9)).decide(value, {"t": part}, plan)
    after = replay(value, decision.edits, {"t": part})
    assert after.ids.tolist() == [6, 7, 1]
    gained = sum(row["gain"] for row in decision.records if row["accepted"])
    assert objective(model, after) - objective(model, value) == pytest.approx(gained)


# -- several proposals in a lap -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_trials_of_sequences_are_decided_after_others_were_accepted(kind):
    """Three states that hold two places each, all split in one lap: each knows what the others have become."""
    rng = np.random.default_rng(0)
    places = np.repeat(rng.integers(6, size=60), 5)
    x = 12.0 * np.stack([places % 3, places // 3], axis=1) + rng.normal(size=(300, 2))
    batch = Batch(x, groups=np.array([0, 120, 300]))
    model = model_of(kind, batch)
    whole = model.summarize(np.array([10, 11, 12]), batch, np.eye(3)[places // 2])
    posterior = model.global_step(model.local_step(model.global_step(whole), batch))
    trials = []
    for k in range(3):
        ids = np.array([90, 91]) + 2 * k
        resp = (places[:, None] == np.array([2 * k, 2 * k + 1])).astype(float)
        trials.append(Trial(f"t{k}", (10 + k,), model.global_step(model.summarize(ids, batch, resp))))
    found = model.visit(posterior, batch, trials=trials)
    births = [BirthProposal(t.donors, tuple(t.beliefs.ids.tolist()), Exchange(t.name, t.donors)) for t in trials]
    plan = Plan(trials=tuple(trials), proposals=tuple(births))
    decision = Judge(model, Memory(99)).decide(found.summary, found.parts, plan)
    assert [r["accepted"] for r in decision.records[:3]] == [True] * 3
    after = replay(found.summary, decision.edits, found.parts)
    gained = sum(r["gain"] for r in decision.records if r["accepted"])
    assert objective(model, after) - objective(model, found.summary) == pytest.approx(gained)


@pytest.mark.parametrize("ratio", [0.01, 0.2, 0.5, 0.99])
def test_steps_to_come_are_a_series_of_steps_that_fall(ratio):
    """By the root of their ratio where all clusters change; the ratio is bounded, and unknown at the first step."""

    def series(ratio):
        return sum(min(DECISION.slowest, ratio) ** n for n in range(1, 5000))

    assert _steps_to_come(7.0 * ratio, 7.0) == pytest.approx(series(DECISION.patience * ratio))
    assert _steps_to_come(7.0 * ratio, 7.0, of_all=True) == pytest.approx(series(ratio**0.5))
    for last in (0.0, -1.0):
        assert _steps_to_come(7.0, last) == pytest.approx(series(1.0))
    assert _steps_to_come(0.0, 7.0) == _steps_to_come(-1.0, 7.0) == 0.0


def test_a_birth_without_parts_is_a_row_without_gain(two_blobs):
    model, batch = two_blobs
    value = model.summarize(np.arange(1), batch, np.ones((batch.n_atoms, 1)))
    terms = model.elbo(model.global_step(value), value)
    decision = Judge(model, Memory(next_id=1)).decide_split(RunningTotal(value), terms, [], 0)
    (row,) = decision.records
    assert not row["accepted"] and row["gain"] is None and "no split" in row["why"]


# -- what is remembered, with gains that are given -----------------------------------------------------------------
class Given:
    """Clusters of given counts, between decisions whose gains are given."""

    def __init__(self, gain, accepted=False, counts=(40.0, 30.0, 0.2)):
        self.value = Summary(np.array([5, 1, 7]), {"N": Field(("cluster",))}, {"N": np.array(counts)})
        self.exchanged, self.seen, self.model = set(), [], None
        self.outcome = gain, accepted
        self.parts = {"t": self.value.take([5])}

    def attempt(self, edit, fewer, empty):
        self.seen.append((fewer, empty))
        return self.outcome


def considered(proposal, now, memory=None):
    model = Model(DPMixture(1.0), DiagGaussian())
    memory = Memory(9) if memory is None else memory
    return Judge(model, memory)._consider(proposal, now), memory


def delete(targets=(1,), others=(5,), **more):
    return DeleteProposal(targets, others, Exchange("t", (*targets, *others)), **more)


def birth(targets=(1,), donors=(1, 5), **more):
    return BirthProposal(targets, (9,), Exchange("t", donors), **more)


def test_a_proposal_whose_clusters_changed_has_no_gain_and_leaves_no_trace():
    now = Given(3.0, True)
    now.exchanged = {5}
    for proposal in (delete(), delete((4,))):
        row, memory = considered(proposal, now)
        assert (row["gain"], row["accepted"]) == (None, False) and "was changed by another move" in row["why"]
        assert not now.seen and not memory.failures


def test_what_is_accepted_is_no_failure_any_more_and_its_clusters_are_taken():
    memory = Memory(9, failures={("delete", (1,)): (30.0, 2.0), ("delete", (5,)): (40.0, 1.0)})
    memory.sweeps[1] = memory.sweeps[5] = Sweep((5,), Given(0.0).value, -1.0, 0.0, 1)
    now = Given(0.25, True)
    row, _ = considered(delete(), now, memory)
    assert row["why"] == "the objective rises" and row["gain"] == 0.25
    assert now.exchanged == {1, 5} and list(memory.failures) == [("delete", (5,))] and list(memory.sweeps) == [5]
    row, _ = considered(delete(), Given(-1e-13, True))
    assert row["why"] == "as good with fewer clusters"
    now = Given(2.0, True)
    considered(MergeProposal(Merge(5, 7)), now)
    assert now.exchanged == set() and now.seen == [(True, True)]


@pytest.mark.parametrize(
    ("proposal", "seen"),
    [
        (delete(), (True, False)),
        (delete((7,)), (True, True)),
        (delete((7, 1)), (True, False)),
        (birth(), (False, False)),
        (birth((7,), (7,)), (False, False)),
        (MergeProposal(Merge(5, 1)), (True, False)),
    ],
)
def test_only_what_removes_clusters_without_atoms_may_cost_something(proposal, seen):
    now = Given(1.0, True)
    considered(proposal, now)
    assert now.seen == [seen]
    counts = [float(now.value["N"][now.value.position(t)]) for t in proposal.targets]
    assert _only_empty(proposal, counts) == seen[1]


def test_a_change_of_all_clusters_counts_by_all_their_atoms():
    _, memory = considered(birth((), (5, 1), remembered_as="documents"), Given(-200.0))
    assert memory.failures == {("documents", ()): (70.2, 1.0)}
    # it is refined up to a nat for each of them
    for gain, is_kept in ((-70.0, True), (-71.0, False)):
        _, memory = considered(birth((), (5, 1), sweeps=3), Given(gain))
        assert (list(memory.sweeps) == [WHOLE]) == is_kept == (not memory.failures)


def test_a_rejected_birth_is_remembered_by_its_donors_and_its_target():
    memory = Memory(9, rejected={})
    now = Given(-4.0)
    row, _ = considered(birth(), now, memory)
    assert row["why"] == "the objective would fall" and memory.failures == {("birth", (1,)): (30.0, 1.0)}
    assert list(memory.rejected) == [(1, 5)] and memory.rejected[1, 5].gain == -4.0
    considered(birth(), Given(-4.0), memory)
    assert memory.failures == {("birth", (1,)): (30.0, 2.0)}
    assert considered(delete(), Given(-4.0), memory)[1].rejected.keys() == {(1, 5)}  # deletes are none


def test_a_birth_that_is_refined_keeps_the_donors_that_stay():
    _, memory = considered(birth((1, 7), (1, 5, 7), sweeps=4, remembered_as="neighbours"), Given(-2.0))
    assert memory.sweeps == {1: memory.sweeps[1]} and not memory.failures
    kept = memory.sweeps[1]
    assert (kept.receivers, kept.together, kept.tried, kept.gain) == ((5,), (7,), 1, -2.0)
    assert kept.remembered_as == "neighbours"


@pytest.mark.parametrize(("gain", "times"), [(-5.9, 1.0), (-6.1, 3.0)])
def test_a_clear_failure_counts_more_than_one_that_lacks_little(gain, times):
    """Clear: more than a fifth of a nat for each of the 30 atoms."""
    proposal = delete(weight=3)
    assert _is_clear(proposal, gain, [30.0]) == (times > 1.0)
    _, memory = considered(proposal, Given(gain))
    assert memory.failures == {("delete", (1,)): (30.0, times)}
    _, memory = considered(delete(weight=3, sweeps=5), Given(gain))  # what fails clearly is not refined
    assert bool(memory.sweeps) == (times == 1.0)
    assert not _is_clear(delete(), -99.0, [30.0]) and not _is_clear(proposal, -99.0, [30.0, 1.0])


def test_clusters_that_failed_together_failed_each_for_itself_and_a_set_as_one():
    _, memory = considered(delete((1, 7), weight=3), Given(-99.0))
    assert memory.failures == {("delete", (1,)): (30.0, 1.0), ("delete", (7,)): (0.2, 1.0)}
    _, memory = considered(delete((1, 7), remembered_as="set"), Given(-99.0))
    assert memory.failures == {("set", (1, 7)): (30.0, 0.2, 1.0)}


@pytest.mark.parametrize(("gain", "is_kept"), [(-30.1, True), (-30.3, False)])
def test_a_delete_of_several_is_hopeless_by_all_their_atoms(gain, is_kept):
    _, memory = considered(delete((1, 7), sweeps=4), Given(gain))  # of 30.2 atoms
    assert (list(memory.sweeps) == [1]) == is_kept
    _, memory = considered(delete((1, 7), sweeps=4, hopeless=2.0), Given(gain))
    assert list(memory.sweeps) == [1]
    _, memory = considered(delete((1, 7)), Given(gain))  # in one lap there is no second
    assert not memory.sweeps


def test_what_is_better_is_beyond_rounding_or_smaller_or_paid_for():
    assert [is_better(g, 1e12) for g in (0.9, 1.1)] == [False, True]  # rounding is 1e-12 of the terms
    assert [is_better(g, 1e12, fewer=True) for g in (-1.1, -0.9)] == [False, True]
    assert [is_better(g, 1e12, fewer=True, paid=5.0) for g in (-5.1, -4.9)] == [False, True]  # the larger of the two
    assert [is_better(g, 1e12, paid=5.0) for g in (4.9, 5.1)] == [False, True]


# -- births at batches, remembered -----------------------------------------------------------------------------------
def test_a_birth_without_parts_fails_even_where_births_wait(two_blobs):
    model, batch = two_blobs
    value = assigned(model, batch, (0, 1), np.eye(2)[np.arange(70) // 40])
    total = RunningTotal(value)
    memory = Memory(9)
    found = Judge(model, memory).decide_split(total, {}, [], 1, pends=True)
    assert (found.born, found.gain, found.waits) == (None, None, False)
    assert memory.failures == {("birth", (1,)): (30.0, 1.0)}


def test_a_birth_under_the_ids_of_clusters_that_return(two_blobs, monkeypatch):
    """Ids by position: the second of three newborn clusters joins a home, the third returns, the first is new."""
    model, batch = two_blobs
    newborn = assigned(model, batch, (-1, -2, -3), np.eye(3)[np.arange(70) % 3])
    memory = Memory(20, dormant={4: newborn.take([-3]), 6: newborn.take([-1])})
    monkeypatch.setattr("bnp_dask.moves.judge.returning", lambda model, dormant, fresh: {1: 4})
    made = []
    born = Born(None, (), None, {}, (20, 4), (8,), 1.0)

    def evaluate(owner, ids):
        made.append((list(owner), list(ids)))
        return born

    shares = SimpleNamespace(newborn=newborn, evaluate=evaluate)
    born = Judge(model, memory)._named(shares, [None, 8, None])
    assert made == [([None, 8, None], [20, 4])]
    assert born.returned == (4,) and list(memory.dormant) == [6] and memory.next_id == 21
    memory.failures = {("birth", (3,)): (9.0, 2.0), ("birth", (2,)): (9.0, 2.0)}
    decision = Judge(model, memory)._accepted(3, 1.5, born)
    assert list(memory.failures) == [("birth", (2,))]
    assert [row["kind"] for row in decision.records] == ["birth", "return"]
    assert list(decision.records[0]["others"]) == [20, 4, 8]
    assert "[8] of other batches" in decision.records[0]["why"]


def test_topics_are_small_below_both_limits():
    """The mean is 297 tokens, and the size of a typical token's topic 746: a fifth of the one, a tenth of the other."""
    counts = np.array([1000.0, 300.0, 140.0, 40.0, 5.0])
    policy = replace(OF_GROUPS, of_mean=0.2, of_typical=0.1)
    context = SimpleNamespace(value=Summary(np.arange(5), {"N": Field()}, {"N": counts}), policy=policy)
    assert Delete()._small(context) == {3, 4}
    assert Delete()._small(SimpleNamespace(value=context.value, policy=replace(policy, of_typical=0.01))) == {4}
    assert Delete()._small(SimpleNamespace(value=context.value, policy=replace(policy, of_mean=0.01))) == set()
    assert Delete()._small(SimpleNamespace(value=context.value, policy=replace(policy, of_typical=None))) == {3, 4}
