"""Moves on topic models: from any start to the same topics, never down, the same bits anywhere."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from bnp_dask import as_source
from bnp_dask.allocation import LDA, HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import Memoized
from bnp_dask.initialize import BregmanKMeans, RandomExamples, Responsibilities
from bnp_dask.initialize.base import summarize_assigned
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.birth import _has_words
from bnp_dask.moves.create import WORDS, Sample, _from_words, create
from bnp_dask.moves.pairs import alike, all_pairs, data_gains, gains_of_pairs
from bnp_dask.moves.policy import LAP, BirthPolicy, SmallRunPolicy
from bnp_dask.observation import Gaussian, Multinomial
from bnp_dask.structure.groups import Groups, members_of
from bnp_dask.structure.independent import Independent
from bnp_dask.training.train import train
from tests.topics.bars import bars_corpus

MOVES = (Birth(sample=300), Merge(), Delete())
GROUPS = Groups()


def go(k: int, seed: int = 0, laps: int = 12, docs: int = 400, client=None):
    counts, phi = bars_corpus(docs, length=100, seed=seed)
    model = Model(HDPTopics(10.0, 0.5), Multinomial(lam=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            model, counts, init=RandomExamples(k), schedule=Memoized(laps, window=3), moves=list(MOVES), batch_size=50,
            rng=seed, client=client,
        ), phi  # fmt: skip


def found(result, phi) -> int:
    """True topics with a topic of their own, within a total variation of 0.3."""
    lam = result.posterior.observation.lam
    distance = 0.5 * np.abs(phi[:, None] - lam / lam.sum(axis=1, keepdims=True)).sum(axis=2)
    return int((distance[linear_sum_assignment(distance)] < 0.3).sum())


@pytest.mark.long
@pytest.mark.parametrize("k", [1, pytest.param(30, marks=pytest.mark.long)])
def test_bars_are_found_and_the_objective_never_falls(k):
    result, phi = go(k)
    assert found(result, phi) == 10
    assert result.posterior.n_clusters == 10
    rows = [row for row in result.history if row["exact"]]
    elbo = np.array([row["elbo"] for row in rows])
    size = np.array([sum(abs(row[name]) for name in ("data", "entropy", "allocation")) for row in rows])
    assert (np.diff(elbo) >= -1e-12 * size[1:]).all()
    kinds = {m["kind"] for row in rows for m in row["moves"] if m["accepted"]}
    assert kinds >= ({"birth"} if k == 1 else {"merge"})


def test_topics_of_few_documents_are_born_from_the_words_of_many():
    """A sample of the small run has each rare topic in ten documents, which say too little about it."""
    rng = np.random.default_rng(0)
    n_docs, few, n_words = 20_000, 1000, 240
    phi = np.zeros((12, n_words))
    for k in range(12):
        phi[k, 20 * k : 20 * (k + 1)] = rng.dirichlet(np.ones(20))
    shares = rng.dirichlet(np.array([1.0, 1.0, *[0.02] * 10]), n_docs)
    x = sparse.csr_array(np.array([rng.multinomial(20, share @ phi) for share in shares], np.float64))
    batch = Batch(x)
    model = Model(HDPTopics(10.0, 2.0), Multinomial(lam=0.1))
    model = replace(model, observation=model.observation.with_prior(survey_batch(batch)))

    def matched_by(widths, seen):
        made = create(
            model, Sample(batch.take(np.arange(seen)), float(x.sum()), widths, 20, few), 0, (1,), SmallRunPolicy()
        )
        assert made["N"].sum() == pytest.approx(x.sum())
        share = made["x"] / made["x"].sum(axis=1, keepdims=True)
        distance = 0.5 * np.abs(phi[:, None] - share).sum(axis=2)
        return int((distance[linear_sum_assignment(distance)] < 0.3).sum())

    assert matched_by((WORDS,), n_docs) == 12
    assert matched_by((WORDS,), few) < 12


def test_a_topic_that_anchors_of_many_documents_show_may_be_rare_in_the_few_looked_at():
    """An accident has as many documents as it has of the many; the few have a share of them."""
    rng = np.random.default_rng(0)
    topics = np.concatenate([[0, 1] * 13, [2] * 4, rng.integers(0, 3, 270)])
    phi = np.kron(np.eye(3), np.full(10, 0.1))
    every = Batch(sparse.csr_array(np.array([rng.multinomial(40, phi[k]) for k in topics], np.float64)))
    model = Model(HDPTopics(5.0, 0.5), Multinomial(lam=0.1))
    model = replace(model, observation=model.observation.with_prior(survey_batch(every)))
    forecast = SimpleNamespace(model=model, policy=replace(SmallRunPolicy(), least_share=0.25))
    found = _from_words(forecast, every, every.take(np.arange(30)), np.random.default_rng(0))
    np.testing.assert_allclose(np.sort(found["N"]) / found["N"].sum(), [4 / 30, 13 / 30, 13 / 30], atol=0.02)


@pytest.mark.parametrize(("alpha", "widths"), [(0.1, (5,)), (1.0, (2,))])
def test_documents_of_one_topic_are_not_split(alpha, widths):
    """One topic is valued with its documents' terms, as the several that a small run ends with are."""
    rng = np.random.default_rng(1)
    batch = Batch(sparse.csr_array(rng.multinomial(100, rng.dirichlet(np.ones(80)), 400).astype(float)))
    model = Model(HDPTopics(10.0, alpha), Multinomial(lam=0.1))
    model = replace(model, observation=model.observation.with_prior(survey_batch(batch)))
    together = summarize_assigned(model, batch, np.zeros(400, np.int64), 1)
    exact = model.local_step(model.global_step(together), batch)
    assert model.best_objective(exact) > model.best_objective(together) + 100.0  # what the comparison lacked
    assert create(model, Sample(batch, float(batch.x.sum()), widths, 20), 0, (1,), SmallRunPolicy()) is None


