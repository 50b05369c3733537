"""Versions of a run: whole ones for whoever reads, changes between them, and the way back."""

from __future__ import annotations

import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.store import RunStore, Versions
from bnp_dask.training.growing import versions as reading
from bnp_dask.training.growing.versions import changes_between
from bnp_dask.training.survey_pass import GROWTH
from tests.growing.parts import begin, bits_of, day, files, gap, grow
from tests.growing.test_new_clusters import rows


@pytest.fixture
def run(tmp_path):
    """A run of three updates, and the paths of its data."""
    paths = files(tmp_path / "in", 5)
    begin(tmp_path / "run", paths[0])
    for path in paths[1:4]:
        grow(tmp_path / "run", path, versions=3)
    return tmp_path / "run", paths


def test_versions_are_loaded_by_number_as_long_as_they_are_kept(run):
    store, _ = run
    counts = [bnp.load(f"{store}@{number}").summary["N"].sum() for number in (1, 2, 3)]
    assert counts == pytest.approx([480, 720, 960])
    assert bnp.load(store).summary["N"].sum() == pytest.approx(960)
    with pytest.raises(StoreError, match="keeps no version 0; it keeps 1, 2, 3"):
        bnp.load(f"{store}@0")
    assert bnp.load(store / "posterior.zarr").summary["N"].sum() == pytest.approx(960)


def test_a_version_knows_its_date_and_its_objective_by_its_path(run):
    store, _ = run
    before, *_, last = bnp.versions(store)
    assert last.when.endswith("+00:00")
    age = datetime.now(UTC) - datetime.fromisoformat(last.when)
    assert timedelta(0) <= age < timedelta(minutes=10)
    for number in (1, 2, 3):
        assert reading.objective_of_version(f"{store}@{number}") == bnp.versions(store)[number].objective
    assert reading.objective_of_version(store.parent / f"{store.name}@3") == last.objective
    assert before.number == 0 and not before.is_kept
    for other in (f"{store}@9", str(store), bnp.load(store), None, 3):
        assert reading.objective_of_version(other) is None


def test_a_version_that_a_killed_update_left_is_put_in_force_by_the_next(run):
    store, paths = run
    Versions(store).point_at(2)
    assert bnp.load(store).summary["N"].sum() == pytest.approx(720)
    assert grow(store, paths[3]).new == ()
    assert Versions(store).current == 3
    assert bnp.load(store).summary["N"].sum() == pytest.approx(960)
    assert bnp.load(store / "posterior.zarr").summary["N"].sum() == pytest.approx(960)


def test_rollback_is_the_run_as_it_was(run, tmp_path):
    store, paths = run
    known = bnp.rollback(store, 2)
    assert known.summary["N"].sum() == pytest.approx(720)
    assert bnp.load(store).summary["N"].tobytes() == known.summary["N"].tobytes()
    assert gap(store) < 1e-12
    # the versions before it stay, and whoever reads the posterior by its path reads this one
    assert Versions(store).kept() == [1, 2]  # the last three were kept
    assert bnp.load(f"{store}@1").summary["N"].sum() == pytest.approx(480)
    assert bnp.load(store / "posterior.zarr").summary["N"].tobytes() == known.summary["N"].tobytes()
    again = grow(store, paths[3])
    assert (again.new, again.version) == ((str(paths[3]),), 4)
    begin(tmp_path / "other", paths[0])
    for path in paths[1:4]:
        grow(tmp_path / "other", path)
    assert bits_of(store)[2] == bits_of(tmp_path / "other")[2]
    with pytest.raises(StoreError, match="keeps no version 3"):
        bnp.rollback(store, 3)


