"""Data as other libraries hold them: open Zarr nodes, and gensim's corpora and dictionaries."""

import pickle

import numpy as np
import pytest
import zarr
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.data.sources.held import in_memory
from bnp_dask.errors import DataError

CORPUS = [[(0, 2), (3, 1)], [], [(1, 1.5)]]
WORDS = {1: "beta", 0: "alpha", 2: "gamma", 3: "delta"}


def test_open_zarr_arrays_and_groups_are_read_by_their_place(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    node = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(5, 3))
    source = bnp.as_source(node, batch_size=5)
    assert source.describe() == bnp.as_source(tmp_path / "x.zarr", batch_size=5).describe()
    np.testing.assert_array_equal(source.reader(1)().x, x[5:10])
    inside = zarr.open_group(tmp_path / "all.zarr")
    inside.create_array("deep", data=x)
    np.testing.assert_array_equal(bnp.as_source(inside["deep"]).reader(0)().x, x)
    np.save(tmp_path / "x.npy", x)
    bnp.ingest(tmp_path / "x.npy", tmp_path / "store.zarr", batch_size=4)
    stored = bnp.as_source(zarr.open_group(tmp_path / "store.zarr", mode="r"), batch_size=4)
    assert stored.n_batches == 3 and stored.n_atoms == 12


def test_stores_are_data_and_only_those_in_memory_stay_here(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3))
    memory, far = zarr.storage.MemoryStore(), zarr.storage.FsspecStore.from_url("memory://zarr-stores/x.zarr")
    zipped = zarr.storage.ZipStore(tmp_path / "x.zip", mode="w")
    for store in (memory, far, zipped):
        group = zarr.create_group(store)
        group.create_array("x", data=x, chunks=(5, 3))
        group.create_array("weights", data=np.arange(1.0, 13.0))
        source = bnp.as_source(store, batch_size=5)
        assert source.n_batches == 3 and source.fingerprint() is None
        np.testing.assert_array_equal(source.reader(2)().x, x[10:])
        np.testing.assert_array_equal(source.reader(1)().weights, np.arange(6.0, 11.0))
        alone = bnp.as_source(group["x"], groups=[0, 7, 12], batch_size=7)
        assert alone.n_groups == 2 and alone.n_batches == 2
        np.testing.assert_array_equal(bnp.as_source(zarr.storage.StorePath(store, "x")).reader(0)().x, x)
    again = pickle.loads(pickle.dumps(bnp.as_source(far).reader(0)))
    np.testing.assert_array_equal(again().x, x)
    with pytest.raises(DataError, match="MemoryStore /x lies in the memory of this process"):
        pickle.dumps(bnp.as_source(memory).reader(0))
    model = bnp.Model(bnp.FiniteMixture(1.0), bnp.DiagGaussian())
    settings = {"init": bnp.RandomExamples(2), "schedule": bnp.FullBatch(laps=200)}
    result = bnp.train(model, memory, **settings)
    np.testing.assert_array_equal(
        result.posterior.weights, bnp.train(model, x, weights=np.arange(1.0, 13.0), **settings).posterior.weights
    )


def test_what_a_store_lacks_is_said():
    store = zarr.storage.MemoryStore()
    with pytest.raises(DataError, match="MemoryStore: no Zarr array or group"):
        bnp.as_source(store)
    array = zarr.create_array(store, name="x", shape=(12, 3), chunks=(5, 3), dtype="f8")
    array[:5] = 1.0
    with pytest.raises(DataError, match="MemoryStore /x: chunk c/1/0 .* is missing"):
        bnp.as_source(array, batch_size=5).reader(1)()
    with pytest.raises(DataError, match="no named columns"):
        bnp.as_source(array, columns=["a"])
    url = "memory://zarr-stores/words.zarr"
    bnp.ingest([("a", "sun sea"), ("b", "sun")], url, text=bnp.Text(min_df=1), overwrite=True)
    with pytest.raises(DataError, match="need the path or URL of their store"):
        bnp.as_source(zarr.storage.FsspecStore.from_url(url))


def test_a_session_of_icechunk_is_data(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    x = np.random.default_rng(0).normal(size=(12, 3))
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "ice")))
    session = repository.writable_session("main")
    zarr.create_group(session.store).create_array("x", data=x, chunks=(5, 3))
    session.commit("rows")
    source = bnp.as_source(repository.readonly_session("main").store, batch_size=5)
    readers = pickle.loads(pickle.dumps([source.reader(i) for i in range(3)]))
    np.testing.assert_array_equal(np.concatenate([reader().x for reader in readers]), x)


