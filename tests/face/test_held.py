"""A table of what people hold, and verbs: each cell equals that of the plain form, or is refused by name at once."""

import itertools
import logging
import shutil
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import rows

pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray")
pytest.importorskip("sklearn")

LAST = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning", "ignore:.*not converged")


def of_module(name, module, **members):
    """A class of another library, which need not be installed."""
    return type(name, (), {"__module__": module, **members})


# -- documents --------------------------------------------------------------------------------------------------------
WORDS = ("moon", "red", "star", "sun", "wine")
TOPICS = (("moon", "star", "sun"), ("red", "wine", "wine"))
LISTS = [[TOPICS[d % 2][(d + i) % 3] for i in range(4 + d % 3)] for d in range(16)]
TEXTS = [" ".join(words) for words in LISTS]
X = np.array([[words.count(word) for word in WORDS] for words in LISTS], np.float64)
COUNTS = [{word: words.count(word) for word in sorted(set(words))} for words in LISTS]
PAIRS = [[(v, x[v]) for v in np.flatnonzero(x).tolist()] for x in X.astype(int)]
YEARS = [1990 + d for d in range(16)]

Table = of_module("Dataset", "datasets.arrow_dataset", __init__=lambda self, table: setattr(self, "table", table))
Table.with_format = lambda self, kind: self.table
Column = of_module(
    "Column", "datasets.arrow_dataset", __iter__=lambda self: iter(TEXTS), __len__=lambda self: len(TEXTS)
)
Corpus = of_module("Corpus", "mine", __iter__=lambda self: iter(PAIRS))
Series = of_module("Series", "polars.series.series", dtype="String", to_list=lambda self: list(TEXTS))

DOCUMENTS = {
    "counts": lambda folder: sparse.csr_array(X),
    "texts": lambda folder: TEXTS,
    "tuple of texts": lambda folder: tuple(TEXTS),
    "array of texts": lambda folder: np.array(TEXTS),
    "texts with ids": lambda folder: [(f"d{d}", text) for d, text in enumerate(TEXTS)],
    "Series": lambda folder: pd.Series(TEXTS, index=range(5, 21)),
    "Series of another library": lambda folder: Series(),
    "column of an Arrow table": lambda folder: pa.table({"a": TEXTS}).column("a"),
    "column of datasets": lambda folder: Column(),
    "DataFrame": lambda folder: pd.DataFrame({"year": YEARS, "text": TEXTS}),
    "DataFrame of one column": lambda folder: pd.DataFrame({"body": TEXTS}),
    "Arrow table": lambda folder: pa.table({"text": TEXTS, "year": YEARS}),
    "datasets": lambda folder: Table(pa.table({"text": TEXTS, "label": [0, 1] * 8})),
    "lists of words": lambda folder: LISTS,
    "Series of lists": lambda folder: pd.Series(LISTS),
    "counts by word": lambda folder: COUNTS,
    "pairs": lambda folder: PAIRS,
    "corpus": lambda folder: Corpus(),
}
AS_TABLES = ("DataFrame", "DataFrame of one column", "Arrow table", "datasets")


def topics(data, **settings):
    model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    how = {"init": bnp.SampledTopics(2), "schedule": bnp.Memoized(laps=2), "collapsed": 0, "rng": 0}
    return bnp.train(model, data, **how, **settings)


# -- sequences --------------------------------------------------------------------------------------------------------
WALKS = np.random.default_rng(0).normal(size=(3, 20, 2)).round(3) + np.repeat([0.0, 9.0], 10)[None, :, None]


def files(folder, kind):
    for g, walk in enumerate(WALKS):
        if kind == "npy":
            np.save(folder / f"{g}.npy", walk)
        else:
            pd.DataFrame(walk, columns=["a", "b"]).to_csv(folder / f"{g}.csv", index=False)
    return folder


def frame_of_groups():
    frame = pd.DataFrame(WALKS.reshape(-1, 2), columns=["a", "b"])
    return bnp.as_source(frame.assign(walk=np.repeat(["x", "y", "z"], 20)), groups="walk")


