"""Facts that moves keep from lap to lap: proposals to try again, rejected births, and atoms that were drawn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Field, Summary
from bnp_dask.moves.base import BirthProposal, DeleteProposal, Gather, Plan
from bnp_dask.moves.create import gather_atoms
from bnp_dask.moves.delete import SET, Delete
from bnp_dask.moves.judge import Judge
from bnp_dask.moves.memory import WHOLE, Memory, Sweep, as_start, with_rejected
from bnp_dask.moves.policy import DECISION, DeletePolicy
from bnp_dask.structure.base import OF_GROUPS, Visit
from tests.moves.test_promises import near_blobs, of_labels


# -- tried again --------------------------------------------------------------------------------------------------
def decided(sweeps, tried=0, before=None):
    """Memory after a delete of a blob that lies near another, which loses a little."""
    model, batch = near_blobs(3.0)
    value = of_labels(model, batch, (0, 1), np.arange(70) // 40)
    part = of_labels(model, batch, (0,), np.zeros(70, int))
    memory = Memory(9)
    if tried:
        memory.sweeps[1] = Sweep((0,), part, before, 1.0, tried)
    plan = Plan(proposals=(DeleteProposal((1,), (0,), Exchange("t", (1, 0)), sweeps),))
    (record,) = Judge(model, memory).decide(value, {"t": part}, plan).records
    assert not record["accepted"] and -DECISION.hopeless * 30 < record["gain"] < 0.0
    return record, memory, part


def test_a_delete_that_may_be_tried_in_one_lap_has_failed_then():
    record, memory, _ = decided(sweeps=1)
    assert not memory.sweeps and memory.failed("delete", (1,), [30.0], 0.1) == 1
    assert record["why"] == "the objective would fall"


@pytest.mark.parametrize("sweeps", [2, 3, 8])
def test_a_delete_that_may_be_tried_in_more_laps_is_kept_with_its_receivers(sweeps):
    record, memory, part = decided(sweeps=sweeps)
    (kept,) = memory.sweeps.values()
    assert list(memory.sweeps) == [1] and (kept.receivers, kept.tried, kept.step) == ((0,), 1, 0.0)
    assert kept.gain == record["gain"] and kept.part is part
    assert not memory.failures and "tried again" in record["why"]


def test_the_last_lap_of_a_delete_is_its_last():
    record, _, _ = decided(sweeps=1)
    nearly = record["gain"] - 0.9 * abs(record["gain"])  # it gained much since, so only the number of laps ends it
    _, memory, _ = decided(sweeps=3, tried=2, before=nearly)
    assert not memory.sweeps and memory.failures
    _, memory, _ = decided(sweeps=4, tried=2, before=nearly)
    assert memory.sweeps[1].tried == 3
    assert memory.sweeps[1].step == pytest.approx(record["gain"] - nearly)


@pytest.mark.parametrize(("targets", "beside"), [((0,), (1,)), ((0, 1), ()), ((), ())])
def test_a_birth_is_kept_with_its_neighbours_and_a_change_of_all_topics_alone(targets, beside):
    """What is found for all topics stands for all of the data, whichever topics are left."""
    model, batch = near_blobs(3.0)
    value = of_labels(model, batch, (0, 1), np.arange(70) // 40)
    part = of_labels(model, batch, (5, 6), np.arange(70) // 38)  # two atoms in the wrong half
    memory = Memory(9)
    edit = Exchange("t", (*targets, *beside) or (0, 1))
    plan = Plan(proposals=(BirthProposal(targets, (5, 6), edit, "documents", 3),))
    (record,) = Judge(model, memory).decide(value, {"t": part}, plan).records
    assert not record["accepted"]
    ((at, kept),) = memory.sweeps.items()
    assert (at, kept.receivers) == (targets[0] if targets else WHOLE, beside)
    memory.forget_dead(np.array([0]))
    assert bool(memory.sweeps) == (targets == ())


def test_topics_far_below_the_mean_go_as_a_set_and_after_a_failure_the_smaller_half():
    counts, memory = np.array([5000.0, 3000.0, 130.0, 120.0, 4000.0]), Memory(9)
    value = Summary(np.arange(5), {"N": Field(("cluster",))}, {"N": counts})
    context = SimpleNamespace(
        value=value,
        memory=memory,
        policy=OF_GROUPS,
        calm=True,
        free={0, 1, 2, 3, 4},
        count=lambda i: counts[i],
        counts=lambda targets: [counts[i] for i in targets],
    )
    assert counts[2] > DeletePolicy().leftover * counts.sum()
    assert Delete()._set_of_leftovers(context) == (3, 2)
    memory.remember_failure(SET, (3, 2), [120.0, 130.0])
    assert Delete()._set_of_leftovers(context) == (3,)
    memory.remember_failure(SET, (3,), [120.0])
    assert Delete()._set_of_leftovers(context) == ()


def test_a_set_of_leftovers_is_tried_again_and_fails_as_one():
    model, batch = near_blobs(9.0)
    value = of_labels(model, batch, (0, 1, 2), np.arange(70) // 30)
    part = of_labels(model, batch, (0,), np.zeros(70, int))
    edit = Exchange("t", (1, 2, 0))

    def consider(memory, hopeless):
        proposal = DeleteProposal((1, 2), (0,), edit, sweeps=3, hopeless=hopeless, remembered_as=SET)
        Judge(model, memory).decide(value, {"t": part}, Plan(proposals=(proposal,)))
        return memory

    (kept,) = consider(Memory(9), 1e3).sweeps.values()
    assert (kept.together, kept.remembered_as, kept.receivers) == ((2,), SET, (0,))
    gone = Memory(9, sweeps={1: kept})
    gone.forget_dead(np.array([0, 1]))
    assert not gone.sweeps  # one of the set is gone
    failed = consider(Memory(9), 1e-6)
    counts = value["N"][1:]
    assert not failed.sweeps and failed.failed(SET, (1, 2), counts, 0.1) == 1
    assert not failed.failed("delete", (1,), counts[:1], 0.1)


# -- rejected births ----------------------------------------------------------------------------------------------
def of_two(ids):
    model, batch = near_blobs(9.0)
    return model, of_labels(model, batch, ids, np.arange(70) // 40)


def test_rejected_births_are_kept_only_where_they_are_wanted_and_the_worst_are_forgotten():
    _, part = of_two((5, 6))
    unwanted = Memory(9)
    unwanted.note_rejected((0,), part, -1.0)
    assert unwanted.rejected is None
    memory = Memory(9, rejected={})
    for donor in range(DECISION.rejected + 3):
        memory.note_rejected((donor,), part, -float(donor + 1))
    memory.note_rejected((2,), part, -0.5)
    assert list(memory.rejected)[:3] == [(2,), (0,), (1,)]
    assert len(memory.rejected) == DECISION.rejected
    assert memory.rejected[2,].gain == -0.5


def test_rejected_births_that_exclude_others_are_taken_best_first():
    model, value = of_two((0, 1))
    _, part = of_two((5, 6))
    _, other = of_two((7, 8))
    assert with_rejected(model, value, Memory(9)) is None
    memory = Memory(9, rejected={})
    memory.note_rejected((3,), other, -0.1)  # of a cluster that is gone
    assert with_rejected(model, value, memory) is None
    memory.note_rejected((1,), other, -2.0)
    memory.note_rejected((1, 9), other, -0.2)
    memory.note_rejected((1,), part, -1.0)
    found = with_rejected(model, value, memory)
    assert found.ids.tolist() == [0, 5, 6]
    for name in ("N", *model.observation.fields):
        assert_array_equal(found[name], np.concatenate([value[name][:1], part[name]]))
    assert as_start(model, [part, value.take([1])]).ids.tolist() == [5, 6, 1]


def test_of_two_rejected_births_that_share_a_donor_the_better_one_is_taken():
    model, value = of_two((0, 1))
    _, part = of_two((5, 6))
    _, other = of_two((7, 8))
    for gains, ids in (((-1.0, -0.5), [7, 8]), ((-0.3, -0.5), [0, 5, 6])):
        memory = Memory(9, rejected={})
        memory.note_rejected((1,), part, gains[0])
        memory.note_rejected((0, 1), other, gains[1])
        assert with_rejected(model, value, memory).ids.tolist() == ids


def test_a_rejected_birth_is_kept_without_its_pairs():
    _, part = of_two((5, 6))
    memory = Memory(9, rejected={})
    memory.note_rejected((1,), part.with_pairs(np.array([[5, 6]])), -1.0)
    assert not memory.rejected[1,].part.n_pairs


# -- failures ------------------------------------------------------------------------------------------------------
def test_a_failure_counts_while_each_target_has_about_its_count():
    memory = Memory(9)
    memory.remember_failure("delete", (3, 4), [10.0, 0.5], 2)
    for counts, times in (((11.0, 0.5), 2), ((11.1, 0.5), 0), ((9.0, 0.6), 2), ((10.0, 0.61), 0), ((20.0, 0.5), 0)):
        assert memory.failed("delete", (3, 4), counts, 0.1) == times
    assert memory.failed("merge", (3, 4), [10.0, 0.5], 0.1) == memory.failed("delete", (3,), [10.0], 0.1) == 0
    memory.remember_failure("delete", (3, 4), [10.5, 0.5])
    assert memory.failures == {("delete", (3, 4)): (10.5, 0.5, 3.0)}
    memory.remember_failure("delete", (3, 4), [12.0, 0.5])  # another cluster by now
    assert memory.failures == {("delete", (3, 4)): (12.0, 0.5, 1.0)}


def test_what_is_tried_again_stays_while_all_that_it_names_live():
    _, part = of_two((5, 6))
    memory = Memory(9)
    memory.sweeps = {
        WHOLE: Sweep((), part, -1.0, 0.0, 1),
        0: Sweep((2,), part, -1.0, 0.0, 1, (3,)),
        2: Sweep((1,), part, -1.0, 0.0, 1),
        3: Sweep((0,), part, -1.0, 0.0, 1, (1,)),
    }
    memory.remember_failure("documents", (WHOLE,), [5.0])
    memory.forget_dead(np.array([0, 2, 3]))
    assert list(memory.sweeps) == [WHOLE, 0] and list(memory.failures) == [("documents", (WHOLE,))]


def test_what_is_known_of_a_cluster_goes_with_it():
    _, part = of_two((5, 6))
    memory = Memory(9, rejected={})
    for donors in ((0,), (0, 1), (2,)):
        memory.note_rejected(donors, part, -1.0)
        memory.remember_failure("birth", donors, [1.0] * len(donors))
    memory.young = {0: 0.5, 1: 0.25}
    memory.forget_dead(np.array([0, 2]))
    assert list(memory.rejected) == [(0,), (2,)]
    assert list(memory.failures) == [("birth", (0,)), ("birth", (2,))]
    assert memory.young == {0: 0.5}


def test_new_ids_were_never_used():
    memory = Memory(9)
    assert memory.new_ids(2) == (9, 10)
    assert memory.new_ids(0) == ()
    assert memory.new_ids(3) == (11, 12, 13) and memory.next_id == 14


# -- atoms that are drawn -----------------------------------------------------------------------------------------
def test_atoms_of_all_clusters_are_drawn_up_to_a_limit_by_the_key_of_the_lap():
    model, _ = near_blobs(9.0)
    batch = Batch(np.arange(200.0).reshape(100, 2))
    found = Visit(model.empty_summary(np.array([0])), {})

    def drawn(limit, *key):
        return gather_atoms(model, found, batch, Gather((WHOLE,), (limit,), key), seed=3).atoms[WHOLE]

    assert drawn(7, 1).n_atoms == 7
    assert_array_equal(drawn(7, 1).x, drawn(7, 1).x)
    assert len({drawn(7, lap, number).x.tobytes() for lap in range(3) for number in range(3)}) == 9
    assert drawn(1000, 1).n_atoms == 100
