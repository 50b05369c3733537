"""Known labels: the shipped suite, all assignments of few atoms, and runs whose labels hold in every move."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

import bnp_dask as bnp
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.core.batch import Batch, batch_from_arrays, batch_to_arrays, concatenate
from bnp_dask.core.summary import Merge
from bnp_dask.data.beside import labels_of
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.initialize.base import hard_resp
from bnp_dask.moves.judge import gains_of
from bnp_dask.moves.pairs import absorbed, data_gains, gains_of_pairs, rough_allocation_gains
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.labelled import KNOWN, Labelled
from bnp_dask.testing import ObservationSuite, survey_of
from bnp_dask.training.train import ConvergenceWarning
from tests.observation.test_diag_gaussian import TestDiagGaussian as Diagonal

NAMES = ("a", "b")


class TestLabelled(ObservationSuite):
    """Atoms without labels: all is as for the likelihood itself."""

    n_draws = 600

    def model(self):
        return Labelled(DiagGaussian(), NAMES)

    def batch(self, rng, n_atoms):
        return Diagonal().batch(rng, n_atoms)

    def draw(self, params, k, rng):
        return Diagonal().draw(params.part, k, rng)

    def log_density(self, phi, x):
        return Diagonal().log_density(phi, x)


def of_labels(x, labels, allocation, names=NAMES):
    """Model with its prior set, and the atoms as a batch."""
    batch = Batch(np.asarray(x, np.float64), labels=np.asarray(labels, np.int64))
    model = bnp.Model(allocation, Labelled(DiagGaussian(), names), learn_prior="never", precision="double")
    return model.with_prior(survey_of(batch)), batch


def log_joint(model, batch, z, k):
    """log p(x, z) of one assignment: evidence of each cluster, and the probability of the assignment."""
    summary = model.summarize(np.arange(k), batch, hard_resp(np.asarray(z), k))
    return float(model.best_data_terms(summary).sum()) + model.allocation.log_partition(summary["N"])


@pytest.mark.parametrize("labels", [[0, 1, -1, -1, -1, -1], [0, 1, 1, -1, 0, -1], [0, 1, 1, 0, 0, 1]])
def test_bound_is_below_the_evidence_of_all_permitted_assignments(labels):
    x = np.random.default_rng(3).normal(size=(6, 2)) * 1.5
    model, batch = of_labels(x, labels, bnp.FiniteMixture(3.0))
    # clusters: one of label a, one of label b, and one of none
    known = np.array(labels)
    first = np.where(known >= 0, known, 2)
    summary = model.summarize(np.arange(3), batch, hard_resp(first, 3))
    values = []
    for _ in range(100):
        posterior = model.global_step(summary)
        summary = model.local_step(posterior, batch)
        values.append(sum(model.elbo(model.global_step(summary), summary).values()))
    assert (np.diff(values) > -1e-9).all()
    permitted = [z for z in itertools.product(range(3), repeat=6) if not is_mixed(z, labels)]
    evidence = logsumexp([log_joint(model, batch, z, 3) for z in permitted])
    assert values[-1] <= evidence + 1e-9
    if (known >= 0).all():  # the third cluster is empty, and closed
        assert_allclose(values[-1], log_joint(model, batch, first, 3), rtol=1e-12)
    # what is forbidden has no mass at all, and counts of labels are exact
    assert (np.count_nonzero(summary[KNOWN], axis=1) <= 1).all()
    assert_allclose(summary[KNOWN].sum(axis=0), [labels.count(0), labels.count(1)], rtol=1e-14)


def is_mixed(z, labels):
    """Whether an assignment puts atoms of two labels into one cluster."""
    return any({0, 1} <= {label for label, at in zip(labels, z, strict=True) if at == k} for k in range(3))


def test_responsibilities_are_zero_where_the_label_is_another():
    x = np.random.default_rng(0).normal(size=(9, 2))
    model, batch = of_labels(x, [0, 1, -1] * 3, bnp.DPMixture())
    posterior = model.global_step(model.summarize(np.arange(3), batch, hard_resp(np.arange(9) % 3, 3)))
    resp = model.assign(posterior, batch).resp
    assert (resp[0::3, 1] == 0.0).all() and (resp[1::3, 0] == 0.0).all()
    # the cluster of no label takes atoms of the label that it is like, and of no other
    taken = model.observation.admitted(posterior.summary)
    assert taken[:2].tolist() == [0, 1] and taken[2] in (0, 1)
    log_lik = model.observation.expected_log_lik(posterior.observation, batch)
    assert (log_lik[1 - taken[2] :: 3, 2] < -1e11).all() and (log_lik[taken[2] :: 3, 2] > -1e3).all()
    # labelled atoms are in the best cluster that takes them
    best = (log_lik + model.allocation.log_weights(posterior.allocation)).argmax(axis=1)
    labelled = np.flatnonzero(batch.labels >= 0)
    assert_array_equal(resp[labelled], np.eye(3)[best[labelled]])
    assert (resp[2::3] > 0.0).all()
    plain = replace(model, observation=model.observation.part)
    same = replace(posterior, model=plain, observation=posterior.observation.part)
    bare = replace(batch, labels=None)
    assert_array_equal(resp[2::3], plain.assign(same, bare).resp[2::3])
    assert_array_equal(model.assign(posterior, bare).resp, plain.assign(same, bare).resp)


def test_a_union_of_two_labels_is_never_worth_its_price():
    x = np.random.default_rng(1).normal(size=(40, 2))
    model, batch = of_labels(x, np.arange(40) % 2, bnp.DPMixture())
    z = np.where(np.arange(40) >= 30, 2 + np.arange(40) % 2, np.arange(40) % 2)
    summary = model.summarize(np.arange(4), batch, hard_resp(z, 4))
    posterior = model.global_step(summary)
    found = gains_of_pairs(model, posterior, summary)
    gains = np.array([found[k] for k in range(4)])
    assert np.isfinite(gains[[0, 1], [2, 3]]).all(), "clusters of one label may be united"
    assert np.isneginf(gains[[0, 0, 2, 2], [1, 3, 1, 3]]).all(), "clusters of two labels are no candidates"
    pairs = np.array([[0, 2], [0, 1]])
    tracked = model.local_step(posterior, batch, pairs)
    own, other = gains_of(model, tracked, {}, [Merge(0, 2), Merge(0, 1)])
    assert own >= 0.0 > -1e10 > other  # each atom is in one cluster after the step, so that others may be empty


def held_by(means, known, names, n=20.0):
    """A posterior of clusters of ``n`` atoms around these means, with this mass of known labels ``(K, L)``."""
    means, known = np.array(means, np.float64), np.array(known, np.float64)
    x = np.concatenate([mean + np.linspace(-1.0, 1.0, int(n))[:, None] for mean in means])
    model = bnp.Model(bnp.DPMixture(), Labelled(DiagGaussian(), names)).with_prior(survey_of(Batch(x)))
    own = np.repeat(np.arange(len(means)), int(n))
    summary = model.summarize(np.arange(len(means)) * 2 + 1, Batch(x), hard_resp(own, len(means)))
    return model.global_step(replace(summary, values={**summary.values, KNOWN: known}))


@pytest.mark.parametrize("names", [("a", "b"), (7, 4)])
def test_clusters_take_the_label_of_those_that_they_are_united_with_one_after_the_other(names):
    left, right = names
    none = -1 if isinstance(left, int) else None
    # a chain of three from the left one, of which each is nearest the one before; one near the right one
    means = [[60.0], [3.0], [0.0], [6.0], [55.0], [9.5]]
    known = [[0.0, 3.0], [0.0, 0.0], [4.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.2]]
    posterior = held_by(means, known, names)
    assert bnp.label_of(posterior).tolist() == [right, none, left, none, none, none]
    # less than half an atom of a label, as of the last, says nothing
    assert bnp.label_of(posterior, nearest=True).tolist() == [right, left, left, left, right, left]
    assert bnp.label_of(held_by([[0.0], [9.0]], np.zeros((2, 2)), names), nearest=True).tolist() == [none, none]


@pytest.mark.parametrize("seed", range(4))
def test_each_union_of_clusters_for_a_label_is_the_best_of_all_counted_anew(seed):
    rng = np.random.default_rng(seed)
    known = np.zeros((8, 2))
    known[rng.permutation(8)[:3], [0, 1, 1]] = 3.0
    posterior = held_by(rng.uniform(0.0, 25.0, (8, 1)), known, NAMES)
    model, value = posterior.model, posterior.summary
    sets = [(k,) for k in range(8)]
    while (model.observation.owners(value) < 0).any():
        free, best = model.observation.owners(value) < 0, (-np.inf, 0, 0)
        for a, b in itertools.combinations(range(value.n_clusters), 2):
            if free[a] or free[b]:
                gain = float(data_gains(model, value, value.ids[[[a, b]]])[0])
                gain += float(rough_allocation_gains(value.units, np.array([a]), np.array([b]))[0])
                best = max(best, (gain, a, b))
        _, a, b = best
        value = absorbed(value.without_pairs(), a, b)
        sets[a] += sets.pop(b)
    wanted = np.empty(8, object)
    for own, owner in zip(sets, model.observation.owners(value), strict=True):
        for k in own:
            wanted[k] = NAMES[owner]
    assert bnp.label_of(posterior, nearest=True).tolist() == wanted.tolist()


def test_a_cluster_without_labelled_atoms_is_open_to_the_label_whose_clusters_gain_most_by_it():
    """What the clusters of a label are worth by themselves does not count: many atoms are worth little."""
    means = [[0.0], [0.4], [-0.4], [0.2], [-0.2], [6.0], [1.0], [5.0]]
    known = [*([[5.0, 0.0]] * 5), [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    posterior = held_by(means, known, NAMES)
    model, summary = posterior.model, posterior.summary
    assert model.observation.admitted(summary).tolist() == [0, 0, 0, 0, 0, 1, 0, 1]
    empty = {
        name: np.where(np.arange(8) == 6, 0.0, value.T).T if summary.fields[name].n_cluster_axes == 1 else value
        for name, value in summary.values.items()
    }
    assert model.observation.admitted(replace(summary, values=empty)).tolist() == [0, 0, 0, 0, 0, 1, -1, 1]


def test_labels_travel_with_the_rows_of_a_batch():
    batch = Batch(np.arange(12.0)[:, None], np.arange(12) + 0.5, labels=np.arange(12) % 3 - 1)
    assert_array_equal(batch.rows(2, 5).labels, batch.labels[2:5])
    assert_array_equal(batch.take(np.array([7, 1])).labels, [0, 0])
    assert_array_equal(concatenate([batch, replace(batch, labels=None)]).labels[12:], np.full(12, -1))
    assert_array_equal(batch_from_arrays(batch_to_arrays(batch), "again").labels, batch.labels)
    few = replace(batch, weights=np.where(np.arange(12) < 3, 0.0, 1.0)).counting()
    assert_array_equal(few.labels, batch.labels[3:])


# -- runs ---------------------------------------------------------------------------------------------------------
def two_in_one(n=120):
    """One blob whose left and right halves have two labels, one atom in six of which is known; and a far blob."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(size=(n, 2)), rng.normal(size=(n // 2, 2)) + 9.0])
    side = np.where(x[:, 0] < 0, "left", "right").astype(object)
    side[(np.arange(len(x)) % 6 > 0) | (np.arange(len(x)) >= n)] = None
    return x, side


