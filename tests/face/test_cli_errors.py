"""Every error on the command line is one line and exit code 2, soon, and costs the user nothing."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.run import how_to_resume
from bnp_dask.errors import StoreError
from bnp_dask.store import RunStore, place_of

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

REPORT = importlib.import_module("bnp_dask.reports.run_page")

JOB = {
    "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
    "data": {"path": "atoms.npy", "batch_size": 60},
    "init": {"type": "BregmanKMeans", "n_clusters": 3},
    "schedule": {"type": "Memoized", "laps": 2},
    "moves": [],
    "store": "run",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with data, a job, its run, and something of the user's."""
    folder = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    np.save(folder / "atoms.npy", np.repeat([[0.0, 0.0], [8.0, 8.0]], 60, axis=0) + rng.standard_normal((120, 2)))
    (folder / "run.yaml").write_text(yaml.safe_dump(JOB))
    before = os.getcwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main(["train", "run.yaml", "--quiet"]) == 0
    finally:
        os.chdir(before)
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("years of work")
    (folder / "mine.html").write_text("<!DOCTYPE html><p>a page of my own</p>")
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A working directory of its own with the same."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def one_error(capsys, *words, leaves="none"):
    """Run a command that must fail: its line, after a look at what must not have changed.

    A run that has not begun may be left in the folder ``leaves``: the next one takes its place.
    """
    before = contents(Path.cwd())
    capsys.readouterr()
    try:
        code = main(list(words))
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("bnp-dask")
    assert "error: " in err
    assert len(err) < 1500
    after = {name: content for name, content in contents(Path.cwd()).items() if not name.startswith(f"{leaves}/")}
    assert after == before
    return err


NAMES = {
    "nul": "a\0b",
    "long": "x" * 300,
    "nobody": "~no-such-user/x",
    "nowhere": "none/none/x",
    "under a file": "atoms.npy/x",
    "no protocol": "nosuch://x",
    "no chain": "zip://::",
    "empty": "",
    "lines": "a\nb",
    "escape": "\x1b[31mx",
    "bytes": os.fsdecode(b"caf\xe9"),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_what_is_not_there(folder, capsys, name):
    path = NAMES[name]
    for words in (
        ["ingest", path, "out.zarr"],
        ["train", path],
        ["resume", path],
        ["predict", path, "atoms.npy", "out.zarr"],
        ["predict", "run", path, "out.zarr"],
        ["score", path, "atoms.npy"],
        ["score", "run", path],
        ["inspect", path],
        ["inspect", "run", "--vocabulary", path],
        ["report", path, "out.html"],
        ["report", "run", "out.html", "--data", path],
        ["train", "run.yaml", "--store", "other", "--scheduler-file", path],
        ["ingest", "atoms.npy", "out.zarr", "--project", path],
        ["ingest", "atoms.npy", "out.zarr", "--weights", f"{path}.npy"],
    ):
        if words[0] == "ingest" and name == "empty" and words[1] == "atoms.npy" and "--project" in words:
            continue
        one_error(capsys, *words)


@pytest.mark.parametrize("name", ["nul", "long", "nobody", "under a file", "no protocol", "no chain"])
def test_names_of_what_cannot_be_written(folder, capsys, name):
    path = NAMES[name]
    for words in (
        ["ingest", "atoms.npy", f"{path}.zarr"],
        ["predict", "run", "atoms.npy", f"{path}.zarr"],
        ["predict", "run", "atoms.npy", f"{path}.parquet"],
        ["report", "run", f"{path}.html"],
        ["train", "run.yaml", "--store", path],
        ["demo", "digits", "--dir", path],
    ):
        one_error(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ["report", "run", "atoms.npy"],
        ["report", "run", "run.yaml"],
        ["report", "run", "mine"],
        ["report", "run", "mine.html"],
        ["report", "run", "/dev/null"],
        ["report", "run", ""],
        ["ingest", "atoms.npy", "mine", "--overwrite"],
        ["ingest", "atoms.npy", "mine.html", "--overwrite"],
        ["ingest", "atoms.npy", ".", "--overwrite"],
        ["ingest", "atoms.npy", "atoms.npy", "--overwrite"],
        ["ingest", "atoms.npy", "mine"],
        ["ingest", "mine", "out.zarr", "--format", "npy"],
        ["predict", "run", "atoms.npy", "mine"],
        ["train", "run.yaml", "--store", "mine"],
        ["train", "run.yaml", "--store", "atoms.npy"],
        ["train", "run.yaml"],
        ["train", "mine"],
        ["train", "atoms.npy"],
        ["resume", "mine"],
        ["resume", "atoms.npy"],
        ["inspect", "mine"],
        ["demo", "digits", "--dir", "mine"],
        ["demo", "digits", "--dir", "atoms.npy"],
    ],
)
def test_nothing_of_the_users_is_overwritten(folder, capsys, words):
    device = os.stat("/dev/null").st_mode
    one_error(capsys, *words)
    assert os.stat("/dev/null").st_mode == device


