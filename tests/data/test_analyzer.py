"""Texts cut by a function of the user's: the same one at ingest, in stores, in posteriors, for new texts."""

import pickle
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.core.registry import FUNCTIONS
from bnp_dask.data import Analysis
from bnp_dask.errors import DataError, SettingError, StoreError
from tests.data.reading import rows

TEXTS = ["Wine-red-THE-wine", "red-sun--sun", "the-moon", "wine-moon-red"] * 3
DOCUMENTS = [(str(i), text) for i, text in enumerate(TEXTS)]


def by_dash(text):
    return text.lower().split("-")


def as_numbers(text):
    return [len(text)]


def as_text(text):
    return text


@pytest.fixture
def strangers(monkeypatch):
    """A process in which nobody registered a function."""

    def forget():
        monkeypatch.setattr(FUNCTIONS, "_functions", {})

    return forget


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of texts cut at dashes."""
    folder = tmp_path_factory.mktemp("dashes")
    bnp.ingest(DOCUMENTS, folder / "x.zarr", text=bnp.Text(analyzer=by_dash, min_df=1))
    settings = {"init": bnp.RandomExamples(2), "schedule": bnp.Memoized(laps=200), "moves": (), "rng": 0}
    model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    bnp.train(model, folder / "x.zarr", store=folder / "run", **settings).posterior.save(folder / "posterior")
    return folder


@pytest.mark.parametrize("stop_words", ["english", None, ["red"]])
def test_words_are_those_of_the_function(tmp_path, stop_words):
    left_out = ENGLISH_STOP_WORDS if stop_words == "english" else stop_words or ()
    theirs = CountVectorizer(analyzer=lambda text: [w for w in by_dash(text) if w and w not in left_out], min_df=4)
    x = theirs.fit_transform(TEXTS).toarray()
    text = bnp.Text(analyzer=by_dash, stop_words=stop_words, min_df=4, keep_empty=True)
    report = bnp.ingest(DOCUMENTS, tmp_path / "x.zarr", text=text)
    np.testing.assert_array_equal(rows(bnp.as_source(tmp_path / "x.zarr")), x)
    vocabulary = bnp.load_vocabulary(tmp_path / "x.zarr")
    assert list(vocabulary.words) == theirs.get_feature_names_out().tolist()
    assert vocabulary.analysis.function == "tests.data.test_analyzer:by_dash"
    np.testing.assert_array_equal(vocabulary.counts(TEXTS).toarray(), x)
    assert ("stop words" in [reason for reason, *_ in report.text.dropped]) == bool(left_out)
    more = {"vocabulary": tmp_path / "x.zarr", "text": bnp.Text(keep_empty=True)}
    bnp.ingest(DOCUMENTS[:2], tmp_path / "more.zarr", **more)
    np.testing.assert_array_equal(rows(bnp.as_source(tmp_path / "more.zarr")), x[:2])


def test_settings_travel_by_name():
    by_name = bnp.Text(analyzer="tests.data.test_analyzer:by_dash")
    assert by_name == bnp.Text(analyzer=by_dash) == pickle.loads(pickle.dumps(by_name))
    assert by_name.analysis_given() and bnp.Text().analysis.to_json().keys().isdisjoint({"function"})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (lambda text: [], "is a lambda, which no file can name"),
        (CountVectorizer().build_analyzer(), "no function at the top of a module"),
        (3, "3 is no function"),
        (int, "int.* is no function"),
        ("builtins:int", "is a class; needs a function"),
        ("by_dash", "names no function; needs module:function"),
        ("tests.data.test_analyzer:nothing", "no attribute 'nothing'"),
        ("no.such.module:cut", "No module named 'no'"),
        ("tests.data.test_analyzer:TEXTS", "cannot be called"),
    ],
)
def test_what_no_file_can_name_is_refused_at_once(given, match):
    with pytest.raises(SettingError, match=match):
        bnp.Text(analyzer=given)


def test_a_name_of_a_file_imports_nothing(strangers):
    strangers()
    with pytest.raises(StoreError, match="'antigravity:fly', which a file names, was not registered"):
        Analysis(function="antigravity:fly").analyzer()
    assert "antigravity" not in sys.modules
    with pytest.raises(StoreError, match="is a lambda"):
        bnp.register(lambda text: text.split())


def test_settings_whose_place_it_takes_are_refused():
    with pytest.raises(SettingError, match="takes the place of lowercase, ngrams"):
        bnp.Text(analyzer=by_dash, ngrams=(1, 2), lowercase=False)


@pytest.mark.parametrize("function", [as_numbers, as_text])
def test_functions_that_make_no_words(tmp_path, function):
    with pytest.raises(DataError, match=f"{function.__name__} made .* needs a list of words"):
        bnp.ingest(DOCUMENTS, tmp_path / "x.zarr", text=bnp.Text(analyzer=function))
    assert not list(tmp_path.iterdir())


def test_new_texts_are_cut_likewise(trained, strangers):
    posterior = bnp.load(trained / "posterior")
    new = ["WINE-red", "sun-moon-moon"]
    counts = bnp.load_vocabulary(trained / "x.zarr").counts(new)
    np.testing.assert_array_equal(bnp.predict(posterior, new, soft=True), bnp.predict(posterior, counts, soft=True))
    assert bnp.score(posterior, new) == bnp.score(posterior, counts)
    assert bnp.explain(posterior, new[1]).counts.tolist() == [2.0, 1.0]
    found = bnp.update(trained / "run", [*new, "sun-STAR", "star-red"], new_words="add").posterior
    assert found.feature_names == (*posterior.feature_names, "star")
    strangers()
    for ask in (bnp.predict, bnp.score):
        with pytest.raises(StoreError, match=r"bnp_dask.register\(by_dash\) after importing it from tests.data"):
            ask(posterior, new)
    assert bnp.register(by_dash) is by_dash
    assert bnp.predict(posterior, new).shape == (2,)


def test_the_command_line_takes_a_name(tmp_path, monkeypatch, capsys, strangers):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "words_at_dashes.py").write_text("def cut(text):\n    return text.lower().split('-')\n")
    (tmp_path / "x.txt").write_text("\n".join(TEXTS))
    words = ["--min-df", "1", "--stop-words", "none"]
    assert main(["ingest", "x.txt", "x.zarr", "--analyzer", "words_at_dashes:cut", *words]) == 0
    assert bnp.load_vocabulary("x.zarr").words == ("moon", "red", "sun", "the", "wine")
    strangers()
    again = ["ingest", "x.txt", "again.zarr", "--format", "lines", "--vocabulary", "x.zarr"]
    assert main(again) == 2
    assert "--import words_at_dashes:cut" in capsys.readouterr().err
    assert main([*again, "--import", "words_at_dashes:cut"]) == 0
    np.testing.assert_array_equal(rows(bnp.as_source("again.zarr")), rows(bnp.as_source("x.zarr")))
    assert main([*again, "--overwrite", "--import", "words_at_dashes:paste"]) == 2
    assert "no attribute 'paste'" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_topic_model_of_texts(strangers):
    made = bnp.TopicModel(2, max_laps=3, random_state=0, text=bnp.Text(analyzer=by_dash, min_df=1)).fit(TEXTS)
    assert made.vocabulary_.words == ("moon", "red", "sun", "wine")
    counts = made.vocabulary_.counts(TEXTS)
    theirs = bnp.TopicModel(2, max_laps=3, random_state=0).fit(counts)
    assert made.components_.tobytes() == theirs.components_.tobytes()
    np.testing.assert_array_equal(made.transform(["red-sun"]), theirs.transform([[0, 1, 1, 0]]))
    assert made.score(TEXTS) == theirs.score(counts)
    assert set(made.posterior_.topics(4)[0].words) == set(made.vocabulary_.words)
    assert bnp.explain(made.posterior_, "moon-moon").counts.tolist() == [2.0]
    stored = pickle.dumps(made)
    strangers()
    again = pickle.loads(stored)
    assert again.transform(["red-sun"]).tobytes() == made.transform(["red-sun"]).tobytes()
    with pytest.warns(UserWarning, match="1 of 3 tokens are left out: the model does not know their words"):
        made.partial_fit(["moon-comet", "wine"])
    assert made.posterior_.feature_names == made.vocabulary_.words
    for bad, match in (
        (TEXTS[0], "needs a list of texts"),
        (counts, "is csr_array; needs a list of texts"),
        ([3], "is list; needs a list of texts"),
    ):
        with pytest.raises(DataError, match=match):
            made.transform(bad)
    with pytest.raises(SettingError, match="texts of a run are ingested first"):
        bnp.TopicModel(text=bnp.Text(), store="run").fit(TEXTS)
