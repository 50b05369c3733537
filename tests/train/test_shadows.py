"""Shadows: states beside that of a run, which take its place where their exact objective is higher."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.data.base import NamedReader
from bnp_dask.data.view import EmptyReader
from bnp_dask.errors import NumericalError, SettingError, StoreError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.execute.dask import DaskExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic, local_steps
from bnp_dask.inference.drive import Flight
from bnp_dask.initialize import BregmanKMeans
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.moves.policy import BirthPolicy
from bnp_dask.observation import DiagGaussian, Gaussian
from bnp_dask.training.train import train
from tests.growing.parts import counts_of, day
from tests.stopping import InLap
from tests.train.test_starts import KINDS, Watch, bits, documents, rows_of

N_BATCHES = 5

pytestmark = pytest.mark.filterwarnings("ignore::bnp_dask.ConvergenceWarning")


def overlapping(seed=2):
    rng = np.random.default_rng(seed)
    centres, which = rng.normal(0, 3.5, (15, 2)), rng.integers(15, size=600)
    return centres[which] + rng.normal(size=(600, 2))


MODEL = Model(DPMixture(), DiagGaussian())
SHADOW = bnp.Shadow(laps=6)
MOVES = (Birth(policy=BirthPolicy(alone=100, pooled=1)), Merge(), Delete())
"""Births that look at no neighbours: those that do leave these shadows nothing to win."""

go = partial(
    train, MODEL, overlapping(), init=BregmanKMeans(4), rng=0, batch_size=120, client=SerialExecutor(),
    schedule=Memoized(laps=80, window=4), moves=MOVES,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    """A run whose state a shadow takes the place of."""
    return go(shadow=SHADOW)


SHORT = Memoized(laps=27, window=4)
"""Ends a few laps after a shadow took the run's place, before :func:`whole` is at its fixed point."""


@pytest.fixture(scope="module")
def short():
    """The first laps of that run."""
    return go(shadow=SHADOW, schedule=SHORT)


@pytest.fixture(scope="module")
def until_a_shadow(short, tmp_path_factory):
    """``until_a_shadow(store)``: the run in a directory, stopped two laps before the one that begins a shadow."""
    made = tmp_path_factory.mktemp("shadows") / "run"
    begun = short.alternatives[0]["begun"]
    part = go(shadow=SHADOW, schedule=SHORT, store=made, callbacks=[InLap(begun - 2, N_BATCHES)])
    assert part.history[-1]["lap"] == begun - 2 and not part.alternatives
    return partial(shutil.copytree, made)


@pytest.fixture(scope="module")
def plain():
    """The run without shadows."""
    return go()


def told(result):
    return [move for move in result.history.moves() if move["kind"] == "shadow"]


def assert_never_falls(result):
    for before, row in zip(result.history, list(result.history)[1:], strict=False):
        if before["lap"] == 1:
            continue
        gains = row["gain"] + sum(move["gain"] for move in row["moves"] if move["accepted"])
        assert row["elbo"] - before["elbo"] == pytest.approx(gains, abs=1e-8 * abs(row["elbo"]))
        assert row["elbo"] >= before["elbo"] - 1e-9 * abs(row["elbo"])


@pytest.mark.long
def test_births_that_were_rejected_alone_pay_together_and_the_objective_never_falls(whole, plain):
    assert [move["accepted"] for move in told(whole)] == [True]
    assert whole.history[-1]["elbo"] > plain.history[-1]["elbo"] + 10.0
    assert whole.posterior.n_clusters >= plain.posterior.n_clusters and whole.converged
    assert_never_falls(whole)


@pytest.mark.long
def test_a_shadow_is_compared_by_the_exact_objective(whole):
    posterior = whole.posterior
    exact = sum(posterior.model.elbo(posterior, posterior.summary).values())
    assert exact == pytest.approx(whole.history[-1]["elbo"], abs=1e-8)
    again = train(
        MODEL, overlapping(), init=bnp.FromPosterior(posterior), moves=(), rng=0, batch_size=600, schedule=FullBatch(1)
    )
    assert exact <= again.history[-1]["elbo"] <= exact + 0.1  # one more local step, of all data


def test_the_run_goes_on_as_without_until_a_shadow_takes_its_place(whole, plain):
    lap = told(whole)[0]["lap"]
    before = [row for row in rows_of(whole) if row["lap"] < lap]
    assert before == [row for row in rows_of(plain) if row["lap"] < lap]


