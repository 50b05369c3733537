"""The command line, in this process through ``main``, and as a program where that matters."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
import zarr

import bnp_dask as bnp
from bnp_dask import cli
from bnp_dask.cli import data as of_data
from bnp_dask.cli import growing, main
from bnp_dask.cli.console import client_spec, say_records, shown_value, size, table
from bnp_dask.cli.jobfile import UpdateSpec
from bnp_dask.training import Change
from bnp_dask.training.callbacks import RunInfo
from bnp_dask.training.planning import _bytes

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")

CENTRES = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with 300 atoms of three clusters and a job that trains on them."""
    rng = np.random.default_rng(0)
    atoms = np.repeat(CENTRES, 100, axis=0) + rng.standard_normal((300, 2))
    np.save(tmp_path / "atoms.npy", rng.permutation(atoms))
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "atoms.npy", "batch_size": 60},
        "init": {"type": "BregmanKMeans", "n_clusters": 3},
        "schedule": {"type": "Memoized", "laps": 6},
        "store": "run",
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit_job(folder, **parts):
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **parts}))


# -- words ----------------------------------------------------------------------------------------------------
def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"bnp-dask {bnp.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "reproduce",
        "ingest",
        "train",
        "resume",
        "predict",
        "impute",
        "score",
        "inspect",
        "tree",
        "certainty",
        "compare",
        "report",
    ],
)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no 'trian'; did you mean 'train'?"),
        (["demo", "digit"], "there is no 'digit'; did you mean 'digits'?"),
        (["train", "run.yaml", "--lap", "3"], "unrecognized arguments: --lap 3; did you mean '--laps'?"),
        (["train", "run.yaml", "--laps", "0"], "--laps: found '0', needs a whole number, at least 1"),
        (["train", "run.yaml", "--workers", "2", "--scheduler", "tcp://a:1"], "not allowed with argument --workers"),
        (["train"], "required: RUN.YAML"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_words_exit_2_with_one_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "none.yaml"], "cannot read the job file none.yaml"),
        (["resume", "."], "holds no run, or one of which nothing was saved yet; begin with: bnp-dask train RUN.YAML"),
        (["inspect", "none.zarr"], "none.zarr"),
        (["score", "none.zarr", "atoms.npy"], "none.zarr"),
        (["ingest", "atom.npy", "x.zarr"], "atoms.npy"),
        (["train", "run.yaml", "--scheduler-file", "none.json"], "there is no scheduler file none.json"),
    ],
)
def test_errors_are_one_line_and_exit_2(folder, words, message, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("bnp-dask: error: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_debug_shows_the_traceback(folder, capsys):
    assert main(["train", "none.yaml", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_misspelt_setting_is_an_error_before_anything_starts(folder, capsys):
    edit_job(folder, model={"allocation": {"type": "DPMixture", "gama": 3}, "observation": "DiagGaussian"})
    assert main(["train", "run.yaml"]) == 2
    assert "model.allocation.gama: there is no such setting; did you mean 'gamma'?" in capsys.readouterr().err
    assert not (folder / "run").exists()


# -- the whole way --------------------------------------------------------------------------------------------
def test_ingest_train_inspect_score_predict_report(folder, capsys):
    assert main(["ingest", "atoms.npy", "atoms.zarr", "--batch-size", "50"]) == 0
    out = capsys.readouterr().out
    assert "300 atoms, 2 features, 6 batches" in out

    edit_job(folder, data="atoms.zarr")
    assert main(["train", "run.yaml"]) == 0
    out = capsys.readouterr().out
    assert "3 clusters" in out
    assert "bnp-dask inspect run" in out

    assert main(["inspect", "run"]) == 0
    assert "DPMixture of DiagGaussian: 3 clusters, 300 atoms" in capsys.readouterr().out
    assert main(["inspect", "run/posterior.zarr", "--limit", "1"]) == 0
    assert "mean" in capsys.readouterr().out

    posterior = bnp.load("run/posterior.zarr")
    assert main(["score", "run", "atoms.npy"]) == 0
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(
        bnp.score(posterior, np.load("atoms.npy")), rel=1e-9
    )

    assert main(["predict", "run", "atoms.npy", "labels.zarr", "--batch-size", "70"]) == 0
    labels = zarr.open_group("labels.zarr", mode="r")["label"][:]
    np.testing.assert_array_equal(labels, bnp.predict(posterior, np.load("atoms.npy")))
    truth = ((np.load("atoms.npy")[:, None] - CENTRES) ** 2).sum(axis=2).argmin(axis=1)
    assert all(len(np.unique(truth[labels == k])) == 1 for k in np.unique(labels))

    assert main(["predict", "run", "atoms.npy", "top.zarr", "--soft", "--top", "2"]) == 0
    assert zarr.open_group("top.zarr", mode="r")["resp"].shape == (300, 2)

    assert main(["predict", "run", "atoms.npy", "labels.zarr"]) == 2  # never overwritten
    capsys.readouterr()
    assert main(["report", "run", "report.html"]) == 0
    assert "<img" in (folder / "report.html").read_text(encoding="utf-8")


def test_resume_gives_the_same_bits_as_one_run(folder, capsys):
    edit_job(folder, schedule={"type": "Memoized", "laps": 6, "tolerance": 0, "count_tolerance": 0})
    assert main(["train", "run.yaml", "--store", "whole"]) == 0
    assert main(["train", "run.yaml", "--laps", "2", "--store", "parts"]) == 0
    assert main(["resume", "parts", "--laps", "6"]) == 0
    whole, parts = bnp.load("whole/posterior.zarr"), bnp.load("parts/posterior.zarr")
    for name, value in whole.summary.values.items():
        np.testing.assert_array_equal(parts.summary[name], value)
    capsys.readouterr()


def test_training_twice_into_one_directory_names_resume(folder, capsys):
    edit_job(folder, moves=[])
    assert main(["train", "run.yaml"]) == 0
    capsys.readouterr()
    assert main(["train", "run.yaml"]) == 2
    assert "go on with 'bnp-dask resume run'" in capsys.readouterr().err


def test_a_run_stopped_before_its_first_lap_can_be_started_again(folder, monkeypatch, capsys):
    edit_job(folder, moves=[])

    def stop(self, context):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bnp.BregmanKMeans, "start", stop)
        assert main(["train", "run.yaml"]) == 130
    assert "go on with: bnp-dask resume run" in capsys.readouterr().err
    assert main(["train", "run.yaml"]) == 0
    assert "3 clusters" in capsys.readouterr().out


@pytest.mark.first_case
@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (cli.Terminated, 143)])
def test_a_stopped_run_says_how_to_go_on(folder, monkeypatch, capsys, stop, code):
    edit_job(folder, moves=[])
    from bnp_dask.cli.run import StopWhenAsked

    def interrupt(self, row, posterior):
        if row["lap"] == 2:
            raise stop

    edit_job(folder, schedule={"type": "Memoized", "laps": 5, "tolerance": 0, "count_tolerance": 0})
    with monkeypatch.context() as patch:
        patch.setattr(StopWhenAsked, "on_lap", interrupt)
        assert main(["train", "run.yaml"]) == code
    assert "go on with: bnp-dask resume run" in capsys.readouterr().err
    assert main(["resume", "run"]) == 0
    assert "lap 5" in capsys.readouterr().out


def test_a_moved_run_directory_is_resumed_where_it_is(folder, capsys):
    edit_job(folder, moves=[])
    assert main(["train", "run.yaml", "--laps", "1"]) == 0
    (folder / "run").rename(folder / "moved")
    assert main(["resume", "moved", "--laps", "3"]) == 0
    assert (folder / "moved" / "posterior.zarr").exists()
    assert not (folder / "run").exists()
    capsys.readouterr()


def test_sigterm_handler_is_put_back(folder, capsys):
    before = signal.getsignal(signal.SIGTERM)
    main(["inspect", "none.zarr"])
    assert signal.getsignal(signal.SIGTERM) is before
    capsys.readouterr()


# -- as a program ---------------------------------------------------------------------------------------------
def run_program(*words, **options):
    command = [sys.executable, "-m", "bnp_dask", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.long
def test_workers_train_to_the_same_bits(folder, capsys):
    assert main(["train", "run.yaml", "--store", "here"]) == 0
    with run_program("train", "run.yaml", "--store", "there", "--workers", "2") as program:
        out, err = program.communicate(timeout=100)
    assert program.returncode == 0, err
    assert "2 workers, dashboard: http://127.0.0.1:" in out
    here, there = bnp.load("here/posterior.zarr"), bnp.load("there/posterior.zarr")
    for name, value in here.summary.values.items():
        np.testing.assert_array_equal(there.summary[name], value)
    capsys.readouterr()


def test_sigterm_ends_a_program_cleanly(folder):
    edit_job(folder, schedule={"type": "Memoized", "laps": 100_000, "tolerance": 0, "count_tolerance": 0})
    with run_program("train", "run.yaml", env={**os.environ, "PYTHONUNBUFFERED": "1"}) as program:
        for line in program.stderr:
            if line.startswith("lap 2"):
                break
        program.send_signal(signal.SIGTERM)
        rest = program.stderr.read()
        deadline = time.monotonic() + 30
        while program.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert program.returncode == 143
    assert "saved in run; go on with: bnp-dask resume run" in rest
    assert "Traceback" not in rest


# -- small things ---------------------------------------------------------------------------------------------
def test_options_win_over_the_job_file():
    from argparse import Namespace

    from bnp_dask.cli.jobfile import ClientSpec

    none = Namespace(workers=None, scheduler=None, scheduler_file=None, memory_limit=None)
    default = ClientSpec(workers=2, memory_limit="1GB")
    assert client_spec(none, default) == default
    assert client_spec(Namespace(**{**vars(none), "workers": 4}), default) == ClientSpec(workers=4, memory_limit="1GB")
    assert client_spec(Namespace(**{**vars(none), "scheduler": "tcp://a:1"}), default) == ClientSpec(
        scheduler="tcp://a:1"
    )
    assert client_spec(Namespace(**{**vars(none), "memory_limit": "2GB"}), default) == ClientSpec(2, memory_limit="2GB")


def test_clusters_are_listed_from_the_heaviest_on():
    from types import SimpleNamespace

    from bnp_dask.cli.run import weights_table

    mixture = SimpleNamespace(structure=SimpleNamespace(is_ordered=False, is_tied=False))
    weights, ids = np.array([0.2, 0.5, 0.1, 0.2]), np.array([7, 3, 9, 4])
    posterior = SimpleNamespace(weights=weights, ids=ids, n_clusters=4, model=mixture, summary=None)
    lines = weights_table(posterior, limit=3).splitlines()
    assert [line.split() for line in lines[3:]] == [
        ["3", "0.5"],
        ["4", "0.2"],
        ["7", "0.2"],
        ["...", "and", "1", "more"],
    ]


def test_a_run_that_was_asked_to_stop_has_a_minute_for_it(capfd, monkeypatch):
    from bnp_dask.cli.run import StopWhenAsked

    alarms = []  # the real one is that of the test's own limit of time
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: alarms.append((which, seconds)))
    stop = StopWhenAsked()
    stop.on_start(RunInfo(8, 100, 5, 0, 0, "in this thread"))
    with stop.listening():
        assert alarms == []
        signal.raise_signal(signal.SIGTERM)
        assert alarms == [(signal.ITIMER_REAL, 60.0)]
        assert stop.on_batch(1) == "terminated by a signal"
        with pytest.raises(cli.Terminated):  # when the time is up
            signal.raise_signal(signal.SIGALRM)
    assert alarms[1:] == [(signal.ITIMER_REAL, 0)]
    assert "stopping after the batches in flight" in capfd.readouterr().err


def test_table_lines_up():
    text = table(("name", "share"), [("a", 0.25), ("long", 12.0)])
    assert text.splitlines() == ["name  share", "----  -----", "a      0.25", "long     12"]


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (999, "999 B"), (51_200_000, "51.2 MB"), (2.5e15, "2.5e+03 TB")])
def test_sizes(n, text):
    assert size(n) == text


