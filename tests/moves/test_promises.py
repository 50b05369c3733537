"""What moves promise, in numbers: forecasts, samples that stand for a cluster, scores of pairs, changes tried again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from bnp_dask.allocation import DPMixture, HDPTopics, mixture_step
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, RunningTotal
from bnp_dask.core.survey import survey_batch
from bnp_dask.inference import FullBatch
from bnp_dask.inference import lap as laps
from bnp_dask.inference.variational.growing import fade
from bnp_dask.kernels.gaussian.rounds import Stop
from bnp_dask.kernels.numeric.arithmetic import fixed_order
from bnp_dask.model import Model
from bnp_dask.moves import Merge
from bnp_dask.moves.base import BirthProposal, DeleteProposal, Draft, Plan, Split
from bnp_dask.moves.create import WORDS, Forecast, Sample, create, newborn_of, visit_and_split
from bnp_dask.moves.judge import Judge
from bnp_dask.moves.memory import WHOLE, Memory, Sweep
from bnp_dask.moves.pairs import allocation_gains, data_gains, gains_of_pairs, rough_allocation_gains
from bnp_dask.moves.policy import SmallRunPolicy
from bnp_dask.moves.pools import a_step, best_terms, best_value, climb, counting, small_rounds
from bnp_dask.observation import DiagGaussian, Gaussian, Multinomial
from bnp_dask.structure.base import Trial
from bnp_dask.structure.visit import MOSTLY
from tests.moves.parts import blobs, prepare, start_random


def near_blobs(distance):
    rng = np.random.default_rng(0)
    batch = Batch(np.concatenate([rng.normal(size=(40, 2)), rng.normal(size=(30, 2)) + distance]))
    return Model(DPMixture(1.0), DiagGaussian()).with_prior(survey_batch(batch)), batch


def of_labels(model, batch, ids, labels):
    return model.summarize(np.array(ids), batch, np.eye(len(ids))[labels])


def objective(model, summary):
    return sum(model.elbo(model.global_step(summary), summary).values())


def test_a_forecast_takes_nothing_off_where_every_atom_was_seen():
    model, batch = near_blobs(9.0)
    value = of_labels(model, batch, (0, 1), np.arange(70) // 40)
    for factor in (1.0, 0.5):
        assert Forecast(model, factor).value(value) == pytest.approx(objective(model, value.scale(factor)))
    assert Forecast(model, 3.0).value(value) < objective(model, value.scale(3.0)) - 2.0 * value.n_clusters


@pytest.mark.parametrize("weights", [None, np.array([1.0, 0.5, 2.0, 0.5])])
def test_a_sample_of_a_clusters_atoms_counts_as_much_as_all_of_them(weights):
    found = counting(Batch(np.zeros((4, 2)), weights), 40.0)
    assert found.weights.sum() == pytest.approx(40.0)
    assert_allclose(found.weights / found.weights[0], np.ones(4) if weights is None else weights)


@pytest.mark.parametrize("learns", ["never", "always"])
def test_numbers_of_samples_are_compiled_where_they_can_be_and_the_same_where_not(monkeypatch, learns):
    _, batch = near_blobs(3.0)
    batch = replace(batch, weights=0.5 + np.arange(70) % 3)
    model = Model(DPMixture(1.0), Gaussian(), learn_concentrations=learns).with_prior(survey_batch(batch))
    assert (model.prior_term != 0.0) is (learns == "always")
    value, pairs = of_labels(model, batch, (4, 2, 7), np.arange(70) // 25), np.array([[7, 2]])
    stop, some = Stop(most=2, least=0.0), Batch(batch.x[:50], batch.weights[:50])
    calls = {
        "best terms": lambda: best_terms(model, value),
        "best value": lambda: np.array(best_value(model, value)),
        "a step": lambda: a_step(model, value, batch)["x"],
        "entropy of a union": lambda: a_step(model, value, batch, pairs).pair_values["H"],
        "rounds": lambda: np.array(climb(model, value.scale(0.0), value, batch, 0.0, 3, 0.0)[1]),
        "rounds beside others": lambda: climb(model, value, value, some, -300.0, 3, 0.0, 1.0)[0]["x"],
        "their gain": lambda: np.array(climb(model, value, value, some, -300.0, 9, 0.5)[1]),
    }
    with monkeypatch.context() as patch:
        for name in ("best_data_terms", "objective_with", "local_step", "best_objective"):
            patch.setattr(Model, name, lambda *_, name=name: pytest.fail(f"{name} is called"))
        compiled = {name: call() for name, call in calls.items()}
    with fixed_order(True):
        for name, call in calls.items():
            assert_allclose(call(), compiled[name], rtol=1e-9, err_msg=name)
        assert small_rounds(model, value, batch, stop) is None
    found, reached = small_rounds(model, value, batch, stop)
    assert found.ids.tolist() == [4, 2, 7] and reached == pytest.approx(objective(model, found), rel=1e-12)


@pytest.mark.parametrize("model", [Model(DPMixture(1.0), DiagGaussian()), Model(HDPTopics(), Multinomial(lam=0.1))])
def test_a_split_looks_at_a_cluster_from_its_least_number_of_atoms_on(model):
    """In new batches together, and in one batch of a run."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(15, 2)), rng.normal(size=(15, 2)) + 40.0])
    if model.structure.has_shares:
        x = sparse.csr_array(rng.multinomial(50, [0.25] * 4, 30) * np.repeat([[1, 1, 0, 0], [0, 0, 1, 1]], 15, axis=0))
    batch = Batch(x * 1.0)
    model = model.with_prior(survey_batch(batch))
    mass = model.mass(batch)
    posterior = model.global_step(model.summarize(np.array([7]), batch, np.ones((batch.n_atoms, 1))))
    for least, looks in ((batch.n_atoms, True), (batch.n_atoms + 1, False)):
        split = Split(7, 3, 5, 1000, least, (1,))
        found = newborn_of(model, batch, 3.0 * mass, split, 0)
        assert (found is not None) is looks
        if looks:
            assert (found.ids < 0).all() and found.n_clusters == 2
            assert found["N"] == pytest.approx([1.5 * mass] * 2, rel=0.1)
        visit = visit_and_split(posterior, batch, np.zeros((0, 2), np.int64), (), split, 0)
        assert visit.split == 7 and (visit.newborn is not None) is looks
        if looks:
            assert (visit.newborn.ids < 0).all()
            assert visit.newborn["N"] == pytest.approx([mass / 2] * 2, rel=0.1)
    alike = newborn_of(model, batch.take(np.arange(10)), 60.0, Split(7, 3, 5, 1000, 10, (1,)), 0)
    assert alike.ids.tolist() == [-1] and alike["N"] == pytest.approx([60.0])  # one cluster of all, at their mass