SEQUENCES = {
    "list of arrays": lambda folder: list(WALKS),
    "array of three axes": lambda folder: WALKS,
    "DataArray": lambda folder: xr.DataArray(WALKS, dims=("walk", "time", "sensor")),
    "DataArray with time last": lambda folder: xr.DataArray(WALKS.transpose(0, 2, 1), dims=("walk", "sensor", "time")),
    "DataArray with time first": lambda folder: xr.DataArray(
        WALKS.transpose(1, 0, 2), dims=("when", "walk", "sensor"), coords={"when": pd.date_range("2024", periods=20)}
    ),
    "list of DataFrames": lambda folder: [pd.DataFrame(walk, columns=["a", "b"]) for walk in WALKS],
    "folder of .npy": lambda folder: files(folder, "npy"),
    "pattern of .npy": lambda folder: str(files(folder, "npy") / "*.npy"),
    "folder of CSV": lambda folder: files(folder, "csv"),
    "pattern of CSV": lambda folder: str(files(folder, "csv") / "*.csv"),
    "source": lambda folder: frame_of_groups(),
}
ONE_SEQUENCE = {
    "array": lambda folder: WALKS[0],
    "list of one array": lambda folder: [WALKS[0]],
    "array of three axes": lambda folder: WALKS[:1],
    "DataArray": lambda folder: xr.DataArray(WALKS[0], dims=("time", "sensor")),
    "DataArray with time last": lambda folder: xr.DataArray(WALKS[0].T, dims=("sensor", "time")),
    "DataFrame": lambda folder: pd.DataFrame(WALKS[0], columns=["a", "b"]),
    "Arrow table": lambda folder: pa.table({"a": WALKS[0, :, 0], "b": WALKS[0, :, 1]}),
}


def states(data, **settings):
    model = bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian())
    return bnp.train(model, data, init=bnp.ContiguousBlocks(2), schedule=bnp.Memoized(laps=2), rng=0, **settings)


# -- rows -------------------------------------------------------------------------------------------------------------
ROWS = np.concatenate([WALKS[0], WALKS[1] + 40.0])
AnnData = of_module("AnnData", "anndata._core.anndata", X=ROWS, var_names=["a", "b"])
AnnData.obs_names = [f"cell{i}" for i in range(40)]


def parquet(folder):
    pq.write_table(pa.table({"a": ROWS[:, 0], "b": ROWS[:, 1]}), folder / "t.parquet")
    return folder / "t.parquet"


def npy(folder):
    np.save(folder / "x.npy", ROWS)
    return str(folder / "x.npy")


ATOMS = {
    "array": lambda folder: ROWS,
    "lists": lambda folder: ROWS.tolist(),
    "DataFrame": lambda folder: pd.DataFrame(ROWS, columns=["a", "b"]),
    "DataFrame with dates and ids": lambda folder: pd.DataFrame(ROWS, columns=["a", "b"]).assign(
        day=pd.date_range("2024", periods=40), patient_id=np.arange(40) * 7 + 1, time=1.7e9 + np.arange(40) * 0.5
    ),
    "Arrow table": lambda folder: pa.table({"a": ROWS[:, 0], "b": ROWS[:, 1]}),
    "DataArray": lambda folder: xr.DataArray(ROWS, dims=("row", "what"), coords={"what": ["a", "b"]}),
    "AnnData": lambda folder: AnnData(),
    "datasets": lambda folder: Table(pa.table({"a": ROWS[:, 0], "b": ROWS[:, 1]})),
    ".npy": npy,
    "Parquet": parquet,
    "source": lambda folder: bnp.as_source(ROWS),
}


def clusters(data, **settings):
    model = bnp.Model(bnp.FiniteMixture(), bnp.DiagGaussian())
    return bnp.train(model, data, init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=2), rng=0, **settings)