def test_rollback_to_what_train_left(tmp_path):
    paths = files(tmp_path / "in", 2)
    trained = begin(tmp_path / "run", paths[0]).posterior
    with pytest.raises(StoreError, match="was never updated"):
        bnp.rollback(tmp_path / "run", 0)
    first = grow(tmp_path / "run", paths[1])
    bnp.rollback(tmp_path / "run", 0)
    assert not RunStore.view(tmp_path / "run").load().state[GROWTH]["is_open"]  # no round of visits goes on
    assert bnp.load(tmp_path / "run").summary["N"].tobytes() == trained.summary["N"].tobytes()
    again = grow(tmp_path / "run", paths[1])
    assert again.version == 2
    assert again.posterior.summary["N"].tobytes() == first.posterior.summary["N"].tobytes()
    begin(tmp_path / "other", paths[0])
    grow(tmp_path / "other", paths[1])
    ends = [RunStore.view(tmp_path / name).load() for name in ("run", "other")]
    facts = [{**end.state[GROWTH], "version": 0, "newest": 0, "seconds": 0.0, "rows": {}} for end in ends]
    assert facts[0] == facts[1]  # nothing is left of the version that is gone
    arrays = [{n: a.tobytes() for n, a in end.arrays.items() if n.startswith(GROWTH)} for end in ends]
    assert arrays[0] == arrays[1] and arrays[0]


@pytest.mark.parametrize("version", [0, 1])
def test_ids_of_versions_that_are_gone_are_not_used_again(tmp_path, version):
    store, model = tmp_path / "run", bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    begin(store, rows(0, [0, 1]), model=model, batch_size=50, laps=10)
    grow(store, rows(1, [0]), batch_size=50, revisit=0, versions=3)
    gone = grow(store, rows(2, [2]), batch_size=50, revisit=0, versions=3).posterior.ids
    stays = bnp.rollback(store, version).ids
    found = grow(store, rows(3, [3]), batch_size=50, revisit=0).posterior.ids
    assert len(gone) == len(found) == 3
    assert set(found) & set(gone) == set(stays)


def test_a_folder_without_runs_has_none_and_one_that_is_not_there_is_named(tmp_path):
    assert bnp.runs(tmp_path) == ()
    with pytest.raises(StoreError, match="none: there is no such folder"):
        bnp.runs(tmp_path / "none")


def test_summaries_that_no_version_needs_are_removed(run):
    store, paths = run
    grow(store, paths[4], versions=1)
    grow(store, day(9), versions=1)
    files_of = set(RunStore.view(store).summaries.keys())
    listing = RunStore.view(store).load().listing
    needed = set(zip(listing.batches.tolist(), listing.visits.tolist(), strict=True))
    assert needed <= files_of
    assert len(files_of) <= 2 * len(needed)  # this version, and the checkpoint before it


def test_readers_see_whole_versions_while_they_are_published(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    seen, done, errors = set(), threading.Event(), []

    def read():
        while not done.is_set():
            try:
                seen.add(float(round(bnp.load(tmp_path / "run").summary["N"].sum())))
                bnp.load(tmp_path / "run" / "posterior.zarr")
            except Exception as error:
                errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 7):
            grow(tmp_path / "run", day(number), versions=1, revisit=0)
    finally:
        done.set()
        reader.join()
    assert not errors
    assert seen <= {240.0 * n for n in range(1, 8)}


@pytest.mark.parametrize("replaced", [0, 1, 99])
def test_a_posterior_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch, replaced):
    begin(tmp_path / "run", day(0), laps=1)
    place, tries, read = tmp_path / "run" / "posterior.zarr", [], reading.load_saved

    def half(path):
        tries.append(path)
        if len(tries) > max(replaced, 1):
            return read(path)
        if replaced:
            (place / "zarr.json").write_text((place / "zarr.json").read_text() + " ")
        raise StoreError("an array is missing")

    monkeypatch.setattr(reading, "load_saved", half)
    if replaced == 1:
        assert bnp.load(place).summary["N"].sum() == pytest.approx(240) and len(tries) == 2
    else:
        with pytest.raises(StoreError, match="faster than it can be read" if replaced else "an array is missing"):
            bnp.load(place)
        assert len(tries) == (reading.READ_TRIES if replaced else 1)


