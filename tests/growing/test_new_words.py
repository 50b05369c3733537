"""A vocabulary that grows: new words enter a run as if it had known them from its start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.training.growing import growing_run
from tests.growing.parts import begin, bits_of, day, gap, grow
from tests.growing.test_update import COMMITTED, dying

V = 24
MODELS = {
    "topics": bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.1)),
    "lda": bnp.Model(bnp.LDA(), bnp.Multinomial(0.1)),
    "mixture": bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial(0.1)),
    "common": bnp.Model(bnp.HDPTopics(), bnp.Multinomial()),
}
MIXTURES = ("mixture",)


def counts(number, width, n=40):
    """Documents of one day over the first ``width`` words."""
    rng = np.random.default_rng(3000 + number)
    topics = np.random.default_rng(5).dirichlet(np.full(V, 0.1), size=3)[:, :width]
    topics /= topics.sum(axis=1, keepdims=True)
    shares = np.eye(3)[rng.integers(3, size=n)]
    return np.array([rng.multinomial(50, share @ topics) for share in shares], np.float64)


def rows(number, width, batch_size=10):
    return bnp.as_source(sparse.csr_array(counts(number, width)), batch_size=batch_size)


WORDS = [f"word{i:02d}" for i in range(V)]


def store(folder, number, words):
    """An ingested store of one day over some words, in that order; its path."""
    place = folder / f"day{number}.zarr"
    if place.exists():
        return place
    index = [WORDS.index(word) for word in words]
    sparse.save_npz(folder / "counts.npz", sparse.csr_matrix(counts(number, max(index) + 1)[:, index]))
    (folder / "words.txt").write_text("\n".join(words))
    bnp.ingest(folder / "counts.npz", place, vocabulary=str(folder / "words.txt"), batch_size=10)
    return place


@pytest.mark.first_case
@pytest.mark.parametrize(("kind", "laps", "exact"), [("mixture", 2, 1e-10), ("topics", 15, 1e-5)])
def test_growing_equals_knowing_all_words_from_the_start(tmp_path, kind, laps, exact):
    ends = {}
    for name, width in (("grown", 16), ("final", V)):
        first = sparse.csr_array(np.pad(counts(0, 16), ((0, 0), (0, width - 16))))
        begin(tmp_path / name, bnp.as_source(first, batch_size=10), model=MODELS[kind], moves=(), k=3)
        found = grow(tmp_path / name, rows(1, V), new_words="add", laps=laps)
        ends[name] = found.history[-1]["elbo"], found.posterior.summary["x"]
    (elbo, x), (expected, final) = ends["grown"], ends["final"]
    # documents of topic models stop where their own objective no longer rises by much
    assert elbo == pytest.approx(expected, rel=exact)
    np.testing.assert_allclose(x, final, rtol=exact, atol=100 * exact)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", MODELS)
def test_statistics_and_objective_of_old_data_are_those_of_the_wider_model(tmp_path, kind):
    begin(tmp_path / "run", rows(0, 16), model=MODELS[kind])
    before = bnp.load(tmp_path / "run")
    found = grow(tmp_path / "run", rows(1, V), new_words="add")
    row = found.history[0]
    assert (row["action"], row["words"], row["gain"]) == ("widened", V - 16, None)
    lam = before.model.observation.lam
    wide = np.concatenate([lam, np.full(V - 16, lam.min())])
    np.testing.assert_array_equal(found.posterior.model.observation.lam, wide)
    padded = {**before.summary.values, "x": np.pad(before.summary["x"], ((0, 0), (0, V - 16)))}
    summary = replace(before.summary, values=padded)
    model = replace(before.model, observation=bnp.Multinomial(wide))
    expected = sum(model.elbo(model.global_step(summary), summary).values())
    assert row["elbo"] == pytest.approx(expected, rel=1e-12)
    assert gap(tmp_path / "run") < 1e-12
    assert found.posterior.summary["x"].sum() == pytest.approx(80 * 50)
    assert bnp.load(tmp_path / "run@0").summary["x"].shape[1] == 16


@pytest.mark.long
def test_columns_of_stores_are_put_where_the_run_has_their_words(tmp_path):
    paths = [store(tmp_path, 0, WORDS[:12]), store(tmp_path, 1, WORDS[15:3:-1]), store(tmp_path, 2, WORDS[6:20])]
    begin(tmp_path / "run", paths[0], model=MODELS["topics"], batch_size=None)
    for path in paths[1:]:
        found = grow(tmp_path / "run", path, batch_size=None, revisit=2)
        assert gap(tmp_path / "run") < 1e-12
    words = found.posterior.words.words
    assert words == (*WORDS[:12], *WORDS[15:11:-1], *WORDS[16:20])
    expected = dict.fromkeys(WORDS, 0.0)
    for number, own in enumerate((WORDS[:12], WORDS[15:3:-1], WORDS[6:20])):
        index = [WORDS.index(word) for word in own]
        for word, total in zip(own, counts(number, max(index) + 1)[:, index].sum(axis=0), strict=True):
            expected[word] += total
    sums = found.posterior.summary["x"].sum(axis=0)
    np.testing.assert_allclose(sums, [expected[word] for word in words], rtol=1e-9)
    assert bnp.load(tmp_path / "run@1").words.words == words[:16]
    for path in paths:
        assert grow(tmp_path / "run", path, batch_size=None).known == (str(path),)
        assert np.isfinite(bnp.score(found.posterior, path))
    with pytest.raises(DataError, match="word16"):
        bnp.score(bnp.load(tmp_path / "run@1"), paths[2])


def growing_by_words(folder, store_of_run, client=None, kill=None, monkeypatch=None):
    """Bits of a run of four days of stores, each with words of its own, taken in one by one."""
    paths = [store(folder, number, WORDS[3 * number : 3 * number + 10]) for number in range(4)]
    begin(store_of_run, paths[0], model=MODELS["topics"], batch_size=None)
    for path in paths[1:]:
        if kill is not None:
            (owner, name), when = kill
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(owner, name, dying(getattr(owner, name), when))
                grow(store_of_run, path, batch_size=None, revisit=0.5)
        grow(store_of_run, path, client=client, batch_size=None, revisit=0.5)
    return bits_of(store_of_run)


@pytest.mark.long
def test_kills_workers_and_where_gathered_atoms_lie_do_not_change_bits(tmp_path, monkeypatch):
    quiet = growing_by_words(tmp_path, tmp_path / "quiet")
    assert gap(tmp_path / "quiet") < 1e-12
    assert any(row["action"] != "new" and row.get("moves") for row in quiet[0])
    kill = (COMMITTED, "after")
    assert growing_by_words(tmp_path, tmp_path / "killed", kill=kill, monkeypatch=monkeypatch) == quiet
    executor = ThreadExecutor(3)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(growing_run, "EMBEDDED", 0)
            found = growing_by_words(tmp_path, tmp_path / "threads", client=executor)
    finally:
        executor.close()
    assert found[0] == quiet[0] and found[2] == quiet[2]


TEXTS = ["apple banana cherry apple", "banana cherry apple", "cherry banana", "apple cherry"] * 3
LATER = ["apple durian durian", "durian elder banana", "elder cherry", "fig apple cherry banana"]


@pytest.fixture
def texts(tmp_path):
    """A run on ingested texts."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    bnp.ingest(tmp_path / "texts.txt", tmp_path / "texts.zarr", format="lines", batch_size=6)
    begin(tmp_path / "run", tmp_path / "texts.zarr", model=MODELS["topics"], batch_size=None)
    return tmp_path / "run"