def test_a_column_with_texts_and_numbers_is_lined_up_to_the_right():
    assert table(("name", "value"), [("a", 1.5), ("bb", "none")]).splitlines() == [
        "name  value",
        "----  -----",
        "a       1.5",
        "bb     none",
    ]


def test_a_folder_is_looked_into_every_minute_unless_told_otherwise(capsys):
    with pytest.raises(SystemExit):
        main(["follow", "--help"])
    assert "(60)" in capsys.readouterr().out
    commands = argparse.ArgumentParser().add_subparsers()
    growing.add(commands)
    assert commands.choices["follow"].parse_args(["run", "inbox"]).every == 60.0


def test_a_run_of_a_job_file_knows_its_data_again(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(120, 2)) + np.repeat([[0.0], [9.0]], 60, axis=0)
    for name, part in {"first.npy": rows[::2], "second.npy": rows[1::2]}.items():
        np.save(name, part)
    job = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "first.npy", "batch_size": 30},
        "init": {"type": "BregmanKMeans", "n_clusters": 2},
        "store": "run",
        "rng": 0,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert main(["train", "run.yaml", "--quiet"]) == 0
    assert main(["update", "run", "first.npy"]) == 0  # it has them already
    assert "known already" in capsys.readouterr().err
    assert main(["update", "run", "second.npy"]) == 0
    told = capsys.readouterr()
    assert "1 older ones visited" in told.out and "cannot be visited again" not in told.err


