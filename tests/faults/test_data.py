"""Data that are missing, cut short, of another codec or another schema: the error names the file and the batch."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from tests.faults.parts import atoms

ROWS, N = 50, 400
TWO_LAPS = bnp.Memoized(laps=2, window=3)


def train(data, client=None, schedule=TWO_LAPS, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
        client = SerialExecutor(retries=0) if client is None else client
        return bnp.train(model, data, init=bnp.BregmanKMeans(2), schedule=schedule, moves=(), client=client, **more)


def make_zarr(path):
    array = zarr.create_array(path, shape=(N, 3), chunks=(ROWS, 3), dtype="f8")
    array[...] = atoms(N)
    return path


def make_parquet(folder):
    folder.mkdir()
    for i, part in enumerate(np.array_split(atoms(N), 8)):
        pq.write_table(pa.table({f"c{j}": part[:, j] for j in range(3)}), folder / f"part-{i}.parquet")
    return folder


def remove(path):
    path.unlink()


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def empty(path):
    path.write_bytes(b"")


def noise(path):
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def other_codec(path):
    """The chunk of an array that was written with another codec."""
    other = path.parents[2].with_name("other.zarr")
    array = zarr.create_array(other, shape=(N, 3), chunks=(ROWS, 3), dtype="f8", compressors=zarr.codecs.GzipCodec())
    array[...] = atoms(N)
    shutil.copy(other / path.relative_to(path.parents[2]), path)


DAMAGES = {"missing": remove, "truncated": cut, "empty": empty, "noise": noise, "of another codec": other_codec}


WHO = [*(("serial", name) for name in DAMAGES), ("threads", "missing"), ("dask", "truncated")]
"""Every damage, and every executor."""


@pytest.mark.parametrize(("kind", "name"), WHO)
def test_a_damaged_chunk_names_file_and_batch(tmp_path, dask_client, kind, name):
    path = make_zarr(tmp_path / "x.zarr")
    DAMAGES[name](path / "c" / "5" / "0")
    executors = {
        "serial": lambda: SerialExecutor(0),
        "threads": lambda: ThreadExecutor(2, 0),
        "dask": lambda: DaskExecutor(dask_client(2), "data", 0),
    }
    executor = executors[kind]()
    with pytest.raises(DataError) as caught:
        train(str(path), executor, batch_size=ROWS)
    assert f"{path} batch 5" in str(caught.value)
    assert "c/5/0" in str(caught.value)
    executor.close()


def test_damage_after_the_survey_is_found_too(tmp_path):
    """The file goes while the run is under way."""
    path = make_zarr(tmp_path / "x.zarr")

    class Strike:
        def on_start(self, info):
            (path / "c" / "3" / "0").unlink()

        def on_batch(self, done):
            pass

        def on_lap(self, row, posterior):
            pass

        def on_end(self, reason):
            assert reason == "failed"

    with pytest.raises(DataError, match=r"x.zarr batch 3.*c/3/0.*is missing"):
        train(str(path), batch_size=ROWS, callbacks=[Strike()])


def as_rows(kind, folder, x):
    """The rows in a file of a kind, which is put in the place of the one before."""
    path = folder / f"x.{kind}"
    if kind == "npy":
        np.save(folder / "new.npy", x)
        (folder / "new.npy").replace(path)
    elif kind == "parquet":
        pq.write_table(pa.table({f"c{j}": x[:, j] for j in range(3)}), folder / "new", row_group_size=ROWS)
        (folder / "new").replace(path)
    else:
        shutil.rmtree(path, ignore_errors=True)
        array = zarr.create_array(path, shape=(N, 3), chunks=(ROWS, 3), dtype="f8")
        array[...] = x
    return path


@pytest.mark.parametrize("kind", ["npy", "parquet", "zarr"])
def test_rows_that_are_swapped_in_under_a_run_are_refused(tmp_path, kind):
    """Others of equal shape, between two laps of a run that read all of them itself; with the old ones it goes on."""
    schedule = bnp.Memoized(laps=3, window=3)
    path = as_rows(kind, tmp_path, atoms(N))
    quiet = train(str(path), batch_size=ROWS, schedule=schedule)

    class Swap(bnp.Progress):
        def on_lap(self, row, posterior):
            as_rows(kind, tmp_path, atoms(N, seed=9))

    with pytest.raises(DataError, match=rf"x.{kind} batch \d.*: the data changed, .*train\(..., resume=True\)"):
        train(str(path), batch_size=ROWS, schedule=schedule, store=tmp_path / "run", callbacks=[Swap()])
    as_rows(kind, tmp_path, atoms(N))
    found = train(str(path), batch_size=ROWS, schedule=schedule, store=tmp_path / "run", resume=True)
    assert found.posterior.summary["N"].tobytes() == quiet.posterior.summary["N"].tobytes()


SCHEMAS = {
    "a column less": lambda t: t.drop_columns("c1"),
    "a column more": lambda t: t.append_column("c9", t["c0"]),
    "a column of text": lambda t: t.set_column(1, "c1", pa.array(["x"] * len(t))),
    "another name": lambda t: t.rename_columns(["c0", "C1", "c2"]),
    "lists": lambda t: t.set_column(1, "c1", pa.array([[1.0, 2.0]] * len(t), pa.list_(pa.float64(), 2))),
    "nulls": lambda t: t.set_column(1, "c1", pa.array([None, *[1.0] * (len(t) - 1)])),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_fragment_of_another_schema_is_named(tmp_path, name):
    folder = make_parquet(tmp_path / "table")
    file = folder / "part-5.parquet"
    pq.write_table(SCHEMAS[name](pq.read_table(file)), file)
    with pytest.raises(DataError) as caught:
        train(str(folder), batch_size=ROWS)
    assert ("part-5.parquet" if name != "nulls" else "table batch 5") in str(caught.value)


def test_a_fragment_that_changes_its_schema_under_a_run(tmp_path):
    """After the source was opened: reading finds it, with file and batch."""
    folder = make_parquet(tmp_path / "table")
    source = bnp.as_source(str(folder), batch_size=ROWS)
    file = folder / "part-6.parquet"
    pq.write_table(SCHEMAS["a column of text"](pq.read_table(file)), file)
    with pytest.raises(Exception) as caught:
        train(source)
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "table batch 6" in said
    assert isinstance(caught.value, DataError)
    assert "part-6.parquet" in said
    file.unlink()
    with pytest.raises(DataError, match=r"batch 6.*part-6.parquet"):
        train(source)


@pytest.mark.parametrize("damage", [cut, noise])
def test_a_damaged_fragment(tmp_path, damage):
    folder = make_parquet(tmp_path / "table")
    source = bnp.as_source(str(folder), batch_size=ROWS)
    damage(folder / "part-2.parquet")
    with pytest.raises(DataError, match=r"batch 2.*part-2.parquet"):
        train(source)


def test_wrong_metadata_of_an_array(tmp_path):
    """A codec that nobody knows, and one that is not what wrote the chunks."""
    path = make_zarr(tmp_path / "x.zarr")
    meta = json.loads((path / "zarr.json").read_text())
    codecs = meta["codecs"]
    for wrong in (
        [{"name": "of-tomorrow", "configuration": {}}],
        [codecs[0], {"name": "gzip", "configuration": {"level": 5}}],
    ):
        (path / "zarr.json").write_text(json.dumps({**meta, "codecs": wrong}))
        with pytest.raises(DataError, match=r"x.zarr"):
            train(str(path), batch_size=ROWS)


def test_the_command_line_says_it_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = make_zarr(tmp_path / "x.zarr")
    cut(path / "c" / "5" / "0")
    (tmp_path / "run.yaml").write_text(
        "model: {allocation: DPMixture, observation: DiagGaussian}\ndata: {path: x.zarr, batch_size: 50}\nstore: run\n"
    )
    assert main(["train", "run.yaml", "--quiet"]) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert "x.zarr batch 5" in err[-1]
    assert "c/5/0" in err[-1]
    assert "Traceback" not in "".join(err)
