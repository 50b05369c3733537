"""A word that is mistyped is met with the word that was meant, found by one function for commands and job files."""

import pytest
import yaml

from bnp_dask.cli import main
from bnp_dask.errors import near, nearest


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
        ({"max_laps": 3}, "max_laps: there is no such setting"),
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