def test_what_this_package_wrote_may_be_replaced(folder, capsys):
    assert main(["ingest", "atoms.npy", "x.zarr"]) == 0
    assert main(["ingest", "atoms.npy", "x.zarr", "--overwrite"]) == 0
    (folder / "link.html").symlink_to("page.html")
    for out in ("page.html", "page.html", "link.html"):
        assert main(["report", "run", out]) == 0
    assert (folder / "link.html").is_symlink()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"workers": 10**9}, "workers=1000000000: this machine has"),
        ({"workers": 1, "memory_limit": "lots"}, "memory_limit='lots': needs a size"),
        ({"workers": 1, "memory_limit": "-4GB"}, "memory_limit='-4GB': needs a size"),
        ({"workers": 1, "memory_limit": "1B"}, "memory_limit='1B': a worker takes"),
        ({"workers": 1, "memory_limit": ""}, "memory_limit='': needs a size"),
        ({"scheduler": "tcp://127.0.0.1:99999"}, "cannot reach a scheduler at tcp://127.0.0.1:99999: there is no port"),
        ({"scheduler": ""}, "cannot reach a scheduler at ''"),
        ({"scheduler_file": "run.yaml"}, "is no scheduler file: it holds no address"),
        ({"scheduler_file": "mine"}, "cannot read the scheduler file"),
        ({"scheduler": "tls://a:1", "tls_ca_file": "run.yaml", "tls_cert": "run.yaml", "tls_key": "run.yaml"},
         "cannot use the certificates and key"),
        ({"scheduler": "tls://a:1", "tls_ca_file": "no.pem", "tls_cert": "no.pem", "tls_key": "no.pem"},
         "there is no file"),
    ],
)  # fmt: skip
def test_places_where_nothing_can_be_computed(folder, capsys, client, message):
    (folder / "x.yaml").write_text(yaml.safe_dump({**JOB, "store": "new", "client": client}))
    with dask.config.set({"scheduler-address": client.get("scheduler")}):  # a file alone names no scheduler
        assert message in one_error(capsys, "train", "x.yaml")
    option = {"workers": "--workers", "memory_limit": "--memory-limit", "scheduler": "--scheduler"}
    words = [f"{option[name]}={value}" for name, value in client.items() if name in option]
    if len(words) == len(client):
        assert message in one_error(capsys, "score", "run", "atoms.npy", *words)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "run.yaml", "--laps", "9" * 5000],
        ["train", "run.yaml", "--laps", "1\n2"],
        ["train", "run.yaml", "\0"],
        ["no\nsuch\x1bcommand"],
        ["inspect", "run", "--limit", "nan"],
        ["score", "run", "atoms.npy", "--held-out", "x" * 10**5],
        ["ingest", "atoms.npy", "x.zarr", "--dtype", "float128x"],
        ["ingest", "atoms.npy", "x.zarr", "--dtype", "object"],
        ["ingest", "atoms.npy", "x.zarr", "--format", "\x1b"],
        ["ingest", "atoms.npy", "x.zarr", "--project", "9" * 30],
        ["ingest", "atoms.npy", "x.zarr", "--columns", ",,"],
        ["ingest", "atoms.npy", "x.zarr", "--min-df", "nan"],
        ["ingest", "atoms.npy", "x.zarr", "--token-pattern", "("],
        ["ingest", "atoms.npy", "x.zarr", "--patch", "3"],
        ["predict", "run", "atoms.npy", "x.txt"],
        ["predict", "run", "atoms.npy", "x.zarr", "--group-column", "g"],
        ["predict", "run", "atoms.npy", "x.zarr", "--cut", "3"],
        ["score", "run", "atoms.npy", "--split", "words"],
        ["score", "run", "atoms.npy", "--step", "nan", "--group-column", "run.yaml"],
        ["demo", "digits", "--patches", "3", "--dir", "new"],
    ],
)
def test_options_that_make_no_sense(folder, capsys, words):
    one_error(capsys, *words)


