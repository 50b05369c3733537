"""Births of topics from whole documents: what no split of one topic gives, decided exactly, the same bits anywhere."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from bnp_dask.allocation import LDA, DPMixture, HDPTopics
from bnp_dask.core.batch import Batch
from bnp_dask.errors import SettingError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.initialize import RandomExamples, SampledTopics
from bnp_dask.initialize.base import summarize_assigned
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, DocumentBirth, Merge
from bnp_dask.moves.base import PlanContext, usual_number
from bnp_dask.moves.documents import (
    ATTEMPT,
    SHARPENED,
    SMOOTHED,
    Size,
    in_places,
    sharpened,
    smoothed,
    topics_again,
)
from bnp_dask.moves.memory import WHOLE, Memory
from bnp_dask.moves.policy import BirthPolicy, DocumentBirthPolicy
from bnp_dask.observation import Gaussian, Multinomial
from bnp_dask.testing import survey_of
from bnp_dask.training.run_settings import SPLITS_OF_TOPICS
from bnp_dask.training.train import train
from tests.stopping import AfterLaps
from tests.topics.bars import thin_bars
from tests.topics.parts import corpus
from tests.topics.test_runs import bits, falls

MOVES = (DocumentBirth(passes=10, every=2), Merge(), Delete())


def go(client=None, kind=HDPTopics, k=1, laps=5, schedule=Memoized, moves=MOVES, counts=None, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(
            Model(kind(), Multinomial(lam=0.1)), corpus(240, length=30)[0] if counts is None else counts,
            init=RandomExamples(k), schedule=schedule(laps, window=3, tolerance=0.0, count_tolerance=0.0),
            moves=list(moves), batch_size=40, client=SerialExecutor() if client is None else client, **more,
        )  # fmt: skip


def births(result):
    return [m for row in result.history for m in row["moves"] if m["kind"] == "birth"]


def check_steps(result):
    """Each row's objective is that before, its gain, and the gains of what was accepted; it never falls."""
    assert np.all(np.abs(falls(result.history)) < 1e-12)
    rows = [row for row in result.history if row["exact"]]
    for before, row in zip(rows[:-1], rows[1:], strict=True):
        if row["gain"] is not None:
            gained = row["gain"] + sum(m["gain"] for m in row["moves"] if m["accepted"])
            assert row["elbo"] - before["elbo"] == pytest.approx(gained, abs=1e-8 * abs(row["elbo"]))


@pytest.mark.parametrize("kind, schedule", [(HDPTopics, Memoized), (HDPTopics, FullBatch), (LDA, Memoized)])
def test_topics_are_born_many_at_once_and_the_objective_never_falls(kind, schedule):
    result = go(kind=kind, schedule=schedule)
    accepted = [m for m in births(result) if m["accepted"]]
    assert len(accepted[0]["others"]) > 2
    assert accepted[0]["targets"] == []
    assert result.posterior.n_clusters >= 5
    check_steps(result)


def lasting(kept=True):
    """Settings with which a candidate is tried in more than one lap: it is proposed where there are enough topics."""
    policy = DocumentBirthPolicy(averaged=0.2, few=1.0, very_few=1.0)
    moves = (DocumentBirth(passes=3, every=1, sweeps=3, tries=9, kept=kept, policy=policy), Delete())
    return {"k": 8, "laps": 4, "moves": moves, "counts": corpus(120, length=30)[0]}


def test_a_candidate_is_tried_again_with_its_own_statistics():
    result = go(**lasting())
    tried = [m["others"] for m in births(result) if m["targets"] == []]
    again = [a for a, b in zip(tried[:-1], tried[1:], strict=True) if a == b]
    assert again
    check_steps(result)


def splits():
    """Settings with which a split of a topic is tried in more than one lap."""
    moves = (Birth(fresh=4, refine=3, min_atoms=5.0),)
    return {"k": 3, "laps": 5, "moves": moves, "counts": corpus(120, length=30)[0]}


