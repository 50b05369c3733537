"""The largest part of a cluster keeps its id, whatever births, laps and merges make of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Merge, Summary
from bnp_dask.inference.variational.lineage import Lineage, inherited, renamed, told
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.store import RunStore
from bnp_dask.testing import survey_of
from bnp_dask.training.growing.update import _taken_out
from tests.growing.parts import MODELS, begin, gap, grow, stored_day

FIELDS = {"N": Model(DPMixture(), DiagGaussian()).fields["N"]}


def counts(**by_id):
    """A summary of counts alone, from ``c<id>=count``."""
    ids = np.array([int(name[1:]) for name in by_id])
    return Summary(ids, FIELDS, {"N": np.array(list(by_id.values()), float)})


def split(into):
    """A birth that replaces cluster 0, and the counts it gives."""
    return [Exchange("trial", (0,))], {"trial": into}


def test_the_largest_newborn_is_the_heir():
    found = Lineage(counts(c0=100, c1=50), 4)
    found.edited(*split(counts(c7=30, c8=70)))
    assert found.successors() == {8: 0}
    assert found.born[8] == pytest.approx([70, 0])


def test_a_part_of_a_part_inherits_when_it_is_the_largest():
    found = Lineage(counts(c0=100, c1=50), 4)
    found.edited(*split(counts(c7=30, c8=70)))
    found.edited([Exchange("next", (8,))], {"next": counts(c9=20, c10=50)})
    assert found.successors() == {10: 0}


def test_newborn_parts_that_a_cluster_before_absorbs_are_no_heirs():
    found = Lineage(counts(c0=100, c1=50), 4)
    found.edited(*split(counts(c7=30, c8=70)))
    found.edited([Merge(1, 8)])
    assert found.successors() == {}
    assert found.away == pytest.approx([70, 0])
    found.edited([Merge(1, 7)])
    assert found.successors() == {} and found.away == pytest.approx([100, 0])


def test_atoms_that_came_back_did_not_go_to_other_clusters():
    found = Lineage(counts(c0=100), 4)
    found.folded(counts(c0=40, c7=60), old=True, new=False)
    found.folded(counts(c0=100, c7=0), old=True, new=False)
    assert found.own == pytest.approx([100]) and found.away == pytest.approx([0])
    found.folded(counts(c0=45, c7=0, c8=55), old=True, new=False)
    assert found.successors() == {8: 0}


def test_one_heir_of_two_clusters_has_the_id_of_the_larger_part():
    found = Lineage(counts(c0=100, c1=50), 4)
    found.edited([Exchange("both", (0, 1))], {"both": counts(c7=150)})
    assert found.successors() == {7: 0}


def test_atoms_that_came_in_since_give_no_claim():
    found = Lineage(counts(c0=100), 4)
    found.folded(counts(c0=100, c7=400), old=False, new=True)
    assert found.successors() == {}
    found.folded(counts(c0=40, c7=460), old=True, new=False)
    assert found.successors() == {7: 0}
    found.folded(counts(c0=10, c7=490), old=False, new=True)
    assert (found.own, found.born[7]) == (pytest.approx([40]), pytest.approx([60]))


def test_the_batches_that_an_update_brings_are_those_that_came_in_since():
    """Three earlier batches, and two new ones."""
    state = SimpleNamespace(posterior=SimpleNamespace(summary=counts(c0=600, c1=200)), trials={}, visits=np.zeros(5))
    found, ages = SimpleNamespace(n_new=2, gives_way=()), SimpleNamespace(too_old=())
    lineage = _taken_out(None, state, found, ages, None, None, None)
    visits = [(3, (1000, 200), [600, 200]), (3, (900, 300), [600, 200]), (2, (840, 360), [540, 200])]
    for batch, (first, second), known in visits:
        with lineage.visited(state, [batch]):
            state.posterior.summary = counts(c0=first, c1=second)
        assert lineage.own == pytest.approx(known)


def test_atoms_that_leave_in_a_visit_of_old_and_new_batches_go_where_counts_rise():
    found = Lineage(counts(c0=100, c1=50), 4)
    found.folded(counts(c0=60, c1=50, c7=120, c8=40), old=True, new=True)
    assert found.own == pytest.approx([60, 50])
    assert (found.born[7], found.born[8]) == (pytest.approx([30, 0]), pytest.approx([10, 0]))


def test_a_birth_that_shares_out_old_and_new_atoms_is_judged_by_the_old():
    found = Lineage(counts(c0=60), 4)
    found.folded(counts(c0=110), old=False, new=True)
    found.edited(
        [Exchange("trial", (0,))], {"trial": counts(c7=40, c8=20, c9=50)}, {"trial": counts(c7=40, c8=20, c9=0)}
    )
    assert found.successors() == {7: 0}
    assert found.born[7] == pytest.approx([40])


def test_names_are_swapped_so_that_none_is_there_twice():
    names = inherited({}, {8: 0})
    assert names == {8: 0, 0: 8}
    names = inherited(names, {12: 8})
    assert names == {8: 12, 0: 8, 12: 0}
    assert sorted(names.values()) == sorted(names)


def test_rows_tell_births_and_what_came_after_by_the_ids_of_readers():
    birth = {"kind": "birth", "targets": [0], "others": [7, 8], "accepted": True}
    merge = {"kind": "merge", "targets": [8, 0], "others": [], "accepted": True}
    rows = told([{"step": 1, "moves": [birth]}, {"step": 2, "moves": [merge]}], {}, {8: 0, 0: 8}, {8: 0})
    assert rows[0]["moves"] == [{**birth, "targets": [0], "others": [7, 0]}]
    assert rows[1]["moves"] == [{**merge, "targets": [0, 8]}]


def test_a_birth_that_was_refused_passes_no_id_on():
    """A candidate may be proposed again under the ids that it had."""
    refused = {"kind": "birth", "targets": [0], "others": [7, 8], "accepted": False}
    merge = {"kind": "merge", "targets": [0, 1], "others": [], "accepted": True}
    rows = told([{"moves": [refused, merge, {**refused, "accepted": True}, merge]}], {}, {8: 0, 0: 8}, {8: 0})
    assert [move["targets"] for move in rows[0]["moves"]] == [[0], [0, 1], [0], [8, 1]]


@pytest.mark.first_case
@pytest.mark.parametrize("kind", MODELS)
def test_clusters_that_updates_split_keep_their_ids_and_most_of_their_atoms(tmp_path, kind):
    first = stored_day(kind, 0, tmp_path)
    begin(tmp_path / "run", first, model=MODELS[kind], laps=1, k=1, batch_size=None)
    known = bnp.load(tmp_path / "run")
    assert known.n_clusters == 1
    seen = set(known.ids.tolist())
    for number in (1, 2):
        found = grow(tmp_path / "run", stored_day(kind, number, tmp_path), batch_size=None, revisit=1, laps=3).posterior
        ids, told = set(found.ids.tolist()), bnp.changes(tmp_path / "run", since=number - 1)
        assert len(ids) == found.n_clusters
        # newborn topics that turn out to be parts or leftovers of others go, and are said to
        assert {change.cluster for change in told if change.kind in ("merged", "deleted")} == seen - ids
        assert {change.kind for change in told} <= {"born", "larger share", "smaller share", "merged", "deleted"}
        assert set(known.ids.tolist()) <= ids
        seen |= ids
        assert gap(tmp_path / "run") < 1e-12
    assert found.n_clusters > 1


def test_the_larger_of_two_groups_taken_for_one_cluster_has_its_id(tmp_path):
    rng = np.random.default_rng(0)
    where = np.array([[0.0, 0.0]] * 400 + [[9.0, 9.0]] * 200)
    np.save(tmp_path / "0.npy", rng.permutation(where + rng.normal(size=where.shape)))
    np.save(tmp_path / "1.npy", np.array([0.0, 9.0]) + rng.normal(size=(500, 2)))
    begin(tmp_path / "run", tmp_path / "0.npy", model=Model(DPMixture(), Gaussian()), laps=1, k=1, batch_size=100)
    found = grow(tmp_path / "run", tmp_path / "1.npy", batch_size=100, laps=4)
    means = dict(zip(found.posterior.ids.tolist(), found.posterior.observation.m, strict=True))
    assert found.posterior.n_clusters == 3
    assert means[0] == pytest.approx([0.0, 0.0], abs=0.5)
    assert bnp.load(tmp_path / "run").ids.tolist() == found.posterior.ids.tolist()
    rows = RunStore.view(tmp_path / "run").load().history
    births = [m for row in rows for m in row["moves"] if m["accepted"] and m["kind"] == "birth"]
    assert any(0 in birth["others"] for birth in births)
    assert bnp.rollback(tmp_path / "run", 0).ids.tolist() == [0]


def test_the_third_owner_of_a_cluster_keeps_what_the_first_two_left():
    """Atoms of three clusters meet in one newborn cluster, part of which later goes on to another."""
    found = Lineage(counts(c0=60, c1=30, c2=10), 4)
    found.edited([Exchange("all", (0, 1, 2))], {"all": counts(c7=100)})
    assert found.born[7] == pytest.approx([60, 30, 10])
    found.folded(counts(c7=60, c8=40), old=True, new=False)
    assert (found.born[7], found.born[8]) == (pytest.approx([36, 18, 6]), pytest.approx([24, 12, 4]))
    found.folded(counts(c7=60, c8=10, c9=30), old=True, new=False)
    assert (found.born[8], found.born[9]) == (pytest.approx([6, 3, 1]), pytest.approx([18, 9, 3]))
    found.edited([Merge(8, 9)])
    assert found.born[8] == pytest.approx([24, 12, 4])
    assert found.successors() == {7: 0}
    assert sum(found.born[i] for i in (7, 8)) + found.own + found.away == pytest.approx([60, 30, 10])


def test_atoms_at_other_clusters_before_are_counted_over_several_changes():
    found = Lineage(counts(c0=60, c1=60, c2=60), 4)
    found.folded(counts(c0=30, c1=90, c2=60), old=True, new=False)
    found.folded(counts(c0=10, c1=90, c2=80), old=True, new=False)
    assert found.own == pytest.approx([10, 60, 60]) and found.away == pytest.approx([50, 0, 0])
    found.folded(counts(c0=0, c1=90, c2=80, c7=10), old=True, new=False)
    assert found.successors() == {}  # most of its atoms are at clusters that were there before


def test_a_cluster_that_holds_more_of_another_is_no_heir_of_two():
    found = Lineage(counts(c0=40, c1=100, c2=90), 4)
    found.edited([Exchange("all", (0, 1))], {"all": counts(c7=140)})
    found.edited([Exchange("more", (2,))], {"more": counts(c8=90)})
    assert found.successors() == {7: 1, 8: 2}


def test_counts_are_found_by_ids_in_any_order():
    found = Lineage(counts(c5=10, c2=20, c9=30), 4)
    found.folded(counts(c9=10, c7=20, c5=10, c2=20), old=True, new=False)
    assert found.own == pytest.approx([10, 20, 10]) and found.born[7] == pytest.approx([0, 0, 20])


def test_names_that_were_swapped_before_are_swapped_again():
    names = inherited({}, {7: 0})
    assert names == {7: 0, 0: 7}
    names = inherited(names, {9: 7})
    assert names == {9: 0, 7: 9, 0: 7}
    assert sorted(names.values()) == sorted(names)


def test_statistics_and_tracked_pairs_have_the_names_of_readers():
    model = Model(DPMixture(), DiagGaussian()).with_prior(survey_of(Batch(np.arange(8.0).reshape(4, 2))))
    posterior = model.global_step(model.summarize(np.array([0, 3, 7]), Batch(np.ones((4, 2))), np.full((4, 3), 1 / 3)))
    summary = model.local_step(posterior, Batch(np.ones((4, 2))), np.array([[0, 7], [3, 7]]))
    told_ids = renamed(summary, {7: 0, 0: 7})
    assert told_ids.ids.tolist() == [7, 3, 0] and told_ids.pairs.tolist() == [[7, 0], [3, 0]]