def test_words_of_raw_texts_enter_by_the_rule_of_the_ingest_and_texts_are_taken_once(texts):
    found = grow(texts, LATER, batch_size=2)
    assert found.posterior.words.words == ("apple", "banana", "cherry", "durian", "elder")  # fig is in one text
    np.testing.assert_allclose(found.posterior.summary["x"].sum(axis=0), [14, 11, 14, 3, 2], rtol=1e-9)
    later = ["fig fig grape", "grape fig"]
    assert grow(texts, later, batch_size=2).posterior.words.words[5:] == ("fig", "grape")
    assert grow(texts, LATER, batch_size=2).new == ()  # fig is a word by now
    assert bnp.score(bnp.load(texts), LATER) < 0
    with pytest.warns(UserWarning, match="2 of 4 tokens are left out"):
        assert bnp.score(bnp.load(texts), ["kiwi apple cherry lemon"]) < 0
    words = bnp.load(f"{texts}@1").words.words
    assert bnp.rollback(texts, 1).words.words == words
    assert grow(texts, ["apple durian grape", "grape"], batch_size=2).posterior.words.words == (*words, "grape")
    assert gap(texts) < 1e-12


def test_texts_of_one_update_know_the_words_of_those_before(texts):
    messages = {"0": ["fig apple", "fig banana"], "1": ["fig cherry", "banana"]}
    found = grow(texts, bnp.Feed("texts", lambda position: list(messages), messages.get), batch_size=2)
    words = found.posterior.words.words
    assert words[3:] == ("fig",) and found.posterior.summary["x"][:, 3].sum() == pytest.approx(3.0)


