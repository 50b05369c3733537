"""Data and settings without an end: an answer at once, and an error that says what is needed."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp

MODEL = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
VAST = np.broadcast_to(np.array([1.0, 2.0]), (10**12, 2))
FEW = np.random.default_rng(0).normal(size=(8, 2))


def rows():
    while True:
        yield np.zeros(2)


pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("use", [bnp.as_source, lambda data: bnp.train(MODEL, data), bnp.ingest], ids=["s", "t", "i"])
@pytest.mark.parametrize("make", [rows, itertools.count, lambda: iter(list, None)], ids=["rows", "count", "documents"])
def test_a_feed_without_end_is_no_data(use, make, tmp_path):
    more = (tmp_path / "out.zarr",) if use is bnp.ingest else ()
    with pytest.raises(bnp.BnpDaskError, match="needs a path or URL"):
        use(make(), *more)


@pytest.mark.parametrize(
    "use",
    [
        bnp.as_source,
        lambda data: bnp.train(MODEL, data),
        lambda data: bnp.train(MODEL, np.broadcast_to(1.0, data.shape)),
        lambda data: bnp.as_source([data]),
        lambda data: bnp.as_source(FEW, weights=data[:, 0]),
        lambda data: bnp.DirichletProcessMixture().fit(data),
        lambda data: bnp.SequenceModel().fit(data),
    ],
    ids=["source", "train", "number", "list", "weights", "mixture", "sequences"],
)
def test_rows_that_are_broadcast_without_measure_are_refused(use):
    with pytest.raises(bnp.BnpDaskError, match=r"of shape \(1000000000000,.*broadcast.*weights="):
        use(VAST)


def test_rows_that_are_broadcast_in_measure_are_data():
    source = bnp.as_source(np.broadcast_to(np.array([1.0, 2.0]), (100, 2)))
    assert source.reader(0)().x.sum() == 300.0


@pytest.mark.parametrize("name", ["moves", "callbacks"])
def test_parts_without_end_are_refused(name):
    with pytest.raises(bnp.BnpDaskError, match=f"{name}=.*needs a list that ends"):
        bnp.train(MODEL, FEW, **{name: itertools.count()})


@pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")
def test_a_folder_that_links_to_itself_is_read_once(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    pd.DataFrame(FEW, columns=["a", "b"]).to_parquet(folder / "sub" / "x.parquet")
    for name in ("one", "two"):
        os.symlink(folder, folder / "sub" / name)
    settings = {"schedule": bnp.Memoized(laps=1), "init": bnp.RandomExamples(2)}
    found = bnp.train(MODEL, folder, store=tmp_path / "run", **settings)
    assert found.posterior.summary["N"].sum() == pytest.approx(8.0)
    assert bnp.as_source(folder).fingerprint()["files"] == 1
