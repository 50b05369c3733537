"""Time passes for the batches of a run: they fade together, and go when they are too old."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.store import RunStore
from bnp_dask.training.growing.incoming import moment_of, time_in, times_of
from bnp_dask.training.growing.update import Line, Span, span_from, with_times
from tests.growing.parts import MODELS, begin, bits_of, day, day_of, gap, grow
from tests.growing.test_update import COMMITTED, dying


def dated(folder, number, count=60, **more):
    """Path of the rows of one day of November, named by it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"2026-11-{number:02d}.npy"
    np.save(path, day(number, n=count, **more))
    return path


def weights_of(store):
    return RunStore.view(store).load().arrays.get("weights")


@pytest.mark.parametrize("kind", MODELS)
def test_totals_are_the_weighted_sum_of_what_is_kept_for_every_kind_of_model(tmp_path, kind):
    begin(tmp_path / "run", day_of(kind, 0), model=MODELS[kind], laps=1)
    n = {"mixture": 240, "topics": 40 * 60, "chains": 120}[kind]
    n_batches = {"mixture": 4, "topics": 4, "chains": 2}[kind]
    for number in (1, 2):
        found = grow(tmp_path / "run", day_of(kind, number), half_life="2 batches")
        assert gap(tmp_path / "run") < 1e-12
    ages = np.arange(3 * n_batches)[::-1].astype(float)
    ages[:n_batches] = ages[n_batches - 1]  # time began to pass with the first update
    weights = 2.0 ** (-ages / 2)
    assert weights_of(tmp_path / "run") == pytest.approx(weights, rel=1e-14)
    assert found.posterior.summary["N"].sum() == pytest.approx(n / n_batches * weights.sum(), rel=1e-9)


def test_the_objective_falls_only_where_time_passes_and_the_history_says_so(tmp_path):
    paths = [dated(tmp_path / "in", number, count=120) for number in range(1, 6)]
    begin(tmp_path / "run", paths[0])
    for path in paths[1:]:
        rows = grow(tmp_path / "run", path, half_life="2d", revisit=2, laps=1).history
        assert [row["action"] for row in rows][:2] == ["aged", "new"]
        assert rows[0]["faded"] == pytest.approx(0.5**0.5) and rows[0]["gain"] is None
        for before, row in zip(rows, rows[1:], strict=False):
            if row["action"] != "new":
                gained = row["gain"] + sum(move["gain"] or 0.0 for move in row["moves"] if move["accepted"])
                assert row["elbo"] == pytest.approx(before["elbo"] + gained, rel=1e-12)
                assert row["elbo"] >= before["elbo"] - 1e-9 * abs(before["elbo"])
        assert gap(tmp_path / "run") < 1e-12
    newest = 2.0 ** (-np.repeat(np.arange(5)[::-1], 2) / 2)
    assert weights_of(tmp_path / "run") == pytest.approx(newest, rel=1e-14)


def test_killed_and_on_other_workers_the_bits_are_equal(tmp_path, monkeypatch):
    executor = ThreadExecutor(2)
    stores = (tmp_path / "quiet", tmp_path / "killed")
    paths = [dated(tmp_path / "in", number) for number in range(1, 5)]
    for store in stores:
        begin(store, paths[0])
    options = {"half_life": "1d", "keep": "2d", "revisit": 0.5}
    for path in paths[1:]:
        grow(stores[0], path, **options)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(*COMMITTED, dying(getattr(*COMMITTED), "before"))
            grow(stores[1], path, **options)
        grow(stores[1], path, client=executor, **options)
    executor.close()
    assert bits_of(stores[0]) == bits_of(stores[1])
    assert gap(stores[0]) < 1e-12


def test_late_data_enter_with_the_weight_of_their_age_and_the_clock_does_not_go_back(tmp_path):
    begin(tmp_path / "run", dated(tmp_path / "in", 10))
    grow(tmp_path / "run", dated(tmp_path / "in", 12), half_life="2d")
    late = grow(tmp_path / "run", dated(tmp_path / "in", 8), half_life="2d")
    assert late.history[0]["action"] == "new"  # no time has passed
    assert weights_of(tmp_path / "run") == pytest.approx([0.5, 1.0, 0.25])
    assert gap(tmp_path / "run") < 1e-12
    ahead = grow(tmp_path / "run", dated(tmp_path / "in", 28), half_life="1s")  # nothing is left of the others
    assert ahead.posterior.summary["N"].sum() == pytest.approx(60) and np.isfinite(ahead.history[-1]["elbo"])
    assert gap(tmp_path / "run") < 1e-12