@pytest.mark.parametrize("named", [True, False])
def test_each_csv_file_of_a_folder_is_a_recording(tmp_path, named):
    rng = np.random.default_rng(0)
    folder = tmp_path / "walks"
    folder.mkdir()
    parts = [rng.normal(size=(n, 2)) for n in (30, 12, 21)]
    for g, x in enumerate(parts):
        np.savetxt(folder / f"walk{g}.csv", x, delimiter=",", header="east,north" if named else "", comments="")
    for data in (folder, str(folder / "*.csv")):
        source = bnp.as_source(data)
        assert source.n_groups == 3 and source.all_offsets().tolist() == [0, 30, 42, 63]
        np.testing.assert_allclose(source.reader(0)().x, np.concatenate(parts))
        assert [len(x) for x in in_memory(source)] == [30, 12, 21]
    assert (source.columns.features == ("east", "north")) if named else source.columns is None
    settings = {"init": bnp.ContiguousBlocks(2), "schedule": bnp.FullBatch(laps=200)}
    result = bnp.train(bnp.Model(bnp.FiniteHMM(), bnp.AutoRegressiveGaussian(lags=1)), folder, **settings)
    assert bnp.predict(result.posterior, folder).shape == (63,)


def test_patterns_without_files_and_unlike_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no file fits this pattern"):
        bnp.as_source(tmp_path / "*.csv")
    (tmp_path / "a.csv").write_text("east,north\n1,2\n")
    (tmp_path / "b.csv").write_text("1,2\n3,4\n")
    with pytest.raises(DataError, match="b.csv does not name its columns, and .*a.csv does; all or none of them may"):
        bnp.as_source(tmp_path)
    (tmp_path / "notes.md").write_text("of another kind")
    with pytest.raises(DataError, match="text"):
        bnp.as_source(tmp_path)


def test_documents_of_pairs_are_counts():
    found = bnp.as_source(CORPUS).reader(0)().x
    assert found.toarray().tolist() == [[2, 0, 0, 1], [0, 0, 0, 0], [0, 1.5, 0, 0]]
    columns = bnp.Columns.of({**WORDS, 4: "epsilon"})
    named = bnp.as_source(CORPUS, columns=columns)
    assert named.n_features == 5 and named.columns.features == ("alpha", "beta", "gamma", "delta", "epsilon")


def test_topics_of_a_corpus_have_the_words_of_its_dictionary():
    counts = np.random.default_rng(0).poisson(2.0, (20, 4))
    corpus = [[(v, int(n)) for v, n in enumerate(row) if n] for row in counts]
    source = bnp.as_source(corpus, columns=bnp.Columns.of(WORDS))
    settings = {"init": bnp.RandomExamples(2), "schedule": bnp.FullBatch(laps=200), "moves": ()}
    posterior = bnp.train(bnp.Model(bnp.LDA(), bnp.Multinomial()), source, **settings).posterior
    assert set(posterior.topics(4)[0].words) == set(WORDS.values())
    by_corpus = bnp.predict(posterior, corpus[:3], soft=True)
    np.testing.assert_array_equal(by_corpus, bnp.predict(posterior, sparse.csr_array(counts[:3]), soft=True))
    # words that come after training: a dictionary, a CountVectorizer's vocabulary, a list of names
    bare = bnp.train(bnp.Model(bnp.LDA(), bnp.Multinomial()), sparse.csr_array(counts), **settings).posterior
    assert bare.topics(4)[0].words[0].startswith("word ")
    for words in (WORDS, {name: v for v, name in WORDS.items()}, np.array([WORDS[v] for v in range(4)], object)):
        assert str(bare.topics(4, words)) == str(posterior.topics(4))
    text = pytest.importorskip("sklearn.feature_extraction.text")
    fitted = text.CountVectorizer().fit([" ".join(WORDS.values())])
    assert str(bare.topics(4, fitted)) == str(bare.topics(4, fitted.get_feature_names_out()))


def test_the_vocabulary_of_a_count_vectorizer_names_columns():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = text.CountVectorizer().fit(["sun moon", "moon star"])
    by_names = bnp.Columns.of(vectorizer.get_feature_names_out())
    assert bnp.Columns.of(vectorizer.vocabulary_) == by_names and by_names.names == ("moon", "star", "sun")
    assert bnp.Columns.of(vectorizer) == by_names
    for unfitted in (text.CountVectorizer(), text.HashingVectorizer()):
        with pytest.raises(DataError, match="knows no words yet; needs one that is fitted, or a list of words"):
            bnp.Columns.of(unfitted)
    with pytest.raises(DataError, match="no name for position 1; needs one for each of 0 to 1"):
        bnp.Columns.of({"sun": 0, "moon": 2})


@pytest.mark.parametrize(
    ("corpus", "text"),
    [
        ([[(0, 1)], [(1, 2, 3)]], r"document 1 holds \(1, 2, 3\); needs pairs"),
        ([[(-1, 1)]], "whole numbers from 0"),
        ([[("alpha", 1)]], "numbers of words"),
        ([[(0, "many")]], "counts of the documents"),
    ],
)
def test_other_lists_of_pairs_are_refused(corpus, text):
    with pytest.raises(DataError, match=text):
        bnp.as_source(corpus)


def test_words_beyond_the_dictionary_are_refused():
    with pytest.raises(DataError, match="has word 4, but there are 4 words"):
        bnp.as_source([[(4, 1)]], columns=bnp.Columns.of(WORDS))