# -- by hand -------------------------------------------------------------------------------------------------------
def test_sizes_have_three_digits_up_to_the_end_of_a_unit():
    sizes = (0, 999.4, 999.6, 999_499, 999_501, 999_999, 1e9 - 1, 1e12 - 1)
    told = ["0 B", "999 B", "1 kB", "999 kB", "1 MB", "1 MB", "1 GB", "1 TB"]
    assert [size(n) for n in sizes] == told and [_bytes(n) for n in sizes[3:]] == told[3:]
    assert [_bytes(n) for n in (0.0, 12_345.0, 5e13)] == ["0 kB", "12.3 kB", "50 TB"]


def test_a_zero_of_the_command_line_is_a_setting_and_not_the_jobs(monkeypatch):
    spec = UpdateSpec(revisit=2.0, laps=3, versions=7, new_words="drop", half_life="30d", on_bad="set aside")
    monkeypatch.setattr("bnp_dask.cli.jobfile.update_of_run", lambda rundir: spec)
    nothing = dict.fromkeys(("revisit", "laps", "time", "new_words", "versions", "dormant", "batch_size"))
    nothing |= dict.fromkeys(("half_life", "keep", "on_bad"))
    args = argparse.Namespace(rundir="run", **nothing)
    of_job = {"revisit": 2.0, "laps": 3, "time": None, "new_words": "drop", "versions": 7}
    assert growing._options(args) == of_job
    args.revisit, args.laps, args.half_life = 0.0, 0, ""
    assert growing._options(args) == of_job | {"revisit": 0.0, "laps": 0}
    found = growing._ageing(args)
    assert (found["half_life"], found["on_bad"], found["keep"], found["dormant"]) == ("", "set aside", None, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("_amount", "0", 0.0), ("_amount", "1e-3", 1e-3), ("_amount", "-0.1", None), ("_amount", "inf", None),
     ("_amount", "nan", None), ("_amount", "", None), ("_seconds", "0", None), ("_seconds", "0.5", 0.5),
     ("_laps", "0", 0), ("_laps", "-1", None), ("_laps", "1e2", None), ("_laps", "", None), ("_laps", "9" * 10, None),
     ("_version", "0", 0), ("_version", "-1", None), ("_version", "", None), ("_on_bad", "set-aside", "set aside"),
     ("_on_bad", "raise", "raise"), ("_on_bad", "", None), ("_on_bad", "skip", None)],
)  # fmt: skip
def test_arguments_at_their_limits(kind, text, value):
    check = getattr(growing, kind)
    if value is None:
        with pytest.raises(argparse.ArgumentTypeError, match="found"):
            check(text)
    else:
        found = check(text)
        assert found == value and type(found) is type(value)