def test_a_split_of_a_topic_is_tried_again_with_its_own_statistics():
    result = go(**splits())
    gains = [m["gain"] for m in births(result) if m["targets"] == [1] and m["gain"] is not None]
    assert len(gains) > 2
    assert gains == sorted(gains)
    check_steps(result)


@pytest.mark.parametrize("settings", [lasting(True), lasting(False), splits()], ids=["kept", "anew", "splits"])
def test_bits_are_those_of_any_workers_and_of_a_run_resumed_within_a_candidates_laps(tmp_path, settings):
    whole = bits(go(**settings))
    executor = ThreadExecutor(3)
    try:
        assert bits(go(executor, **settings)) == whole
    finally:
        executor.close()
    run = {"store": tmp_path / "run", "checkpoint_minutes": 1e-9}
    for laps in (2, 3):
        go(**settings, **run, resume=laps > 2, callbacks=[AfterLaps(laps)])
    assert bits(go(**settings, **run, resume=True)) == whole


def test_all_topics_are_tried_with_smoothed_words_once_for_each_number_of_topics():
    """Words that fit no topic of a document go to other topics, which keep them: steps do not undo that."""
    x, start = thin_bars(1, side=6, n_docs=200, length=60)[0], SampledTopics(12, 20)
    model, ends, accepted = Model(HDPTopics(), Multinomial()), [], []
    for share in (0.0, DocumentBirthPolicy().smoothed):
        move = DocumentBirth(passes=5, policy=DocumentBirthPolicy(smoothed=share, sharpened=0.0))
        result = train(model, x, init=start, moves=[move], rng=1, client=SerialExecutor())
        check_steps(result)
        accepted.append([m for m in births(result) if m["accepted"] and not m["targets"] and not m["others"]])
        ends.append(result.history[-1]["elbo"])
    assert [len(found) for found in accepted] == [0, 1]
    assert result.posterior.n_clusters == 12
    assert ends[1] > ends[0] + 10.0


def test_smoothed_topics_keep_their_tokens_and_get_a_share_of_the_words_of_the_corpus():
    x = corpus(60, length=30)[0]
    model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_of(Batch(x)))
    value = summarize_assigned(model, Batch(x), np.arange(60) % 3, 3)
    context = SimpleNamespace(value=value, model=model, survey=survey_of(Batch(x)))
    found = smoothed(context, 0.25)
    words = x.sum(axis=0) / x.sum()
    np.testing.assert_allclose(found["x"], 0.75 * value["x"] + 0.25 * value["x"].sum(axis=1)[:, None] * words)
    np.testing.assert_allclose(found["N"], value["x"].sum(axis=1))
    assert found["docs"] == 0.0


