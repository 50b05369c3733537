"""A pure stream keeps the sum of what came, and nothing of single batches."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.state import SEALED
from bnp_dask.store import JOB_NAME, RunStore
from bnp_dask.training.growing.versions import load
from tests.faults.test_bound import rewrite
from tests.growing.parts import MODELS, begin, bits_of, day, day_of, files, gap, grow
from tests.growing.test_update import COMMITTED, PREPARED, PUBLISHED, dying

KEPT = "1000 batches"
"""Given with ``keep``, nothing goes, and statistics of all batches are kept."""


def saved(store):
    return RunStore.view(store).load()


def files_of(store):
    """Batches of which there are files."""
    return {key[0] for key in set(RunStore.view(store).summaries.keys())}


def total_of(store):
    return {name: a.tobytes() for name, a in saved(store).arrays.items() if name.startswith(("total", "posterior"))}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", MODELS)
def test_totals_have_the_bits_of_a_run_that_keeps_all_batches(tmp_path, kind):
    for name in ("stream", "kept"):
        begin(tmp_path / name, day_of(kind, 0), model=MODELS[kind], laps=1)
    first = files_of(tmp_path / "stream")
    for number in (1, 2):
        found = grow(tmp_path / "stream", day_of(kind, number), revisit=0)
        other = grow(tmp_path / "kept", day_of(kind, number), revisit=0, keep=KEPT)
        assert (found.sealed, other.sealed) == (found.new_batches, 0)
        assert total_of(tmp_path / "stream") == total_of(tmp_path / "kept")
        assert gap(tmp_path / "stream") < 1e-12
    assert files_of(tmp_path / "stream") == first and len(files_of(tmp_path / "kept")) == 3 * len(first)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Bits of a run of three days of a pure stream, and how to begin it."""
    folder = tmp_path_factory.mktemp("stream")
    paths = files(folder / "in", 4, k=5)
    begin(folder / "run", paths[0])
    for path in paths[1:]:
        grow(folder / "run", path, revisit=0)
    return folder / "run", paths


KILLS = [(PREPARED, "after"), (COMMITTED, "before"), (COMMITTED, "after"), (PUBLISHED, "before")]


@pytest.mark.first_case
@pytest.mark.parametrize("kill", KILLS)
def test_killed_and_on_threads_the_bits_are_equal(tmp_path, stream, kill, monkeypatch):
    store, paths = stream
    begin(tmp_path / "run", paths[0])
    (owner, name), when = kill
    executor = ThreadExecutor(2)
    for path in paths[1:]:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, dying(getattr(owner, name), when))
            grow(tmp_path / "run", path, revisit=0)
        grow(tmp_path / "run", path, client=executor, revisit=0)
    executor.close()
    assert bits_of(tmp_path / "run") == bits_of(store)
    assert files_of(tmp_path / "run") == files_of(store)


def test_the_state_does_not_grow_with_atoms(tmp_path):
    begin(tmp_path / "run", day(0), k=4)
    sizes = {}
    for number, n in enumerate((60, 60, 6000), 1):
        found = grow(tmp_path / "run", day(number, n=n), batch_size=n, revisit=0, versions=1)
        names = ("total", "sealed", "posterior")
        arrays = {name: a for name, a in saved(tmp_path / "run").arrays.items() if not name.startswith(names)}
        sizes[number] = sum(array.nbytes for array in arrays.values())
        assert found.posterior.n_clusters == 4  # else the sums are of another size
    assert sizes[3] - sizes[2] == sizes[2] - sizes[1] <= 64  # of one batch each
    assert files_of(tmp_path / "run") == {0, 1, 2, 3}


def test_what_was_sealed_cannot_go_and_is_named(tmp_path, capsys):
    paths = files(tmp_path / "in", 4)
    begin(tmp_path / "run", paths[0])
    store = str(tmp_path / "run")
    assert main(["update", store, str(paths[1]), "--batch-size", "60", "--revisit", "0", "--quiet"]) == 0
    assert "in the totals for good" in capsys.readouterr().out
    later = grow(store, paths[2], revisit=1)
    assert (later.sealed, later.revisited, later.waiting) == (0, 4, False)  # the first day alone
    assert gap(store) < 1e-12
    before = bits_of(store)
    wrong = r": 4 batches, 4 to 7, of .*day1\.npy were taken in with revisit=0"
    np.save(paths[1], day(7))
    with pytest.raises(SettingError, match="retire" + wrong):
        bnp.retire(store, paths[1])
    with pytest.raises(SettingError, match="source" + wrong):
        bnp.replace(store, paths[1])
    with pytest.raises(SettingError, match="keep" + wrong):
        grow(store, paths[3], keep="6 batches")
    assert bits_of(store) == before
    assert bnp.retire(store, paths[2]).summary["N"].sum() == pytest.approx(480, rel=1e-12)
    assert bnp.retire(store, paths[0]).summary["N"].sum() == pytest.approx(240, rel=1e-12)
    assert gap(store) < 1e-12