def test_a_run_whose_shadows_fail_ends_as_without(plain):
    result = go(shadow=bnp.Shadow(laps=2, tries=2, init=BregmanKMeans(2)))
    assert [move["accepted"] for move in told(result)] == [False, False] and all(m["gain"] < 0 for m in told(result))
    assert bits(result) == bits(plain) and result.reason == plain.reason
    assert unnamed(result) == unnamed(plain)


def unnamed(result):
    """Rows without shadows and without names of clusters that were refused: shadows use up names too."""
    kept = [[m for m in row["moves"] if m["kind"] != "shadow"] for row in rows_of(result)]
    moves = [[m if m["accepted"] else {**m, "others": len(m["others"])} for m in some] for some in kept]
    return [{**row, "moves": some} for row, some in zip(rows_of(result), moves, strict=True)]


def test_alternatives_tell_of_shadows(whole):
    (one,) = whole.alternatives
    assert whole.starts == () and one["kind"] == "shadow" and one["reason"] == "took the run's place"
    assert one["lap"] == 6 and one["begun"] + one["lap"] >= told(whole)[0]["lap"] > one["begun"]


def test_clusters_of_a_shadow_have_names_of_their_own(whole, plain):
    (move,) = told(whole)
    lives = {life.id: life for life in bnp.lineage(whole)}
    known = {life.id for life in bnp.lineage(plain)}
    assert move["others"] and not known & set(move["others"])
    assert all(lives[i].born == move["lap"] for i in move["others"])
    assert all(lives[i].how == "shadow" and lives[i].ended == move["lap"] for i in move["targets"])
    ids = whole.posterior.ids.tolist()
    assert len(set(ids)) == len(ids) and set(ids) <= lives.keys()


LAPS = [(Memoized, True), *(pytest.param(make, False, marks=pytest.mark.long) for make in (Memoized, FullBatch))]


@pytest.mark.long
@pytest.mark.parametrize(("make", "kept"), LAPS)
def test_a_lap_with_a_shadow_reads_each_batch_once(make, kept, whole, monkeypatch, tmp_path):
    """Also where workers keep the statistics of the run's state, and tasks of their own add up what changed."""
    counts, fetch, per_lap = Counter(), NamedReader.fetch, []

    def counting(reader):
        counts[reader.name] += 1
        return fetch(reader)

    class Count(Watch):
        def on_lap(self, row, posterior):
            per_lap.append((row["lap"], sorted(counts.values())))
            counts.clear()

    monkeypatch.setattr(NamedReader, "fetch", counting)
    monkeypatch.setattr(local_steps, "SLIGHT", 0)
    more = {"store": tmp_path / "run"} if kept else {}
    result = go(shadow=SHADOW, callbacks=[Count()], schedule=make(laps=80, window=4), **more)
    assert make is FullBatch or bits(result) == bits(whole)
    (one, *_), (move, *_) = result.alternatives, told(result)
    shared = {lap: reads for lap, reads in per_lap if one["begun"] < lap <= move["lap"]}
    alone = one["begun"] + one["lap"] - move["lap"]  # laps that it took when the run had come to its end
    assert shared.pop(move["lap"]) == [1 + alone] * N_BATCHES
    assert len(shared) > 1 and all(reads == [1] * N_BATCHES for reads in shared.values())


@pytest.mark.long
def test_threads_dask_a_store_and_little_memory_give_the_same_bits(short, dask_client, tmp_path):
    for name, more in {
        "threads and little memory": {"client": ThreadExecutor(2), "memory": 100},
        "dask and store": {"client": DaskExecutor(dask_client(2), "shadow"), "store": tmp_path / "run"},
    }.items():
        result = go(shadow=SHADOW, schedule=SHORT, **more)
        assert bits(result) == bits(short) and rows_of(result) == rows_of(short), name
        assert result.alternatives == short.alternatives


@pytest.mark.long
def test_a_run_that_ends_soon_after_a_shadow_is_the_beginning_of_one_to_the_fixed_point(short, whole):
    rows = rows_of(short)
    assert rows == rows_of(whole)[: len(rows)] and [move["accepted"] for move in told(short)] == [True]
    assert short.alternatives == whole.alternatives and len(whole.history) > len(rows)


