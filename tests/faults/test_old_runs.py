"""Models that earlier versions saved load in this one, and runs that they began go on.

The archives are made by ``tests/faults/old/make.py``, which says when.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from functools import cache

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.training.results import FORMAT
from tests.faults.old.make import HERE, models, runs, scores

SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4 has no filters; the archives are our own."""


def expected(archive):
    """What an archive says that its models and runs give."""
    with tarfile.open(HERE / f"{archive}.tar.xz") as file:
        then = json.loads(file.extractfile("expected.json").read())
    assert then["format"] == 1
    return then


THEN = {name: expected(name) for name in sorted(p.name.removesuffix(".tar.xz") for p in HERE.glob("*.tar.xz"))}


def cases(kind):
    """Pairs of an archive and a name of a model, or of a run, that is in it."""
    return [(archive, name) for archive, then in THEN.items() for name in then.get(kind, ())]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """``unpacked(archive)``: the folder where it lies."""

    @cache
    def unpack(archive):
        folder = tmp_path_factory.mktemp(archive)
        with tarfile.open(HERE / f"{archive}.tar.xz") as file:
            file.extractall(folder, **SAFELY)
        return folder

    return unpack


def version_of(archive):
    return archive.partition("-")[0]


def check_scores(now, then):
    assert now["ids"] == then["ids"]
    for key in ("weights", "soft"):
        np.testing.assert_allclose(now[key], then[key], rtol=1e-9, atol=1e-12)


def test_nothing_is_lost_from_the_archives():
    assert THEN
    for then in THEN.values():
        assert set(runs()) >= set(then["runs"])
        assert set(models()) >= set(then["models"])


@pytest.mark.parametrize(("archive", "name"), cases("models"))
def test_a_model_of_an_earlier_version_loads(tmp_path, unpacked, archive, name):
    folder, then = unpacked(archive), THEN[archive]
    root = json.loads((folder / name / "zarr.json").read_text())["attributes"]["bnp_dask"]
    assert (root["format"], root["software"]) == (FORMAT, version_of(archive))
    posterior = bnp.load(folder / name)
    check_scores(scores(posterior, models()[name][1]), then["models"][name])
    posterior.save(tmp_path / "again.zarr")
    assert bnp.load(tmp_path / "again.zarr").ids.tolist() == then["models"][name]["ids"]


CHANGING = bnp.Gibbs | bnp.ExpectationPropagation
"""Schedules that split or unite clusters themselves: how, as of moves, may change from version to version."""


@pytest.mark.parametrize(("archive", "name"), cases("runs"))
def test_a_run_of_an_earlier_version_goes_on(unpacked, archive, name):
    """Its posterior loads; resumed, it keeps its history, loses no atom, never falls, and ends where it would have."""
    folder, case, wanted = unpacked(archive), runs()[name], THEN[archive]["runs"][name]
    store = folder / "runs" / name
    check_scores(scores(bnp.load(store / "posterior.zarr"), case.data), wanted["half"])
    result = case.train(store=store, resume=True)
    elbo = [row["elbo"] for row in result.history]
    assert result.history[-1]["lap"] == case.schedule.laps
    assert result.history[-1]["atoms"] == pytest.approx(wanted["atoms"], rel=1e-12)
    done = [row["elbo"] for row in result.history if row["lap"] <= 2]
    assert done == wanted["elbo"][: len(done)]
    if isinstance(case.schedule, bnp.Memoized | bnp.FullBatch):
        last = next(i for i, row in enumerate(result.history) if row["lap"] > 1)
        assert np.diff(elbo[last:]).min(initial=0.0) >= -1e-9 * abs(elbo[-1])
    if not case.moves and not isinstance(case.schedule, CHANGING):
        np.testing.assert_allclose(elbo, wanted["elbo"], rtol=1e-9)
        assert result.posterior.ids.tolist() == wanted["ids"]


@pytest.mark.parametrize("archive", THEN)
def test_a_run_of_an_earlier_version_takes_in_more(unpacked, tmp_path, archive):
    """An update of a finished run counts old and new atoms, and its posterior predicts both."""
    case, store = runs()["mixture"], tmp_path / "run"
    shutil.copytree(unpacked(archive) / "runs" / "mixture", store)
    done = case.train(store=store, resume=True)
    more = case.data[:10] + 0.125
    changes = bnp.update(store, more, client=SerialExecutor(), batch_size=5)
    assert changes.posterior.summary["N"].sum() == pytest.approx(done.history[-1]["atoms"] + len(more))
    assert len(bnp.predict(bnp.load(store), more)) == len(more)