def trained(x, labels, **settings):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    facts = {"schedule": bnp.Memoized(laps=40), "batch_size": 45, "init": bnp.BregmanKMeans(4), **settings}
    return bnp.train(model, x, labels=labels, **facts)


def stopped():
    """The warning of a run that is stopped early."""
    return pytest.warns(ConvergenceWarning, match="stopped at the limit")


def values_of(result):
    return np.array([row["elbo"] for row in result.history if row["exact"]])


def test_labels_hold_through_births_merges_and_deletes():
    x, side = two_in_one()
    plain, found = trained(x, None), trained(x, side)
    assert plain.posterior.n_clusters == 2
    posterior = found.posterior
    assert sorted(map(str, bnp.label_of(posterior))) == ["None", "left", "right"]
    assert sorted(bnp.label_of(posterior, nearest=True)) != [None]
    assert (np.diff(values_of(found)) > -1e-6).all(), "the objective fell"
    known = posterior.summary[KNOWN]
    assert (np.count_nonzero(known, axis=1) <= 1).all(), "a cluster holds atoms of two labels"
    assert_allclose(known.sum(axis=0), [(side == name).sum() for name in ("left", "right")], rtol=1e-12)
    place = {int(i): k for k, i in enumerate(posterior.ids)}
    given = bnp.label_of(posterior)[[place[int(i)] for i in bnp.predict(posterior, x)]]
    assert set(given[120:]) == {None}
    clear = np.abs(x[:120, 0]) > 0.7
    assert (given[:120] == np.where(x[:120, 0] < 0, "left", "right"))[clear].mean() > 0.9


