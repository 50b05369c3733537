"""A run takes in more data: once each, to the same bits whoever does it, and wholly or not at all."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.data import as_source, ingest
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.observation import KNOWN
from bnp_dask.store import RunStore, Versions
from bnp_dask.training.growing import growing_run
from bnp_dask.training.growing import growing_run as looking
from bnp_dask.training.growing.incoming import Known, Piece, pieces_of
from bnp_dask.training.growing.versions import load
from bnp_dask.training.memory_plan import KILLED_AT, PROGRAM_BYTES
from bnp_dask.training.train import ConvergenceWarning, train
from tests.growing.parts import MODELS, begin, bits_of, counts_of, day, day_of, files, gap, grow


@pytest.mark.first_case
@pytest.mark.parametrize("kind", MODELS)
def test_totals_are_the_sum_of_all_batches_for_every_kind_of_model(tmp_path, kind):
    begin(tmp_path / "run", day_of(kind, 0), model=MODELS[kind])
    for number in (1, 2):
        found = grow(tmp_path / "run", day_of(kind, number))
        assert np.isfinite(found.fresh) and found.new == ("in memory",)
        assert gap(tmp_path / "run") < 1e-12
    n_atoms = {"mixture": 720, "topics": 3 * 40 * 60, "chains": 360}[kind]
    assert load(tmp_path / "run").summary["N"].sum() == pytest.approx(n_atoms, rel=1e-9)


@pytest.mark.parametrize("kinds", [(0, 1), ("left", "right")])
def test_data_with_labels_of_either_type_are_not_the_last(tmp_path, kinds):
    labels = np.array(kinds, object if isinstance(kinds[0], str) else None)[(day(0)[:, 0] > 0).astype(int)]
    with_labels = {"labels": labels, "init": RandomExamples(2), "schedule": Memoized(laps=30), "moves": ()}
    train(MODELS["mixture"], day(0), store=tmp_path / "run", **with_labels)
    for number in (1, 2):
        found = grow(tmp_path / "run", day(number), labels=labels[: len(day(number))])
        assert found.version == number


HOW = {
    "columns": {"columns": ["b", "a"]},
    "groups": {"columns": ["a", "b"], "groups": "rec", "order": "t"},
    "blocks": {"columns": ["a"], "groups": "rec", "order": "t", "cut": 10},
    "weights": {"columns": ["a"], "weights": "t"},
}


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("how", HOW)
def test_a_source_of_a_file_is_opened_again_with_its_columns_and_groups(tmp_path, how, kind):
    pd = pytest.importorskip("pandas")
    paths = []
    for number in (0, 1):
        rng = np.random.default_rng(number)
        table = pd.DataFrame(rng.normal(size=(60, 3)) + 8 * (np.arange(60) // 30)[:, None], columns=list("abc"))
        table = table.assign(rec=np.repeat([0, 1], 30) + 2 * number, t=np.tile(np.arange(30), 2))
        paths.append(str(tmp_path / f"{number}.{kind}"))
        table.to_parquet(paths[-1]) if kind == "parquet" else table.to_csv(paths[-1], index=False)
    model = MODELS["chains"] if "groups" in HOW[how] else MODELS["mixture"]
    source = as_source(paths[0], batch_size=30, **HOW[how])
    begin(tmp_path / "run", source, model=model, moves=())
    assert grow(tmp_path / "run", paths[0], batch_size=30).known == (paths[0],)
    found = grow(tmp_path / "run", paths[1], batch_size=30, revisit=9)
    assert (found.new, found.revisited) == ((paths[1],), source.n_batches)
    assert gap(tmp_path / "run") < 1e-12


def test_a_store_whose_groups_were_cut_for_its_source_alone_is_not_opened_again_with_others(tmp_path):
    table = pd.DataFrame(day(0, n=60), columns=list("abc")).assign(rec=np.repeat([0, 1], 30))
    table.to_parquet(tmp_path / "0.parquet")
    ingest(tmp_path / "0.parquet", tmp_path / "0.zarr", columns=["a", "b"], group_column="rec")
    begin(tmp_path / "run", as_source(tmp_path / "0.zarr", cut=10), model=MODELS["chains"], moves=())
    new = as_source(day(1, n=60)[:, :2], groups=np.array([0, 30, 60]))
    assert grow(tmp_path / "run", new, revisit=9).revisited == 0
    assert gap(tmp_path / "run") < 1e-12


def test_a_source_of_a_file_is_opened_again_where_it_was_opened(tmp_path, monkeypatch):
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "before" / "x.npy", day(0))
    np.save(tmp_path / "before" / "w.npy", np.full(len(day(0)), 2.0))
    monkeypatch.chdir(tmp_path / "before")
    source = as_source("x.npy", batch_size=60, weights="w.npy")
    monkeypatch.chdir(tmp_path / "after")
    begin(tmp_path / "run", source, model=MODELS["mixture"], moves=())
    assert grow(tmp_path / "run", day(1), revisit=9).revisited == source.n_batches
    assert gap(tmp_path / "run") < 1e-12


def test_what_is_given_twice_is_taken_once(tmp_path, monkeypatch):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    assert grow(tmp_path / "run", paths[1]).new == (str(paths[1]),)
    before = bits_of(tmp_path / "run")
    again = grow(tmp_path / "run", os.path.relpath(paths[1]))
    assert (again.new, again.known, again.version) == ((), (str(paths[1]),), 1)
    with monkeypatch.context() as patch:
        patch.setattr(looking, "look", None)  # sizes and times tell
        assert grow(tmp_path / "run", paths[0]).known == (str(paths[0]),)
        assert grow(tmp_path / "run", paths[1]).known == (str(paths[1]),)
    os.utime(paths[1])  # another time, and the same content
    assert grow(tmp_path / "run", paths[1]).known == (str(paths[1]),)
    assert bits_of(tmp_path / "run") == before
    whole = grow(tmp_path / "run", tmp_path / "in")
    assert (whole.new, whole.known) == ((str(paths[2]),), (str(paths[0]), str(paths[1])))


def test_arrays_are_known_by_their_content(tmp_path):
    begin(tmp_path / "run", day(0))
    assert grow(tmp_path / "run", day(0)).new == ()
    assert grow(tmp_path / "run", day(1)).version == 1
    assert grow(tmp_path / "run", day(1)).known == ("in memory",)


def test_files_of_a_folder_that_was_trained_on_are_known(tmp_path):
    import pandas as pd

    (tmp_path / "in").mkdir()
    for number in (0, 1):
        pd.DataFrame(day(number), columns=list("abc")).to_parquet(tmp_path / "in" / f"{number}.parquet")
    begin(tmp_path / "run", tmp_path / "in")
    pd.DataFrame(day(2), columns=list("abc")).to_parquet(tmp_path / "in" / "2.parquet")
    found = grow(tmp_path / "run", tmp_path / "in")
    assert [os.path.basename(name) for name in found.new] == ["2.parquet"]
    assert found.posterior.summary["N"].sum() == pytest.approx(720)


def write_day(number, path):
    import pandas as pd

    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, day(number))
        return
    frame = pd.DataFrame(day(number), columns=list("abc"))
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "suffix"), [("in", "parquet"), ("in", "npy"), ("in", "csv"), ("in/*.npy", "npy"), ("in/*.csv", "csv")]
)
def test_a_place_that_grew_is_visited_as_it_was(tmp_path, name, suffix):
    """A folder or pattern: the files that the run had are visited again, to the bits of a place that stayed."""
    for number in (0, 1):
        write_day(number, tmp_path / "in" / f"{number}.{suffix}")
    write_day(2, tmp_path / "elsewhere" / f"2.{suffix}")
    for store in ("run", "quiet"):
        begin(tmp_path / store, tmp_path / name, batch_size=240)
    grow(tmp_path / "quiet", tmp_path / "elsewhere", batch_size=240, revisit=1)
    write_day(2, tmp_path / "in" / f"2.{suffix}")
    found = grow(tmp_path / "run", tmp_path / name, batch_size=240, revisit=1)
    assert [os.path.basename(piece) for piece in found.new] == [f"2.{suffix}"]
    assert bits_of(tmp_path / "run") == bits_of(tmp_path / "quiet")
    assert grow(tmp_path / "run", tmp_path / name, batch_size=240).new == ()
    write_day(3, tmp_path / "in" / f"3.{suffix}")
    later = grow(tmp_path / "run", tmp_path / name, batch_size=240, revisit=2)
    assert later.posterior.summary["N"].sum() == pytest.approx(960)


@pytest.fixture(scope="module")
def quiet_run(tmp_path_factory):
    """Bits of a run of three updates that nothing disturbed, and how to make it again."""
    folder = tmp_path_factory.mktemp("quiet")
    paths = files(folder / "in", 4, k=5)

    def first(store):
        begin(store, paths[0])
        return paths[1:]

    for path in first(folder / "run"):
        grow(folder / "run", path)
    return first, bits_of(folder / "run")


def test_workers_do_not_change_bits(tmp_path, quiet_run):
    first, expected = quiet_run
    executor = ThreadExecutor(3)
    try:
        for path in first(tmp_path / "run"):
            grow(tmp_path / "run", path, client=executor)
    finally:
        executor.close()
    assert bits_of(tmp_path / "run") == expected


SAVED, PREPARED = (growing_run, "save"), (RunStore, "prepare")
RECORDED, COMMITTED, PUBLISHED = (Versions, "write"), (RunStore, "write"), (Versions, "point_at")
KILLS = [
    [(SAVED, "before"), (SAVED, "after"), (PREPARED, "before")],
    [(PREPARED, "after"), (RECORDED, "before"), (RECORDED, "after")],
    [(COMMITTED, "before"), (COMMITTED, "after"), (PUBLISHED, "before")],
    [(PUBLISHED, "after"), (COMMITTED, "after"), (COMMITTED, "before")],
]


@pytest.mark.first_case
@pytest.mark.parametrize("kills", KILLS, ids=["begin", "records", "commit", "publish"])
def test_a_killed_update_is_repeated_to_the_same_bits(tmp_path, quiet_run, kills, monkeypatch):
    first, expected = quiet_run
    for path, ((owner, name), when) in zip(first(tmp_path / "run"), kills, strict=True):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, dying(getattr(owner, name), when))
            grow(tmp_path / "run", path)
        load(tmp_path / "run")
        grow(tmp_path / "run", path)
    assert bits_of(tmp_path / "run") == expected


def dying(original, when):
    """A function that is killed before or after it did its work."""

    def dies(*args, **more):
        if when == "after":
            original(*args, **more)
        raise KeyboardInterrupt

    return dies


def test_one_writes_at_a_time(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    other = RunStore.open(tmp_path / "run")
    with pytest.raises(StoreError, match="is being written by"):
        grow(tmp_path / "run", paths[1])
    other.close()
    assert grow(tmp_path / "run", paths[1]).version == 1


def test_bad_data_are_named_and_nothing_of_the_call_is_taken(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    before = bits_of(tmp_path / "run")
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"day2\.npy"):
        grow(tmp_path / "run", tmp_path / "in")
    np.save(paths[2], day(2)[:, :2])
    with pytest.raises(DataError, match=r"day2\.npy"):
        grow(tmp_path / "run", tmp_path / "in")
    np.save(paths[2], np.where(day(2) > 20, np.nan, np.where(np.arange(720).reshape(-1, 3) == 7, np.nan, day(2))))
    with pytest.raises(DataError, match=r"day2\.npy.*nan"):
        grow(tmp_path / "run", tmp_path / "in")
    assert bits_of(tmp_path / "run") == before
    np.save(paths[2], day(2))
    assert grow(tmp_path / "run", tmp_path / "in").new == (str(paths[1]), str(paths[2]))


def test_a_round_ends_undecided_where_a_file_is_gone(tmp_path):
    paths = files(tmp_path / "in", 4)
    begin(tmp_path / "run", paths[0])
    assert grow(tmp_path / "run", paths[1], revisit=0.5).waiting
    paths[0].unlink()
    for path in paths[2:]:
        found = grow(tmp_path / "run", path, revisit=2)
        assert not found.waiting
    assert found.revisited == 8  # days 1 and 2
    assert gap(tmp_path / "run") < 1e-12


def test_a_file_that_changed_is_refused(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    grow(tmp_path / "run", paths[1])
    np.save(paths[1], day(7))
    with pytest.raises(StoreError, match="with another content"):
        grow(tmp_path / "run", paths[1])


def test_a_pure_stream_reads_no_old_batch(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    grow(tmp_path / "run", paths[1], revisit=0)
    paths[0].unlink()
    paths[1].unlink()
    found = grow(tmp_path / "run", paths[2], revisit=0)
    assert (found.new_batches, found.revisited, found.waiting) == (4, 0, False)
    assert gap(tmp_path / "run") < 1e-12


def test_older_batches_are_visited_longest_ago_first_and_a_round_decides(tmp_path):
    paths = files(tmp_path / "in", 4)
    begin(tmp_path / "run", paths[0])
    first = grow(tmp_path / "run", paths[1], revisit=0.5)
    assert first.revisited == 2 and first.waiting
    second = grow(tmp_path / "run", paths[2], revisit=0.5)
    old = [row["n_batches"] for row in second.history if row["action"] != "new"]
    assert sum(old) == 2 and not second.waiting  # the two that the round lacked
    assert gap(tmp_path / "run") < 1e-12


def test_after_the_new_batches_the_objective_never_falls(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0])
    for path in paths[1:]:
        rows = grow(tmp_path / "run", path, revisit=2).history
        for before, row in zip(rows, rows[1:], strict=False):
            if row["action"] != "new":
                gained = row["gain"] + sum(move["gain"] or 0.0 for move in row["moves"] if move["accepted"])
                assert row["elbo"] == pytest.approx(before["elbo"] + gained, rel=1e-12)
                assert row["elbo"] >= before["elbo"] - 1e-9 * abs(before["elbo"])


def test_train_does_not_resume_a_run_that_has_grown(tmp_path):
    paths = files(tmp_path / "in", 2)
    begin(tmp_path / "run", paths[0])
    grow(tmp_path / "run", paths[1])
    with pytest.raises(StoreError, match="it has been updated since"):
        train(MODELS["mixture"], paths[0], store=tmp_path / "run", resume=True, batch_size=60)


def test_a_run_without_statistics_of_batches_is_refused(tmp_path):
    with pytest.warns(ConvergenceWarning):
        train(MODELS["mixture"], day(0), schedule=FullBatch(laps=2), moves=(), store=tmp_path / "run", batch_size=60)
    with pytest.raises(StoreError, match="keeps no statistics of batches"):
        grow(tmp_path / "run", day(1))


def test_new_clusters_are_found_and_old_ones_keep_their_ids(tmp_path):
    begin(tmp_path / "run", day(0, n=2000, k=3), batch_size=500, laps=10)
    before = load(tmp_path / "run")
    assert before.n_clusters == 3
    for number in (1, 2, 3):
        found = grow(tmp_path / "run", day(number, n=2000, k=5), batch_size=500)
    assert set(before.ids) <= set(found.posterior.ids)
    assert found.posterior.n_clusters == 5


def test_laps_over_all_data_let_clusters_settle(tmp_path):
    paths = files(tmp_path / "in", 2, n=1000, k=5)
    begin(tmp_path / "run", paths[0], laps=2, batch_size=100)
    found = grow(tmp_path / "run", paths[1], batch_size=100, laps=8)
    assert found.posterior.n_clusters == 5 and not found.waiting
    assert found.revisited == 10 + 8 * 20
    assert gap(tmp_path / "run") < 1e-12
    elbo = np.array([row["elbo"] for row in found.history if row["action"] != "new"])
    assert (np.diff(elbo) > -1e-9 * np.abs(elbo[1:])).all()


def test_a_place_is_known_without_reading_only_where_its_files_tell():
    piece = Piece("s3://bucket/a.npy", "s3://bucket/a.npy")
    for before, now, known in ([[1, 2]], [[1, 2]], True), ([[1, 2]], [[1, 3]], False), (None, None, False):
        assert Known({piece.place: (before, 7)}, frozenset()).has_place(piece, now) == known
    assert Known({piece.place: (None, None)}, frozenset()).has_place(piece, None)  # of a folder compared as a whole


def test_a_folder_is_taken_file_by_file_and_a_store_of_any_name_as_one(tmp_path):
    folder = tmp_path / "in"
    for name in ("b/2.npy", "a.npy", "b/1.npy", "store/zarr.json", "store/x/c/0", "old/.zgroup", "named.zarr/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    for name in (".hidden.npy", "_SUCCESS", "c.npy.tmp", "b/c.part", "d.crdownload"):
        (folder / name).write_text("")
    names = ["a.npy", "b/1.npy", "b/2.npy", "named.zarr", "old", "store"]
    assert [piece.place for piece in pieces_of(folder)] == [str(folder / name) for name in names]
    assert [piece.place for piece in pieces_of(f"{folder}/b/*.npy")] == [str(folder / name) for name in names[1:3]]
    assert [piece.place for piece in pieces_of(folder / "store")] == [str(folder / "store")]
    with pytest.raises(DataError, match="no file has such a name"):
        pieces_of(f"{folder}/*.csv")
    (piece,) = pieces_of(np.zeros((3, 2)))
    assert piece.place is None


# -- what lies beside the rows ------------------------------------------------------------------------------------
def beside(kind):
    """A model, rows of four days of two batches, something beside each row, and what the totals have of that."""
    rng = np.random.default_rng(6)
    if kind == "responses":
        rows, given = [counts_of(n)[:20] for n in range(4)], [rng.normal(size=20) for _ in range(4)]
        model, field = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), "responses"
        return model, rows, given, field, [20.0] * 4
    rows = [day(n, n=120) for n in range(4)]
    if kind == "labels":
        given = [np.where(np.arange(120) % 6 == 0, np.where(x[:, 0] < 0, 0, 1), -1) for x in rows]
        return MODELS["mixture"], rows, given, KNOWN, [20.0] * 4
    given = [np.where(np.arange(120) < 40, np.arange(120) // 2, -1) for _ in rows]
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(), linked=True)
    return model, rows, given, "units", [100.0] * 4


@pytest.mark.parametrize("kind", ["labels", "links", "responses"])
def test_what_lies_beside_rows_is_opened_again_with_them(tmp_path, kind, caplog):
    """From files, with the first data and with later ones; what was an array in memory is not there again."""
    caplog.set_level("INFO")
    model, rows, given, field, held = beside(kind)
    size, places = 10 if kind == "responses" else 60, []
    for n, (x, more) in enumerate(zip(rows, given, strict=True)):
        places.append((tmp_path / f"{n}.{'npz' if kind == 'responses' else 'npy'}", tmp_path / f"beside{n}.npy"))
        sparse.save_npz(places[n][0], x.tocsr()) if kind == "responses" else np.save(places[n][0], x)
        np.save(places[n][1], more)

    def total(found):
        return pytest.approx(found.posterior.summary[field].sum(), rel=1e-12)

    store = tmp_path / "run"
    begin(store, places[0][0], model=model, laps=1, moves=(), batch_size=size, **{kind: str(places[0][1])})
    assert total(grow(store, places[1][0], batch_size=size, revisit=9, **{kind: str(places[1][1])})) == sum(held[:2])
    found = grow(store, places[2][0], batch_size=size, revisit=9, **{kind: given[2]})
    assert total(found) == sum(held[:3]) and found.revisited == 4
    found = grow(store, places[3][0], batch_size=size, revisit=9)
    alone = 120.0 if kind == "links" else 0.0
    assert total(found) == sum(held[:3]) + alone
    assert found.revisited == 4  # the batches of the third day stay as they were
    assert "2 of 6 older batches cannot be visited again" in caplog.text
    assert f"its {kind} were given as an array in memory" in caplog.text
    assert gap(store) < 1e-12
    with pytest.raises(SettingError, match=rf"1.np[yz] came with {kind}; retire\(\) it, and update\(..., {kind}=\)"):
        bnp.replace(store, places[1][0], client=SerialExecutor())
    if kind != "labels":
        return
    np.save(places[1][1], given[1][:100])  # no longer a label for each row
    found = grow(store, day(9, n=60), revisit=9)
    assert total(found) == sum(held[:3]) and found.revisited == 4


@pytest.mark.parametrize("kind", ["labels", "links", "responses"])
def test_rows_of_a_run_have_what_lies_beside_them(tmp_path, kind):
    model, rows, given, *_ = beside(kind)
    size = 10 if kind == "responses" else 60
    for n in (0, 1):
        path = tmp_path / f"{n}.{'npz' if kind == 'responses' else 'npy'}"
        sparse.save_npz(path, rows[n].tocsr()) if kind == "responses" else np.save(path, rows[n])
        np.save(tmp_path / f"beside{n}.npy", given[n])
        facts = {"batch_size": size, kind: str(tmp_path / f"beside{n}.npy")}
        if n == 0:
            begin(tmp_path / "run", path, model=model, laps=1, moves=(), **facts)
        else:
            grow(tmp_path / "run", path, revisit=0.5, **facts)
    with contextlib.closing(RunStore.open(tmp_path / "run")) as opened:
        source = growing_run.GrowingRun.open(opened).source(reads_old=True)
        batches = [source.reader(b)() for b in range(4)]
    found = [getattr(b, kind) if getattr(b, kind) is not None else np.full(b.n_atoms, -1) for b in batches]
    if kind != "links":  # these are apart from those of all other data
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(given[:2]))
        return
    for own, known in zip(found, np.split(np.concatenate(given[:2]), 4), strict=True):
        np.testing.assert_array_equal(own < 0, known < 0)
        assert len(np.unique(own)) == len(np.unique(known))


def test_responses_are_numbers_or_positions_among_the_classes_of_the_run():
    def known(response, given):
        allocation = bnp.HDPTopics(response=response)
        return growing_run.responses_as(SimpleNamespace(model=SimpleNamespace(allocation=allocation)), given).tolist()

    assert known(bnp.CategoricalResponse(("b", "a"), (0.5, 0.5)), ["a", "b", "a"]) == [1.0, 0.0, 1.0]
    assert known(bnp.GaussianResponse(), [2.5, -1.0]) == [2.5, -1.0]
    with pytest.raises(DataError, match="c"):
        known(bnp.CategoricalResponse(("b", "a"), (0.5, 0.5)), ["a", "c"])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("labels", r"labels: the run was begun without; begin a new one with train\(..., labels=known\)"),
        ("links", r"links: the run was begun without, and counts rows one by one"),
        ("responses", r"responses: the run was begun without; begin a new one with train\(..., responses=y\)"),
    ],
)
def test_what_a_run_was_begun_without_is_refused_beside_later_rows(tmp_path, kind, message):
    begin(tmp_path / "run", day(0), laps=1)
    with pytest.raises(SettingError, match=message):
        grow(tmp_path / "run", day(1), **{kind: np.zeros(240, np.int64)})
    with pytest.raises(SettingError, match=f"{kind}.*one"):
        grow(tmp_path / "run", files(tmp_path / "in", 2)[0].parent, **{kind: np.zeros(240, np.int64)})
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(240)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *[("versions", 0), ("versions", 1.5), ("laps", -1), ("revisit", -0.5), ("revisit", np.nan), ("dormant", 0)],
        *[("half_life", "soon"), ("keep", "long"), ("on_version", 3), ("memory", "lots")],
        *[("on_bad", "shrug"), ("new_words", "keep")],
    ],
)
def test_settings_are_refused_by_name_before_a_run_is_opened(tmp_path, name, wrong):
    with pytest.raises(SettingError, match=rf"^{name}\b"):
        bnp.update(tmp_path / "none", day(0), **{name: wrong})


def test_an_update_tells_what_it_did(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0], laps=1)
    (tmp_path / "in" / "rubbish.npy").write_bytes(b"no array")
    found = grow(tmp_path / "run", tmp_path / "in", on_bad="set aside", revisit=1)
    assert repr(found).startswith(
        "UpdateResult: version 1, 2 new in 8 batches, 4 older visited, 1 known already, 1 set"
    )
    assert "<table" in found._repr_html_()
    again = grow(tmp_path / "run", day(7, n=60), revisit=0)
    assert repr(again).startswith("UpdateResult: version 2, 1 new in 1 batch, 0 older visited\n  ")


# -- all batches of a run -----------------------------------------------------------------------------------------
def test_the_batches_of_a_run_are_those_of_its_data_one_after_the_other(tmp_path):
    names = list("abc")
    first = bnp.as_source(pd.DataFrame(day(0, n=60), columns=names), batch_size=20)
    gone = growing_run.Absent("week.npy", 2, 3, False, "it is gone")
    alone = growing_run.GrownSource("run", (first,))
    assert (alone.n_batches, alone.n_features, alone.is_sparse) == (3, 3, False)
    assert alone.columns.names == tuple(names)
    grown = growing_run.GrownSource("run", (first, gone, bnp.as_source(day(1, n=60), batch_size=30)))
    assert grown.n_batches == 7 and grown.columns.names == tuple(names)
    assert grown.present.tolist() == [True] * 3 + [False] * 2 + [True] * 2
    assert [grown.part_of(b) for b in range(7)] == [0, 0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(grown.reader(2)().x, day(0, n=60)[40:])
    np.testing.assert_array_equal(grown.reader(6)().x, day(1, n=60)[30:])
    with pytest.raises(DataError, match="week.npy batch 1: it is gone"):
        grown.reader(4)()


def test_the_survey_of_a_run_that_grew_is_that_of_all_batches(tmp_path):
    paths = files(tmp_path / "in", 3)
    begin(tmp_path / "run", paths[0], laps=1)
    grow(tmp_path / "run", paths[1])
    grow(tmp_path / "run", paths[2])
    with contextlib.closing(RunStore.open(tmp_path / "run")) as opened:
        found = growing_run.GrowingRun.open(opened).survey()
    sources = [bnp.as_source(str(path), batch_size=60) for path in paths]
    whole = combine([survey_batch(source.reader(b)()) for source in sources for b in range(source.n_batches)])
    for name in ("n_atoms", "total_weight", "nbytes", "n_groups", "n_batches", "batch_atoms", "batch_bytes"):
        assert getattr(found, name) == getattr(whole, name), name
    assert (found.checksums, found.batch_weights) == (whole.checksums, whole.batch_weights)


@pytest.mark.parametrize("on_bad", ["raise", "set aside"])
def test_a_batch_that_no_worker_has_room_for_is_refused_before_it_is_read(tmp_path, on_bad):
    begin(tmp_path / "run", day(0), laps=1)
    np.save(tmp_path / "wide.npy", np.zeros((400_000, 3)))
    executor = SerialExecutor()
    executor.memory_limit = int((PROGRAM_BYTES + 1000) / KILLED_AT)
    if on_bad == "raise":
        with pytest.raises(SettingError, match="batch_size"):
            grow(tmp_path / "run", tmp_path / "wide.npy", client=executor, batch_size=400_000)
        return
    found = grow(tmp_path / "run", tmp_path / "wide.npy", client=executor, batch_size=400_000, on_bad=on_bad)
    assert [one.name for one in found.set_aside] == [str(tmp_path / "wide.npy")] and found.new == ()


def test_older_batches_are_visited_only_where_that_is_said(tmp_path):
    begin(tmp_path / "run", files(tmp_path / "in", 3)[0], laps=1)
    found = grow(tmp_path / "run", tmp_path / "in" / "day1.npy", revisit=1)
    assert found.revisited == found.new_batches == 4
    found = grow(tmp_path / "run", tmp_path / "in" / "day2.npy", revisit=0.5)
    assert found.revisited == 2
    assert found.posterior.summary["N"].sum() == pytest.approx(720)
    assert gap(tmp_path / "run") < 1e-12
