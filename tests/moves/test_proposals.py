"""Proposals by type: the order in which they are decided, and what a checkpoint keeps of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bnp_dask.allocation import DPMixture
from bnp_dask.core.summary import Exchange, Merge
from bnp_dask.errors import StoreError
from bnp_dask.inference import state_from_saved, state_to_arrays, state_to_json
from bnp_dask.model import Model
from bnp_dask.moves.base import BirthProposal, DeleteProposal, MergeProposal, Plan, Proposal, named_by
from bnp_dask.moves.delete import SET
from bnp_dask.moves.judge import Judge
from bnp_dask.moves.memory import Memory
from bnp_dask.observation import DiagGaussian
from tests.moves.parts import blobs, prepare, start_random

PROPOSALS = (
    MergeProposal(Merge(0, 1), again=True),
    DeleteProposal((3,), (0, 2), Exchange("gone", (3, 0, 2)), sweeps=8, weight=3),
    Proposal("own", (1, 2), (), Merge(1, 2)),
    BirthProposal((2,), (8, 9), Exchange("born", (2,)), "window"),
    MergeProposal(Merge(0, 1)),
    BirthProposal((), (8, 9), Exchange("all", (0, 1, 2, 3)), "documents", 12),
)


@pytest.fixture
def state():
    work = prepare(Model(DPMixture(1.0), DiagGaussian()), blobs(60))
    return start_random(work, 4)


def test_births_that_take_from_all_are_decided_first_and_pairs_of_every_lap_last(state):
    """No pair was tracked, so each merge is refused, in the order of the decisions."""
    merges = tuple(p for p in PROPOSALS if isinstance(p.edit, Merge))
    decision = Judge(state.model, Memory(99)).decide(state.posterior.summary, {}, Plan(proposals=merges))
    rows = [(row["kind"], row["targets"]) for row in decision.records if row["kind"] != "sort"]
    assert rows == [("own", [1, 2]), ("merge", [0, 1]), ("merge", [0, 1])]
    a_set = replace(PROPOSALS[1], targets=(1, 3), remembered_as=SET)  # leaves its atoms to all others
    assert a_set.priority > max(p.priority for p in PROPOSALS if p.kind != "merge") > PROPOSALS[-1].priority
    assert min(PROPOSALS, key=lambda p: p.priority) is PROPOSALS[-1]
    assert max(PROPOSALS, key=lambda p: p.priority) is PROPOSALS[0]


def test_histories_call_all_births_births_and_failures_are_remembered_by_source():
    births = [p for p in PROPOSALS if isinstance(p, BirthProposal)]
    assert {p.kind for p in births} == {"birth"}
    assert [p.remembered_as for p in births] == ["window", "documents"]
    assert named_by(births[0]) == {2, 8, 9} and named_by(PROPOSALS[1]) == {0, 2, 3}


def test_a_checkpoint_brings_back_proposals_of_every_type(state):
    state.plan = Plan(proposals=PROPOSALS)
    numbers = json.loads(json.dumps(state_to_json(state)))
    assert state_from_saved(state.model, numbers, state_to_arrays(state)).plan.proposals == PROPOSALS


def test_a_proposal_of_a_type_unknown_here_is_an_error(state):
    state.plan = replace(state.plan, proposals=PROPOSALS)
    numbers = json.loads(json.dumps(state_to_json(state)))
    numbers["proposals"][0][0] = "Rotation"
    with pytest.raises(StoreError, match="a proposal of an unknown kind, 'Rotation'; it needs a newer version"):
        state_from_saved(state.model, numbers, state_to_arrays(state))