@pytest.mark.parametrize("schedule", [bnp.FullBatch(laps=12), bnp.Stochastic(laps=4)], ids=["full", "stochastic"])
def test_labels_hold_in_other_schedules(schedule):
    x, side = two_in_one()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = trained(x, side, schedule=schedule)
    known = found.posterior.summary[KNOWN]
    assert (np.count_nonzero(known, axis=1) <= 1).all()
    assert set(bnp.label_of(found.posterior).tolist()) >= {"left", "right"}
    if isinstance(schedule, bnp.FullBatch):
        assert_allclose(known.sum(axis=0), [(side == name).sum() for name in ("left", "right")], rtol=1e-12)
        assert (np.diff(values_of(found)) > -1e-6).all()
    assert min(row["elbo"] for row in found.history) > -1e6, "a label lies in a cluster that is closed to it"


def test_labels_beside_weights_and_missing_entries():
    x, side = two_in_one()
    rng = np.random.default_rng(0)
    weights, gaps = rng.integers(3, size=len(x)).astype(float), np.where(rng.random(x.shape) < 0.1, np.nan, x)
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise"))
    facts = {"schedule": bnp.Memoized(laps=3), "init": bnp.BregmanKMeans(3), "batch_size": 45}
    with stopped():
        found = bnp.train(model, gaps, labels=side, weights=weights, **facts)
    known = found.posterior.summary[KNOWN]
    assert_allclose(known.sum(axis=0), [weights[side == name].sum() for name in ("left", "right")], rtol=1e-12)
    assert (np.count_nonzero(known, axis=1) <= 1).all()
    steps = bnp.as_source(gaps, groups=[0, 60, 120, 180])
    model = bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian(missing="marginalise"))
    with stopped():
        found = bnp.train(model, steps, labels=side, schedule=bnp.Memoized(laps=2), init=bnp.ContiguousBlocks(2))
    assert_allclose(found.posterior.summary[KNOWN].sum(), 20.0, rtol=1e-12)