def test_sharpened_topics_keep_their_tokens_and_have_powers_of_their_shares_of_words():
    x = corpus(60, length=30)[0]
    model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_of(Batch(x)))
    value = summarize_assigned(model, Batch(x), np.arange(60) % 3, 4)  # the last topic has no token
    found = sharpened(SimpleNamespace(value=value, model=model), 0.5)
    powers, tokens = value["x"] ** 1.5, value["x"].sum(axis=1)
    expected = tokens[:, None] * powers / np.maximum(powers.sum(axis=1), 1.0)[:, None]
    np.testing.assert_allclose(found["x"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["N"], tokens)
    assert found["docs"] == 0.0


def test_words_of_all_topics_are_sharpened_and_then_smoothed_once_for_each_number_of_topics():
    memory = Memory(12)
    context = SimpleNamespace(
        value=SimpleNamespace(n_clusters=12), calm=True, memory=memory, source=SimpleNamespace(n_features=400)
    )
    tried = []
    while (change := DocumentBirth()._next_change(context)) is not None:
        memory.remember_failure(change + ATTEMPT, (), [context.value.n_clusters])
        tried.append(change)
        context.value.n_clusters = 12 if len(tried) < 2 else 13
    assert tried == [SHARPENED, SMOOTHED, SHARPENED, SMOOTHED]


@pytest.mark.parametrize(
    ("n_words", "k", "tried"), [(400, 12, True), (400, 2, True), (400, 1, False), (6e7, 12, False)]
)
def test_words_of_all_topics_change_where_there_are_two_whose_tables_may_take_memory(n_words, k, tried):
    context = SimpleNamespace(
        value=SimpleNamespace(n_clusters=k),
        calm=True,
        memory=Memory(12),
        source=SimpleNamespace(n_features=int(n_words)),
    )
    assert (DocumentBirth()._next_change(context) is not None) is tried


def test_a_trial_on_all_topics_is_re_estimated_with_weights_of_documents():
    """Its statistics lack the number of documents: without it the weights would follow from tokens alone."""
    x = corpus(60, length=30)[0]
    model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_of(Batch(x)))
    value = model.local_step(model.global_step(summarize_assigned(model, Batch(x), np.arange(60) % 3, 3)), Batch(x))
    sums = ("docs", "P_rest", "Q_rest", "Q_0")
    part = replace(value, values={**value.values, **{name: np.zeros(()) for name in sums}})
    plan = PlanContext.beliefs_of_all(SimpleNamespace(value=value, model=model), part)
    np.testing.assert_array_equal(plan.weights, model.global_step(value).weights)
    assert np.abs(plan.weights - model.global_step(part).weights).max() > 1e-3


def test_topics_are_sampled_anew_only_where_there_are_far_fewer_than_usual():
    """3,600 tokens usually show 15 topics: 3 are fewer than a fourth of them, 4 are not."""
    for k, tried in ((3, True), (4, False)):
        first = go(k=k, laps=2, moves=(DocumentBirth(passes=3),), counts=corpus(120, length=30)[0])
        assert bool(births(first)) == tried


def sizes(k, calm=True, moves=None, n_tokens=384_400.0):
    """Names and numbers of topics of the candidates beside ``k`` topics of 2,250 documents, which usually show 155."""
    context = SimpleNamespace(
        value=SimpleNamespace(n_clusters=k), tokens=n_tokens, survey=SimpleNamespace(n_atoms=2250, total_weight=2250.0)
    )
    found = (moves or DocumentBirth())._sizes(context, calm)
    assert all(size.anew is (size.name == "documents anew") for size in found)  # the others keep existing topics
    return [(size.name, size.total) for size in found]


def test_candidates_have_several_sizes():
    many = ("documents", 155)
    assert sizes(1, calm=False) == sizes(1, moves=DocumentBirth(kept=True)) == [many]
    assert sizes(50, calm=False) == []
    assert sizes(1) == [("documents half", 4), ("documents few", 4), many]
    assert sizes(50) == [("documents anew", 19), ("documents half", 75), ("documents few", 56), many]
    assert sizes(130) == [("documents anew", 19), ("documents few", 146)]
    assert sizes(150) == [("documents anew", 19)]  # a few more would be more than usual


@pytest.mark.parametrize(
    ("had", "is_sparse", "sharpens"), [([50], True, False), ([150, 50], True, True), ([50], False, True)]
)
def test_a_run_that_never_had_as_many_topics_as_usual_tries_these_first(monkeypatch, had, is_sparse, sharpens):
    """155 are usual.  Words of all topics wait until so many have been tried, if documents can be gathered."""
    proposed, memory = [], Memory(next_id=50)
    monkeypatch.setattr(DocumentBirth, "_propose", lambda self, context, basis, name: proposed.append(name))
    monkeypatch.setattr("bnp_dask.moves.documents.sharpened", lambda context, more: None)
    for k in had:
        context = SimpleNamespace(
            value=SimpleNamespace(n_clusters=k), tokens=384_400.0, calm=k == 50, memory=memory, atoms={}, free=set(),
            survey=SimpleNamespace(n_atoms=2250, total_weight=2250.0),
            source=SimpleNamespace(n_features=400, is_sparse=is_sparse),
        )  # fmt: skip
        assert list(DocumentBirth().plan(context)) == []
    assert proposed == [SHARPENED] * sharpens


