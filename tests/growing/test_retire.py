"""Data leave a run, and nothing of them stays."""

from __future__ import annotations

import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError
from bnp_dask.store import RunStore, Versions
from tests.growing.parts import MODELS, begin, files, gap, grow, stored_day


@pytest.fixture
def run(tmp_path):
    """A run of four days of four batches, and the paths of its data."""
    paths = files(tmp_path / "in", 4)
    begin(tmp_path / "run", paths[0])
    for path in paths[1:3]:
        grow(tmp_path / "run", path)
    grow(tmp_path / "run", paths[3], revisit=0.5)  # a round is open
    return tmp_path / "run", paths


def test_totals_are_those_of_a_sum_that_never_held_the_data(run):
    store, paths = run
    found = bnp.retire(store, paths[1])
    assert found.summary["N"].sum() == pytest.approx(720, rel=1e-12)
    assert gap(store) < 1e-12
    assert bnp.load(store).summary["N"].tobytes() == found.summary["N"].tobytes()
    view = RunStore.view(store)
    files_of = {key for key in set(view.summaries.keys()) if 4 <= key[0] < 8}
    entries = {(b, v): receipt for b, v, receipt in view.load().listing.entries() if 4 <= b < 8}
    assert files_of == set(entries)
    assert not any(view.get_summary(*key, receipt)[0]["value.N"].any() for key, receipt in entries.items())


def test_what_was_retired_does_not_come_back(run):
    store, paths = run
    bnp.retire(store, str(paths[1]))
    paths[1].unlink()
    assert grow(store, paths[0].parent).new == ()
    found = grow(store, files(paths[0].parent.parent / "more", 6)[5], revisit=4)
    assert found.posterior.summary["N"].sum() == pytest.approx(960, rel=1e-12)
    assert found.revisited == 16 and not found.waiting
    assert gap(store) < 1e-12


def test_retiring_names_what_there_is_and_leaves_something(run, capsys):
    store, paths = run
    with pytest.raises(SettingError, match=r"has no data from .*nowhere; it has .*day0"):
        bnp.retire(store, "nowhere")
    with pytest.raises(SettingError, match="nothing would be left"):
        bnp.retire(store, paths[0].parent)
    assert main(["retire", str(store), str(paths[2])]) == 0
    assert "720 atoms are left" in capsys.readouterr().out
    first = bnp.retire(store, paths[0])
    assert len(Versions(store).kept()) == 1  # no version that held the data is left
    assert first.summary["N"].sum() == pytest.approx(480, rel=1e-12)
    assert bnp.retire(store, paths[0]).summary["N"].tobytes() == first.summary["N"].tobytes()


def test_places_and_numbers_of_batches_leave_together_and_each_once(run):
    store, paths = run
    n = len(RunStore.view(store).load().arrays["visits"])
    found = bnp.retire(store, [paths[1], paths[3]], batches=[0, 5, n - 1])  # the fifth is of the second file
    assert found.summary["N"].sum() == pytest.approx(480 - 60, rel=1e-12)
    assert gap(store) < 1e-12
    with pytest.raises(SettingError, match=f"batches={n}: the run has 0 to {n - 1}"):
        bnp.retire(store, batches=n)


@pytest.mark.parametrize("kind", ["topics", "chains"])
def test_documents_and_sequences_leave_too(tmp_path, kind):
    days = [stored_day(kind, number, tmp_path) for number in (0, 1)]
    begin(tmp_path / "run", days[0], model=MODELS[kind], laps=1, batch_size=None)
    before = bnp.load(tmp_path / "run").summary["N"].sum()
    grow(tmp_path / "run", days[1], batch_size=None)
    found = bnp.retire(tmp_path / "run", days[1])
    assert found.summary["N"].sum() == pytest.approx(before, rel=1e-12)
    assert gap(tmp_path / "run") < 1e-12
