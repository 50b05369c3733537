"""c_v against its definition, word by word and window by window, and against gensim's numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.topics import topic_table, words
from bnp_dask.analysis.topics.words import count_windows
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Words
from bnp_dask.data import Text
from bnp_dask.errors import DataError, SettingError
from tests.topics.parts import V, begin, corpus, word_model

TOPICS = [["t0", "t1", "t2", "t3"], ["t4", "t5", "t6", "t7"], ["t0", "t5", "t8", "t10"], ["t8", "t9", "t10", "t2"]]

BY_GENSIM = [0.3729392028886873, 0.08828403628170023, 0.38377322382570567, 0.24590022490009067]
"""Made with gensim 4.4.0, ``CoherenceModel(topics=TOPICS, texts=TEXTS, dictionary=Dictionary(TEXTS), coherence="c_v",
processes=1).get_coherence_per_topic()``.

No word of ``TEXTS`` is twice in one of several windows of a text: there gensim forgets a word as soon as one of its
places leaves the window, though another is still in it.
"""


def numbers():
    state = 7
    while True:
        state = (1103515245 * state + 12345) % 2**31
        yield state >> 16


def texts_for_gensim():
    """Short texts of few words, and four of 200 words that are all different."""
    draw = numbers()
    short = [[f"t{3 * (d % 4) + next(draw) % 4 - next(draw) % 2 * (d % 4 > 0)}" for _ in range(12)] for d in range(20)]
    long = []
    for d in range(4):
        words = [f"other{i}" for i in range(200)]
        for v in range(d, 12, 2):
            words[50 * (v % 4) + next(draw) % 50] = f"t{v}"
        long.append(list(dict.fromkeys(words)))
    return short + long


TEXTS = texts_for_gensim()


def by_definition(texts, topic, size):
    """Roeder et al. 2015: every window a set of words; NPMI of all pairs; cosines with the whole topic's vector."""
    windows = [set(text[s : s + size]) for text in texts if text for s in range(max(1, len(text) - size + 1))]
    topic = [word for word in topic if any(word in window for window in windows)]
    if len(topic) < 2:
        return np.nan

    def share(*words):
        return sum(all(word in window for word in words) for window in windows) / len(windows)

    def npmi(a, b):
        p = share(a, b) + 1e-12
        return 1.0 if p >= 1 else np.log(p / (share(a) * share(b))) / -np.log(p)

    vectors = [np.array([npmi(a, b) for b in topic]) for a in topic]
    whole = sum(vectors)
    return np.mean([v @ whole / np.sqrt((v @ v) * (whole @ whole)) for v in vectors])


def found(texts, topics, size=110):
    names = sorted({word for text in texts for word in text} | {word for topic in topics for word in topic})
    column = np.array([[names.index(word) for word in topic] for topic in topics])
    posterior = replace(begin(word_model("lda"), Batch(corpus()[0]), k=2), words=Words.of(names))
    windows = count_windows(posterior, texts, column, size)
    return words.c_v(windows.pairs.single, windows.pairs.both, windows.total)


def test_numbers_of_gensim():
    np.testing.assert_allclose(found(TEXTS, TOPICS), BY_GENSIM, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 5, 110])
@pytest.mark.parametrize("at_once", [3, 4096])
def test_c_v_is_the_definition(monkeypatch, size, at_once):
    monkeypatch.setattr("bnp_dask.analysis.topics.words.WINDOWS_AT_ONCE", at_once)
    rng = np.random.default_rng(size)
    lengths = [0, 1, 4, 5, 6, 30, 120, 150]
    texts = [[f"w{v}" for v in rng.choice(14, n, p=np.arange(1, 15) / 105)] for n in lengths]
    topics = [["w0", "w5", "w13"], ["w13", "w12", "nowhere"], ["w1", "w2", "w3"], ["nowhere", "no", "w4"]]
    slow = [by_definition(texts, topic, size) for topic in topics]
    np.testing.assert_allclose(found(texts, topics, size), slow, rtol=1e-12)
    assert np.isnan(slow[3])


def test_words_of_every_window_go_together():
    assert found([["a", "b"], ["b", "a"]], [["a", "b"]]) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def fitted():
    posterior = begin(word_model("lda"), Batch(corpus()[0]), k=3)
    return replace(posterior, words=Words.of([f"w{v:02d}" for v in range(V)], Text(stop_words=None).analysis.to_json()))


def test_the_survey_sees_texts(fitted):
    rows = corpus()[0].toarray().astype(int)
    lists = [[f"w{v:02d}" for v in np.repeat(np.arange(V), row)] for row in rows]
    texts = [" ".join(words) for words in lists]
    survey = bnp.survey_documents(fitted, texts, n_words=5)
    names = bnp.top_words(fitted, 5, by="probability")
    slow = [by_definition(lists, names.names(k), 110) for k in range(3)]
    np.testing.assert_allclose(survey.c_v(), slow, rtol=1e-12)
    np.testing.assert_allclose(survey.c_v(3), [by_definition(lists, names.names(k)[:3], 110) for k in range(3)])
    later = bnp.survey_documents(fitted, rows, n_words=5, texts=iter(lists))
    np.testing.assert_array_equal(later.c_v(), survey.c_v())
    order = fitted.positions(topic_table(fitted, survey=survey)["topic"].to_numpy())
    np.testing.assert_array_equal(topic_table(fitted, survey=survey)["c_v"], survey.c_v()[order])


def test_counts_do_not_say_which_words_are_near(fitted):
    survey = bnp.survey_documents(fitted, corpus()[0])
    with pytest.raises(SettingError, match="words that are near"):
        survey.c_v()
    for texts, match in (([3], "number 0 is 3"), ([["a", 1]], "or a list of words")):
        with pytest.raises(DataError, match=match):
            bnp.survey_documents(fitted, corpus()[0], texts=texts)
    with pytest.raises(DataError, match="give lists of words"):
        no_rule = replace(fitted, words=Words.of(fitted.words.words))
        bnp.survey_documents(no_rule, corpus()[0], texts=["a b"])