# -- a damaged posterior of a version -----------------------------------------------------------------------------
def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    file.write_bytes(data)


HARMS = {
    "gone": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "one bit": flip,
}

KINDS_OF_HARM = [("zarr.json", "half"), *(("state-*", name) for name in HARMS), ("zarr.json", "gone")]


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """A run of two updates."""
    folder = tmp_path_factory.mktemp("damaged")
    begin(folder / "run", day(0), laps=1)
    for number in (1, 2):
        grow(folder / "run", day(number), versions=2, revisit=0)
    return folder / "run"


@pytest.fixture(scope="module")
def next_bits(two_versions, tmp_path_factory):
    """Bits of the run after one more update."""
    store = shutil.copytree(two_versions, tmp_path_factory.mktemp("quiet") / "run")
    grow(store, day(3), versions=3, revisit=0)
    return bits_of(store)[2]


def damaged(run, folder, harm, places):
    """A copy of a run, of which each file has one name, in which a file of each place is harmed."""
    shutil.copytree(run, folder / "run")
    for place in places:
        for file in (folder / "run" / place).glob(harm[0]):
            HARMS[harm[1]](file)
    return folder / "run"


@pytest.mark.parametrize("harm", KINDS_OF_HARM, ids=str)
def test_a_damaged_version_in_force_is_read_from_its_copy_and_written_again(
    two_versions, next_bits, tmp_path, harm, caplog
):
    store = damaged(two_versions, tmp_path, harm, ["versions/00000002.zarr"])
    whole = bnp.load(two_versions).summary["x"].tobytes()
    assert bnp.load(store).summary["x"].tobytes() == whole
    assert "its copy posterior.zarr serves in its place" in caplog.text
    grow(store, day(3), versions=3, revisit=0)
    assert bnp.load(f"{store}@2").summary["x"].tobytes() == whole
    assert bits_of(store)[2] == next_bits


@pytest.mark.parametrize("harm", KINDS_OF_HARM, ids=str)
def test_where_the_copy_is_damaged_too_the_error_says_how_to_go_back(two_versions, tmp_path, harm):
    store = damaged(two_versions, tmp_path, harm, ["versions/00000002.zarr", "posterior.zarr"])
    for call in (lambda: bnp.load(store), lambda: grow(store, day(3)), lambda: bnp.rollback(store, 2)):
        with pytest.raises(StoreError, match=r"00000002.zarr.*go back to version 1, rollback\(.*run', 1\)"):
            call()
    known = bnp.rollback(store, 1)
    assert bnp.load(store).summary["x"].tobytes() == known.summary["x"].tobytes()


def test_going_back_to_a_damaged_version_changes_nothing(two_versions, tmp_path):
    store = damaged(two_versions, tmp_path, ("state-*", "half"), ["versions/00000001.zarr"])

    def content():  # but for the notes of who has the run open
        files = [file for file in store.rglob("*") if file.is_file() and file.name not in ("LOCK", "SESSION")]
        return {file: file.read_bytes() for file in files}

    before = content()
    with pytest.raises(StoreError, match=r"00000001.zarr"):
        bnp.rollback(store, 1)
    assert content() == before
    assert bnp.load(store).summary["N"].sum() == pytest.approx(720)


def test_changes_say_what_became_of_clusters():
    earlier = {"ids": [1, 2, 3, 4, 5, 9, 10], "counts": [100.0, 100.0, 50.0, 50.0, 80.0, 12.0, 8.0]}
    later = {"ids": [1, 2, 6, 7], "counts": [150.0, 220.0, 30.0, 400.0]}
    events = [
        {"kind": "merge", "targets": [2, 3], "others": []},
        {"kind": "delete", "targets": [4], "others": [1, 2]},
        {"kind": "birth", "targets": [1], "others": [6]},
        {"kind": "birth", "targets": [5], "others": [7, 8]},
        {"kind": "dormant", "targets": [10], "others": []},
    ]
    found = [(c.kind, c.cluster, c.others) for c in changes_between(earlier, later, events, 0.1)]
    assert found == [
        *[("born", 6, (1,)), ("born", 7, (5,))],
        *[("merged", 3, (2,)), ("deleted", 4, (1, 2)), ("split", 5, (7, 8))],
        *[("deleted", 9, ()), ("dormant", 10, ())],  # the ninth left without an event
        *[("smaller share", 1, ()), ("larger share", 2, ())],
    ]