def test_no_more_topics_are_sought_than_the_gathered_documents_show():
    """A million tokens usually show 250 topics: 200 topics of 730 million tokens get a few more, and not 6,754."""
    many = SimpleNamespace(n_atoms=8_200_000, total_weight=8.2e6)
    context = SimpleNamespace(value=SimpleNamespace(n_clusters=200), tokens=7.3e8, survey=many)
    found = [(size.name, size.total) for size in DocumentBirth()._sizes(context, calm=True)]
    assert found == [("documents anew", 31), ("documents few", 225)]
    assert usual_number(context) == 6754


@pytest.mark.parametrize(("k", "tried"), [(125, True), (126, False)])
def test_splits_of_topics_end_at_half_of_what_a_million_tokens_show(k, tried):
    many = SimpleNamespace(n_atoms=8_200_000, total_weight=8.2e6)

    class Looked(Exception):
        """Topics are looked at one by one."""

    def data_terms(*_):
        raise Looked

    model = SimpleNamespace(data_terms=data_terms)
    value, posterior = SimpleNamespace(n_clusters=k), SimpleNamespace(observation=None)
    context = SimpleNamespace(value=value, tokens=7.3e8, survey=many, model=model, posterior=posterior)
    if tried:
        with pytest.raises(Looked):
            SPLITS_OF_TOPICS._candidates(context)
    else:
        assert SPLITS_OF_TOPICS._candidates(context) == []


def test_what_failed_on_a_sample_is_tried_again_on_a_larger_one_unless_it_has_fewer_topics():
    """A sample of a fourth of the corpus, which then grows: more tokens may show more topics, but never fewer."""
    move, memory = DocumentBirth(), Memory(next_id=50)
    for size, _ in sizes(50):
        for _ in range(2):
            memory.remember_failure(size, (), [96_100.0])
    survey = SimpleNamespace(n_atoms=2250, total_weight=2250.0)

    def following(tokens):
        value = SimpleNamespace(n_clusters=50)
        context = SimpleNamespace(value=value, tokens=tokens, survey=survey, memory=memory)
        return move._next_size(context, calm=True)

    assert following(96_100.0) is following(150_000.0) is None
    assert following(384_400.0).name == "documents"  # it never had as many topics as so many tokens show
    memory.remember_failure("documents at all", (), [384_400.0])
    assert following(384_400.0).name == "documents half"


@pytest.mark.parametrize(("of_usual", "tried"), [(0.0, True), (0.1, False)])
def test_topics_are_split_up_to_a_share_of_the_usual_number(of_usual, tried):
    """3,600 tokens usually show 15 topics."""
    move = Birth(refine=2, policy=BirthPolicy(of_usual=of_usual))
    result = go(k=3, laps=2, moves=(move,), counts=corpus(120, length=30)[0])
    assert any(m["kind"] == "birth" for m in result.history.moves()) == tried


def test_topics_sampled_anew_take_the_place_of_all(monkeypatch):
    """Forty topics of single documents, against three that are sampled without them."""
    monkeypatch.setattr(DocumentBirth, "_sizes", lambda self, context, calm: [Size("documents anew", 3, True, 1)])
    result = go(k=40, laps=4, moves=(DocumentBirth(passes=20, every=1),), counts=corpus(120, length=30)[0])
    (first,) = [m for m in births(result) if m["accepted"]][:1]
    assert len(first["others"]) == result.posterior.n_clusters == 3
    check_steps(result)


