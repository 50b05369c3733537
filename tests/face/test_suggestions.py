"""A word that is mistyped is met with the word that was meant, found by one function for commands and job files."""

import inspect
import os
import pickle
import re

import numpy as np
import pytest
import yaml

import bnp_dask as bnp
from bnp_dask._names import PUBLIC
from bnp_dask.cli import main
from bnp_dask.errors import PARAMETERS, StoreError, near, nearest, no_parameter
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


# -- calls with parameters that are not there --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("called", "name", "said"),
    [
        ("train", "seed", "here it is rng="),
        ("train", "n_clusters", "here it is init=bnp_dask.BregmanKMeans(n_clusters=...)"),
        ("train", "groups", "here it is data=bnp_dask.as_source(data, groups=...)"),
        ("train", "verbose", "here it is callbacks=[bnp_dask.Progress()]"),
        ("train", "epochs", "here it is schedule=bnp_dask.Memoized(laps=...)"),
        ("train", "learning_rate", "here it is schedule=bnp_dask.Stochastic(decay=...)"),
        ("train", "observation", "here it is model=bnp_dask.Model(allocation, observation)"),
        ("train", "n_jobs", "here it is client=bnp_dask.local_client(2)"),
        ("train", "sample_weight", "here it is weights="),
        ("train", "output_dir", "here it is store="),
        ("train", "shcedule", "nearest existing name: 'schedule'; it has model, data, init"),
        ("DPMixture", "alpha", "here it is gamma="),
        ("DPMixture", "gama", "nearest existing name: 'gamma'; it has gamma, top"),
        ("DPMixture", "n_clusters", "here it is a setting of the run: bnp_dask.train(model, data, init="),
        ("HDPHMM", "n_states", "here it is a setting of the run: bnp_dask.train(model, data, init="),
        ("HDPHMM", "sticky", "here it is kappa="),
        ("HDPTopics", "n_topics", "here it is a setting of the run: bnp_dask.train(model, data, init="),
        ("LDA", "doc_topic_prior", "here it is alpha="),
        ("PitmanYorMixture", "sigma", "here it is discount="),
        ("Gaussian", "mean", "here it is m=, the prior mean"),
        ("Gaussian", "covariance", "here it is B=, the scale"),
        ("DiagGaussian", "scale", "here it is beta=, the scale"),
        ("Poisson", "rate", "here it is a= and b="),
        ("Multinomial", "eta", "here it is lam="),
        ("Text", "mindf", "nearest existing name: 'min_df'"),
        ("Text", "ngram_range", "here it is ngrams="),
        ("Memoized", "max_iter", "here it is laps="),
        ("Memoized", "seed", "here it is a setting of the run: bnp_dask.train(model, data, rng=...)"),
        ("Gibbs", "n_samples", "here it is laps="),
        ("BregmanKMeans", "K", "here it is n_clusters="),
        ("Model", "likelihood", "here it is observation="),
        ("predict", "model", "here it is posterior="),
        ("predict", "X", "here it is data="),
        ("predict", "proba", "here it is soft=True"),
        ("sample", "size", "here it is n="),
        ("save", "filename", "here it is path="),
        ("as_source", "lengths", "here it is groups="),
        ("local_client", "n_workers", "here it is workers="),
        ("update", "run_dir", "here it is store="),
        ("Progress", "zzz", "it has none"),
    ],
)
def test_a_parameter_that_is_not_there_is_answered_with_the_one_that_is_meant(called, name, said):
    function = getattr(bnp, called)
    of = called if isinstance(function, type) else f"{called}()"
    with pytest.raises(TypeError, match=re.escape(f"{of} has no parameter '{name}'; {said}")):
        function(**{name: 3})


def test_every_public_function_and_class_of_settings_answers():
    made = [name for name in PUBLIC if inspect.isfunction(getattr(bnp, name)) and name != "register"]
    made += [name for name in dir(bnp) if PUBLIC[name] == PUBLIC["Gaussian"] or PUBLIC[name] == PUBLIC["DPMixture"]]
    for name in [*made, "Model", "Memoized", "Gibbs", "Filter", "BregmanKMeans", "Birth", "Text", "Patches", "Shadow"]:
        with pytest.raises(TypeError, match=r"has no parameter 'no_such_thing'; it has "):
            getattr(bnp, name)(no_such_thing=3)


METHODS = [
    (bnp.DirichletProcessMixture, "fit", "sample_weights", "here it is sample_weight="),
    (bnp.DirichletProcessMixture, "sample", "size", "here it is n_samples="),
    (bnp.DirichletProcessMixture, "predict", "data", "here it is X="),
    (bnp.DirichletProcessMixture, "score_samples", "zzz", "it has X"),
    (bnp.SequenceModel, "fit", "groups", "here it is lengths="),
    (bnp.SequenceModel, "sample", "n_draws", "here it is n_samples="),
    (bnp.TopicModel, "fit", "documents", "here it is X="),
    (bnp.TopicModel, "__init__", "corpus", "here it is fit(X)"),
    (bnp.TopicModel, "__init__", "id2word", "here it is posterior_.topics(10, words=dictionary)"),
    (bnp.TopicModel, "fit", "embeddings", 'here it is bnp_dask.DirichletProcessMixture("von_mises_fisher").fit('),
    (bnp.DirichletProcessMixture, "__init__", "eps", "here it is gamma=, the prior of how many there are"),
    (bnp.Posterior, "topics", "n_top_words", "here it is n="),
    (bnp.Posterior, "save", "file", "here it is path="),
    (bnp.Tree, "cut", "k", "here it is n_clusters="),
]