@pytest.mark.long
def test_the_same_bits_on_workers(dask_client):
    x, side = two_in_one()
    assert_array_equal(values_of(trained(x, side, client=dask_client(2))), values_of(trained(x, side)))


def test_every_label_has_a_cluster_at_the_start():
    rng = np.random.default_rng(2)
    x, known = rng.normal(size=(400, 2)), np.full(400, -1)
    known[[17, 230, 399]] = [4, 9, 12]  # one atom each, which no sample of examples is likely to hold
    with stopped():
        found = trained(x, known, init=bnp.RandomExamples(2), moves=(), schedule=bnp.Memoized(laps=2))
    assert found.posterior.model.observation.names == (4, 9, 12)
    assert set(bnp.label_of(found.posterior).tolist()) >= {4, 9, 12}


def test_the_same_bits_after_a_resume_and_from_a_file(tmp_path):
    x, side = two_in_one()
    codes = labels_of(side).codes
    np.save(tmp_path / "labels.npy", codes)
    whole, few = trained(x, codes), bnp.Memoized(laps=3)
    with stopped():
        short = trained(x, codes, store=tmp_path / "run", schedule=few)
        assert_array_equal(values_of(trained(x, str(tmp_path / "labels.npy"), schedule=few)), values_of(short))
    again = trained(x, codes, store=tmp_path / "run", resume=True)
    assert_array_equal(values_of(again), values_of(whole))
    loaded = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert_array_equal(loaded.observation.table, whole.posterior.observation.table)
    assert_array_equal(loaded.summary[KNOWN], whole.posterior.summary[KNOWN])
    assert loaded.model == whole.posterior.model
    codes[np.flatnonzero(codes >= 0)[0]] = -1
    with pytest.raises(StoreError, match="labels"):
        trained(x, codes, store=tmp_path / "run", resume=True)