@pytest.mark.parametrize(
    "size", [Size("documents", 9, False, 1), Size("documents anew", 3, True, 1)], ids=lambda s: s.name
)
def test_a_candidate_of_a_part_of_the_documents_stands_for_all_of_them(monkeypatch, size):
    """Its topics begin with about as many tokens as there are: those of new topics that are too small are left out."""
    begun = []

    def propose(self, context, basis, name):
        begun.append((context, basis, name))

    monkeypatch.setattr(DocumentBirth, "_sizes", lambda self, context, calm: [size])
    monkeypatch.setattr(DocumentBirth, "_propose", propose)
    go(k=6, laps=2, moves=(DocumentBirth(tokens=900, passes=3, every=1),), counts=corpus(120, length=30)[0])
    (context, basis, name), *_ = begun
    assert name == size.name
    assert context.model.mass(context.atoms[WHOLE]) < 0.4 * context.tokens
    assert 0.8 * context.tokens < basis["N"].sum() < context.tokens * (1.0 + 1e-9)
    np.testing.assert_allclose(basis["x"].sum(axis=1), basis["N"], rtol=1e-9)
    old = context.value.ids.tolist()
    assert basis.ids.tolist()[: 0 if size.anew else 6] == ([] if size.anew else old)
    assert not set(basis.ids.tolist()[0 if size.anew else 6 :]) & set(old)


def test_existing_topics_move_only_where_they_are_not_kept():
    x = corpus(120, length=30)[0]
    batch, model = Batch(x), Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_of(Batch(x)))
    known = np.zeros((x.shape[1], 1))
    known[:5] = 1e6
    given = batch, SampledTopics(8, 40, 20, max_tokens=10**6), known
    beside = topics_again(model, *given, True, (0, 1, 2), 20.0)
    anew = topics_again(model, *given, False, (0, 1, 2), 20.0)
    assert anew.sum() == pytest.approx(x.sum(), rel=0.02)  # topics under 20 tokens are left out
    # a topic whose words are all but certain takes no other ones, unless it may change
    assert beside[5:, 0].sum() == 0.0 < anew[5:, 0].sum()


def test_a_run_cut_off_within_a_lap_goes_on_to_the_same_bits(tmp_path):
    class Cut:
        """Ends the process's run in the middle of a lap."""

        def __init__(self):
            self.batches = 0

        def on_start(self, info): ...

        def on_lap(self, row, posterior): ...

        def on_end(self, reason): ...

        def on_batch(self, done):
            self.batches += 1
            if self.batches == 5:
                raise KeyboardInterrupt

    whole = bits(go(**lasting()))
    run = {"store": tmp_path / "run", "checkpoint_minutes": 1e-9}
    with pytest.raises(KeyboardInterrupt):
        go(**lasting(), **run, callbacks=[Cut()])
    assert bits(go(**lasting(), **run, resume=True)) == whole


def test_memory_and_weights_change_nothing_but_what_they_say():
    counts = corpus(120, length=30)[0]
    whole = go(counts=counts)
    assert bits(go(counts=counts, memory=1000)) == bits(whole)
    check_steps(go(counts=counts, weights=np.linspace(0.5, 2.0, 120)))


def test_documents_without_words_have_no_new_topics():
    few = sparse.csr_array(np.eye(8)[:3])
    result = go(counts=few, laps=3)
    assert result.posterior.n_clusters == 1
    assert all(not m["accepted"] for m in births(result))


def test_mixtures_have_no_documents():
    with pytest.raises(SettingError, match=r"use Birth\(\), or HDPTopics"):
        train(
            Model(DPMixture(), Gaussian()), np.random.default_rng(0).normal(size=(9, 2)), init=RandomExamples(2),
            moves=[DocumentBirth()], client=SerialExecutor(),
        )  # fmt: skip


def test_sampled_topics_are_in_the_places_of_those_they_are_most_like():
    words = np.kron(np.eye(5), np.ones((4, 1)))  # five topics of four words each
    known = 40.0 * words[:, :3] + 1.0
    sampled = 25.0 * words[:, [4, 2, 0, 3, 1]]
    found = in_places(known, sampled)
    np.testing.assert_array_equal(found[:, :3], 25.0 * words[:, :3])
    np.testing.assert_array_equal(np.sort(found.argmax(axis=0)[3:]), [12, 16])
    np.testing.assert_array_equal(in_places(known, 0.0 * sampled), 0.0 * sampled)