def test_new_words_can_be_left_out(texts, tmp_path):
    found = grow(texts, LATER, batch_size=2, new_words="drop")
    assert found.posterior.words.words == ("apple", "banana", "cherry")
    assert found.history[0]["action"] == "new"
    np.testing.assert_allclose(found.posterior.summary["x"].sum(axis=0), [14, 11, 14], rtol=1e-9)
    path = store(tmp_path, 1, WORDS[:8])
    with pytest.raises(DataError, match="none of its 8 words"):
        grow(texts, path, batch_size=None, new_words="drop")


@pytest.mark.long
def test_stores_whose_words_were_left_out_are_visited_as_they_were_taken(tmp_path):
    first, second, third = (store(tmp_path, n, WORDS[2 * n : 2 * n + 8]) for n in range(3))
    begin(tmp_path / "run", first, model=MODELS["topics"], batch_size=None)
    grow(tmp_path / "run", second, batch_size=None, new_words="drop")
    found = grow(tmp_path / "run", third, batch_size=None, revisit=2)
    assert found.revisited == 8 and found.posterior.words.words == tuple(WORDS[:12])[:8] + tuple(WORDS[8:12])
    assert gap(tmp_path / "run") < 1e-12
    assert bnp.replace(tmp_path / "run", str(second), client=SerialExecutor()).known == (str(second),)
    assert bnp.retire(tmp_path / "run", str(third)).summary["x"][:, 10:].max() < 1e-9
    assert gap(tmp_path / "run") < 1e-12


def test_tables_of_counts_grow_where_that_is_said(tmp_path):
    for number, words in enumerate((WORDS[:8], WORDS[11:3:-1])):
        index = [WORDS.index(word) for word in words]
        frame = pd.DataFrame(counts(number, 12)[:, index], columns=words)
        frame[frame.sum(axis=1) > 0].to_parquet(tmp_path / f"{number}.parquet")
    begin(tmp_path / "run", tmp_path / "0.parquet", model=MODELS["mixture"], batch_size=20)
    with pytest.raises(DataError, match="new_words"):
        grow(tmp_path / "run", tmp_path / "1.parquet", batch_size=20)
    found = grow(tmp_path / "run", tmp_path / "1.parquet", batch_size=20, new_words="add", revisit=2)
    assert found.posterior.columns.names == (*WORDS[:8], *WORDS[11:7:-1])
    assert gap(tmp_path / "run") < 1e-12
    assert found.posterior.summary["x"].sum() == pytest.approx(
        sum(pd.read_parquet(tmp_path / f"{n}.parquet").to_numpy().sum() for n in (0, 1))
    )
    found = grow(tmp_path / "run", tmp_path / "0.parquet", batch_size=20, new_words="add")
    assert found.new == ()


