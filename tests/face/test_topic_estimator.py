"""TopicModel: scikit-learn's own checks, and that it says what train, predict and score say."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import bnp_dask as bnp
from bnp_dask import TopicModel
from bnp_dask.errors import DataError

pd = pytest.importorskip("pandas")


@parametrize_with_checks([TopicModel(n_topics=3, max_laps=2)])
@pytest.mark.filterwarnings("ignore:.*not converged")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def documents():
    """Documents of three topics without common words."""
    rng = np.random.default_rng(0)
    phi = np.kron(np.eye(3), np.full(5, 0.2))
    shares = rng.dirichlet(np.full(3, 0.2), 150)
    return sparse.csr_array(np.array([rng.multinomial(60, s @ phi) for s in shares], float)), shares


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_it_is_the_functions(documents):
    X, shares = documents
    made = TopicModel(n_topics=3, max_laps=30, random_state=1).fit(X)
    assert made.components_.shape == (3, 15)
    assert (np.diff(made.components_.sum(axis=1)) <= 0).all()
    np.testing.assert_array_equal(made.components_, made.posterior_.observation.lam[made.order_])
    found = made.transform(X)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    np.testing.assert_allclose(found, bnp.predict(made.posterior_, X, soft=True)[:, made.order_])
    np.testing.assert_allclose(found, made.transform(X.toarray()))
    assert made.score(X) == bnp.score(made.posterior_, X)
    # topics are blocks of words: they are matched by where their words are
    block = made.components_.reshape(3, 3, 5).sum(axis=2).argmax(axis=1)
    assert sorted(block) == [0, 1, 2]
    assert np.abs(found[:, np.argsort(block)] - shares).mean() < 0.05
    assert made.get_feature_names_out().tolist() == ["topic0", "topic1", "topic2"]
    assert clone(made).fit(X).components_.tobytes() == made.components_.tobytes()


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_the_number_of_topics_is_learned(documents):
    X, _ = documents
    made = TopicModel(max_laps=25, random_state=0).fit(X)
    assert isinstance(made.posterior_.model.allocation, bnp.HDPTopics)
    assert made.n_topics_ == made.transform(X).shape[1] == len(made.weights_)
    assert made.n_topics_ >= 3
    np.testing.assert_allclose(made.transform(X).sum(axis=1), 1.0)


def test_empty_documents_and_early_ends(documents):
    X, _ = documents
    with_empty = sparse.csr_array(sparse.vstack([X, sparse.csr_array((2, 15))], format="csr"))
    with pytest.warns(ConvergenceWarning, match="max_laps or tol"):
        made = TopicModel(n_topics=3, max_laps=1).fit(with_empty)
    np.testing.assert_allclose(made.transform(with_empty)[-1], made.transform(with_empty)[-2])
    with pytest.raises(bnp.BnpDaskError, match="without any word"):
        TopicModel(n_topics=2).fit(np.zeros((4, 15)))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_names_of_a_frame_are_the_words_of_topics():
    pd = pytest.importorskip("pandas")
    counts = np.repeat([[4, 4, 0, 0], [0, 0, 4, 4]], 20, axis=0)
    frame = pd.DataFrame(counts, columns=["ape", "bee", "cat", "dog"])
    model = TopicModel(n_topics=2, max_laps=3, random_state=0).fit(frame)
    assert model.posterior_.feature_names == ("ape", "bee", "cat", "dog")
    assert {frozenset(topic.words[:2]) for topic in model.posterior_.topics(2)} == {
        frozenset({"ape", "bee"}),
        frozenset({"cat", "dog"}),
    }
    swapped = frame[["dog", "ape", "cat", "bee"]]
    np.testing.assert_array_equal(
        bnp.predict(model.posterior_, swapped, soft=True), bnp.predict(model.posterior_, counts, soft=True)
    )


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_counts_may_be_fractions(documents):
    X, shares = documents
    made = TopicModel(n_topics=3, max_laps=30, random_state=1).fit(X * 0.3)
    block = made.components_.reshape(3, 3, 5).sum(axis=2).argmax(axis=1)
    assert sorted(block) == [0, 1, 2]
    assert np.abs(made.transform(X * 0.3)[:, np.argsort(block)] - shares).mean() < 0.06
    assert np.isfinite(made.score(X * 0.3))
    pd = pytest.importorskip("pandas")
    framed = made.set_output(transform="pandas").transform(X)
    assert isinstance(framed, pd.DataFrame)
    assert list(framed.columns) == ["topic0", "topic1", "topic2"]


def test_tags_say_whether_texts_or_counts_are_taken():
    assert TopicModel(text=bnp.Text()).__sklearn_tags__().input_tags.string
    tags = TopicModel().__sklearn_tags__().input_tags
    assert not tags.string and tags.sparse and tags.positive_only


@pytest.mark.filterwarnings("ignore:.*not converged")
@pytest.mark.parametrize("n_topics", [None, 3])
def test_samples_and_criteria(documents, n_topics):
    X, _ = documents
    made = TopicModel(n_topics, max_laps=10, moves=(), random_state=1).fit(X)
    k = made.n_topics_
    drawn, topic = made.sample(40, length=200)
    assert drawn.shape == (40, 15) and (drawn.sum(axis=1) == 200).all()
    assert made.sample(2)[0].sum() == 200
    if n_topics == 3:  # more of them are alike, and hold each other's words
        assert (made.transform(drawn).argmax(axis=1) == topic).mean() > 0.9
    free = k * 14 + (k - 1 if n_topics is None else 0)
    total = 2.0 * bnp.word_score(made.posterior_, X) * X.sum()
    assert made.aic(X) == pytest.approx(2 * free - total)
    assert made.bic(X) == pytest.approx(np.log(150) * free - total)


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_criteria_prefer_as_many_topics_as_there_are(documents):
    X, _ = documents
    found = [TopicModel(k, max_laps=30, random_state=1).fit(X).bic(X) for k in (1, 3, 6)]
    assert np.argmin(found) == 1


CHINESE = ["我们今天去公园散步天气很好", "他在银行工作每天都很忙", "股票市场今天大幅上涨", "机器学习模型需要数据"]


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_texts_that_no_space_cuts_are_told():
    with pytest.warns(UserWarning, match="no spaces between words.*lists of words"):
        bnp.TopicModel(max_laps=1, tol=1e9).fit(CHINESE * 3)
    with warnings.catch_warnings(record=True) as told:
        bnp.TopicModel(max_laps=1, tol=1e9).fit(
            [[text[i : i + 2] for i in range(0, len(text), 2)] for text in CHINESE * 2]
        )
    assert not [w for w in told if "spaces" in str(w.message)]


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["a text", None, "another"], r"data\[1\] is missing \(None\).*dropna"),
        (pd.Series(["a text", np.nan, "another"]), r"data\[1\] is missing.*dropna"),
        (pd.Series(["a text", pd.NA, "another"], dtype="string"), r"data\[1\] is missing.*dropna"),
        ([b"a text", b"another"], r"list of bytes.*decode\(\)"),
        ([{"a", "text"}, {"another"}], r"list of set.*sorted"),
    ],
    ids=["None", "NaN", "NA", "bytes", "sets"],
)
def test_lists_that_are_no_texts_are_told_how_to_become_them(texts, match):
    for door in (bnp.TopicModel().fit, bnp.as_source):
        with pytest.raises(DataError, match=match):
            door(texts)