def test_time_that_passed_before_late_data_came_does_not_pass_again():
    line = Line.of(Span(1.0, "seconds"), [1] * 4, np.array([1.0, 5.0, 2.0, 6.0]), 3)
    assert (line.before, line.now) == (5.0, 6.0)
    assert line.age.tolist() == [5.0, 1.0, 4.0, 0.0]


def test_what_is_too_old_leaves_and_an_open_round_goes_on_without_it(tmp_path):
    paths = [dated(tmp_path / "in", number, count=120, k=5) for number in range(1, 8)]
    begin(tmp_path / "run", paths[0], laps=1, k=5)
    waiting, decided = [], []
    for path in paths[1:]:
        found = grow(tmp_path / "run", path, keep="2d", revisit=0.5)
        waiting.append(found.waiting)
        decided += [(len(waiting), m["kind"]) for row in found.history for m in row["moves"] if m["kind"] != "birth"]
        assert gap(tmp_path / "run") < 1e-12
    assert found.posterior.summary["N"].sum() == pytest.approx(3 * 120, rel=1e-12)
    assert next(row["action"] for row in found.history) == "retired"
    assert True in waiting[2:-1] and waiting[-1] is False and decided


def test_a_replaced_file_weighs_what_it_weighed(tmp_path):
    paths = [dated(tmp_path / "in", number) for number in (1, 2, 3)]
    begin(tmp_path / "run", paths[0])
    for path in paths[1:]:
        grow(tmp_path / "run", path, half_life="1d")
    np.save(paths[1], day(9, n=60))
    bnp.replace(tmp_path / "run", paths[1])
    assert weights_of(tmp_path / "run")[[0, 2, 3]] == pytest.approx([0.25, 1.0, 0.5])
    assert gap(tmp_path / "run") < 1e-12


def test_retire_by_time_and_by_number(tmp_path):
    begin(tmp_path / "run", dated(tmp_path / "in", 1))
    for number in (2, 3):
        grow(tmp_path / "run", dated(tmp_path / "in", number))
    last = dated(tmp_path / "in", 4)
    assert main(["update", str(tmp_path / "run"), str(last), "--keep", "30d", "--half-life", "1000w", "--quiet"]) == 0
    assert weights_of(tmp_path / "run")[0] == pytest.approx(2.0 ** (-1 / 7000), rel=1e-12)
    assert bnp.retire(tmp_path / "run", before="2026-11-02").summary["N"].sum() == pytest.approx(180, rel=1e-3)
    assert bnp.retire(tmp_path / "run", batches=[2]).summary["N"].sum() == pytest.approx(120, rel=1e-3)
    for number in (4, 9):
        with pytest.raises(SettingError, match=f"batches={number}: the run has 0 to 3"):
            bnp.retire(tmp_path / "run", batches=number)
    for wrong in (True, [1.5], [0, -1], ["1"]):
        with pytest.raises(SettingError, match=r"batches\["):
            bnp.retire(tmp_path / "run", batches=wrong)
    with pytest.raises(SettingError, match="say which data are to go"):
        bnp.retire(tmp_path / "run")
    assert main(["retire", str(tmp_path / "run"), "--before", "2026-11-03"]) == 0
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(60)


def test_retiring_in_an_open_round_leaves_no_row_of_the_data(tmp_path):
    paths = [dated(tmp_path / "in", number, count=240) for number in (1, 2, 3)]
    begin(tmp_path / "run", paths[0])
    for path in paths[1:]:
        waiting = grow(tmp_path / "run", path, revisit=0.25).waiting
    assert waiting and any(name.startswith("gathered") for name in RunStore.view(tmp_path / "run").load().arrays)
    bnp.retire(tmp_path / "run", paths[1])
    assert not any(name.startswith("gathered") for name in RunStore.view(tmp_path / "run").load().arrays)


def test_dates_in_names_are_of_one_time_zone_wherever_a_run_is_updated(monkeypatch):
    found = set()
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found.add((time_in("day-2026-11-02.npy"), time_in("2026-11-02T063005.npy"), moment_of("2026-11-02")))
    monkeypatch.undo()
    time.tzset()
    midnight = 20_759 * 86_400.0  # days since 1970
    assert found == {(midnight, midnight + 6.5 * 3600.0 + 5.0, midnight)}


