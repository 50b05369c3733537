"""The vocabulary and the counts of raw text are scikit-learn's, whatever is held in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from bnp_dask.data import Text, as_source, load_documents, load_dropped, load_vocabulary, read_vocabulary
from bnp_dask.data.ingestion.ingest import ingest
from bnp_dask.data.sources.forms import Documents
from bnp_dask.data.text import vocabulary as words_of_texts
from bnp_dask.data.text.options import Frequencies
from bnp_dask.data.text.vocabulary import Analysis, Vocabulary
from bnp_dask.errors import DataError, SettingError
from tests.data.reading import rows

RNG = np.random.default_rng(0)
WORDS = ["the", "and", "Ärger", "éclair", "don't", "x", "naïve", "2020", "snake_case", *(f"w{i}" for i in range(300))]
SHARES = 1 / np.arange(1, len(WORDS) + 1)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(0, 60), p=SHARES / SHARES.sum())) for _ in range(200)]
FEW = {"min_df": 0.02, "max_df": 40, "stop_words": ["w1", "w2"]}
DOCUMENTS = [(f"d{i}", text, {"number": i}) for i, text in enumerate(TEXTS)]


def sklearn_counts(texts, **settings):
    vectorizer = CountVectorizer(**settings)
    x = vectorizer.fit_transform(texts).toarray()
    return list(vectorizer.get_feature_names_out()), x


@pytest.mark.parametrize(
    "mine, theirs",
    [
        ({"stop_words": None, "min_df": 1}, {}),
        ({"min_df": 3, "max_df": 0.4}, {"stop_words": "english", "min_df": 3, "max_df": 0.4}),
        (FEW, FEW),
        ({"lowercase": False, "stop_words": None, "min_df": 1}, {"lowercase": False}),
        ({"strip_accents": "unicode", "min_df": 1}, {"strip_accents": "unicode", "stop_words": "english"}),
        ({"token_pattern": r"[a-z]+", "stop_words": None, "min_df": 1}, {"token_pattern": r"[a-z]+"}),
        ({"ngrams": (1, 2), "min_df": 2}, {"ngram_range": (1, 2), "min_df": 2, "stop_words": "english"}),
    ],
)  # fmt: skip
def test_as_scikit_learn(tmp_path, monkeypatch, mine, theirs):
    monkeypatch.setattr("bnp_dask.data.text.ingest.BLOCK_DOCUMENTS", 17)
    words, x = sklearn_counts(TEXTS, **theirs)
    report = ingest(DOCUMENTS, tmp_path / "x.zarr", batch_size=30, text=Text(keep_empty=True, **mine))
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), x)
    vocabulary = load_vocabulary(tmp_path / "x.zarr")
    assert list(vocabulary.words) == words == read_vocabulary(tmp_path / "x.zarr")
    np.testing.assert_array_equal(vocabulary.doc_freq, (x > 0).sum(axis=0))
    np.testing.assert_array_equal(vocabulary.total, x.sum(axis=0))
    assert report.n_tokens == x.sum() and report.text.n_documents == 200
    assert report.text.n_tokens == x.sum() + sum(tokens for _, _, tokens in report.text.dropped)
    assert report.text.n_words == len(words) + sum(n for _, n, _ in report.text.dropped)
    np.testing.assert_array_equal(vocabulary.counts(TEXTS).toarray(), x)
    assert load_documents(tmp_path / "x.zarr").to_pydict() == {
        "id": [f"d{i}" for i in range(200)],
        "number": list(range(200)),
    }


@pytest.mark.parametrize("rank", ["tokens", "documents"])
@pytest.mark.parametrize("limit", [10, 10**6])
def test_the_largest_words_are_kept(tmp_path, monkeypatch, rank, limit):
    monkeypatch.setattr("bnp_dask.data.text.options.CANDIDATES", limit)
    words, x = sklearn_counts(TEXTS)
    size = x.sum(axis=0) if rank == "tokens" else (x > 0).sum(axis=0)
    expected = sorted(sorted(words, key=lambda w: (-size[words.index(w)], w))[:20])
    text = Text(stop_words=None, min_df=1, max_features=20, rank=rank)
    report = ingest(DOCUMENTS, tmp_path / "x.zarr", text=text)
    assert list(load_vocabulary(tmp_path / "x.zarr").words) == expected
    assert report.text.dropped[-1][:2] == ("over the size", len(words) - 20)
    if rank == "tokens":
        theirs = CountVectorizer(max_features=20).fit(TEXTS).get_feature_names_out()
        assert sorted(size[[words.index(w) for w in theirs]]) == sorted(size[[words.index(w) for w in expected]])


letters = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=15, deadline=None)
@given(
    texts=st.lists(letters | st.lists(st.sampled_from(["ab", "Ab", "cd", "ef"])).map(" ".join), min_size=1),
    limit=st.integers(1, 9),
)
def test_any_text(tmp_path_factory, texts, limit):  # fmt: skip
    path = tmp_path_factory.mktemp("any") / "x.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bnp_dask.data.text.options.CANDIDATES", limit)
        text = Text(min_df=1, stop_words=None, keep_empty=True)
        try:
            words, x = sklearn_counts(texts)
        except ValueError:
            with pytest.raises(DataError, match="no word is left"):
                ingest(list(enumerate(texts)), path, text=text)
            return
        ingest(list(enumerate(texts)), path, text=text)
    np.testing.assert_array_equal(rows(as_source(path)), x)
    assert list(load_vocabulary(path).words) == words


def test_counting_on_disk_is_exact(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("bnp_dask.data.text.options.MERGED_AT_ONCE", 3)
    monkeypatch.setattr("bnp_dask.data.text.options.RUN_ROWS", 5)
    documents = [text.split() for text in TEXTS]
    with Frequencies(limit=25) as few, Frequencies() as many:
        for words in documents:
            few.add(words)
            many.add(words)
            assert len(few._documents) <= 25 + 60
        assert few.n_spilled > 20 and many.n_spilled == 0 and list(tmp_path.iterdir())
        found = list(few.rows())
        assert found == list(many.rows()) and few.n_spilled > 30
    assert [word for word, _, _ in found] == sorted({w for d in documents for w in d})
    for word, n_documents, n_tokens in found[::20]:
        assert n_documents == sum(word in d for d in documents) and n_tokens == sum(d.count(word) for d in documents)
    assert not list(tmp_path.iterdir())


def test_documents_without_words(tmp_path):
    given = [("a", "sun moon"), ("b", ""), ("c", "the of"), ("d", "sun sun"), ("e", " \n"), ("f", "rare")]
    report = ingest(given, tmp_path / "x.zarr", text=Text(min_df=2))
    assert (report.n_atoms, report.n_features, report.n_empty) == (2, 1, 0)
    assert (report.text.n_empty, report.text.n_without_words) == (2, 2)
    assert load_documents(tmp_path / "x.zarr")["id"].to_pylist() == ["a", "d"]
    dropped = load_dropped(tmp_path / "x.zarr").to_pylist()
    assert [(d["id"], d["reason"]) for d in dropped] == [
        ("b", "no text"),
        ("c", "no word of the vocabulary"),
        ("e", "no text"),
        ("f", "no word of the vocabulary"),
    ]
    report = ingest(given, tmp_path / "y.zarr", text=Text(min_df=2, keep_empty=True))
    np.testing.assert_array_equal(rows(as_source(tmp_path / "y.zarr")).ravel(), [1, 0, 0, 2, 0, 0])
    assert report.n_empty == 4 and load_dropped(tmp_path / "y.zarr").num_rows == 0
    assert "4 documents kept as empty rows: 2 without text" in str(report)


def test_held_out_documents_use_the_words_of_a_store(tmp_path):
    text = Text(token_pattern="[a-z]+", stop_words=["moon"], min_df=1)
    ingest([("a", "sun Moon star"), ("b", "sun")], tmp_path / "x.zarr", text=text)
    new = [("c", "Star star comet moon"), ("d", "comet")]
    report = ingest(new, tmp_path / "y.zarr", vocabulary=tmp_path / "x.zarr", text=Text(keep_empty=True))
    np.testing.assert_array_equal(rows(as_source(tmp_path / "y.zarr")), [[2, 0], [0, 0]])
    assert report.text.n_unknown == 2 and "2 tokens are not in the vocabulary" in str(report)
    first, second = (load_vocabulary(tmp_path / f"{n}.zarr") for n in "xy")
    assert first.digest == second.digest and first.analysis == second.analysis == text.analysis
    np.testing.assert_array_equal(first.counts(["Star star comet moon"]).toarray(), [[2, 0]])
    with pytest.raises(SettingError, match="other settings"):
        ingest(new, tmp_path / "z.zarr", vocabulary=tmp_path / "x.zarr", text=Text(lowercase=False))
    with pytest.raises(DataError, match="none of its 1 documents has a word"):
        ingest([("d", "comet")], tmp_path / "z.zarr", vocabulary=tmp_path / "x.zarr")
    assert not (tmp_path / "z.zarr").exists()


def test_a_given_vocabulary_keeps_its_order(tmp_path):
    (tmp_path / "v.txt").write_text("zeta\nalpha\n\nnow\n", encoding="utf-8")
    ingest([("a", "alpha zeta zeta beta")], tmp_path / "x.zarr", vocabulary=tmp_path / "v.txt")
    np.testing.assert_array_equal(rows(as_source(tmp_path / "x.zarr")), [[2, 1, 0]])
    assert load_vocabulary(tmp_path / "x.zarr").words == ("zeta", "alpha", "now")
    (tmp_path / "v.txt").write_text("zeta\nalpha\nzeta\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'zeta' is there twice \(words 1 and 3\)"):
        ingest([("a", "alpha")], tmp_path / "y.zarr", vocabulary=tmp_path / "v.txt")


def test_the_digest_tells_vocabularies_apart(tmp_path):
    for name, texts in {"x": ["sun moon"], "y": ["moon", "sun moon"], "z": ["sun moons"]}.items():
        ingest(list(enumerate(texts)), tmp_path / f"{name}.zarr", text=Text(min_df=1))
    digest = {n: as_source(tmp_path / f"{n}.zarr").describe()["vocabulary"] for n in "xyz"}
    assert digest["x"] == digest["y"] != digest["z"]
    assert load_vocabulary(as_source(tmp_path / "x.zarr")).digest == digest["x"]
    # a store whose words were tampered with is refused
    from bnp_dask.core.location import Location
    from bnp_dask.data.ingestion.writers import write_vector

    write_vector(Location.of(tmp_path / "x.zarr" / "vocabulary"), np.frombuffer(b"moon\nsUn", np.uint8))
    with pytest.raises(DataError, match="vocabulary was changed"):
        load_vocabulary(tmp_path / "x.zarr")


def test_counts_of_new_texts(tmp_path):
    (tmp_path / "docword.x.txt").write_text("2\n3\n3\n1 1 2\n1 3 1\n2 3 4\n")
    (tmp_path / "v.txt").write_text("sun\nmoon\nstar\n")
    ingest(tmp_path / "docword.x.txt", tmp_path / "x.zarr", vocabulary=tmp_path / "v.txt")
    vocabulary = load_vocabulary(tmp_path / "x.zarr")
    np.testing.assert_array_equal(vocabulary.doc_freq, [1, 0, 2])
    np.testing.assert_array_equal(vocabulary.total, [2, 0, 5])
    assert as_source(tmp_path / "x.zarr").describe()["vocabulary"] == vocabulary.digest
    with pytest.raises(SettingError, match="nothing says how a text is cut"):
        vocabulary.counts(["sun"])
    counts = vocabulary.counts(["Sun star", "", "none"], Text().analysis)
    np.testing.assert_array_equal(counts.toarray(), [[1, 0, 1], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match="single text"):
        vocabulary.counts("sun")
    with pytest.raises(DataError, match="text 1 is NoneType"):
        vocabulary.counts(["sun", None], Text().analysis)
    with pytest.raises(DataError, match="holds no documents"):
        load_documents(tmp_path / "x.zarr")
    ingest(tmp_path / "docword.x.txt", tmp_path / "y.zarr")
    with pytest.raises(DataError, match="holds no vocabulary"):
        load_vocabulary(tmp_path / "y.zarr")
    assert "vocabulary" not in as_source(tmp_path / "y.zarr").describe()


@pytest.mark.long
def test_a_million_words(tmp_path, monkeypatch):
    monkeypatch.setattr("bnp_dask.data.text.options.CANDIDATES", 2**18)
    documents = [(i, " ".join(f"q{j:06d}" for j in range(i * 2000, (i + 1) * 2000))) for i in range(500)]
    report = ingest(documents, tmp_path / "x.zarr", text=Text(min_df=1, stop_words=None))
    assert report.n_features == report.n_tokens == 10**6
    assert "1,000,000 words: a topic takes 7.6 MB, 100 topics 0.7 GB" in str(report)
    vocabulary = load_vocabulary(tmp_path / "x.zarr")
    assert len(vocabulary) == 10**6 and vocabulary.words[-1] == "q999999" and (vocabulary.doc_freq == 1).all()


def test_settings_are_checked():
    for wrong, message in [
        ({"min_df": -1}, "min_df=-1"),
        ({"max_df": 1.5}, "at most 1.0 for a share"),
        ({"max_features": 0}, "max_features=0"),
        ({"ngrams": (2, 1)}, "ngrams"),
        ({"encoding": "utf-9"}, "encoding='utf-9' is unknown"),
        ({"on_bad": "ignore"}, 'needs "error" or "skip"'),
    ]:
        with pytest.raises(SettingError, match=message):
            Text(**wrong)
    with pytest.raises(SettingError, match="neither 'english' nor a file; nearest existing name: 'english'"):
        _ = Text(stop_words="Englisch").analysis
    with pytest.raises(SettingError, match="token_pattern"):
        Text(token_pattern="(").analysis.analyzer()


def test_words_with_line_breaks_are_refused(tmp_path):
    with pytest.raises(SettingError, match="gives words with line breaks"):
        ingest([("a", "sun\nmoon")], tmp_path / "x.zarr", text=Text(token_pattern="(?s).+", min_df=1))


def test_without_scikit_learn(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(SettingError, match=r"bnp-dask\[sklearn\]"):
        ingest(DOCUMENTS, tmp_path / "x.zarr")
    with pytest.raises(SettingError, match=r"bnp-dask\[sklearn\]"):
        ingest(DOCUMENTS, tmp_path / "x.zarr", text=Text(stop_words=None))


@pytest.mark.parametrize(
    "text, words",
    [
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # vowels of Hindi are marks, at which CountVectorizer cuts
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("ภาษาไทย ผู้ใหญ่", ["ภาษาไทย", "ผู้ใหญ่"]),
        ("كِتَاب جَدِيد", ["كِتَاب", "جَدِيد"]),  # points over letters
        ("u\u0308ber cafe\u0301", ["u\u0308ber", "cafe\u0301"]),  # accents that are characters of their own
        ("1\ufe0f\u20e3 \u2764\ufe0f party", ["party"]),  # what chooses the form of an emoji is of no word
        ("don't snake_case 2020 x", ["don", "snake_case", "2020"]),
    ],
)
def test_marks_that_combine_stay_in_their_word(text, words):
    assert Text(stop_words=None).analysis.analyzer()(text) == words
    assert list(load_of([text] * 2)) == sorted(set(words))


def load_of(texts):
    return Documents("texts", texts).vocabulary(Text(stop_words=None)).words


@given(st.text(st.characters(exclude_categories=("Mn", "Mc", "Me"))))
@settings(max_examples=200, deadline=None)
def test_texts_without_marks_are_cut_as_by_scikit_learn(text):
    assert Text(stop_words=None).analysis.analyzer()(text) == CountVectorizer().build_analyzer()(text)


def test_a_store_of_an_earlier_version_keeps_its_pattern():
    stored = {**Text().analysis.to_json(), "token_pattern": r"(?u)\b\w\w+\b"}
    assert Analysis.from_json(stored).analyzer()("नमस्ते") == ["नमस"]


def test_the_markup_of_html_is_told():
    pages = ["<p>Open a <b>socket</b>&nbsp;here<br></p>", "<div class=x>Read the file</div>"] * 4
    with pytest.warns(UserWarning, match="tokens are of the markup of HTML, such as 'div' and 'nbsp'; take the text"):
        load_of(pages)


# -- by hand -------------------------------------------------------------------------------------------------------
SHORT = ["aa bb", "aa cc aa", "bb dd", "aa ee"]


@pytest.mark.parametrize(
    ("least", "words"),
    [(1, ["aa", "bb", "cc", "dd", "ee"]), (2, ["aa", "bb"]), (3, ["aa"]), (4, []), (0.5, ["aa", "bb"]),
     (0.75, ["aa"]), (0.76, []), (1.0, [])],
)  # fmt: skip
def test_new_words_are_in_as_many_texts_as_the_least(least, words):
    """A word counts once in each text, and a share is one of all texts."""
    assert Analysis(min_df=least).new_words(SHORT, ()) == words
    assert Analysis(min_df=least).new_words(iter(SHORT), {"aa": 0}) == [word for word in words if word != "aa"]


def test_counts_made_in_blocks_are_those_made_at_once(monkeypatch):
    known = Vocabulary(("bb", "zz", "aa"), None, None, Analysis())
    documents = [text.split() for text in SHORT] + [[], ["zz"], ["no", "no"]]
    wanted = [[1, 0, 1], [0, 0, 2], [1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    for block in (2**19, 4, 1):
        monkeypatch.setattr(words_of_texts, "BLOCK_TOKENS", block)
        found, n_all = words_of_texts.counts_of_words(known, documents)
        assert found.toarray().tolist() == wanted and n_all == 12 and found.has_sorted_indices
    assert known.counts([]).shape == (0, 3)
    with pytest.raises(DataError, match="text 1 is int; needs str"):
        known.counts(["aa", 3])


def test_sums_of_words_grow_with_the_words_and_count_no_stored_zero():
    sums = words_of_texts.WordSums()
    sums.add(sparse.csr_array(np.array([[1.0, 0.0], [2.0, 5.0]])))
    wider = sparse.csr_array((np.array([4.0, 0.0, 1.0]), np.array([3, 1, 0]), np.array([0, 2, 3])), shape=(2, 4))
    sums.add(wider)
    sums.add(sparse.csr_array(np.array([[0.0, 7.0]])))
    documents, total = sums.of(5)
    assert documents.tolist() == [3, 2, 0, 1, 0] and total.tolist() == [4.0, 12.0, 0.0, 4.0, 0.0]