def test_topics_of_anchor_words_take_the_place_of_one_that_mixes_them():
    rng = np.random.default_rng(0)
    topics = np.kron(np.eye(2), np.full(4, 0.25))
    mixed, pure = (
        sparse.csr_array(np.array([rng.multinomial(40, topics[k]) for k in rng.integers(of, size=120)], np.float64))
        for of in (2, 1)
    )
    for counts, expected in ((mixed, 2), (pure, 1)):
        batch = Batch(counts)
        model = Model(HDPTopics(), Multinomial(lam=0.1)).with_prior(survey_batch(batch))
        found = create(model, Sample(batch, 2.0 * model.mass(batch), (WORDS,), 5, few=60), 0, (1,), SmallRunPolicy())
        assert (1 if found is None else found.n_clusters) == expected
        if found is not None:  # of 60 documents, each of which counts for four
            assert found["N"].sum() == pytest.approx(2.0 * model.mass(batch), rel=1e-9)
            words = found["x"] > 0.02 * found["x"].sum()
            assert (words.sum(axis=1) == 4).all() and (words.sum(axis=0) == 1).all()


def test_of_two_new_clusters_of_a_batch_one_at_most_joins_what_another_batch_found():
    model, batch = near_blobs(9.0)
    empty = model.empty_summary(np.array([7]))
    own = of_labels(model, batch, (0,), np.zeros(70, int)).insert_empty([7])
    labels = np.where(np.arange(70) < 40, np.arange(70) % 2, 2)  # the first blob twice, by halves
    newborn = of_labels(model, batch, (-1, -2, -3), labels)
    others = Batch(np.random.default_rng(1).normal(size=(100, 2)))
    total = RunningTotal(own)
    total.add(
        empty.insert_empty([0]).take([0, 7])
        + of_labels(model, others, (7,), np.zeros(100, int)).insert_empty([0]).take([0, 7])
    )
    value = total.value()
    terms = model.elbo(model.global_step(value), value)
    decision = Judge(model, Memory(9)).decide_split(total, terms, [(own, newborn)], 0, [7])
    born, gain = decision.born, decision.gain
    assert born.united == (7,) and len(born.new_ids) == 2
    assert born.summaries[0]["N"][born.summaries[0].position(7)] == 20.0
    assert objective(model, born.total.value()) - objective(model, value) == pytest.approx(gain)


