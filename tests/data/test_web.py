"""Data on web servers, also those that tell no lengths or give files only whole."""

from __future__ import annotations

import gc
import os
import tempfile
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.location import Location
from tests.web import served

SERVERS = {
    "well": {},
    "no parts": {"parts": False},
    "no lengths": {"lengths": False, "parts": False},
    "nothing told": {"lengths": False, "parts": False, "versions": False},
}
ROWS = np.random.default_rng(0).normal(size=(36, 2)) + np.repeat([[-4.0], [0.0], [4.0]], 12, axis=0)
COUNTS = np.random.default_rng(1).poisson(1.0, size=(36, 4)).astype(float)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("web")
    table = pd.DataFrame(ROWS, columns=["a", "b"])
    np.save(made / "rows.npy", ROWS)
    np.save(made / "weights.npy", np.arange(1.0, 37.0))
    np.savez(made / "rows.npz", x=ROWS)
    sparse.save_npz(made / "counts.npz", sparse.csr_array(COUNTS))
    table.to_csv(made / "rows.csv.gz", index=False)
    table.to_parquet(made / "rows.parquet")
    bnp.ingest(str(made / "rows.npy"), str(made / "rows.zarr"), batch_size=12)
    bnp.ingest(str(made / "counts.npz"), str(made / "counts.zarr"), batch_size=12)
    return made


@pytest.fixture(scope="module", params=SERVERS)
def web(request, folder):
    with served(folder, **SERVERS[request.param]) as url:
        yield url


def run(data, **more):
    schedule = bnp.Memoized(laps=2)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        found = bnp.train(model, data, init=bnp.RandomExamples(3), schedule=schedule, moves=(), batch_size=12, **more)
    return [row["elbo"] for row in found.history]


@pytest.mark.parametrize(
    "name", ["rows.npy", "rows.npz", "rows.csv.gz", "rows.parquet", "rows.zarr", "counts.npz", "counts.zarr"]
)
def test_every_format_is_read_from_every_server(web, name):
    source = bnp.as_source(f"{web}/{name}", batch_size=12)
    batches = [source.reader(b)() for b in range(source.n_batches)]
    found = np.concatenate([b.x if isinstance(b.x, np.ndarray) else b.x.toarray() for b in batches])
    np.testing.assert_array_equal(found, COUNTS if name.startswith("counts") else ROWS)


def test_a_run_has_the_bits_of_one_from_an_array_and_is_resumed(web, tmp_path):
    url, weights = f"{web}/rows.npy", f"{web}/weights.npy"
    wanted = run(ROWS, weights=np.arange(1.0, 37.0))
    assert run(url, weights=weights, store=tmp_path / "run") == wanted
    assert run(url, weights=weights, store=tmp_path / "run", resume=True) == wanted


@pytest.mark.parametrize("server", SERVERS)
def test_a_file_that_was_replaced_is_read_anew(tmp_path, server):
    np.save(tmp_path / "x.npy", ROWS)
    with served(tmp_path, **SERVERS[server]) as url:
        for second, x in enumerate((ROWS, ROWS + 1.0)):
            np.save(tmp_path / "x.npy", x)
            os.utime(tmp_path / "x.npy", (1e9 + second, 1e9 + second))  # a server tells whole seconds
            np.testing.assert_array_equal(bnp.as_source(f"{url}/x.npy").reader(0)().x, x)


def test_a_copy_in_a_circle_of_references_is_removed_without_a_word(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with served(folder, **SERVERS["nothing told"]) as url:
        circle = [Location(f"{url}/rows.npy")._copy()]
    circle.append(circle)
    assert len(list(tmp_path.iterdir())) == 1
    del circle
    gc.collect()  # a warning would fail this test
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_gives_no_parts_is_asked_once_for_a_file(tmp_path, monkeypatch):
    made, original = [], tempfile.mkstemp
    monkeypatch.setattr(tempfile, "mkstemp", lambda **more: made.append(more) or original(**more))
    np.save(tmp_path / "x.npy", ROWS)
    with served(tmp_path, parts=False) as url:
        run(f"{url}/x.npy")
    assert len(made) == 1