def test_rolled_back_before_it_a_run_keeps_batches_again(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    grow(tmp_path / "run", paths[1])
    grow(tmp_path / "run", paths[2], revisit=0)
    bnp.rollback(tmp_path / "run", 1)
    assert not (saved(tmp_path / "run").arrays["visits"] == SEALED).any()
    assert grow(tmp_path / "run", paths[2]).revisited == 4
    assert bnp.retire(tmp_path / "run", paths[1]).summary["N"].sum() == pytest.approx(480, rel=1e-12)
    assert gap(tmp_path / "run") < 1e-12


def test_time_passes_for_what_was_sealed_and_changes_of_clusters_too(tmp_path):
    begin(tmp_path / "run", day(0), k=1)
    for number in (1, 2, 3):
        found = grow(tmp_path / "run", day(number, k=3 + number), revisit=0, half_life="4 batches")
        assert gap(tmp_path / "run") < 1e-12
    assert found.posterior.n_clusters > 1
    ages = np.arange(16.0)[::-1].copy()
    ages[:4] = ages[3]  # time began to pass with the first update
    assert found.posterior.summary["N"].sum() == pytest.approx(60 * (2.0 ** (-ages / 4)).sum(), rel=1e-9)
    state = saved(tmp_path / "run").state
    assert state["sealed"]["seen"] == len(state["edits"])
    for number in (4, 5):  # nothing is born any more
        grow(tmp_path / "run", day(number, k=6), revisit=0, half_life="4 batches")
        assert gap(tmp_path / "run") < 1e-12
    edits = [name for name, _ in saved(tmp_path / "run").state["edits"]]
    assert not any(one == other == "Fade" for one, other in zip(edits, edits[1:], strict=False))


def test_an_open_round_ends_undecided(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    assert grow(tmp_path / "run", paths[1], revisit=0.5).waiting
    found = grow(tmp_path / "run", paths[2], revisit=0)
    assert not found.waiting and found.sealed == 4
    assert gap(tmp_path / "run") < 1e-12
    assert load(tmp_path / "run").summary["N"].sum() == pytest.approx(720, rel=1e-12)


def test_sums_that_were_damaged_are_refused(tmp_path):
    begin(tmp_path / "run", day(0))
    grow(tmp_path / "run", day(1), revisit=0)
    for name in ("total.high/value.x", "sealed.high/value.N"):
        folder = tmp_path / name.partition(".")[0]
        shutil.copytree(tmp_path / "run", folder)
        rewrite(folder, lambda arrays: {name: arrays[name] * (1.0 + 1e-11)})  # noqa: B023
        with pytest.raises(StoreError, match=rf"the sum '{folder.name}' .* does not fit its checksum.*; rollback"):
            grow(folder, day(2))
        bnp.rollback(folder, 0)
        assert grow(folder, day(1), revisit=0).new_batches == 4


def test_the_job_of_a_run_says_how_it_takes_in_more(tmp_path, capsys):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    job = {"model": "gone", "data": str(tmp_path / "gone"), "update": {"revisit": 0, "batch_size": 60}}
    (tmp_path / "run" / JOB_NAME).write_text(yaml.safe_dump(job))
    store = str(tmp_path / "run")
    assert main(["update", store, str(paths[1]), "--quiet"]) == 0
    assert "4 batches and 0 older ones visited, in the totals for good" in capsys.readouterr().out
    assert main(["update", store, str(paths[2]), "--revisit", "1", "--quiet"]) == 0
    assert "4 batches and 4 older ones visited" in capsys.readouterr().out
    (tmp_path / "run" / JOB_NAME).write_text(yaml.safe_dump({**job, "update": {"revisit": "often"}}))
    assert main(["update", store, str(paths[2]), "--quiet"]) == 2
    assert "update.revisit: found 'often', needs a number" in capsys.readouterr().err
