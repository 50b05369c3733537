"""The estimator as the clustering step of BERTopic, where that is installed."""

import numpy as np
import pytest

import bnp_dask as bnp

THINGS = [["apple", "pear", "plum", "fig"], ["car", "bus", "train", "ship"], ["cat", "dog", "cow", "hen"]]


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=240)
    texts = [" ".join(rng.choice(THINGS[k], 8)) for k in truth]
    embeddings = np.eye(10)[truth] + 0.15 * rng.normal(size=(240, 10))
    return truth, texts, embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def estimator():
    return bnp.DirichletProcessMixture("von_mises_fisher", random_state=0)


@pytest.mark.long
def test_the_estimator_has_what_bertopic_asks_a_clusterer_for(corpus):
    truth, _, embeddings = corpus
    found = estimator().fit(embeddings, y=None)
    assert sorted(np.unique(found.labels_)) == [0, 1, 2]
    assert all(len(np.unique(found.labels_[truth == k])) == 1 for k in range(3))
    np.testing.assert_array_equal(found.predict(embeddings), found.labels_)


def test_bertopic_has_no_outliers_and_the_topics_that_there_are(corpus):
    bertopic = pytest.importorskip("bertopic")
    reduction = pytest.importorskip("bertopic.dimensionality").BaseDimensionalityReduction()
    truth, texts, embeddings = corpus
    model = bertopic.BERTopic(embedding_model=None, umap_model=reduction, hdbscan_model=estimator())
    topics, _ = model.fit_transform(texts, embeddings)
    assert set(topics) == {0, 1, 2}
    for k, words in enumerate(THINGS):
        (topic,) = set(np.array(topics)[truth == k])
        assert {word for word, _ in model.get_topic(topic)[:4]} == set(words)
    assert model.transform(texts[:9], embeddings[:9])[0] == topics[:9]