@pytest.mark.parametrize(("owner", "method", "name", "said"), METHODS)
def test_methods_answer_as_functions_do(owner, method, name, said):
    made = object.__new__(owner)
    of = owner.__name__ if method == "__init__" else f"{owner.__name__}.{method}()"
    with pytest.raises(TypeError, match=re.escape(f"{of} has no parameter '{name}'; {said}")):
        getattr(made, method)(**{name: 3})


@pytest.mark.parametrize("name", sorted(bnp.plot.__all__))
def test_pictures_answer_as_functions_do(name):
    with pytest.raises(TypeError, match=re.escape(f"{name}() has no parameter 'figsize'; here it is ax=, such as")):
        getattr(bnp.plot, name)(figsize=(3, 3))


@pytest.mark.parametrize(("cls", "name"), [("FiniteMixture", "gamma"), ("LDA", "alpha"), ("FiniteHMM", "alpha")])
def test_a_number_of_clusters_is_not_taken_for_a_prior(cls, name):
    with pytest.raises(bnp.errors.SettingError, match=rf"{cls}\(7\) would be {name}=7.*init=bnp_dask.BregmanKMeans"):
        getattr(bnp, cls)(7)
    assert getattr(bnp, cls)(7.0) == getattr(bnp, cls)(**{name: 7})


def doors():
    """Public functions, classes and methods that answer, each with the class that it belongs to."""
    for name in sorted(PUBLIC):
        value = getattr(bnp, name)
        if inspect.isfunction(value):
            yield name, value, None
        elif isinstance(value, type) and hasattr(value.__init__, "__wrapped__"):
            yield name, value.__init__, value
            methods = [(key, way) for key, way in vars(value).items() if inspect.isfunction(way) and key[0] != "_"]
            yield from ((f"{name}.{key}", way, value) for key, way in methods if hasattr(way, "__wrapped__"))
    yield from ((name, getattr(bnp.plot, name), None) for name in bnp.plot.__all__)


def test_every_answer_of_the_table_is_given_and_names_what_is_there():
    given = {}
    for of, called, owner in doors():
        signature = inspect.signature(called)
        for name in {word for words in PARAMETERS for word in words.split()} - set(signature.parameters):
            said = no_parameter(of, name, signature, owner).partition("; here it is ")[2]
            given.setdefault(said, []).append((of, signature))
    written = {re.sub(r"^[A-Z][\w ]*: ", "", call) for calls in PARAMETERS.values() for call in calls}
    assert written - set(given) == set()
    for said, places in given.items():
        for name in re.findall(r"(?:^|and )(\w+)=", said):
            assert all(name in signature.parameters for _, signature in places), said


@pytest.mark.parametrize(
    ("called", "name"), [("VonMisesFisher", "rate"), ("Gaussian", "sticky"), ("update", "n_samples"), ("plan", "lag")]
)
def test_what_another_part_calls_by_that_name_is_no_answer(called, name):
    with pytest.raises(TypeError) as caught:
        getattr(bnp, called)(**{name: 3})
    assert "here it is" not in str(caught.value)


def test_too_many_arguments_by_their_places_are_answered_with_names():
    with pytest.raises(TypeError, match=r"got 3 arguments by their places; needs at most 2: posterior, data"):
        bnp.predict(1, 2, "labels.zarr")
    with pytest.raises(TypeError, match="FromNothing got 1 arguments by their places; needs at most 0: none"):
        bnp.FromNothing(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        bnp.predict(1)


def test_arguments_of_any_number_have_no_name():
    with pytest.raises(TypeError, match=r"compare\(\) has no parameter 'runs'"):
        bnp.compare(1, runs=2)


def test_what_a_source_takes_is_answered_by_its_own_name():
    for name in ("columns", "text", "gaps", "groups", "order"):
        with pytest.raises(TypeError, match=rf"here it is data=bnp_dask.as_source\(data, {name}=\.\.\.\)"):
            bnp.train(1, 2, **{name: 3})


def test_a_type_error_inside_a_function_is_left_as_it_is():
    def words(wrong):
        return wrong + 1

    answering = bnp.errors.answering(words)
    with pytest.raises(TypeError, match="can only concatenate"):
        answering("a")
    assert answering(wrong=1) == 2


def test_calls_in_the_table_of_other_programs_names_exist():
    for call in (call for calls in PARAMETERS.values() for call in calls):
        for name, parameter in re.findall(r"bnp_dask\.(\w+)\((?:\w+, )*(\w+)=", call):
            assert parameter in inspect.signature(getattr(bnp, name)).parameters, call


def test_the_door_changes_neither_signatures_nor_pickles():
    assert str(inspect.signature(bnp.FiniteMixture)).startswith("(gamma: 'float'")
    for thing in (bnp.train, bnp.predict, bnp.Gaussian, bnp.DPMixture(gamma=2.0)):
        assert pickle.loads(pickle.dumps(thing)) == thing
