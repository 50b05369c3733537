"""Classes of another package are at home: train, store, kill, resume, save, load, job files, pages, predictions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from negbin import NegativeBinomial
from pitman_yor import PitmanYor
from sqlite_rows import SqliteRows
from together import make_table, train

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.execute.serial import SerialExecutor

HERE = Path(__file__).parent
MODULES = ("negbin", "pitman_yor", "smallest", "sqlite_rows", "pool")
IMPORTS = [word for name in MODULES for word in ("--import", name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the data."""
    path = tmp_path_factory.mktemp("guests")
    make_table(path / "visits.db")
    return path


@pytest.fixture(scope="module")
def whole(folder):
    """A run that nothing interrupts."""
    return train(folder / "visits.db", store=folder / "run")


@pytest.fixture(scope="module")
def counts():
    return np.random.default_rng(1).poisson(4.0, (50, 3)).astype(float)


def bits(result):
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in result.history]
    return rows, {name: array.tobytes() for name, array in result.posterior.summary.to_arrays().items()}


def environment():
    paths = [str(HERE.parents[1]), str(HERE)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_guests_find_the_clusters_and_the_objective_never_falls(whole):
    assert sorted(np.round(whole.posterior.summary["N"]).tolist()) == [188, 189, 223]
    elbo = [row["elbo"] for row in whole.history if row["lap"] > 1]
    assert np.all(np.diff(elbo) >= -1e-12 * abs(elbo[-1]))
    accepted = [m["kind"] for row in whole.history for m in row["moves"] if m["accepted"]]
    assert "unite" in accepted


def test_a_guest_executor_computes_what_this_thread_computes(folder, whole):
    assert bits(train(folder / "visits.db", client=SerialExecutor())) == bits(whole)


@pytest.mark.long
def test_killed_and_resumed_is_the_uninterrupted_run(folder, whole):
    more = {"store": str(folder / "killed"), "resume": True, "checkpoint_minutes": 1e-9}
    command = [sys.executable, str(HERE / "together.py"), str(folder / "visits.db"), json.dumps(more)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("lap 3"):
            os.kill(process.pid, signal.SIGKILL)
            break
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert bits(train(folder / "visits.db", **more)) == bits(whole)


def test_a_resumed_run_knows_its_guests_where_settings_are_left_out(folder, whole):
    model = whole.posterior.model
    source = SqliteRows(folder / "visits.db", "visits", batch_size=100)
    with pytest.warns(bnp.ConvergenceWarning):
        again = bnp.train(
            bnp.Model(PitmanYor(gamma=2.0), NegativeBinomial(r=50.0)), source, store=folder / "run", resume=True
        )
    assert bits(again) == bits(whole)
    assert again.posterior.model.allocation == model.allocation


def test_a_posterior_comes_back_to_the_bit_and_predicts_the_same(folder, whole, counts):
    whole.posterior.save(folder / "model.zarr")
    back = bnp.load(folder / "model.zarr")
    assert type(back.model.observation) is NegativeBinomial and type(back.model.allocation) is PitmanYor
    assert np.array_equal(back.observation.a, whole.posterior.observation.a)
    assert np.array_equal(bnp.predict(back, counts), bnp.predict(whole.posterior, counts))
    assert bnp.score(back, counts) == bnp.score(whole.posterior, counts)
    assert np.isfinite(bnp.score(back, counts))


def test_labelled_arrays_and_pages_show_guests(folder, whole):
    pytest.importorskip("xarray")
    assert set(whole.posterior.to_xarray()["rate"].dims) == {"cluster", "feature"}
    assert "rates: " in str(bnp.inspect(whole.posterior))
    assert "rates: " in str(bnp.inspect(folder / "run"))
    bnp.report(folder / "run", folder / "page.html")
    page = (folder / "page.html").read_text()
    assert "NegativeBinomial" in page and "PitmanYor" in page and "unite" in page


class Undescribed(NegativeBinomial):
    """The likelihood without words of its own for people."""

    estimates = None
    describe = None


def test_a_likelihood_that_does_not_describe_itself_is_shown_by_its_arrays(whole):
    own = whole.posterior.model.observation
    model = replace(whole.posterior.model, observation=Undescribed(own.r, own.a, own.b))
    assert "log_p" in str(bnp.inspect(replace(whole.posterior, model=model)))


JOB = {
    "model": {
        "allocation": {"type": "pitman_yor.PitmanYor", "gamma": 2.0},
        "observation": {"type": "negbin.NegativeBinomial", "r": 50.0},
    },
    "data": {"type": "sqlite_rows.SqliteRows", "path": "visits.db", "table": "visits", "batch_size": 100},
    "client": {"type": "pool.Pool", "n_workers": 2},
    "init": {"type": "RandomExamples", "n_clusters": 6},
    "schedule": {"type": "Memoized", "laps": 6, "window": 2, "tolerance": 0.0, "count_tolerance": 0.0},
    "moves": [{"type": "Birth", "per_lap": 1}, "smallest.UniteSmallest"],
    "store": "of-a-job",
}


def test_a_job_file_of_guests_is_trained_resumed_and_used(folder, whole, counts, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    Path("run.yaml").write_text(yaml.safe_dump(JOB))
    np.save("counts.npy", counts)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["train", "run.yaml", "--laps", "3", *IMPORTS]) == 0
        assert main(["resume", "of-a-job", "--laps", "6", *IMPORTS]) == 0
    assert "stopped at the limit of 6 laps" in capsys.readouterr().err
    trained = bnp.load("of-a-job/posterior.zarr")
    assert np.array_equal(trained.summary["x"], whole.posterior.summary["x"])
    assert main(["predict", "of-a-job", "counts.npy", "labels.zarr", *IMPORTS]) == 0
    assert main(["score", "of-a-job", "counts.npy", *IMPORTS]) == 0
    assert main(["report", "of-a-job", "page.html", *IMPORTS]) == 0


@pytest.mark.long
def test_another_process_reads_guests_once_their_modules_are_imported(folder, whole):
    command = [sys.executable, "-m", "bnp_dask", "inspect", str(folder / "run")]
    outside = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    refused = subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--import" in refused.stderr
    shown = subprocess.run([*command, *IMPORTS], cwd=HERE, env=outside, capture_output=True, text=True, check=False)
    assert shown.returncode == 0 and "rates: " in shown.stdout


# -- guests in plain dress ----------------------------------------------------------------------------------------
@bnp.register
@dataclass(frozen=True)
class Compared(NegativeBinomial):
    """The guest likelihood as a plain dataclass: arrays have no hash, so it has none either."""


def test_births_take_a_likelihood_without_a_hash():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.poisson(mean, (100, 2)) for mean in (1.0, 30.0)]).astype(float)
    model = bnp.Model(bnp.DPMixture(), Compared(r=20.0))
    result = bnp.train(model, x, init=bnp.RandomExamples(1), schedule=bnp.Memoized(40), rng=1)
    assert result.posterior.n_clusters == 2