def test_times_come_from_names_columns_and_what_is_given(tmp_path):
    november = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()
    for name in ("2026-11-01.parquet", "news_20261101.npy", "x1234567/date=2026-11-01"):
        assert time_in(name) == november
    assert time_in("log-2026.11.01T0630.csv") == november + 6.5 * 3600
    assert np.isnan(time_in("20269901-123456789012"))
    table = pd.DataFrame({"a": [1.0, 2, 3], "when": pd.to_datetime(["2026-11-01", "2026-10-01", "2026-11-02"])})
    expected = [november, november + 86400]
    table.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    for data in (tmp_path / "t.parquet", tmp_path / "t.csv", table, pa.Table.from_pandas(table)):
        place = str(data) if isinstance(data, Path) else None
        assert times_of(data, place, [2, 1], "when").tolist() == expected
    assert times_of(None, "2026-10-01.npy", [1], datetime.date(2026, 11, 1)).tolist() == [november]
    with pytest.raises(DataError, match="has no column 'date'"):
        times_of(table, None, [2, 1], "date")
    with pytest.raises(DataError, match="no table of which column"):
        times_of("rows.npy", "rows.npy", [2], "when")
    assert with_times(np.array([np.nan]), np.array([5.0, 3.0])).tolist() == [3.0, 5.0, 3.0]
    assert with_times(np.array([4.0, 9.0]), np.array([np.nan, 2.0])).tolist() == [4.0, 9.0, 9.0, 2.0]


def test_columns_of_times_say_how_old_batches_are(tmp_path):
    def write(number):
        table = pd.DataFrame(day(number, n=60), columns=list("abc"))
        path = tmp_path / f"part{number}.parquet"
        table.assign(date=pd.Timestamp(2026, 11, 1) + pd.Timedelta(days=number)).to_parquet(path)
        return path

    with pytest.warns(UserWarning, match=r"left out: 'date' \(dates"):
        begin(tmp_path / "run", write(0))
    for number in (1, 2):
        grow(tmp_path / "run", write(number), time="date", half_life="1d", keep="1d")
    assert weights_of(tmp_path / "run") == pytest.approx([0.25, 0.5, 1.0])
    assert bnp.load(tmp_path / "run").summary["N"].sum() == pytest.approx(90)


@pytest.mark.parametrize("time", [np.datetime64("NaT"), pd.NaT, np.datetime64("300000000000-01-01")], ids=str)
def test_a_date_that_is_no_time_is_refused(time):
    with pytest.raises(SettingError, match=r'needs a time such as "2026-11-01" \('):
        moment_of(time)


def test_spans_are_told_by_their_units():
    assert span_from("keep", "2h") == span_from("keep", datetime.timedelta(hours=2)) == Span(7200, "seconds")
    assert span_from("keep", "1e6 atoms") == Span(1e6, "atoms") and span_from("keep", "1 batch") == Span(1, "batches")
    for wrong in (30, "30", "0d", "-1d", "3 months", "inf d", "1e999 d"):
        with pytest.raises(SettingError, match='keep=.*needs a length such as "30d"'):
            span_from("keep", wrong)


def test_without_any_time_a_length_of_time_is_refused(tmp_path):
    begin(tmp_path / "run", day(0))
    before = bits_of(tmp_path / "run")
    with pytest.raises(SettingError, match="no data have a time"):
        grow(tmp_path / "run", day(1), half_life="1d")
    assert bits_of(tmp_path / "run") == before
    found = grow(tmp_path / "run", day(1), half_life="1d", time="2026-11-01")
    assert found.version == 1 and weights_of(tmp_path / "run") == pytest.approx(np.ones(8))


def test_versions_whose_score_fell_are_refused(tmp_path):
    begin(tmp_path / "run", dated(tmp_path / "in", 1, count=240))
    path, before = dated(tmp_path / "in", 2), bits_of(tmp_path / "run")
    seen = []
    found = grow(tmp_path / "run", path, on_version=lambda version: seen.append(version) or False)
    assert (found.refused, found.new, found.version) == ((str(path),), (), 0)
    assert (found.new_batches, found.revisited, found.changes) == (0, 0, ())
    assert seen[0].version == 1 and seen[0].posterior.summary["N"].sum() == pytest.approx(300)
    assert bits_of(tmp_path / "run") == before
    with pytest.raises(SettingError, match="on_version=3: needs a function"):
        grow(tmp_path / "run", path, on_version=3)
    kept = grow(tmp_path / "run", path, on_version=lambda version: version.fresh > -100)
    assert kept.version == 1 and kept.refused == ()


def test_batches_of_a_time_and_by_number_leave_together(tmp_path):
    begin(tmp_path / "run", dated(tmp_path / "in", 1))
    for number in (2, 3, 4):
        grow(tmp_path / "run", dated(tmp_path / "in", number))
    # a batch from exactly that time stays
    found = bnp.retire(tmp_path / "run", before="2026-11-02", batches=[2])
    assert found.summary["N"].sum() == pytest.approx(120, rel=1e-3)