def test_an_error_that_nobody_foresaw_is_one_line_too(folder, capsys, monkeypatch):
    def fail(*args, **settings):
        raise KeyError("a\nkey")

    monkeypatch.setattr(REPORT, "inspect", fail)
    assert "KeyError: 'a\\nkey' (--debug shows where)" in one_error(capsys, "inspect", "run")
    assert main(["inspect", "run", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    for error, line in (
        (MemoryError(), "not enough memory"),
        (OSError(28, "No space left on device", "x"), "x: No space left on device"),
        (RecursionError("too deep"), "RecursionError: too deep"),
    ):
        monkeypatch.setattr(REPORT, "inspect", lambda *a, error=error, **more: (_ for _ in ()).throw(error))
        assert line in one_error(capsys, "inspect", "run")


def test_what_libraries_log_to_nobody_stays_out(folder, capsys, monkeypatch):
    def fail(*args, **settings):
        logging.getLogger("some.storage.library").warning("trying\nagain")
        raise StoreError("not there")

    monkeypatch.setattr(REPORT, "inspect", fail)
    assert one_error(capsys, "inspect", "run") == "bnp-dask: error: not there\n"


def test_errors_of_the_data_are_told_once(folder, capsys):
    """With workers too, which log nothing of their own."""
    model = {"allocation": "DPMixture", "observation": "Bernoulli"}
    (folder / "x.yaml").write_text(yaml.safe_dump({**JOB, "store": "new", "model": model}))
    assert "Bernoulli needs zeros and ones" in one_error(capsys, "train", "x.yaml", leaves="new")
    code, _, err = program("train", "x.yaml", "--workers", "1")
    errors = [line for line in err.splitlines() if line.startswith("bnp-dask:")]  # others tell what takes long
    assert (code, len(errors)) == (2, 1), err
    assert "Bernoulli needs zeros and ones" in errors[0]


# -- as a program -----------------------------------------------------------------------------------------------------
def program(*words, redirect=""):
    """Exit code, output and errors of ``bnp-dask``, run by a shell that may redirect them."""
    command = f'exec "$0" -m bnp_dask "$@" {redirect}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, *words], capture_output=True, timeout=100, errors="surrogateescape"
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
def test_standard_streams_that_are_full_closed_or_gone(folder):
    assert program("inspect", "run", redirect="> /dev/full") == (
        2, "", "bnp-dask: error: cannot write to standard output: No space left on device\n"
    )  # fmt: skip
    assert program("inspect", "run", redirect=">&-") == (0, "", "")
    assert program("inspect", "none", redirect="2>&-")[::2] == (2, "")
    assert program("inspect", "run", redirect="| head -c 1")[2] == ""


@pytest.mark.long
def test_a_run_goes_on_when_its_reader_has_gone(folder):
    """Before the first line is read: ``bnp-dask train ... 2>&1 | true``."""
    program("train", "run.yaml", "--store", "new", redirect="2>&1 | true")
    assert (folder / "new" / "posterior.zarr" / "zarr.json").exists()


@pytest.mark.long
def test_names_that_are_no_text(folder):
    name = os.fsdecode(b"caf\xe9.html")
    code, out, err = program("report", "run", name)
    assert (code, err) == (0, "")
    assert out == "wrote caf\\udce9.html\n"
    assert Path(name).exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mount.stderr.decode()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(folder, small_disk, capsys):
    """Nothing is left of what could not be finished, and what was there before is as it was."""
    np.save("large.npy", np.random.default_rng(0).standard_normal((40_000, 2)))
    bnp.ingest("atoms.npy", small_disk / "x.zarr")
    before = contents(small_disk)
    for words in (
        ["ingest", "large.npy", str(small_disk / "y.zarr")],
        ["ingest", "large.npy", str(small_disk / "x.zarr"), "--overwrite"],
        ["predict", "run", "large.npy", str(small_disk / "labels.zarr"), "--soft"],
        ["predict", "run", "large.npy", str(small_disk / "labels.parquet"), "--soft"],
        ["ingest", "atoms.npy", str(small_disk / "z" / "..." / "y.zarr"), "--format", "csv"],
    ):
        one_error(capsys, *words)
        assert contents(small_disk) == before
    with open(small_disk / "fill", "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(512))
    one_error(capsys, "report", "run", str(small_disk / "page.html"))
    words = ["train", "run.yaml", "--store", str(small_disk / "run"), "--quiet"]
    assert main(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    shutil.rmtree(small_disk / "x.zarr")
    (small_disk / "fill").unlink()
    assert main(words) == 0
    capsys.readouterr()


def test_a_full_disk_for_temporary_files(folder, small_disk, capsys, monkeypatch):
    """Rows that are sorted into groups lie in a mapped file, which must not end the process."""
    import tempfile

    rng = np.random.default_rng(0)
    lines = ["g,t,a,b", *(f"{i % 7},{i},{x:.3f},{y:.3f}" for i, (x, y) in enumerate(rng.normal(size=(30_000, 2))))]
    (folder / "x.csv").write_text("\n".join(lines))
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    words = ["ingest", "x.csv", "out.zarr", "--group-column", "g", "--order-column", "t", "--gaps", "ignore"]
    assert "TMPDIR" in one_error(capsys, *words)
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert main(words) == 0
    capsys.readouterr()


def test_a_run_that_was_killed_while_it_was_made_is_begun_anew(folder, capsys):
    (folder / "new").mkdir()
    (folder / "new" / "job.yaml").write_text(yaml.safe_dump({**JOB, "store": "new"}))
    said = one_error(capsys, "resume", "new")
    assert "holds no run, or one of which nothing was saved yet; begin with: bnp-dask train RUN.YAML" in said
    assert main(["train", "run.yaml", "--store", "new", "--quiet"]) == 0


def test_a_run_of_python_is_resumed_there(folder, capsys):
    RunStore.create("made", {}).close()
    assert "made has no job.yaml" in one_error(capsys, "resume", "made")


def test_a_store_that_cannot_be_asked_is_not_said_to_be_empty(tmp_path, monkeypatch):
    """A run that ended because its object store forbids requests may have been saved there."""
    args = argparse.Namespace(command="train", rundir=str(tmp_path / "run"))
    assert how_to_resume(args) == "; nothing was saved yet"

    def forbidden(self, path):
        raise StoreError(f"cannot read {path}: PermissionError: Forbidden")

    monkeypatch.setattr(type(place_of(tmp_path)), "exists", forbidden)
    assert "go on with: bnp-dask resume " in how_to_resume(args)
