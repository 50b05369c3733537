"""``on_bad_batch="skip"``: the run goes on, the batch is out of every total, history and report count it."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.core.survey import without as without_batches
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.store import Manifest, RunStore
from tests.faults.parts import N_BATCHES, SCHEDULES, Faulty, atoms, bits, go
from tests.faults.test_data import DAMAGES, ROWS, SCHEMAS, N, make_parquet, make_zarr
from tests.faults.test_data import train as run
from tests.stopping import AfterSteps

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def without(x, *batches, rows=ROWS):
    """The atoms of all other batches."""
    keep = ~np.isin(np.arange(len(x)) // rows, batches)
    return x[keep]


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_chunk_is_left_out(tmp_path, name, caplog):
    path = make_zarr(tmp_path / "x.zarr")
    DAMAGES[name](path / "c" / "5" / "0")
    with pytest.raises(DataError, match="batch 5"):
        run(str(path), batch_size=ROWS)
    result = run(str(path), batch_size=ROWS, on_bad_batch="skip", store=tmp_path / "run")
    assert len(result.skipped) == 1
    assert "x.zarr batch 5" in result.skipped[0]
    assert "c/5/0" in result.skipped[0]
    assert result.posterior.summary["N"].sum() == pytest.approx(N - ROWS, rel=1e-12)
    assert [row["skipped"] for row in result.history] == [1] * len(result.history)
    assert result.history[-1]["atoms"] == pytest.approx(N - ROWS)
    assert any("skipped: " in message and "c/5/0" in message for message in caplog.messages)
    assert "1 batches skipped" in repr(result)
    # priors that are set from the data do not see it either: the model is that of the other atoms
    clean = run(without(atoms(N), 5), batch_size=ROWS)
    np.testing.assert_allclose(
        result.posterior.model.observation.beta, clean.posterior.model.observation.beta, rtol=1e-12
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_fragment_of_another_schema_is_left_out(tmp_path, name):
    folder = make_parquet(tmp_path / "table")
    file = folder / "part-5.parquet"
    pq.write_table(SCHEMAS[name](pq.read_table(file)), file)
    for size in (ROWS, None) if name != "nulls" else (ROWS,):
        result = run(str(folder), batch_size=size, on_bad_batch="skip")
        assert len(result.skipped) == 1
        if name != "nulls":
            assert "part-5.parquet" in result.skipped[0]
        assert result.posterior.summary["N"].sum() == pytest.approx(N - ROWS)


@pytest.mark.parametrize("number", [0, 7])
def test_a_fragment_that_is_no_parquet_is_left_out(tmp_path, number):
    """Also the first one, from which the columns are taken otherwise."""
    folder = make_parquet(tmp_path / "table")
    (folder / f"part-{number}.parquet").write_bytes(b"PAR1 and nothing else")
    result = run(str(folder), batch_size=ROWS, on_bad_batch="skip")
    assert f"part-{number}.parquet" in result.skipped[0]
    assert result.posterior.summary["N"].sum() == pytest.approx(N - ROWS)


def test_rows_that_the_likelihood_refuses(tmp_path):
    x = atoms(N)
    x[ROWS + 3, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    result = run(str(tmp_path / "x.npy"), batch_size=ROWS, on_bad_batch="skip")
    assert "row 3, column 1 is nan" in result.skipped[0]
    assert result.posterior.summary["N"].sum() == pytest.approx(N - ROWS)


def test_counts_and_groups():
    counts = np.random.default_rng(0).poisson(2.0, (80, 6)).astype(float) + 1
    counts[25, 2] = -1.0
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1))
    settings = {"init": bnp.RandomExamples(2), "schedule": bnp.Memoized(laps=2), "batch_size": 20}
    result = bnp.train(model, sparse.csr_array(counts), on_bad_batch="skip", client=SerialExecutor(), **settings)
    assert len(result.skipped) == 1
    good = np.delete(counts, slice(20, 40), axis=0)
    assert result.posterior.summary["N"].sum() == pytest.approx(good.sum())

    x = atoms(200, 2)
    x[70] = np.inf
    source = bnp.as_source(x, groups=np.arange(0, 201, 10), batch_size=50)
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    settings = {"init": bnp.ContiguousBlocks(3), "schedule": bnp.Memoized(laps=2)}
    result = bnp.train(model, source, on_bad_batch="skip", client=SerialExecutor(), **settings)
    assert len(result.skipped) == 1
    assert result.posterior.summary["N"].sum() == pytest.approx(150)


SOON = ("full batch with moves", "stochastic")
SHORT = [n if n in SOON else pytest.param(n, marks=pytest.mark.long) for n in SCHEDULES]


@pytest.mark.parametrize("name", SHORT)
def test_the_same_bits_on_workers_and_after_a_resume(dask_client, tmp_path, name):
    """Batches 2 and 6 can never be read, with every schedule and move."""
    bad = frozenset((b, call) for b in (2, 6) for call in range(200))

    def data(folder):
        (tmp_path / folder).mkdir()
        return Faulty(atoms(), str(tmp_path / folder), fails=bad)

    more = {"on_bad_batch": "skip"}
    alone = go(SerialExecutor(), name, data("serial"), **more)
    assert len(alone.skipped) == 2
    assert "NamedError: batch 2 call 3" in alone.skipped[0]
    assert "/data/atoms.zarr batch 2" in alone.skipped[0]
    assert alone.posterior.summary["N"].sum() == pytest.approx(1200 * (N_BATCHES - 2) / N_BATCHES)
    store = tmp_path / "run"
    half = go(
        SerialExecutor(), name, data("half"), store=store, callbacks=[AfterSteps(4)], checkpoint_minutes=1e-9, **more
    )
    assert half.reason == "stopped by a callback"
    rest = go(dask_client(2), name, data("rest"), store=store, resume=True, **more)
    assert bits(rest) == bits(alone)
    assert len(rest.skipped) == 2


@pytest.mark.parametrize("lap", [2, 3])
def test_the_gain_of_a_step_does_not_count_a_batch_that_left(tmp_path, lap):
    """Its atoms leave the objective before assignments are compared: 150 atoms cost hundreds of nats."""
    reads = 1 + lap  # the survey, and a visit a lap before it
    bad = frozenset((2, call) for call in range(reads, 100))
    schedule = bnp.Memoized(laps=4, window=4, order="fixed", tolerance=0.0)
    found = go(
        SerialExecutor(),
        data=Faulty(atoms(), str(tmp_path), fails=bad),
        schedule=schedule,
        moves=(),
        on_bad_batch="skip",
    )
    lost = [row for row in found.history if row.get("lost")]
    assert [row["lap"] for row in lost] == [lap]
    assert 0.0 <= lost[0]["gain"] < 1.0


def test_a_skipped_batch_that_is_back_at_resume_is_noticed(tmp_path):
    path = make_zarr(tmp_path / "x.zarr")
    chunk = path / "c" / "5" / "0"
    kept = chunk.read_bytes()
    chunk.unlink()
    run(str(path), batch_size=ROWS, on_bad_batch="skip", store=tmp_path / "run")
    chunk.write_bytes(kept)
    with pytest.raises(StoreError, match=r"the data changed \(skipped: the run has \[5\], this call \[\]"):
        run(str(path), batch_size=ROWS, on_bad_batch="skip", store=tmp_path / "run", resume=True)


def test_a_survey_without_some_batches_counts_the_others_alone():
    parts = [survey_batch(Batch(atoms(n), np.full(n, w), f"batch {n}")) for n, w in ((10, 2.0), (20, 0.5), (30, 3.0))]
    left = without_batches(combine(parts), [1])
    assert (left.n_atoms, left.total_weight, left.nbytes) == (40, 110.0, parts[0].nbytes + parts[2].nbytes)
    assert left.batch_atoms == (10, 0, 30)
    assert left.batch_weights == (20.0, 0.0, 90.0)


def test_nothing_left_is_an_error(tmp_path):
    path = make_zarr(tmp_path / "x.zarr")
    shutil.rmtree(path / "c")
    with pytest.raises(DataError, match=r"none of its 8 batches can be used; the first: .*c/0/0"):
        run(str(path), batch_size=ROWS, on_bad_batch="skip")


def test_good_data_are_not_touched():
    assert bits(run(atoms(N), batch_size=ROWS, on_bad_batch="skip")) == bits(run(atoms(N), batch_size=ROWS))
    with pytest.raises(SettingError, match='needs "raise" or "skip"'):
        run(atoms(N), on_bad_batch="ignore")


@pytest.mark.long
def test_on_the_command_line_and_in_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = make_parquet(tmp_path / "table")
    pq.write_table(pa.table({"c0": ["text"] * 5}), folder / "part-3.parquet")
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "table", "batch_size": ROWS},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 2},
        "store": "run",
        "on_bad_batch": "skip",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "run.yaml"]) == 0
    shown = capsys.readouterr()
    assert "batches skipped: 1" in shown.out
    assert "part-3.parquet" in shown.err
    assert main(["resume", "run", "--laps", "3"]) == 0
    store = RunStore.view("run")
    assert list(Manifest.of_key(store.manifests, store.load().state["manifest"]["key"]).reasons) == [3]
    assert main(["report", "run", "report.html"]) == 0
    assert "Batches left out" in (tmp_path / "report.html").read_text(encoding="utf-8")
    job["on_bad_batch"] = "skipp"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "run.yaml", "--store", "other"]) == 2
    assert "on_bad_batch: 'skipp' is none of raise, skip" in capsys.readouterr().err