def test_small_corpora_ask_words_how_many_topics_there_are():
    model, need = Model(HDPTopics(), Multinomial()), BirthPolicy().words_need
    assert _has_words(model, Batch(sparse.csr_array(np.full((300, 10), 10.0))), need)
    assert not _has_words(model, Batch(sparse.csr_array(np.full((300, 10), 9.0))), need)
    assert not _has_words(Model(HDPTopics(), Gaussian()), Batch(np.full((300, 10), 10.0)), need)


def test_parts_of_documents_have_the_prior_mass_of_their_topic():
    """A Dirichlet distribution's parts are Dirichlet distributed with their own share of its mass."""
    assert HDPTopics(10.0, 0.5).within(0.2) == HDPTopics(10.0, 0.1)
    assert LDA(2.0).within(0.25) == LDA(0.5)


def test_documents_whose_words_are_looked_at():
    """As many tokens over all clusters, whatever the documents' length; never fewer than a small run takes."""

    def gathered(n_clusters, tokens, structure=GROUPS, is_sparse=True):
        context = SimpleNamespace(
            source=SimpleNamespace(is_sparse=is_sparse),
            policy=structure.policy,
            survey=SimpleNamespace(mean=np.full(10, tokens / 10)),
            value=SimpleNamespace(n_clusters=n_clusters),
            at_most_sampled=lambda atoms: atoms,
        )
        return Birth(sample=1000)._documents(context, 2000)

    assert gathered(1, 40) == BirthPolicy().words_seen * 1000 // 40
    assert gathered(4, 80) == BirthPolicy().words_seen * 1000 // 320
    assert gathered(50, 40) == gathered(1, 1e6) == gathered(1, 40, structure=Independent()) == 2000
    assert gathered(1, 40, is_sparse=False) == 2000


@pytest.mark.long
def test_same_bits_serial_and_on_threads():
    kept = []
    for client in (SerialExecutor(), ThreadExecutor(2)):
        result, _ = go(3, laps=5, docs=200, client=client)
        kept.append({name: value.tobytes() for name, value in result.posterior.summary.to_arrays().items()})
        assert any(m["accepted"] for row in result.history for m in row["moves"])
    assert kept[0] == kept[1]