def test_frequencies_with_a_point_are_shares_and_ranges_are_two_numbers():
    for text, value in (("1", 1), ("1.0", 1.0), ("0", 0), ("0.0", 0.0), (".5", 0.5)):
        found = of_data._frequency(text)
        assert found == value and type(found) is type(value)
    assert of_data._range("1, 2") == (1, 2) and of_data._range("0,0") == (0, 0)
    for check, wrong in (
        (of_data._frequency, ""),
        (of_data._range, "1"),
        (of_data._range, "1,2,3"),
        (of_data._range, "1,"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="found"):
            check(wrong)


def test_records_are_printed_whole_with_what_is_unknown(capsys):
    records = [{"a": 0, "b": (1, 2), "c": float("nan")}, {"a": None, "b": (), "c": 0.0}]
    say_records(records, "json", ("c", "b", "a"))
    assert json.loads(capsys.readouterr().out) == [{"c": None, "b": [1, 2], "a": 0}, {"c": 0.0, "b": [], "a": None}]
    say_records(records, "csv", ("a", "b", "c"))
    assert capsys.readouterr().out.splitlines() == ["a,b,c", "0,1;2,", ",,0.0"]
    assert [shown_value(v) for v in (None, 0, 0.0, 1234567.0, "x", False)] == [
        "-",
        "0",
        "0",
        "1.23457e+06",
        "x",
        "False",
    ]


def test_changes_and_places_are_told_in_lines():
    change = Change("split", 0, (3, 4), 10.0, 0.0, 0.25, 0.0)
    text = growing.changes_table([change, Change("larger share", 2, (), 1.0, 2.0, 0.1, 0.4)])
    assert "25.0% -> 0.0%" in text and "10 -> 0" in text and "3, 4" in text and "10.0% -> 40.0%" in text
    assert growing.changes_table([]).startswith("no cluster came or went")
    assert [growing._few(p) for p in ((), ("a",), ("a", "b", "c"))] == ["-", "a", "a and 2 more"]