@pytest.mark.long
def test_a_learned_prior_survives_a_resume(tmp_path):
    x, side = two_in_one()
    model, facts = bnp.Model(bnp.DPMixture(), bnp.Gaussian()), {"batch_size": 60, "init": bnp.BregmanKMeans(4)}

    def run(laps, **more):
        with stopped():
            return bnp.train(model, x, labels=side, schedule=bnp.Memoized(laps=laps), **facts, **more)

    whole = run(6)
    run(3, store=tmp_path / "run")
    again = run(6, store=tmp_path / "run", resume=True)
    assert whole.posterior.model.reference is not None
    assert_array_equal(again.posterior.model.observation.part.B, whole.posterior.model.observation.part.B)
    assert_array_equal(values_of(again), values_of(whole))


@pytest.mark.long
def test_labels_of_steps_name_states():
    rng = np.random.default_rng(4)
    state = np.repeat(np.arange(12) % 3, 20)
    x = rng.normal(size=(240, 1)) * 0.3 + state[:, None] * 2.0
    known = np.where(np.arange(240) % 10 == 5, state, -1)
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    source = bnp.as_source(x, groups=[0, 120, 240])
    found = bnp.train(model, source, labels=known, schedule=bnp.Memoized(laps=20), init=bnp.ContiguousBlocks(4))
    place = {int(i): k for k, i in enumerate(found.posterior.ids)}
    path = bnp.label_of(found.posterior)[[place[int(i)] for i in bnp.predict(found.posterior, source)]]
    assert (path == state).mean() > 0.95
    assert (np.count_nonzero(found.posterior.summary[KNOWN], axis=1) <= 1).all()
    assert (np.diff(values_of(found)) > -1e-6).all()


@pytest.mark.long
def test_more_data_come_with_labels_or_without(tmp_path):
    x, side = two_in_one()
    codes = labels_of(side).codes
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", codes)
    trained(str(tmp_path / "x.npy"), str(tmp_path / "labels.npy"), store=tmp_path / "run")
    some = np.where(x[:120, 0] < 0, 0, 1)
    found = bnp.update(tmp_path / "run", x[:120] + 0.01, labels=some, revisit=10)
    known = found.posterior.summary[KNOWN]
    assert_allclose(known.sum(axis=0), [(codes == c).sum() + (some == c).sum() for c in (0, 1)], rtol=1e-12)
    assert (np.count_nonzero(known, axis=1) <= 1).all()
    np.save(tmp_path / "more.npy", x[120:] + 0.01)
    plain = bnp.update(tmp_path / "run", str(tmp_path / "more.npy"), revisit=10)
    assert_allclose(plain.posterior.summary[KNOWN].sum(), known.sum(), rtol=1e-12)
    with pytest.raises(DataError, match="no label of this run"):
        bnp.update(tmp_path / "run", x[:20], labels=[5] * 20)


def test_documents_are_drawn_from_labelled_clusters():
    counts = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.2], 24).astype(float)
    model = bnp.Model(bnp.DPMixture(), bnp.Multinomial())
    facts = {"schedule": bnp.Memoized(laps=1), "init": bnp.BregmanKMeans(2)}
    with stopped():
        found = bnp.train(model, counts, labels=[0] + [-1] * 23, **facts).posterior
    assert bnp.sample(found, 3, length=5).x.sum() == 15


