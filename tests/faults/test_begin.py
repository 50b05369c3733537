"""``bnp-dask train`` killed before its first lap is over: ``train`` and ``resume`` both go on, whenever that was."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.errors import SettingError
from bnp_dask.store import RunStore

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


class Killed(BaseException):
    """What a kill would do: no handler sees it."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with atoms of two clusters and a job that trains on them, quickly."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "atoms.npy", rng.normal(size=(120, 2)) + 7.0 * rng.integers(2, size=120)[:, None])
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "atoms.npy", "batch_size": 40},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "schedule": {"type": "Memoized", "laps": 2},
        "store": "run",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def what(path="run"):
    """Bits of the posterior of a run, and its history."""
    arrays = bnp.load(f"{path}/posterior.zarr").summary.to_arrays()
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in RunStore.view(path).load().history]
    return rows, {name: value.tobytes() for name, value in arrays.items()}


@pytest.fixture
def quiet(folder, capsys):
    """That of the undisturbed run."""
    assert main(["train", "run.yaml", "--store", "quiet"]) == 0
    return what("quiet")


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 3])
def test_killed_at_every_file_up_to_the_first_lap(folder, quiet, monkeypatch, capsys, every):
    """Before each file gets its name, and so after the one before: either command goes on, to the same bits."""
    replace, seen = os.replace, set()
    for n in range(0, 60, every):
        names = []

        def call(old, new, names=names, n=n):
            inside = str(folder) in os.path.abspath(new)
            if inside and len(names) == n:
                raise Killed
            replace(old, new)
            names += [os.path.relpath(new, folder)] * inside

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", call)
            try:
                main(["train", "run.yaml"])
                finished = True
            except Killed:
                finished = False
        seen |= set(names)
        if finished or RunStore.has_begun("run"):
            break
        if (folder / "run").exists():
            shutil.copytree("run", "other")
        assert main(["train", "run.yaml"]) == 0
        assert what() == quiet
        if (folder / "other" / "job.yaml").exists():
            assert main(["resume", "other"]) == 0
            assert what("other") == quiet
        else:
            assert not (folder / "other" / "RUN.json").exists()
        for made in ("run", "other"):
            shutil.rmtree(made, ignore_errors=True)
        capsys.readouterr()
    needed = {"run/job.yaml", "run/RUN.json", "run/SESSION", "run/checkpoints/00000001.json"}
    assert needed <= seen
    assert any(name.startswith("run/manifest/") for name in seen)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 4])
def test_a_disk_that_is_full_before_the_first_lap_is_told_with_the_command_that_goes_on(
    folder, quiet, monkeypatch, capsys, every
):
    """At whichever file, the lock too: one line, and what it names ends in the quiet run's bits."""
    replace, pwrite, ends = os.replace, os.pwrite, set()
    for n in range(0, 60, every):
        written = []

        def full(write, *args, written=written, n=n):
            written.append(args)
            if len(written) > n:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", partial(full, pwrite))
            patch.setattr(os, "replace", partial(full, replace))
            code = main(["train", "run.yaml"])
        if code == 0 or RunStore.has_begun("run"):
            break
        said = capsys.readouterr().err.splitlines()[-1]
        assert "No space left on device" in said
        ends.add(said.rpartition("; ")[2])
        resumed = said.endswith("; go on with: bnp-dask resume run")
        assert main(["resume", "run"] if resumed else ["train", "run.yaml"]) == 0
        assert what() == quiet
        shutil.rmtree("run")
    assert ends == {"nothing was saved yet", "go on with: bnp-dask resume run"}


def dies(*args):
    raise Killed


def dies_before_the_first_batch(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("bnp_dask.training.callbacks.LogLaps.on_start", dies)
        with pytest.raises(Killed):
            main(["train", "run.yaml"])


def test_a_job_that_was_corrected_before_the_first_lap_takes_the_place_of_the_first(folder, capsys, monkeypatch):
    dies_before_the_first_batch(monkeypatch)
    job = yaml.safe_load((folder / "run.yaml").read_text())
    job["init"]["n_clusters"] = 3
    (folder / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "run.yaml"]) == 0
    assert yaml.safe_load((folder / "run" / "job.yaml").read_text())["init"]["n_clusters"] == 3
    assert main(["train", "run.yaml", "--store", "quiet"]) == 0
    assert what() == what("quiet")


def test_what_was_surveyed_serves_the_corrected_job_too(folder, capsys, monkeypatch):
    from bnp_dask.training import survey_pass as first_pass

    dies_before_the_first_batch(monkeypatch)
    job = yaml.safe_load((folder / "run.yaml").read_text())
    (folder / "run.yaml").write_text(yaml.safe_dump({**job, "rng": 5}))
    monkeypatch.setattr(first_pass, "survey_checked", dies)
    assert main(["train", "run.yaml"]) == 0


def test_a_run_that_has_begun_is_not_trained_again(folder, quiet, capsys):
    assert main(["train", "run.yaml", "--store", "quiet"]) == 2
    err = capsys.readouterr().err
    assert "quiet holds a run already: go on with 'bnp-dask resume quiet'" in err
    assert what("quiet") == quiet


def test_the_job_is_kept_as_it_was_led_on_with(folder, capsys):
    assert main(["train", "run.yaml", "--laps", "1"]) == 0
    assert yaml.safe_load((folder / "run" / "job.yaml").read_text())["schedule"]["laps"] == 1
    assert main(["resume", "run", "--laps", "3"]) == 0
    assert yaml.safe_load((folder / "run" / "job.yaml").read_text())["schedule"]["laps"] == 3


def test_an_error_in_the_survey_leaves_a_run_that_goes_on(folder, quiet, capsys):
    """Data that are put right afterwards; until then each command names the batch."""
    good = np.load("atoms.npy")
    bad = good.copy()
    bad[77, 1] = np.nan
    np.save("atoms.npy", bad)
    for command in (["train", "run.yaml"], ["resume", "run"], ["train", "run.yaml"]):
        assert main(command) == 2
        assert "batch 1" in capsys.readouterr().err
    np.save("atoms.npy", good)
    assert main(["resume", "run"]) == 0
    assert what() == quiet


def test_a_job_is_text():
    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian())
    with pytest.raises(SettingError, match="job is a dict; needs the text of a job file"):
        bnp.train(model, np.zeros((3, 2)), job={"model": 1})