@pytest.mark.parametrize("each", [1e-4, 1e4])
def test_trials_look_at_the_atoms_they_would_look_at_however_much_each_counts(each):
    model, batch = near_blobs(2.5)
    posterior = model.global_step(of_labels(model, batch, (0, 1), np.arange(70) // 40))
    beliefs = model.global_step(of_labels(model, batch, (8, 9), (batch.x[:, 0] > 2.0).astype(int)))
    trials = [Trial("t", (1,), beliefs)]
    once = model.visit(posterior, batch, trials=trials).parts["t"]
    weighted = replace(batch, weights=np.full(70, each))
    part = model.visit(posterior, weighted, trials=trials).parts["t"]
    for name, expected in once.to_arrays().items():
        scale = 1.0 if name == "ids" else each
        assert_allclose(part.to_arrays()[name], scale * expected, rtol=1e-9, atol=1e-9 * each, err_msg=name)


def test_pairs_are_ranked_by_data_and_allocation_together(monkeypatch):
    contexts, plan_lap = [], laps.plan_lap
    monkeypatch.setattr(laps, "plan_lap", lambda moves, context: contexts.append(context) or plan_lap(moves, context))
    work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(200), moves=(Merge(),))
    for _ in FullBatch(2).run(work, start_random(work, 6)):
        pass
    context = contexts[-1]
    model, value = context.model, context.value.without_pairs()
    pairs, scores = Merge()._ranked(replace(context, draft=Draft(free=set(value.ids.tolist()))))
    assert len(scores) > 3 and (np.diff(scores) <= 0).all()

    def parts(summary):
        terms = model.elbo(model.global_step(summary), summary)
        return terms["data"] + terms["allocation"]

    for (a, b), score in zip(pairs.tolist(), scores.tolist(), strict=True):
        united = value.with_pairs(np.array([[a, b]])).merge(a, b)
        assert parts(united) - parts(value) == pytest.approx(score, abs=1e-7)
        other = value.with_pairs(np.array([[a, b]])).merge(b, a)  # in the place of the other, later in the sticks
        turned = data_gains(model, value, np.array([[b, a]])) + allocation_gains(model, value, np.array([[b, a]]))
        assert parts(other) - parts(value) == pytest.approx(turned[0], abs=1e-7)


def test_gains_of_all_pairs_are_those_of_each_and_none_is_of_a_cluster_with_itself():
    model, batch = near_blobs(9.0)
    value = of_labels(model, batch, (4, 2, 9), np.arange(70) % 3)
    gains = gains_of_pairs(model, model.global_step(value), value)
    found = np.array([gains[k] for k in range(3)])
    assert (np.diag(found) == -np.inf).all()
    expected = data_gains(model, value, np.array([[4, 2], [4, 9], [2, 9]]))
    assert_allclose(found[[0, 0, 1], [1, 2, 2]], expected, rtol=1e-12)
    assert_allclose(found, found.T)


def test_rough_gains_of_pairs_are_near_the_exact_ones_of_a_mixture_and_symmetric():
    model, _ = near_blobs(9.0)
    labels = np.repeat([0, 1, 2], [300, 250, 150])
    value = of_labels(model, Batch(np.zeros((700, 2))), (0, 1, 2), labels)
    first, second = np.array([0, 1, 0]), np.array([1, 2, 2])
    rough = rough_allocation_gains(value["N"], first, second)
    exact = allocation_gains(model, value, np.array([[0, 1], [1, 2], [0, 2]]))
    assert_allclose(rough, rough_allocation_gains(value["N"], second, first), rtol=1e-13)
    assert_allclose(rough, exact, rtol=0.05)


@pytest.mark.parametrize("each", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("numbers", [2**19, 40])
def test_rows_of_a_cluster_are_those_of_its_responsibilities_in_any_tiles_and_weights(monkeypatch, each, numbers):
    """The atoms gathered from them weigh as much as they have there."""
    monkeypatch.setattr(mixture_step, "TILE_NUMBERS", numbers)
    model, few = near_blobs(2.5)
    posterior = model.global_step(of_labels(model, few, (5, 3), np.arange(70) // 40))
    batch = Batch(np.repeat(few.x, 10, axis=0) + np.random.default_rng(1).normal(size=(700, 2)))
    model = replace(model, precision="double")
    resp = np.asarray(model.assign(posterior, batch).resp)
    weighted = replace(batch, weights=np.full(700, each))
    assert len(list(model.steps(posterior, weighted))) == (1 if numbers > 1000 else 3)
    found = model.visit(posterior, weighted, sought=[3, 5])
    for k, cluster in enumerate((5, 3)):
        there = np.flatnonzero(resp[:, k] > MOSTLY)
        assert 0 < len(there) < 700 and found.members[cluster][0].tolist() == there.tolist()
        assert_allclose(found.members[cluster][1], each * resp[there, k], rtol=1e-10)
        own = model.gather(weighted, found, cluster, 1000, np.random.default_rng(0))
        assert_allclose(own.weights, each * resp[there, k], rtol=1e-10)
        few = model.gather(weighted, found, cluster, 5, np.random.default_rng(0))
        rows = [int(np.flatnonzero((batch.x == x).all(axis=1))[0]) for x in few.x]
        assert len(rows) == 5 and rows == sorted(rows)
        assert_allclose(few.weights, each * resp[rows, k], rtol=1e-10)


def test_gains_of_weights_of_topics_are_rough_and_of_ids():
    model = Model(HDPTopics(), Multinomial()).with_prior(survey_batch(Batch(sparse.csr_array(np.eye(3)))))
    value = replace(model.empty_summary(np.array([5, 3, 9])))
    value = replace(value, values={**value.values, "N": np.array([4.0, 2.0, 7.0])})
    found = allocation_gains(model, value, np.array([[3, 9], [5, 3]]))
    assert_allclose(
        found, [9 * np.log(9) - 2 * np.log(2) - 7 * np.log(7), 6 * np.log(6) - 4 * np.log(4) - 2 * np.log(2)]
    )


def test_a_delete_that_gains_less_at_every_step_is_forgotten():
    model, batch = near_blobs(9.0)
    value = of_labels(model, batch, (0, 1), np.arange(70) // 40)
    part = of_labels(model, batch, (0,), np.zeros(70, int))
    memory = Memory(9, sweeps={1: Sweep((0,), part, -1.0, 0.5, 1)})
    plan = Plan(proposals=(DeleteProposal((1,), (0,), Exchange("t", (1, 0)), 8),))
    (record,) = Judge(model, memory).decide(value, {"t": part}, plan).records
    assert record["gain"] < -10.0 and not record["accepted"]
    assert not memory.sweeps and memory.failures


def test_a_change_of_all_clusters_is_forgotten_once_it_was_accepted():
    model, batch = near_blobs(9.0)
    value = of_labels(model, batch, (0,), np.zeros(70, int))
    part = of_labels(model, batch, (6, 7), np.arange(70) // 40)
    memory = Memory(9, sweeps={WHOLE: Sweep((), part, -1.0, 0.5, 1)})
    plan = Plan(proposals=(BirthProposal((), (6, 7), Exchange("t", (0,)), "documents", 3),))
    (record,) = Judge(model, memory).decide(value, {"t": part}, plan).records
    assert record["accepted"] and record["gain"] > 10.0
    assert not memory.sweeps


def test_what_a_delete_has_gained_so_far_fades_with_the_data():
    work = prepare(Model(DPMixture(2.0), DiagGaussian()), blobs(200))
    state = start_random(work, 4)
    for _ in FullBatch(1).run(work, state):
        pass
    value = state.total.value()
    assert value["N"].min() > 0.0
    state.memory.sweeps = {2: Sweep((0, 1), value.take([0, 1]), 1.0, 1.0, 1)}
    fade(state, 0.25)
    assert_allclose(state.memory.sweeps[2].part["N"], 0.25 * value["N"][:2])
    assert_allclose(state.total.value()["N"], 0.25 * value["N"])