@pytest.mark.parametrize("each", [1.0, 2.0**-20])
def test_a_cluster_that_gains_atoms_while_others_gain_more_has_a_smaller_share(each):
    """However much an atom weighs."""
    earlier, later = (
        {"ids": [1, 2], "counts": [each * count for count in counts]} for counts in ((300.0, 300.0), (600.0, 1800.0))
    )
    first, second = changes_between(earlier, later, [], 0.1)
    assert (first.kind, first.before, first.after) == ("smaller share", 300.0 * each, 600.0 * each)
    assert (first.share_before, first.share_after) == (0.5, 0.25)
    assert (second.kind, second.share_before, second.share_after) == ("larger share", 0.5, 0.75)


def test_changes_since_a_version(tmp_path):
    begin(tmp_path / "run", day(0, n=600, k=3), batch_size=300, laps=8)
    with pytest.raises(StoreError, match="was never updated"):
        bnp.changes(tmp_path / "run")
    first = grow(tmp_path / "run", day(1, n=600, k=3), batch_size=300)
    second = grow(tmp_path / "run", day(2, n=600, k=1), batch_size=300)
    assert bnp.changes(tmp_path / "run") == second.changes
    assert bnp.changes(tmp_path / "run", since=2) == ()
    both = bnp.changes(tmp_path / "run", since=0)
    assert {c.kind for c in both} >= {"larger share", "smaller share"}
    counts = dict(zip(second.posterior.ids.tolist(), second.posterior.summary["N"], strict=True))
    assert all(change.after == counts.get(change.cluster, 0.0) for change in both)
    with pytest.raises(SettingError, match="does not come from it"):
        bnp.changes(tmp_path / "run", since=9)
    assert np.isfinite(first.fresh)