def test_partners_of_a_topic_are_those_with_its_words():
    rng = np.random.default_rng(3)
    counts = rng.dirichlet(np.full(60, 0.05), 40) * rng.uniform(50, 500, (40, 1))
    counts[7] = 1.5 * counts[30] + 0.01
    counts[12] = 0.0
    first, second = alike(counts)
    assert (first < second).all()
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    assert (7, 30) in pairs
    assert len(pairs) < 40 * 39 / 2
    roots = np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300))
    near = roots @ roots.T
    for k in (0, 7, 39):
        best = sorted((j for j in range(40) if j != k), key=lambda j: -near[k, j])[: LAP.alike]
        assert {(min(j, k), max(j, k)) for j in best} <= pairs
    few = alike(counts[:5])
    assert len(few[0]) == 10  # of few topics all pairs


def test_gains_of_partners_are_exact():
    counts, _ = bars_corpus(60, length=60, seed=1)
    batch = Batch(counts)
    model = Model(HDPTopics(10.0, 0.5), Multinomial(0.1)).with_prior(survey_batch(batch))
    basis = model.summarize(np.arange(30), batch, np.eye(30)[np.arange(60) % 30])
    value = model.local_step(model.global_step(basis), batch)
    found = gains_of_pairs(model, model.global_step(value), value)
    gains = np.array([found[k] for k in range(30)])
    every = all_pairs(value.ids)
    exact = data_gains(model, value, every)
    found = gains[every[:, 0], every[:, 1]]
    assert np.isfinite(found).sum() < len(found)
    np.testing.assert_array_equal(gains, gains.T)
    np.testing.assert_allclose(found[np.isfinite(found)], exact[np.isfinite(found)], rtol=1e-12)
    assert np.isfinite(found[np.argmax(exact)])


# -- atoms in groups ----------------------------------------------------------------------------------------------
def overlapping_groups(seed, k=6, groups=15, size=40):
    """Gaussian topics of two features that overlap, in groups with shares of their own; atoms, topics and offsets."""
    rng = np.random.default_rng([8, seed])
    shares = rng.dirichlet(np.full(k, 0.4), groups)
    z = np.concatenate([rng.choice(k, size, p=share) for share in shares])
    x = rng.uniform(-4, 4, (k, 2))[z] + rng.normal(size=(len(z), 2))
    return x, z, np.arange(0, len(z) + 1, size)


@pytest.mark.parametrize("seed", [1, 4])
def test_gaussian_topics_are_found_from_one_as_from_the_truth(seed):
    """Splits of single topics end 9 and 7 nats lower: one topic holds two that pay only beside their neighbours."""
    x, z, offsets = overlapping_groups(seed)
    source, model = as_source(x, groups=offsets), Model(HDPTopics(), Gaussian())
    ends = [
        train(model, source, init=init, rng=0).history[-1]["elbo"] for init in (BregmanKMeans(1), Responsibilities(z))
    ]
    assert ends[0] > ends[1] - 1.0


def test_parts_of_groups_hold_the_mass_of_their_topics():
    """Atoms of several topics come once, in their groups, and weigh as much as these topics hold of them."""
    x, z, offsets = overlapping_groups(0)
    batch = Batch(x, groups=offsets)
    model = Model(HDPTopics(), Gaussian()).with_prior(survey_batch(batch))
    posterior = model.global_step(summarize_assigned(model, batch, z, 6))
    held = model.local_step(posterior, batch)["N"]
    both, one = members_of(model, posterior, batch, [[1, 3, 4], [3]])
    assert both.total_weight == pytest.approx(held[[1, 3, 4]].sum(), rel=0.02)
    assert one.total_weight == pytest.approx(held[3], rel=0.05)
    assert both.n_groups <= 15 and len(np.unique(both.x, axis=0)) == both.n_atoms
