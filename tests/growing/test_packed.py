"""A run whose files are packed: its bits, its versions and the ways out of it are those of one whose files are not."""

from __future__ import annotations

import os

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.store import RunStore, manifest, run
from tests.growing.parts import begin, bits_of, day, files, gap, grow


def n_files(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


@pytest.fixture
def few(monkeypatch):
    """What takes hundreds of files takes a few."""
    monkeypatch.setattr(run, "MOST_LOOSE", 4)
    monkeypatch.setattr(manifest, "MOST_LOOSE", 4)


def test_packed_runs_end_in_the_same_bits_and_in_few_files(tmp_path, monkeypatch):
    counts = {}
    for name, most in (("loose", 10**6), ("packed", 4)):
        monkeypatch.setattr(run, "MOST_LOOSE", most)
        monkeypatch.setattr(manifest, "MOST_LOOSE", most)
        begin(tmp_path / name, day(0), laps=2)
        for number in range(1, 13):
            grow(tmp_path / name, day(number, n=60), versions=2)
        counts[name] = n_files(tmp_path / name)
    assert bits_of(tmp_path / "loose") == bits_of(tmp_path / "packed")
    assert gap(tmp_path / "packed") < 1e-12
    assert counts["packed"] < counts["loose"] - 12
    assert bnp.changes(tmp_path / "packed", since=0, share=0.01) == bnp.changes(tmp_path / "loose", since=0, share=0.01)


def test_a_run_goes_back_to_a_version_whose_statistics_are_packed(tmp_path, few):
    paths = files(tmp_path / "in", 6)
    begin(tmp_path / "run", paths[0], laps=2)
    for path in paths[1:]:
        grow(tmp_path / "run", path, revisit=2.0)
    assert list((tmp_path / "run" / "summaries" / "packs").iterdir())
    bnp.rollback(tmp_path / "run", 2)
    assert gap(tmp_path / "run") < 1e-12
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(3 * 240)
    assert len(grow(tmp_path / "run", tmp_path / "in").new) == 3
    assert gap(tmp_path / "run") < 1e-12


def test_what_is_retired_is_in_no_pack(tmp_path, few):
    paths = files(tmp_path / "in", 5)
    begin(tmp_path / "run", paths[0], laps=2)
    for path in paths[1:]:
        grow(tmp_path / "run", path)
    view = RunStore.view(tmp_path / "run")
    packed = {key[0] for key in view.summaries.packs.keys().tolist()}
    assert packed & set(range(4, 8))
    entries = [entry for entry in view.load().listing.entries() if 4 <= entry[0] < 8]
    held = [view.get_summary(*entry)[0]["value.x"].tobytes() for entry in entries]
    bnp.retire(tmp_path / "run", paths[1])
    whole = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(numbers in whole for numbers in held)
    assert gap(tmp_path / "run") < 1e-12
    assert np.isfinite(bnp.load(tmp_path / "run").summary["N"]).all()