@pytest.mark.long
def test_the_command_line_updates_tells_and_goes_back(tmp_path, capsys):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    store, data = str(tmp_path / "run"), str(tmp_path / "in")
    assert main(["update", store, data, "--batch-size", "60", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "version 1, 2 new, 1 known already, 8 batches" in told
    assert main(["update", store, data, "--batch-size", "60", "--quiet"]) == 0
    assert "nothing new, version 1 stays in force" in capsys.readouterr().out
    assert main(["changes", store, "--since", "0"]) == 0
    assert capsys.readouterr().out
    assert main(["inspect", f"{store}@0"]) == 0
    assert main(["report", store, str(tmp_path / "page.html"), "--quiet"]) == 0
    assert main(["rollback", store, "0"]) == 0
    assert "version 0 is in force" in capsys.readouterr().out
    assert main(["update", store, str(tmp_path / "nothing"), "--quiet"]) == 2
    assert main(["follow", store, str(tmp_path / "nothing"), "--quiet"]) == 2


def test_packed_records_of_versions_are_known_as_those_in_files_are(tmp_path):
    """From 64 files on, all but the newest 32 are in one."""
    versions = Versions(tmp_path)
    facts = {"checkpoint": 3, "before": None, "ids": [1], "counts": [2.5], "pieces": [], "moves": []}
    for number in range(63):
        versions.write(number, facts)
    versions.pack()
    assert len(list((tmp_path / "versions").glob("*.json"))) == 63
    for number in range(63, 70):
        versions.write(number, {**facts, "checkpoint": number})
    versions.pack()
    assert sorted(int(file.stem) for file in (tmp_path / "versions").glob("*.json")) == list(range(38, 70))
    assert versions.numbers() == list(range(70))
    assert all(versions.has(number) for number in range(70)) and not versions.has(70)
    assert [versions.record(number)["number"] for number in (0, 37, 38, 69)] == [0, 37, 38, 69]
    assert versions.record(69)["checkpoint"] == 69
    with pytest.raises(StoreError, match="00000070.json"):
        versions.record(70)


# -- by hand -------------------------------------------------------------------------------------------------------
def moved(kind, targets, others=()):
    return {"kind": kind, "targets": list(targets), "others": list(others)}


def test_shares_before_and_after_are_those_of_their_own_version():
    earlier, later = {"ids": [3, 5, 8], "counts": [10.0, 20.0, 10.0]}, {"ids": [3, 8, 9], "counts": [10.0, 50.0, 140.0]}
    born, gone, less = changes_between(earlier, later, [], 0.0)
    assert (born.kind, born.cluster, born.after, born.share_after, born.share_before) == ("born", 9, 140.0, 0.7, 0.0)
    assert (gone.kind, gone.cluster, gone.before, gone.share_before, gone.share_after) == ("deleted", 5, 20.0, 0.5, 0.0)
    assert (less.kind, less.cluster, less.share_before, less.share_after) == ("smaller share", 3, 0.25, 0.05)


def test_a_share_that_changes_by_exactly_the_limit_is_not_listed():
    earlier = {"ids": [1, 2], "counts": [50.0, 50.0]}
    for counts, share, kinds in (
        ([75.0, 25.0], 0.5, []),
        ([75.0, 25.0], 0.49, ["larger share", "smaller share"]),
        ([50.0, 50.0], 0.0, []),
        ([100.0, 50.0], 0.3, ["larger share", "smaller share"]),  # one has as many atoms as before, and a smaller share
    ):
        found = changes_between(earlier, {"ids": [1, 2], "counts": counts}, [], share)
        assert [one.kind for one in found] == kinds


def test_each_of_several_targets_and_newborn_clusters_has_its_fate_and_origin():
    earlier = {"ids": [1, 2, 3, 4, 5, 6], "counts": [10.0] * 6}
    later = {"ids": [6, 7, 8, 9, 11], "counts": [10.0] * 5}
    events = [
        moved("delete", (1, 2), (6, 4)),
        moved("birth", (3,), (7, 8, 9)),
        moved("merge", (6, 4)),
        moved("dormant", (5,)),
        moved("return", (11,)),
        moved("birth", (3,), (10,)),  # gone since
    ]
    found = changes_between(earlier, later, iter(events), 9.0)
    assert [(one.kind, one.cluster, one.others) for one in found] == [
        ("born", 7, (3,)), ("born", 8, (3,)), ("born", 9, (3,)), ("returned", 11, ()),
        ("deleted", 1, (6, 4)), ("deleted", 2, (6, 4)), ("split", 3, (10,)), ("merged", 4, (6,)), ("dormant", 5, ()),
    ]  # fmt: skip
    later_fate = [*events, moved("delete", (3,), (6,))]  # the last word counts
    assert {one.cluster: one.kind for one in changes_between(earlier, later, later_fate, 9.0)}[3] == "deleted"


def test_versions_are_told_as_their_records_and_their_posteriors_say(tmp_path):
    """The second is in force; the third is being written or was rolled back from, the fourth has a record alone."""
    RunStore.create(tmp_path / "run", {}).close()
    known = Versions(tmp_path / "run")
    for number, (ids, pieces) in enumerate(
        [([0, 1], []), ([0, 1, 4], ["a", "b"]), ([1, 4, 5, 6], ["c"]), ([1], ["d"]), ([2], [])]
    ):
        record = {
            "checkpoint": number, "before": None if number == 0 else number - 1, "ids": ids, "counts": [1.5] * len(ids),
            "pieces": pieces, "moves": [], "when": f"day {number}", "n_batches": 3 + number, "elbo": -10.0 * number,
        }  # fmt: skip
        known.write(number, record)
        if number in (1, 2, 3):
            known.posterior(number).mkdir()
    known.point_at(2)
    found = bnp.versions(tmp_path / "run")
    assert [(v.number, v.in_force, v.is_kept) for v in found] == [
        (0, False, False), (1, False, True), (2, True, True), (3, False, True),
    ]  # fmt: skip
    assert [(v.before, v.n_clusters, v.n_atoms, v.data) for v in found[:3]] == [
        (None, 2, 3.0, ()), (0, 3, 4.5, ("a", "b")), (1, 4, 6.0, ("c",)),
    ]  # fmt: skip
    assert [(v.when, v.n_batches, v.objective) for v in found[:2]] == [("day 0", 3, 0.0), ("day 1", 4, -10.0)]
    path = str(tmp_path / "run")
    told = [reading.objective_of_version(what) for what in (f"{path}@0", f"{path}@2", f"{path}@9", path, 3)]
    assert told == [0.0, -20.0, None, None, None]
    with pytest.raises(StoreError, match="keeps no version 0; it keeps 1, 2$"):
        bnp.load(f"{path}@0")
    with pytest.raises(StoreError, match="keeps no version 3; it keeps 1, 2$"):
        bnp.load(f"{path}@3")


def test_runs_are_looked_for_three_levels_deep_and_not_in_hidden_folders(tmp_path, monkeypatch):
    for place in ("a", "b/c", "b/d/e", "b/d/f/g", ".h", "_i", "b/x.zarr"):
        RunStore.create(tmp_path / place, {}).close()
    found = [fact.path.removeprefix(f"{tmp_path}/") for fact in bnp.runs(tmp_path)]
    assert found == ["a", "b/c", "b/d/e"]
    monkeypatch.chdir(tmp_path)
    assert [fact.path for fact in bnp.runs()] == found
    assert [(f.path, f.state, f.laps, f.n_clusters, f.version) for f in bnp.runs("b/c")] == [
        ("b/c", "begun", 0, None, None)
    ]


def test_what_became_of_clusters_over_three_versions_is_told_by_the_last_move(tmp_path):
    RunStore.create(tmp_path / "run", {}).close()
    known = Versions(tmp_path / "run")
    ids = [[1, 2, 3], [1, 3, 4], [1, 5, 6], [1, 6]]
    moves = [
        [],
        [moved("birth", (2,), (4,))],
        [moved("birth", (3,), (5, 6)), moved("delete", (4,), (1,))],
        [moved("merge", (1, 5))],
    ]
    for number in range(4):
        record = {
            "checkpoint": number, "before": None if number == 0 else number - 1, "ids": ids[number],
            "counts": [10.0] * len(ids[number]), "pieces": [], "moves": moves[number],
        }  # fmt: skip
        known.write(number, record)
    known.point_at(1)
    assert [c.kind for c in bnp.changes(tmp_path / "run", share=9.0)] == ["born", "split"]  # since version 0
    known.point_at(3)

    def told(since):
        return [(c.kind, c.cluster, c.others) for c in bnp.changes(tmp_path / "run", since, share=9.0)]

    assert told(None) == told(2) == [("merged", 5, (1,))]
    assert told(1) == [("born", 6, (3,)), ("split", 3, (5, 6)), ("deleted", 4, (1,))]
    assert told(0) == [("born", 6, (3,)), ("split", 2, (4,)), ("split", 3, (5, 6))]
    assert told(3) == []
    with pytest.raises(SettingError, match="since=7: version 3 does not come from it"):
        told(7)


def test_the_way_back_from_a_damaged_version_is_the_newest_before_it(tmp_path):
    known = Versions(tmp_path)
    for number in (1, 4, 6, 9):
        known.posterior(number).mkdir(parents=True)
    with pytest.raises(StoreError, match="go back to version 4, rollback"):
        reading.in_its_place(known, 6, StoreError("damaged"))
    with pytest.raises(StoreError, match="or begin a new run"):
        reading.in_its_place(known, 1, StoreError("damaged"))
