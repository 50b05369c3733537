"""Runs that are killed, stopped and damaged in some sixty ways end in the quiet bits or say clearly how to go on."""

from __future__ import annotations

import pytest

from tests.faults.ends import CLEAR, KINDS, SAME, has_disks, listed, outcome


def test_the_list_has_forty_disturbances_and_every_kind():
    names = [str(case) for case in listed()]
    assert len(set(names)) == len(names) >= 40
    assert {case.kind for case in listed()} == set(KINDS)


@pytest.mark.long
@pytest.mark.parametrize("case", listed(), ids=str)
def test_a_disturbed_run_ends_in_the_quiet_bits_or_says_how_to_go_on(case, tmp_path):
    if case.kind == "update on a full disk" and not has_disks():
        pytest.skip("needs root to make a disk")
    if case.job == "s3":
        pytest.importorskip("s3fs")
        pytest.importorskip("moto.server")
    folder = tmp_path / "run-of-case"
    folder.mkdir()
    found, _ = outcome(case, folder)
    assert found in (SAME, CLEAR)
