"""A guest structure is at home: stored, stopped and resumed, saved and loaded, named in job files, predicted with."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
import zarr
from linked import LinkedMixture

import bnp_dask as bnp
from bnp_dask.cli import main


class Stopped(Exception):
    """Raised by the callback below."""


class StopInLapThree:
    """A callback that ends a run in the middle of its third lap."""

    def __init__(self):
        self.lap = 0

    def on_start(self, info):
        pass

    def on_batch(self, done):
        if self.lap == 2 and done >= 3:
            raise Stopped

    def on_lap(self, row, posterior):
        self.lap = row["lap"]

    def on_end(self, reason):
        pass


def pairs():
    return np.random.default_rng(0).normal([[0.0], [4.0]], 1.0, (2, 200)).reshape(-1, 1)


SETTINGS = {"laps": 8, "window": 2, "tolerance": 0.0, "count_tolerance": 0.0}


def train(store, **more):
    model, start = bnp.Model(LinkedMixture(), bnp.DiagGaussian()), bnp.RandomExamples(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        return bnp.train(model, pairs(), init=start, moves=[bnp.Merge()], batch_size=50,
                         schedule=bnp.Memoized(**SETTINGS), store=store, **more)  # fmt: skip


def bits(posterior):
    return {name: array.tobytes() for name, array in posterior.summary.to_arrays().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("linked") / "run").posterior


def test_a_run_that_is_stopped_and_resumed_is_the_one_that_is_not(whole, tmp_path):
    with pytest.raises(Stopped):
        train(tmp_path / "run", callbacks=[StopInLapThree()], checkpoint_minutes=1e-9)
    assert bits(train(tmp_path / "run", resume=True).posterior) == bits(whole)


def test_its_posterior_comes_back_to_the_bit_and_predicts_the_same(whole, tmp_path):
    whole.save(tmp_path / "model.zarr")
    back = bnp.load(tmp_path / "model.zarr")
    assert type(back.model.allocation) is LinkedMixture
    assert bits(back) == bits(whole)
    assert np.array_equal(bnp.predict(back, pairs(), soft=True), bnp.predict(whole, pairs(), soft=True))
    assert bnp.score(back, pairs()) == bnp.score(whole, pairs())


def test_a_job_file_names_it_and_its_run_is_resumed_and_predicts(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("rows.npy", pairs())
    job = {
        "model": {"allocation": {"type": "linked.LinkedMixture"}, "observation": {"type": "DiagGaussian"}},
        "data": {"path": "rows.npy", "batch_size": 50},
        "init": {"type": "RandomExamples", "n_clusters": 4},
        "schedule": {"type": "Memoized", **SETTINGS},
        "moves": [{"type": "Merge"}],
        "store": "run",
    }
    Path("run.yaml").write_text(yaml.safe_dump(job))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnp.ConvergenceWarning)
        assert main(["train", "run.yaml", "--laps", "3", "--import", "linked"]) == 0
        assert main(["resume", "run", "--laps", "8", "--import", "linked"]) == 0
    trained = bnp.load("run/posterior.zarr")
    assert bits(trained) == bits(whole)
    assert main(["predict", "run", "rows.npy", "labels.zarr", "--import", "linked"]) == 0
    labels = zarr.open_group("labels.zarr", mode="r")["label"][:]
    assert np.array_equal(labels, bnp.predict(whole, pairs()))