def test_the_estimator_answers_with_labels():
    x, side = two_in_one()
    made = bnp.DirichletProcessMixture(observation="diag_gaussian", n_clusters=4, random_state=0).fit(x, labels=side)
    given = made.predict_label(x)
    assert set(given) == {"left", "right"}
    clear = np.abs(x[:120, 0]) > 0.7
    assert (given[:120] == np.where(x[:120, 0] < 0, "left", "right"))[clear].mean() > 0.9
    assert np.isfinite(made.bic(x))


@pytest.mark.long
def test_a_job_file_names_a_file_of_labels(tmp_path):
    x, side = two_in_one()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "labels.npy", labels_of(side).codes)
    content = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "x.npy", "labels": "labels.npy", "batch_size": 45},
        "init": {"type": "BregmanKMeans", "n_clusters": 4},
        "schedule": {"type": "Memoized", "laps": 40},
    }
    found = parse_job(content, tmp_path).train()
    assert found.posterior.model.observation.names == (0, 1)
    assert_array_equal(values_of(found), values_of(trained(x, labels_of(side).codes)))


# -- labels in all forms, and what is refused ---------------------------------------------------------------------
def test_labels_in_every_form():
    masked = np.ma.masked_array([3, 9, 7, 3], [False, True, False, False])
    nullable = pd.array([3, None, 7, 3], "Int64")
    for given in ([3, -1, 7, 3], np.array([3.0, np.nan, 7.0, 3.0]), [3, None, 7, 3], masked, nullable):
        found = labels_of(given)
        assert found.names == (3, 7)
        assert_array_equal(found.codes, [0, -1, 1, 0])
    assert_array_equal(labels_of(np.array([True, False])).codes, [1, 0])
    for texts in (["x", None, "y", "x"], np.array(["x", "", "y", "x"]), np.array(["x", np.nan, "y", "x"], object)):
        found = labels_of(texts)
        assert found.names == ("x", "y")
        assert_array_equal(found.codes, [0, -1, 1, 0])
    assert_array_equal(labels_of([7, -1], names=(3, 7)).codes, [1, -1])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 1]], "one label for each atom"),
        ([-1, -1], "no label is known"),
        ([0.5, 1.0], "a label is 0.5; needs whole numbers"),
        ([np.inf, 1.0], "a label is inf; needs whole numbers"),
        (np.array([2**64 - 1, 0], np.uint64), "18446744073709551615; needs whole numbers"),
        ([10**30, 0], "needs whole numbers"),
        ([[0], [0, 1]], "no array, one label"),
        ({0, 1}, "has no order"),
        (["a", 1], "texts and some are numbers"),
        (np.array(["a", -1]), "the text '-1' would be the name of a label"),
        (np.array(["a", np.nan]), "the text 'nan' would be"),
        ([2.0**60, None], "float64 1152921504606846976, which whole numbers beside it round to"),
        (np.array([2.0**24, 0], np.float32), "is the float32 16777216"),
        ([1 + 2j], "dtype complex"),
        ("column", "path of a .npy file"),
        ([0, 1, 2], "3 labels for the 10 atoms"),
    ],
)
def test_labels_that_are_none(labels, message):
    with pytest.raises(DataError, match=message):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), np.zeros((10, 2)), labels=labels)


@pytest.mark.parametrize(
    ("allocation", "schedule", "message"),
    [
        (bnp.HDPTopics(), bnp.Memoized(), "several topics"),
        (bnp.DPMixture(), bnp.Gibbs(), "Gibbs"),
        (bnp.DPMixture(), bnp.Filter(), "Filter"),
        (bnp.DPMixture(), bnp.Memoized(delay=0.5), "delay=1.0"),
    ],
)
def test_models_and_schedules_that_take_no_labels(allocation, schedule, message):
    with pytest.raises(SettingError, match=message):
        bnp.train(
            bnp.Model(allocation, bnp.Multinomial()), np.ones((10, 2)), labels=[0] * 10, schedule=schedule, moves=()
        )
    with pytest.raises(SettingError, match="without labels"):
        bnp.label_of(bnp.train(bnp.Model(bnp.FiniteMixture(), bnp.DiagGaussian()), np.eye(4)).posterior)