# -- the table --------------------------------------------------------------------------------------------------------
ESTIMATORS = {
    "topics": lambda: bnp.TopicModel(2, max_laps=2, random_state=0),
    "states": lambda: bnp.SequenceModel("diag_gaussian", n_states=2, max_laps=2, random_state=0),
    "clusters": lambda: bnp.DirichletProcessMixture("diag_gaussian", n_clusters=2, max_laps=2, random_state=0),
}
HELD = {
    "topics": (topics, DOCUMENTS, lambda: sparse.csr_array(X)),
    "states": (states, SEQUENCES, lambda: list(WALKS)),
    "one state path": (states, ONE_SEQUENCE, lambda: [WALKS[0]]),
    "clusters": (clusters, ATOMS, lambda: ROWS),
}
CELLS = [(what, held) for what, (_, forms, _) in HELD.items() for held in forms]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Result of each verb on the plain form, and a run on the same in another order, which can take it in."""
    found = {}
    for what, (train, _, make) in HELD.items():
        data, folder = make(), tmp_path_factory.mktemp("plain")
        known = TEXTS if what == "topics" else data  # counts without words know none
        train(data * 2 if what == "one state path" else known[::-1], store=folder / "run")
        shutil.copytree(folder / "run", folder / "grown")
        grown = bnp.update(folder / "grown", known)
        made = fitted(what, data)
        verb = made.transform if what == "topics" else made.predict
        found[what] = {
            "run": folder / "run", "result": (result := train(known)), "grown": grown, "data": data,
            "predicted": bnp.predict(result.posterior, data), "soft": bnp.predict(result.posterior, data, soft=True),
            "score": bnp.score(result.posterior, data), "fitted": made, "assigned": dense(verb(data)),
            "fitted score": made.score(data),
        }  # fmt: skip
    return found


def fitted(what, data):
    return ESTIMATORS["states" if what == "one state path" else what]().fit(data)


def dense(result):
    parts = result if isinstance(result, list) else [result]
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


@LAST
@pytest.mark.filterwarnings("ignore:.*features are", "ignore:.*the documents are")
@pytest.mark.parametrize(("what", "held"), CELLS, ids=[f"{what}-{held}" for what, held in CELLS])
def test_what_people_hold_is_the_plain_form_to_all_verbs(what, held, plain, tmp_path):
    train, forms, _ = HELD[what]
    own = plain[what]
    make, data = forms[held], own["data"]
    given = make(tmp_path)
    result = train(given)
    assert result.history["elbo"].tolist() == own["result"].history["elbo"].tolist()
    posterior = own["result"].posterior
    np.testing.assert_array_equal(bnp.predict(posterior, given, soft=True), own["soft"])
    assert bnp.score(posterior, given) == own["score"]
    np.testing.assert_array_equal(bnp.predict(result.posterior, given), own["predicted"])
    if what == "topics" and held not in ("counts", "pairs", "corpus"):
        assert result.posterior.words.words == WORDS
    estimator = fitted(what, given)
    assert [row["elbo"] for row in estimator.history_] == [row["elbo"] for row in own["fitted"].history_]
    found = estimator.transform(given) if what == "topics" else estimator.predict(given)
    np.testing.assert_array_equal(dense(found), own["assigned"])
    assert estimator.score(given) == own["fitted score"]
    # a table is ingested as texts where one says so, as its path would be
    extra = {"text": bnp.Text(column="body" if "one column" in held else None)} if held in AS_TABLES else {}
    bnp.ingest(given, tmp_path / "store.zarr", **(extra if what == "topics" else {}))
    stored = bnp.as_source(tmp_path / "store.zarr")
    if what == "one state path":
        return  # rows, of which a store does not say that they are one sequence
    wanted = data if what in ("clusters", "topics") else np.concatenate(data)
    np.testing.assert_array_equal(rows(stored), wanted.toarray() if sparse.issparse(wanted) else wanted)
    if what == "states":
        assert stored.all_offsets().tolist() == [0, 20, 40, 60]
    if result.posterior.words is not None:
        assert bnp.load_vocabulary(stored).words == WORDS


@LAST
@pytest.mark.filterwarnings("ignore:.*features are", "ignore:.*the documents are")
@pytest.mark.parametrize(("what", "held"), CELLS, ids=[f"{what}-{held}" for what, held in CELLS])
def test_what_people_hold_is_taken_into_a_run(what, held, plain, tmp_path):
    own = plain[what]
    given = HELD[what][1][held](tmp_path)
    if isinstance(given, str) or held.startswith((".npy", "Parquet", "folder")):
        pytest.skip("update takes files one by one: tests/growing")
    shutil.copytree(own["run"], tmp_path / "run")
    grown = bnp.update(tmp_path / "run", given)
    assert grown.history["elbo"].tolist() == own["grown"].history["elbo"].tolist()
    assert grown.posterior.feature_names == own["grown"].posterior.feature_names


# -- refusals ---------------------------------------------------------------------------------------------------------
REFUSED = {
    "texts for rows": ("clusters", TEXTS, "16 texts, but DiagGaussian takes rows of numbers.*Multinomial.*TopicModel"),
    "lists of words for rows": ("clusters", LISTS, "lists of words, but DiagGaussian takes rows"),
    "counts by word for rows": ("clusters", COUNTS, "counts of words, but .* records of a table: pandas.DataFrame"),
    "sequences for rows": ("clusters", WALKS, r"shape \(3, 20, 2\) holds 3 sequences.*x.reshape\(-1, x.shape\[2\]\)"),
    "a DataArray of sequences for rows": (
        "clusters",
        xr.DataArray(WALKS, dims=("walk", "time", "sensor")),
        r"shape \(3, 20, 2\) holds 3 sequences",
    ),
    "a DataArray of sequences with names for rows": (
        "clusters",
        xr.DataArray(WALKS.transpose(0, 2, 1), dims=("walk", "sensor", "time"), coords={"sensor": ["a", "b"]}),
        r"shape \(3, 20, 2\) holds 3 sequences",
    ),
    "texts for sequences": ("states", TEXTS, "texts, but DiagGaussian takes rows of numbers"),
    "an iterator": ("topics", (text for text in TEXTS), "is a generator; needs .* or a list: list"),
    "a list of paths": ("topics", [__file__, __file__], "list of paths, such as .*test_held.py"),
    "paths as objects": ("topics", [Path(__file__)] * 2, "list of paths, such as .*test_held.py.*read_text"),
    "a dict of texts": (
        "topics",
        {"a": "one text", "b": "another"},
        r"2 texts; needs a list: list\(data.items",
    ),
    "numbers of words": ("topics", [[1, 2, 3], [4, 5]], r"2 lists of numbers, of different lengths; .*str\(word\) for"),
    "one text": ("topics", "one text of five words", r"no such file or folder; a text goes in as a list: \[text\]"),
    "mixed documents": ("topics", [*TEXTS, 3], r"data\[16\] is 3, but others are texts"),
    "words that are none": ("topics", [*LISTS, ["sun", 3]], r"data\[16\] holds 3, which is no word"),
    "negative counts": ("topics", [{"sun": 1}, {"sun": -1}], "a count is -1; needs numbers of at least 0"),
    "counts that are none": ("topics", [{"sun": 1}, {"sun": "a"}], "a count is no number"),
    "missing texts": ("topics", pd.DataFrame({"text": ["sun", None]}), "row 1, column 'text' is .* no text"),
    "splits of data": ("clusters", {"train": ROWS, "test": ROWS}, "choose one by its name, of 'train', 'test'"),
    "no file": ("states", "nowhere/*.npy", "no file fits this pattern"),
}


@LAST  # of runs that the fixture makes
@pytest.mark.parametrize("held", REFUSED)
def test_what_fits_no_model_is_refused_by_name_before_any_work(held, plain, tmp_path, monkeypatch):
    what, data, match = REFUSED[held]
    monkeypatch.setattr("bnp_dask.training.train.open_executor", None)  # work would begin with it
    posterior = plain[what]["result"].posterior
    verbs = [HELD[what][0], lambda data: bnp.predict(posterior, data), lambda data: bnp.score(posterior, data)]
    if held != "splits of data":
        verbs.append(lambda data: fitted(what, data))
    for verb in verbs:
        begun = time.process_time()
        with pytest.raises(DataError, match=match):
            verb(data)
        assert time.process_time() - begun < 2.0


NO_DATA = {
    "strings": (np.array([["a", "b"]] * 30), r"pass numbers; a table"),
    "objects": (np.array([[object(), 1]] * 30, dtype=object), r"pass numbers; a table"),
    "None": (None, "X is None; needs"),
    "a number": (3, "X is 3; needs"),
    "a mapping": ({"a": 1}, r"X is \{'a': 1\}; needs"),
    "complex": (np.ones((30, 2)) + 1j, r"complex128 of shape \(30, 2\); .*column_stack\(\[X.real, X.imag\]\)"),
    "lazy": (of_module("LazyFrame", "polars.lazyframe.frame")(), r"data.collect\(\) has them"),
    "no rows": (np.zeros((0, 2)), r"shape \(0, 2\); needs 2 or more rows"),
    "no columns": (np.zeros((30, 0)), r"shape \(30, 0\); needs 2 or more rows"),
    "one row": (np.zeros((1, 2)), r"shape \(1, 2\); needs 2 or more rows"),
    "one axis": (np.ones(30), r"shape \(30,\); .*X.reshape\(-1, 1\)"),
    "no axis": (np.array(3.0), r"shape \(\); "),
    "dates": (np.full((30, 2), "2024-01-01", "M8[D]"), r"\(X - X.min\(\)\) / np.timedelta64"),
    "infinite": (np.full((30, 2), np.inf), r"pass X\[np.isfinite\(X\).all\(axis=1\)\]"),
    "nothing but NaN": (np.full((30, 2), np.nan), r"NaN"),
    "ragged lists": ([[1.0, 2.0, 3.0], [2.0, 3.0]], r"\[numpy.reshape\(x, \(-1, 1\)\) for x in X\]"),
    "lists of steps": ([[[1.0, 2.0], [3.0]], [[2.0, 3.0]]], r"\[numpy.array\(x\) for x in X\]"),
    "sparse": (sparse.csr_array(np.ones((30, 2))), r"sparse matrix \(csr\) of shape \(30, 2\); .*X.toarray\(\)"),
}


@pytest.mark.parametrize("what", ["clusters", "topics", "states"])
@pytest.mark.parametrize("kind", NO_DATA)
def test_what_no_estimator_takes_is_refused_with_what_to_call(what, kind):
    data, match = NO_DATA[kind]
    if (what, kind) == ("topics", "sparse"):
        return  # counts
    with pytest.raises(DataError, match=match):
        ESTIMATORS[what]().fit(data)


@LAST
def test_lists_of_steps_are_sequences_as_json_has_them():
    arrays = [walk[:n] for walk, n in zip(WALKS, (20, 12, 7), strict=True)]
    lists = [walk.tolist() for walk in arrays]
    ours, theirs = (bnp.SequenceModel(max_laps=3, random_state=0).fit(data) for data in (lists, arrays))
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    for a, b in zip(ours.predict(lists), theirs.predict(arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(states(lists).posterior.summary["N"], states(arrays).posterior.summary["N"])


@pytest.mark.parametrize(
    ("name", "call"), [("a.json", "read_json"), ("a.pkl", "read_pickle"), ("a.XLSX", "read_excel")]
)
def test_files_of_other_programs_are_told_what_reads_them(tmp_path, name, call):
    (tmp_path / name).write_bytes(b"PK\x03\x04 or something" if "XLSX" in name else b"{}")
    with pytest.raises(DataError, match=rf"pandas\.{call}\(path\)"):
        clusters(str(tmp_path / name))


def test_data_of_another_width_and_below_zero_are_told_so_and_topics_how_to_label():
    from bnp_dask.estimators import validated

    fitted = bnp.TopicModel()
    fitted.n_features_in_ = 2
    for other in (np.ones((30, 1)), sparse.csr_array(np.ones((30, 1)))):
        with pytest.raises(DataError, match=r"not the width of fit; .* \(n, 2\): pass all features of fit"):
            validated(fitted, other, 1, reset=False, accept_sparse="csr")
    for below in (-X, sparse.csr_array(-X)):
        with pytest.raises(DataError, match=r"with negative values; .*leave out what is below zero"):
            bnp.TopicModel().fit(below)
    assert not hasattr(bnp.TopicModel(), "predict")
    with pytest.raises(AttributeError) as refused:
        _ = bnp.TopicModel().predict
    assert "transform(X).argmax(axis=1)" in f"{refused.value} {refused.value.__cause__}"


def test_times_that_fall_within_a_sequence_are_told():
    from bnp_dask.estimators import warn_of_times

    times = pd.date_range("2024-10-27", periods=6, freq="h", tz="Europe/Berlin")  # an hour is there twice
    frame = pd.DataFrame({"a": range(6), "time": times})
    one, two = np.array([0, 6]), np.array([0, 3, 6])
    turned = frame.iloc[[3, 4, 5, 0, 1, 2]]
    born = frame.assign(born=times[::-1])
    twice = frame.iloc[[0, 0, 1, 3, 4, 5]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows, offsets in ((frame, one), (frame.set_index("time"), one), (turned, two), (born, one), (twice, one)):
            warn_of_times(rows, offsets)
        warn_of_times(frame[["a"]].iloc[::-1], one)
    with pytest.warns(UserWarning, match="column 'time' falls at row 3, but steps are read in the order of the rows"):
        warn_of_times(turned, one)
    with pytest.warns(UserWarning, match="the index falls at row 3"):
        warn_of_times(turned.set_index("time"), one)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ESTIMATORS["states"]()._rows(turned, None, True)
    assert [str(one.message)[:33] for one in told][1:] == ["X: column 'time' falls at row 3, "]


def test_ids_that_tell_sequences_apart_are_no_single_sequence():
    frame = pd.DataFrame(WALKS.reshape(-1, 2), columns=["a", "b"]).assign(walk_id=np.repeat([7, 8, 9], 20))
    for verb in (states, ESTIMATORS["states"]().fit):
        for table in (frame, frame.astype({"walk_id": str}), pa.Table.from_pandas(frame)):
            with pytest.raises(DataError, match=r"'walk_id' has 3 ids.*as_source\(table, groups='walk_id'\)"):
                verb(table)


def test_files_of_recordings_that_fit_no_other_are_named(tmp_path):
    np.save(tmp_path / "a.npy", WALKS[0])
    np.save(tmp_path / "b.npy", WALKS)
    with pytest.raises(DataError, match=r"b.npy has shape \(3, 20, 2\); needs one recording"):
        bnp.as_source(tmp_path)
    np.save(tmp_path / "b.npy", WALKS[0][:, 0])
    with pytest.raises(DataError, match=r"group 1 has shape \(20, 1\)"):
        bnp.as_source(tmp_path)
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"\.npy files and text tables together"):
        bnp.as_source(tmp_path)


def test_names_without_an_end_are_refused_within_a_second():
    begun = time.process_time()
    with pytest.raises(SettingError, match="columns=.*needs a list that ends"):
        bnp.as_source(ROWS, columns=itertools.count())
    with pytest.raises(SettingError, match="needs a list that ends"):
        bnp.as_source(ROWS, levels=itertools.count())
    assert time.process_time() - begun < 1.0


# -- words that a model does not know ---------------------------------------------------------------------------------
@LAST
def test_words_that_a_model_does_not_know_are_left_out_in_one_line(plain, caplog, tmp_path):
    posterior = plain["topics"]["result"].posterior
    known = bnp.predict(posterior, ["sun moon"], soft=True)
    pandas = pd.DataFrame({"text": ["sun moon comet comet"]})
    for data in (
        ["sun moon comet comet"],
        [["sun", "moon", "comet", "comet"]],
        [{"sun": 1, "moon": 1, "comet": 2}],
        pandas,
    ):
        with pytest.warns(
            UserWarning, match="2 of 4 tokens are left out: the model does not know their words"
        ) as caught:
            np.testing.assert_array_equal(bnp.predict(posterior, data, soft=True), known)
        assert len(caught) == 1
    with pytest.warns(UserWarning, match="1 of 2 tokens are left out"):
        bnp.predict(posterior, [[(3, 1), (7, 1)]])
    with caplog.at_level(logging.INFO, "bnp_dask"):  # a few, as rare words always are, are no reason to warn
        assert bnp.score(posterior, ["sun moon sun moon comet"]) == bnp.score(posterior, ["sun moon sun moon"])
    assert "1 of 5 tokens are left out" in caplog.text
    bnp.report(posterior, tmp_path / "page.html", data=["sun moon sun moon comet", "red wine"])
    assert '"documents":2,' in (tmp_path / "page.html").read_text("utf-8")
    lists = topics(LISTS).posterior
    with pytest.raises(SettingError, match="nothing says how a text is cut into words"):
        bnp.predict(lists, TEXTS)
    model = bnp.TopicModel(2, max_laps=2, random_state=0).fit(TEXTS)
    with pytest.warns(UserWarning, match="1 of 2 tokens are left out"):
        assert model.transform(["sun comet"]).shape == (1, 2)
    model.fit(X)
    with pytest.raises(DataError, match="fitted to counts without words"):
        model.transform(["sun"])


def test_settings_of_texts_choose_the_words():
    assert bnp.as_source(TEXTS, text=bnp.Text(max_features=2)).words.words == ("moon", "wine")
    assert bnp.as_source(LISTS, text=bnp.Text(stop_words=["sun"])).words.words == ("moon", "red", "star", "wine")
    both = pd.DataFrame({"title": ["a b", "c d"], "body": ["sun", "moon"]})
    assert bnp.as_source(both, text=bnp.Text(column="body", min_df=1)).words.words == ("moon", "sun")
    with pytest.raises(DataError, match="which column is the text"):
        bnp.as_source(both, text=bnp.Text())
    with pytest.raises(DataError, match="text= is for texts, and data is ndarray"):
        bnp.as_source(ROWS, text=bnp.Text())
    with pytest.raises(DataError, match="each is a row of its own"):
        bnp.as_source(TEXTS, columns=["a"])


@LAST
def test_numbers_beside_texts_are_told():
    frame = pd.DataFrame({"text": TEXTS, "year": YEARS})
    with pytest.warns(UserWarning, match="documents are the texts of column 'text'; .* counts .'year'.") as caught:
        posterior = topics(frame).posterior
    assert len([line for line in caught if "documents are" in str(line.message)]) == 1
    assert len(bnp.predict(posterior, frame)) == 16
    counts = pd.DataFrame(X, columns=list(WORDS))
    model = bnp.Model(bnp.FiniteMixture(), bnp.Multinomial())
    by_column = bnp.train(model, counts, init=bnp.BregmanKMeans(2), schedule=bnp.Memoized(laps=2)).posterior
    expected = bnp.predict(by_column, X)
    np.testing.assert_array_equal(bnp.predict(by_column, counts.assign(text="sun")), expected)


# -- ids and times ----------------------------------------------------------------------------------------------------
def roles():
    frame = pd.DataFrame(ROWS, columns=["a", "b"])
    return frame.assign(
        patient_id=np.arange(40) * 7 + 1, time=1.7e9 + np.arange(40) * 0.5, rowId=[f"{9 * i + 4}" for i in range(40)]
    )


@LAST
def test_columns_of_ids_and_times_are_left_out_in_one_line(tmp_path):
    frame = roles()
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    said = r"features are 'a', 'b'; left out: 'patient_id' \(ids\), 'time' \(times\), 'rowId' \(ids\)"
    for data in (frame, pa.Table.from_pandas(frame), tmp_path / "t.csv", tmp_path / "t.parquet"):
        with pytest.warns(UserWarning, match=said) as caught:
            assert bnp.as_source(data).columns.names == ("a", "b")
        assert len(caught) == 1
    assert bnp.as_source(frame, columns=["time", "a"]).columns.names == ("time", "a")
    with pytest.warns(UserWarning, match="'patient_id' .ids., 'time' .times., 'rowId' .ids."):
        assert bnp.Product.of(frame) == bnp.Product({"a, b": bnp.Gaussian()}, others="ignore")
    with pytest.warns(UserWarning, match="left out: 'patient_id'"):
        assert bnp.DirichletProcessMixture(n_clusters=1, max_laps=1, moves=(), tol=1e9).fit(frame).n_features_in_ == 2


def test_columns_named_like_times_that_stay_features_are_told():
    frame = pd.DataFrame(ROWS, columns=["a", "time"])
    with pytest.warns(UserWarning, match="features are 'a', 'time' .'time' seems to be a time by its name."):
        assert bnp.as_source(frame).columns.names == ("a", "time")
    with pytest.warns(UserWarning, match="'time' seems to be a time by its name, and becomes a feature"):
        bnp.Product.of(frame)


# -- AnnData ----------------------------------------------------------------------------------------------------------
@LAST
def test_labels_of_an_anndata_are_a_column_of_its_obs():
    adata = AnnData()
    obs = pd.DataFrame(index=adata.obs_names)
    model = bnp.DirichletProcessMixture("diag_gaussian", n_clusters=2, random_state=0).fit(adata)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    obs["cluster"] = model.predict(adata)
    np.testing.assert_array_equal(obs["cluster"], model.labels_)
    shares = model.predict_proba(adata)
    assert shares.index.tolist() == adata.obs_names
    obs["id"] = bnp.predict(model.posterior_, adata)
    assert obs["id"].nunique() == 2


# -- proposals from files ---------------------------------------------------------------------------------------------
def mixed():
    rng = np.random.default_rng(2)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, 60).round(1),
            "calls": rng.poisson(np.repeat([1, 20], 30)),
            "sex": pd.Categorical(np.tile(["f", "m", "f"], 20)),
            "price": [f"{x:,.2f}" for x in rng.normal(5000, 10, 60)],
            "day": pd.date_range("2024", periods=60),
            "text_day": [f"2024-01-{1 + i % 28:02d}" for i in range(60)],
        }
    )


@pytest.mark.filterwarnings("ignore:columns are left out")
def test_likelihoods_are_proposed_for_a_file_by_what_sources_read_there(tmp_path):
    mixed().to_parquet(tmp_path / "t.parquet")
    mixed().to_csv(tmp_path / "t.csv", index=False)
    proposed = bnp.Product.of(mixed())
    parts = {"age, price": bnp.Gaussian(), "calls": bnp.Poisson(), "sex": bnp.Categorical()}
    assert proposed == bnp.Product(parts, others="ignore")
    for path in (tmp_path / "t.parquet", str(tmp_path / "t.csv")):
        assert bnp.Product.of(path) == proposed
    np.save(tmp_path / "x.npy", ROWS)
    with pytest.raises(DataError, match="is no table with named columns"):
        bnp.Product.of(tmp_path / "x.npy")
    bad = mixed().assign(rate=["1.5", "12%"] * 30)
    with pytest.raises(DataError, match=r"column 'rate' is '12%', .*Product.of\(table, rate=Categorical\(\)\)"):
        bnp.Product.of(bad)
    assert "rate" in repr(bnp.Product.of(bad, rate=bnp.Categorical()))
