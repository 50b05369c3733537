"""Data leave a run, and nothing of them stays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError
from bnp_dask.inference.state import SEALED
from bnp_dask.store import RunStore, Versions
from bnp_dask.training.growing.revise import _from_before, _of_run
from bnp_dask.training.growing.update import batches_of, require_kept
from bnp_dask.training.run_settings import OPENED
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


# -- which batches, by hand ----------------------------------------------------------------------------------------
def of_pieces(opened="/data/first.npy", sealed=()):
    """A run of three first batches, then pieces of two, one, three and one."""
    places = ["/data/in/a.npy", None, "/data/in/b.npy", "/data/inbox.npy"]
    sizes = [2, 1, 3, 1]
    pieces = [{"place": p, "name": p or "in memory", "n_batches": n} for p, n in zip(places, sizes, strict=True)]
    settings = {} if opened is None else {OPENED: {"place": opened}}
    visits = np.zeros(10, np.int64)
    visits[list(sealed)] = SEALED
    run = SimpleNamespace(
        first=SimpleNamespace(n_batches=3),
        on_disk=SimpleNamespace(settings=settings, path="RUN"),
        log=SimpleNamespace(pieces=pieces),
        turn=SimpleNamespace(last=visits),
        times=np.array([np.nan, 1.0, 2.0, 3.0, 2.0, 9.0, 9.0, 9.0, 9.0, 9.0]),
    )
    return run, SimpleNamespace(visits=visits)


def test_data_are_found_by_their_place_or_a_folder_above_it():
    run, _ = of_pieces()
    assert batches_of(run, "/data/in/a.npy") == [3, 4] and batches_of(run, "/data/in/b.npy") == [6, 7, 8]
    assert batches_of(run, "/data/in") == batches_of(run, "/data/in/") == [3, 4, 6, 7, 8]  # and no inbox
    assert batches_of(run, "/data") == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert batches_of(run, "/data/first.npy") == [0, 1, 2] and batches_of(run, "/data/inbox.npy") == [9]
    for wrong in ("/data/i", "/data/in/a", "/dat"):
        with pytest.raises(SettingError, match="it has /data/first.npy, /data/in/a.npy"):
            batches_of(run, wrong)
    assert batches_of(of_pieces(None)[0], "/data") == [3, 4, 6, 7, 8, 9]


def test_batches_that_nothing_is_kept_of_are_named_with_their_pieces():
    run, state = of_pieces(sealed=(4, 6, 9))
    require_kept(run, state, [0, 3, 5, 7], "retire")
    with pytest.raises(SettingError, match=r"^retire: 2 batches, 4 to 9, of /data/in/a.npy, /data/inbox.npy were"):
        require_kept(run, state, iter([3, 4, 9]), "retire")


def test_numbers_and_times_of_batches_are_limits_that_are_told():
    run, _ = of_pieces()
    assert _of_run(run, [0, 9]) == {0, 9}
    with pytest.raises(SettingError, match="batches=10: the run has 0 to 9"):
        _of_run(run, [0, 10])
    assert _from_before(run, 2.0) == {1} and _from_before(run, 2.5) == {1, 2, 4} and _from_before(run, 0.5) == set()
