"""Topics of one document, and the words that made it so, against the slow fixed point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import psi

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.columns import Words
from bnp_dask.errors import DataError, SettingError
from tests.topics.parts import V, begin, corpus, prior_of, word_model
from tests.topics.test_predict_topics import theta_slowly

NAMES = tuple(f"word{v}" for v in range(V))


def topics():
    """A posterior that knows how texts are cut, and a document of its kind."""
    x, _ = corpus()
    posterior = begin(word_model("hdp", restarts=0, sweeps=4000, tolerance=1e-12), Batch(x))
    words = Words.of(NAMES, bnp.Text(min_df=1, stop_words=None).analysis.to_json())
    return replace(posterior, words=words), corpus(n_docs=3, seed=5)[0][[0]]


def test_tokens_are_shared_among_topics_as_at_the_fixed_point():
    posterior, x = topics()
    log_lik = posterior.model.observation.token_log_lik(posterior.observation, x.indices)
    prior, _ = prior_of(posterior)
    theta = theta_slowly(log_lik, x.data, prior)
    weight = np.exp(log_lik + psi(theta))
    wanted = weight / weight.sum(axis=1, keepdims=True)
    found = bnp.explain(posterior, x, n=1000, least=0.0)
    assert_allclose(found.resp, wanted, atol=1e-8)
    sums = x.data @ wanted
    assert_allclose([one.tokens for one in found], [sums[_place(posterior, one)] for one in found], atol=1e-9)
    shares = bnp.predict(posterior, x, soft=True)[0]
    assert [one.share for one in found] == sorted(shares[:-1], reverse=True)
    table = found.to_table().to_pandas()
    assert_allclose(table.groupby("word")["tokens"].sum(), table.groupby("word")["count"].first(), rtol=1e-6)


def _place(posterior, one):
    return int(np.flatnonzero(posterior.ids == one.topic)[0])


def test_documents_come_as_texts_counts_and_words():
    posterior, x = topics()
    by_row = bnp.explain(posterior, x)
    counts = {NAMES[v]: count for v, count in zip(x.indices, x.data, strict=True)}
    text = " ".join(word for word, count in counts.items() for _ in range(int(count)))
    for document in (x.toarray()[0], x.toarray(), counts, text):
        assert str(bnp.explain(posterior, document)) == str(by_row)
    first = by_row[0]
    assert len(first.words) <= 10 and all(tokens <= count for _, tokens, count in first.words)
    assert f"{first.share:.1%}" in str(by_row) and "/" in str(by_row)
    assert by_row._repr_html_().count("<tr>") == 1 + len(by_row)
    with pytest.warns(UserWarning, match="3 of 3 tokens are left out"):
        nothing = bnp.explain(posterior, "nothing known here", least=0.0)
    assert len(nothing) == posterior.n_clusters and all(not one.words for one in nothing)


def test_what_is_refused():
    posterior, x = topics()
    with pytest.raises(DataError, match="does not know 'cheese'"):
        bnp.explain(posterior, {"cheese": 1})
    with pytest.raises(DataError, match=r"shape \(2, .* needs one document"):
        bnp.explain(posterior, np.ones((2, V)))
    with pytest.raises(DataError, match="needs one text"):
        bnp.explain(posterior, ["two", "texts"])
    with pytest.raises(SettingError, match="least="):
        bnp.explain(posterior, x, least=2)
    mixture = replace(posterior, model=bnp.Model(bnp.DPMixture(), bnp.Multinomial()))
    with pytest.raises(SettingError, match="DPMixture of Multinomial has no topics of words"):
        bnp.explain(mixture, x)