@pytest.mark.long
@pytest.mark.parametrize("some", [pytest.param(slice(None), id="all", marks=pytest.mark.long), slice(1, None, 3)])
def test_a_run_that_is_stopped_while_a_shadow_lives_goes_on_to_the_same_bits(short, until_a_shadow, tmp_path, some):
    begun, lap = short.alternatives[0]["begun"], told(short)[0]["lap"]
    places = [(begun, 2), (begun, 5), (begun + 1, 2), (begun + 2, 4), (lap, 5), (lap - 1, 5), (lap, 4), (lap + 1, 2)]
    for place in places[some]:
        store = until_a_shadow(tmp_path / f"{place}")
        part = go(shadow=SHADOW, schedule=SHORT, store=store, resume=True, callbacks=[InLap(*place)])
        assert part.history[-1]["lap"] == place[0]
        resumed = go(shadow=SHADOW, schedule=SHORT, store=store, resume=True)
        assert bits(resumed) == bits(short) and rows_of(resumed) == rows_of(short), place
        assert resumed.alternatives == short.alternatives


class FailAt(InLap):
    """Fails there, before a checkpoint is made."""

    def on_batch(self, done):
        if super().on_batch(done):
            raise InterruptedError("the process was ended")


@pytest.mark.parametrize("some", [pytest.param(slice(None), id="all", marks=pytest.mark.long), slice(0, 3, 2)])
def test_a_run_that_dies_while_a_shadow_lives_goes_on_to_the_same_bits(short, until_a_shadow, tmp_path, some):
    begun, lap = short.alternatives[0]["begun"], told(short)[0]["lap"]
    places = [(begun + 1, 5), (begun + 3, 2), (lap, 5), (lap + 1, 4)]  # the third has taken over, and not said so
    for place in places[some]:
        store = until_a_shadow(tmp_path / f"{place}")
        with pytest.raises(InterruptedError):
            go(shadow=SHADOW, schedule=SHORT, store=store, resume=True, callbacks=[FailAt(*place)])
        resumed = go(shadow=SHADOW, schedule=SHORT, store=store, resume=True)
        assert bits(resumed) == bits(short) and rows_of(resumed) == rows_of(short), place
        assert resumed.alternatives == short.alternatives


def test_a_batch_that_was_lost_before_is_no_reason_to_drop_a_shadow(monkeypatch):
    counts, fetch = Counter(), NamedReader.fetch

    def failing(reader):
        counts[reader.name] += 1
        if isinstance(reader, EmptyReader):
            return fetch(reader)
        if reader.name.endswith("batch 3") and counts[reader.name] > 6:
            raise ValueError("this batch cannot be read any more")
        return fetch(reader)

    monkeypatch.setattr(NamedReader, "fetch", failing)
    result = go(shadow=bnp.Shadow(laps=6, init=BregmanKMeans(12)), on_bad_batch="skip")
    assert len(result.skipped) == 1 and told(result)
    assert all(move["gain"] is not None for move in told(result))
    assert {one["reason"] for one in result.alternatives} <= {"took the run's place", "the run was ahead"}


def test_a_shadow_whose_numbers_are_not_finite_is_no_matter_of_the_run(plain, monkeypatch):
    take = Flight.take

    def refusing(own):
        if own.work.first_lap > 0 and own.state.lap == 1:
            raise NumericalError("not finite")
        return take(own)

    monkeypatch.setattr(Flight, "take", refusing)
    result = go(shadow=SHADOW)
    assert bits(result) == bits(plain) and result.reason == plain.reason
    assert {one["reason"] for one in result.alternatives} == {"refused: not finite"}
    assert {move["why"] for move in told(result)} == {"not decided: refused: not finite"}
    assert len(told(result)) == len(result.alternatives) <= SHADOW.tries


def test_a_run_goes_on_with_the_shadows_that_it_has(tmp_path):
    go(shadow=SHADOW, store=tmp_path / "run", callbacks=[InLap(2, 5)])
    with pytest.raises(StoreError, match=r"settings differ \(shadow"):
        go(store=tmp_path / "run", resume=True)


def test_shadows_begin_anew_where_a_start_is_given():
    shadow = bnp.Shadow(laps=8, tries=1, init=BregmanKMeans(9))
    model = Model(FiniteMixture(), Gaussian())
    result = train(
        model, KINDS["mixture"][1](), init=BregmanKMeans(9), batch_size=60, rng=1, shadow=shadow, moves=(),
        schedule=Memoized(laps=80),
    )  # fmt: skip
    (one, *_) = result.alternatives
    assert one["kind"] == "shadow" and one["n_clusters"] == 9
    assert_never_falls(result)
    assert len(told(result)) == len(result.alternatives)