def test_tables_for_a_run_whose_words_are_those_of_a_store_are_refused_by_name(tmp_path):
    begin(tmp_path / "run", store(tmp_path, 0, WORDS[:6]), model=MODELS["mixture"], batch_size=None)
    before, whole = bits_of(tmp_path / "run"), pd.DataFrame(counts(1, 9), columns=WORDS[:9])
    with pytest.raises(DataError, match="word05"):  # is missing
        grow(tmp_path / "run", whole[WORDS[:5]], batch_size=20)
    with pytest.raises(DataError, match="word06"):  # is new
        grow(tmp_path / "run", whole[WORDS[:7]], batch_size=20)
    with pytest.raises(DataError, match="has 6 columns of dense rows, and the run 6 words of sparse counts"):
        grow(tmp_path / "run", whole[WORDS[5::-1]], batch_size=20)
    assert bits_of(tmp_path / "run") == before


def test_an_array_for_a_run_of_named_words_has_as_many_columns_in_their_order(tmp_path):
    first = pd.DataFrame(counts(0, 6), columns=WORDS[:6])
    first.to_parquet(tmp_path / "0.parquet")
    begin(tmp_path / "run", tmp_path / "0.parquet", model=MODELS["mixture"], batch_size=20)
    found = grow(tmp_path / "run", counts(1, 6), batch_size=20, new_words="add")
    expected = first.to_numpy().sum(axis=0) + counts(1, 6).sum(axis=0)
    np.testing.assert_allclose(found.posterior.summary["x"].sum(axis=0), expected, rtol=1e-9)
    assert found.new_batches == 2 and found.posterior.columns.names == tuple(WORDS[:6])
    with pytest.raises(DataError, match="7"):
        grow(tmp_path / "run", counts(2, 7), batch_size=20, new_words="add")


def test_columns_without_names_are_new_only_where_that_is_said(tmp_path):
    begin(tmp_path / "run", rows(0, 16), model=MODELS["mixture"])
    before = bits_of(tmp_path / "run")
    with pytest.raises(DataError, match='has 24 words of sparse counts without names, and the run 16; new_words="add"'):
        grow(tmp_path / "run", rows(1, V))
    with pytest.raises(DataError, match="has 12 words"):
        grow(tmp_path / "run", rows(1, 12), new_words="add")
    with pytest.raises(SettingError, match="new_words='keep'"):
        grow(tmp_path / "run", rows(1, V), new_words="keep")
    assert bits_of(tmp_path / "run") == before
    assert grow(tmp_path / "run", rows(1, 20), new_words="drop").posterior.summary["x"].shape[1] == 16
    grow(tmp_path / "run", rows(2, V), new_words="add")
    assert grow(tmp_path / "run", rows(3, 16)).posterior.summary["x"].shape[1] == V  # as wide as the run was
    assert grow(tmp_path / "run", rows(3, 16)).new == ()
    assert gap(tmp_path / "run") < 1e-12


def test_a_likelihood_without_words_refuses_the_setting(tmp_path):
    begin(tmp_path / "run", day(0))
    with pytest.raises(SettingError, match="the run's likelihood is DiagGaussian, which has no words"):
        grow(tmp_path / "run", day(1), new_words="add")


def test_another_rule_for_new_words_is_refused_before_a_run_is_opened(tmp_path):
    with pytest.raises(SettingError, match="new_words='keep'"):
        bnp.update(tmp_path / "none", day(0), new_words="keep")


def test_a_version_with_new_words_that_is_refused_leaves_the_run_as_it_was(tmp_path):
    begin(tmp_path / "run", rows(0, 16), model=MODELS["mixture"])
    before = bits_of(tmp_path / "run")
    found = grow(tmp_path / "run", rows(1, V), new_words="add", on_version=lambda result: False)
    assert found.refused and found.posterior.summary["x"].shape[1] == 16
    assert bits_of(tmp_path / "run") == before
