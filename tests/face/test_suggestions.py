"""A word that is mistyped is met with the word that was meant, found by one function for commands and job files."""

import os

import numpy as np
import pytest
import yaml

from bnp_dask.cli import main
from bnp_dask.errors import StoreError, near, nearest
from bnp_dask.reports.pages import page_target


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("trian", ["train", "retire"], "train"),
        ("--lap", ["--laps", "--debug"], "--laps"),
        ("batchsize", ["batch_size", "path"], "batch_size"),
        ("batch-size", ["batch_size"], "batch_size"),
        ("GAMA", ["gamma", "alpha"], "gamma"),
        ("group", ["group_column", "columns"], "group_column"),
        ("laps", ["collapsed", "shadow"], None),
        ("--dry-run", ["--id-column", "--quiet"], None),
        ("x", ["y"], None),
        ("", ["data"], None),
    ],
)
def test_the_nearest_word_is_one_that_was_mistyped_and_no_other(typed, known, meant):
    assert near(typed, known) == meant
    assert nearest(typed, known) == ("" if meant is None else f"; nearest existing name: {meant!r}")


def refused(capsys, *words):
    try:
        code = main(list(words))
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2 and len(err.strip().splitlines()) == 1, err
    return err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"laps": 3}, "laps: there is no such setting here; 'laps' belongs to 'schedule', such as schedule: {type: "),
        ({"batch_size": 3}, "'batch_size' belongs to 'data', such as data: {batch_size: ...}"),
        ({"gamma": 3}, "'gamma' belongs to 'model.allocation', such as model: {allocation: {type: DPMixture, gamma: "),
        (
            {"schedule": {"type": "Memoized", "per_lap": 3}},
            "'per_lap' belongs to 'moves', such as moves: [{type: Birth",
        ),
        ({"client": {"rng": 3}}, "client.rng: there is no such setting here; 'rng' belongs to the top of the file"),
        ({"max_laps": 3}, "max_laps: there is no such setting here; that is schedule: {type: Memoized, laps: ...}"),
        ({"seed": 3}, "seed: there is no such setting here; that is 'rng'"),
        ({"n_jobs": 3}, "n_jobs: there is no such setting here; that is client: {workers: ...}"),
    ],
)
def test_a_setting_in_the_wrong_section_of_a_job_file_is_shown_its_place(tmp_path, capsys, wrong, said):
    job = {"model": {"allocation": "DPMixture", "observation": "Gaussian"}, "data": {"path": "x.npy"}, **wrong}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    assert said in refused(capsys, "train", str(tmp_path / "run.yaml"))


def test_an_option_is_compared_with_those_of_its_command_and_others_are_named_with_theirs(capsys):
    assert "--lap 3; did you mean '--laps'?" in refused(capsys, "train", "run.yaml", "--lap", "3")
    assert "'--laps' is an option of demo, train, resume" in refused(capsys, "score", "run", "x.npy", "--laps", "3")
    said = refused(capsys, "train", "run.yaml", "--dry-run")
    assert "did you mean" not in said and "'bnp-dask train --help' lists its options" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("inspect run --json", "did you mean '--format json'?"),
        ("predict run x.npy -o labels.csv", "did you mean '--out'?"),
        ("train run.yaml --n-jobs 2", "did you mean '--workers'?"),
        ("train run.yaml rng=3", "'bnp-dask train --help' shows what it takes"),
        ("train run.yml", "No such file or directory; nearest existing name: 'run.yaml'"),
        ("train x.npy", "is no job file, which is text in YAML"),
        ("train empty.yaml", "the job is empty; 'bnp-dask init DATA' writes one"),
        ("train tabs.yaml", "cannot start any token (line 2, column 1); lines are indented by blanks"),
        ("train variable.yaml", "store: '$HOME/runs': variables of the environment are not replaced here"),
        ("inspect runn", "nearest existing name: 'runs'; models are written by save(posterior, path), runs are"),
        ("versions runn", "nearest existing name: 'runs'"),
        ("resume runn", "nearest existing name: 'runs'"),
        ("init -", "is a pipe, and data are read more than once; write them to a file first"),
        ("init pipe", "is a pipe, and data are read more than once; write them to a file first"),
        ("", "required: COMMAND; 'bnp-dask --help' lists them, 'bnp-dask demo' shows an example"),
    ],
)
def test_habits_of_other_programs_are_answered_with_the_word_here(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    os.mkfifo("pipe")
    np.save("x.npy", np.zeros((3, 2)))
    job = {"model": {"allocation": "DPMixture", "observation": "Gaussian"}, "data": {"path": "x.npy"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    (tmp_path / "tabs.yaml").write_text("model:\n\tallocation: DPMixture\n")
    (tmp_path / "variable.yaml").write_text(yaml.safe_dump({**job, "store": "$HOME/runs"}))
    assert said in refused(capsys, *words.split())
    assert not (tmp_path / "$HOME").exists()


@pytest.mark.parametrize("words", [["help"], ["help", "train"], ["version"], ["-V"]])
def test_help_and_version_are_commands_too(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    out = capsys.readouterr().out
    assert stop.value.code == 0 and out.startswith("usage: bnp-dask" if words[0] == "help" else "bnp-dask ")


def test_a_page_is_not_named_as_something_else(tmp_path):
    with pytest.raises(StoreError, match="page.pdf: a page is HTML; name it page.html. A browser prints it as PDF"):
        page_target(tmp_path / "page.pdf")