@pytest.mark.long
def test_starts_and_shadows_go_together(tmp_path):
    whole = go(n_init=2, shadow=SHADOW)
    kinds = [one["kind"] for one in whole.alternatives]
    assert kinds[:2] == ["start", "start"] and set(kinds[2:]) <= {"shadow"}
    assert bits(go(n_init=2, shadow=SHADOW, store=tmp_path / "run")) == bits(whole)


@pytest.mark.long
def test_topics_have_shadows_too():
    shadow = bnp.Shadow(laps=4, tries=1, init=bnp.RandomExamples(8))
    make = partial(train, Model(bnp.HDPTopics(), bnp.Multinomial()), init=bnp.RandomExamples(2), batch_size=30, rng=0)
    result = make(documents(), shadow=shadow, moves=[Merge()], schedule=Memoized(laps=40))
    assert [one["kind"] for one in result.alternatives]
    assert any(move["accepted"] for move in told(result))
    assert_never_falls(result)
    posterior = result.posterior
    exact = sum(posterior.model.elbo(posterior, posterior.summary).values())
    assert exact == pytest.approx(result.history[-1]["elbo"], abs=1e-8)


@pytest.mark.long
def test_learned_priors_are_those_of_the_state_that_goes_on():
    result = train(
        Model(DPMixture(), Gaussian()), overlapping(13), init=BregmanKMeans(4), rng=0, batch_size=120,
        schedule=Memoized(laps=80, window=4), shadow=SHADOW, moves=MOVES,
    )  # fmt: skip
    assert any(move["accepted"] for move in told(result))
    assert_never_falls(result)


def test_job_files_ask_for_shadows(tmp_path):
    job = {"model": {"allocation": "DPMixture", "observation": "Gaussian"}, "data": "x.npy"}
    assert parse_job(job, tmp_path).shadow is None
    shadow = {"laps": 3, "init": {"type": "BregmanKMeans", "n_clusters": 9}}
    assert parse_job({**job, "shadow": shadow}, tmp_path).shadow == bnp.Shadow(laps=3, init=BregmanKMeans(9))


def test_settings_of_shadows_that_make_no_sense_are_refused():
    for wrong in ({"laps": 0}, {"tries": 0}, {"laps": 1.5}, {"init": 3}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            bnp.Shadow(**wrong)
    with pytest.raises(SettingError, match=r"shadow=3: needs Shadow\(\)"):
        go(shadow=3)
    with pytest.raises(SettingError, match=r"Stochastic\(\) has no exact objective to compare"):
        go(shadow=SHADOW, schedule=Stochastic(), moves=())
    with pytest.raises(SettingError, match=r"shadow: begins with births"):
        go(shadow=SHADOW, moves=[Merge()])


@pytest.mark.long
def test_estimators_have_shadows():
    shadow = bnp.Shadow(laps=3, init=BregmanKMeans(9))
    estimator = bnp.DirichletProcessMixture(
        "diag_gaussian", init=BregmanKMeans(4), batch_size=120, schedule=Memoized(laps=80, window=4), shadow=shadow,
        client=SerialExecutor(), moves=MOVES, random_state=0,
    ).fit(overlapping())  # fmt: skip
    result = go(shadow=shadow, rng=int(np.random.RandomState(0).randint(2**31 - 1)))
    assert told(result) and estimator.history_["elbo"].tolist() == result.history["elbo"].tolist()
    again = bnp.DirichletProcessMixture("diag_gaussian", n_clusters=4, shadow=SHADOW)
    with pytest.raises(SettingError, match=r"shadow: begins with births"):
        again.fit(overlapping())


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["topics", "chains"])
def test_estimators_of_topics_and_sequences_have_shadows(kind):
    estimator, data = {
        "topics": (bnp.TopicModel(shadow=bnp.Shadow(laps=2, init=bnp.SampledTopics(3))), counts_of(0)),
        "chains": (
            bnp.SequenceModel("diag_gaussian", shadow=bnp.Shadow(laps=2, init=bnp.ContiguousBlocks(3))),
            [day(0, n=100)],
        ),
    }[kind]
    result = estimator.set_params(random_state=0, max_laps=30).fit(data)
    assert any(move["kind"] == "shadow" for move in result.history_.moves())
