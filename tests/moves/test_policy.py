"""Numbers of moves are settings: they are checked, recorded, named in job files, and part of a run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bnp_dask.cli.jobfile import MOVE, object_of
from bnp_dask.core.encoding import from_spec, to_spec, with_added
from bnp_dask.errors import SettingError
from bnp_dask.moves import Birth, Delete, DocumentBirth, Merge
from bnp_dask.moves.policy import BirthPolicy, DeletePolicy, DocumentBirthPolicy, MergePolicy, SmallRunPolicy
from bnp_dask.moves.policy import WindowPolicy as Window

MOVES = (Birth, DocumentBirth, Merge, Delete)

POLICIES = (BirthPolicy, SmallRunPolicy, Window, DocumentBirthPolicy, MergePolicy, DeletePolicy)


@pytest.mark.parametrize("move", MOVES)
def test_a_policy_is_one_of_its_move(move):
    for wrong in (None, 3, Window()):
        with pytest.raises(SettingError, match=f"policy=.*needs a policy, such as {move.__name__}Policy()"):
            move(policy=wrong)


@pytest.mark.parametrize(
    "policy", [BirthPolicy, SmallRunPolicy, Window, DocumentBirthPolicy, MergePolicy, DeletePolicy]
)
def test_numbers_of_policies_are_checked(policy):
    for declared in fields(policy):
        for wrong in (-1, "many", float("nan")):
            with pytest.raises(SettingError, match=f"{declared.name}="):
                policy(**{declared.name: wrong})
    with pytest.raises(SettingError, match=r"averaged=1\.5: needs a share of the passes"):
        DocumentBirthPolicy(averaged=1.5)


def test_policies_are_written_with_their_moves():
    move = Birth(policy=BirthPolicy(dearer=4.0, small_run=SmallRunPolicy(rounds=3)))
    assert from_spec(*to_spec(move)) == move != Birth()


@pytest.mark.parametrize("move", MOVES)
def test_moves_of_runs_begun_before_there_were_policies_are_as_now(move):
    spec = to_spec(move())[0]
    del spec["fields"]["policy"]
    assert from_spec(spec, {}) == move()
    assert with_added(spec, move()) == to_spec(move())[0]


def test_job_files_name_numbers_of_policies():
    given = {"type": "Birth", "policy": {"dearer": 4, "small_run": {"rounds": 3}}}
    assert object_of(MOVE, given, "moves[0]", Path()) == Birth(
        policy=BirthPolicy(dearer=4.0, small_run=SmallRunPolicy(rounds=3))
    )
    with pytest.raises(SettingError, match=r"moves\[0\]\.policy\.deerer: there is no such setting"):
        object_of(MOVE, {"type": "Birth", "policy": {"deerer": 4}}, "moves[0]", Path())
