"""One function gives the noun of a model, and texts use it: clusters of atoms, topics of tokens, states of steps."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.analysis.topics import topic_relations, topic_table
from bnp_dask.cli.run import result_table
from bnp_dask.core.summary import Summary
from bnp_dask.structure.nouns import CLUSTER, count_of, noun_of, unused_line

LAPS = bnp.Memoized(laps=100, tolerance=1e-3)


def trained(kind: str) -> bnp.TrainResult:
    rng = np.random.default_rng(0)
    if kind == "topic":
        counts = sparse.csr_array(rng.poisson(np.repeat([[5.0, 5.0, 0.2, 0.2], [0.2, 0.2, 5.0, 5.0]], 15, axis=0)))
        source = bnp.as_source(counts.astype(float), columns=bnp.Columns.of(["cat", "dog", "tax", "vote"]))
        init = bnp.RandomExamples(3)
        return bnp.train(bnp.Model(bnp.LDA(0.5), bnp.Multinomial()), source, init=init, moves=(), schedule=LAPS)
    rows = rng.normal(size=(60, 2)) + np.repeat([[0.0], [6.0]], 30, axis=0)
    allocation = bnp.FiniteMixture(1.0) if kind == "cluster" else bnp.FiniteHMM()
    data = rows if kind == "cluster" else bnp.as_source([rows[:40], rows[40:]])
    init = bnp.BregmanKMeans(2)
    return bnp.train(bnp.Model(allocation, bnp.DiagGaussian()), data, init=init, moves=(), schedule=LAPS)


@pytest.fixture(scope="module", params=["cluster", "topic", "state"])
def of_a_kind(request):
    """A kind of model and its result, with the lines that its training logged."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bnp_dask")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        return request.param, trained(request.param), lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


ATOMS = {"cluster": "atoms", "topic": "tokens", "state": "steps"}


def test_texts_have_the_noun_of_the_model_and_no_other(of_a_kind, tmp_path):
    kind, result, lines = of_a_kind
    posterior = result.posterior
    noun = noun_of(posterior.model)
    assert (noun.one, noun.atoms) == (kind, ATOMS[kind])
    table = bnp.inspect(posterior)
    texts = {
        "repr": repr(result),
        "posterior": repr(posterior),
        "notebook": result._repr_html_(),
        "inspect": str(table),
        "compare": str(bnp.compare(result)),
        "laps": "\n".join(line for line in lines if line.startswith("lap ")),
        "command line": result_table(posterior),
    }
    if kind != "topic":  # their page is made by its script
        bnp.report(result, tmp_path / "page.html")
        texts["page"] = (tmp_path / "page.html").read_text()
    others = {"cluster", "topic", "state"} - {kind}
    for name, text in texts.items():
        assert noun.many in text, name
        words = text.lower().replace("topics of", "").replace("<style>", "").split()
        assert not {form for other in others for form in (other, f"{other}s", f"{other}s,")} & set(words), name
    assert table.to_pandas().index.name == kind


def test_counts_are_in_the_singular_for_one():
    assert (CLUSTER.count(0), CLUSTER.count(1), CLUSTER.count(2)) == ("0 clusters", "1 cluster", "2 clusters")


def without_tokens(posterior: bnp.Posterior) -> bnp.Posterior:
    """The posterior with its last topic emptied."""
    summary = posterior.summary
    assert summary is not None
    values = dict(summary.values)
    for name in ("N", "x"):
        values[name] = np.array(values[name])
        values[name][-1] = 0.0
    return replace(posterior, summary=Summary(summary.ids, summary.fields, values))


def test_a_topic_without_tokens_is_none(tmp_path):
    whole = trained("topic").posterior
    posterior = without_tokens(whole)
    gone = int(posterior.ids[-1])
    assert (count_of(whole), unused_line(whole)) == ("3 topics", "")
    assert (count_of(posterior), unused_line(posterior)) == ("2 topics", "1 topic without tokens left out")
    listed = posterior.topics()
    assert len(listed) == 2 and gone not in [topic.id for topic in listed]
    assert str(listed).endswith("1 topic without tokens left out")
    assert "2 topics" in repr(posterior)
    table = bnp.inspect(posterior)
    assert len(table) == 2 and table.rest == "1 topic without tokens left out"
    assert gone not in topic_table(posterior)["topic"].to_pylist()
    assert topic_relations(posterior).num_rows == 1
    assert bnp.compare(posterior)[0].n_clusters == 2
    bnp.report(posterior, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>2 topics</h1>" in page and "1 topic without tokens left out" in page
