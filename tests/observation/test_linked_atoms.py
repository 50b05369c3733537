"""Linked atoms: all assignments that respect links, the objective computed anew, and runs whose moves part no group."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

import bnp_dask as bnp
from bnp_dask.cli import main
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.core.batch import Batch, batch_from_arrays, batch_to_arrays, concatenate
from bnp_dask.core.summary import Merge
from bnp_dask.core.survey import checksum
from bnp_dask.data.beside import labels_of, labels_of_groups, links_of, with_labels, with_links, without_alone
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.initialize.base import hard_resp
from bnp_dask.moves.judge import gains_of
from bnp_dask.observation.labelled import KNOWN
from bnp_dask.structure import visit
from bnp_dask.structure.base import Trial
from bnp_dask.structure.linked import uncut, whole_groups, whole_tiles
from bnp_dask.testing import survey_of
from bnp_dask.training.train import ConvergenceWarning
from tests.stopping import Killed

LINKS = [0, 1, 0, -1, 1, 0, -1]


def of_links(x, links, allocation, weights=None):
    """Model with its prior set, and the atoms as a batch."""
    links = None if links is None else np.asarray(links, np.int64)
    batch = Batch(np.asarray(x, np.float64), weights, links=links)
    model = bnp.Model(allocation, bnp.DiagGaussian(), learn_prior="never", precision="double", linked=True)
    return model.with_prior(survey_of(batch)), batch


def start_of(model, batch, k, seed=0):
    """A posterior of k clusters, from random assignments that respect no links."""
    z = np.random.default_rng(seed).integers(k, size=batch.n_atoms)
    z[:k] = np.arange(k)
    return model.global_step(model.summarize(np.arange(k), replace(batch, links=None), hard_resp(z, k)))


def naive(model, posterior, batch):
    """Responsibilities of atoms, and entropy and units of each cluster, group by group."""
    k, n = posterior.n_clusters, batch.n_atoms
    weights = np.ones(n) if batch.weights is None else batch.weights
    log_lik = model.observation.expected_log_lik(posterior.observation, batch)
    log_pi = model.allocation.log_weights(posterior.allocation)
    resp, entropy, units = np.zeros((n, k)), np.zeros(k), np.zeros(k)
    groups = [np.flatnonzero(batch.links == g) for g in np.unique(batch.links[batch.links >= 0])]
    alone = [np.array([i]) for i in np.flatnonzero(batch.links < 0)]
    for rows in groups + alone:
        is_group = batch.links[rows[0]] >= 0
        total = log_pi + ((weights[rows, None] * log_lik[rows]).sum(axis=0) if is_group else log_lik[rows[0]])
        own = np.exp(total - logsumexp(total))
        times = 1.0 if is_group else weights[rows[0]]
        units += times * own
        entropy -= times * np.where(own > 0, own * np.log(np.maximum(own, 1e-300)), 0.0)
        resp[rows] = own * weights[rows, None]
    return resp, entropy, units


@pytest.mark.first_case
@pytest.mark.parametrize("allocation", [bnp.FiniteMixture(3.0), bnp.DPMixture()], ids=["finite", "dp"])
def test_bound_is_below_the_evidence_of_all_assignments_that_respect_links(allocation):
    x = np.random.default_rng(3).normal(size=(7, 2)) * 1.5
    model, batch = of_links(x, LINKS, allocation)
    k, summary = 3, None
    posterior = start_of(model, batch, k)
    values = []
    for _ in range(60):
        summary = model.local_step(posterior, batch)
        posterior = model.global_step(summary)
        values.append(sum(model.elbo(posterior, summary).values()))
    assert (np.diff(values) > -1e-9).all()
    units = np.array([0, 1, 0, 2, 1, 0, 3])
    assignments = list(itertools.product(range(k if isinstance(allocation, bnp.FiniteMixture) else 4), repeat=4))
    if isinstance(allocation, bnp.DPMixture):  # partitions: each block is named by its first unit, in order
        assignments = [z for z in assignments if all(b <= max(z[:i], default=-1) + 1 for i, b in enumerate(z))]
    joints = []
    for z in assignments:
        width = k if isinstance(allocation, bnp.FiniteMixture) else max(z) + 1
        of_z = model.summarize(np.arange(width), batch, hard_resp(np.array(z)[units], width))
        counts = np.bincount(z, minlength=width).astype(float)
        assert_allclose(of_z["units"], counts, rtol=1e-13)
        joints.append(float(model.best_data_terms(of_z).sum()) + model.allocation.log_partition(counts))
    assert len(joints) == (81 if isinstance(allocation, bnp.FiniteMixture) else 15)
    evidence = logsumexp(joints)
    names = np.log(6.0) if isinstance(allocation, bnp.FiniteMixture) else 0.0  # q(z) is of one order of the clusters
    assert evidence - names - 3.0 < values[-1] <= evidence + 1e-9
    assert_allclose(summary["N"].sum(), 7.0, rtol=1e-13)
    assert_allclose(summary["units"].sum(), 4.0, rtol=1e-13)


@pytest.mark.parametrize("weighted", [False, True], ids=["once", "weighted"])
def test_responsibilities_are_those_of_all_assignments_if_parameters_are_known(weighted):
    rng = np.random.default_rng(4)
    weights = rng.integers(1, 4, 7).astype(float) if weighted else None
    model, batch = of_links(rng.normal(size=(7, 2)), LINKS, bnp.FiniteMixture(3.0), weights)
    posterior = start_of(model, Batch(rng.normal(size=(40, 2))), 3)  # clusters that are much alike
    log_lik = model.observation.expected_log_lik(posterior.observation, batch)
    log_pi = model.allocation.log_weights(posterior.allocation)
    times, marginal, total = np.ones(7) if weights is None else weights, np.zeros((7, 3)), []
    # a copy of an atom in a group is in the group; copies of an atom in none are units of their own
    units = [[(0, times[0]), (2, times[2]), (5, times[5])], [(1, times[1]), (4, times[4])]]
    copies = [[(i, 1.0)] for i in (3, 6) for _ in range(int(times[i]))]
    each = [
        np.array([sum(w * log_lik[i, k] for i, w in unit) + log_pi[k] for k in range(3)]) for unit in units + copies
    ]
    assignments = list(itertools.product(range(3), repeat=len(each)))
    total = np.array([sum(score[k] for score, k in zip(each, z, strict=True)) for z in assignments])
    for z, share in zip(assignments, np.exp(total - logsumexp(total)), strict=True):
        for unit, k in zip(units + copies, z, strict=True):
            for i, w in unit:
                marginal[i, k] += share * w
    step = model.assign(posterior, batch)
    assert_allclose(step.resp, marginal, rtol=1e-10)
    assert ((marginal > 0.01).sum(axis=1) > 1).any()
    # the entropy of units, and their counts under the weights: log of the sum over all assignments
    summary = model.local_step(posterior, batch)
    value = summary["H"].sum() + np.sum(step.resp * log_lik) + summary["units"] @ log_pi
    assert_allclose(value, logsumexp(total), rtol=1e-12)


@pytest.mark.parametrize("top", [None, 2], ids=["all", "top"])
@pytest.mark.parametrize("weighted", [False, True], ids=["once", "weighted"])
def test_local_step_is_that_of_groups(top, weighted):
    rng = np.random.default_rng(0)
    x, links = rng.normal(size=(9, 2)), [4, -1, 2, 4, 2, -1, 4, 7, -1]
    model, batch = of_links(x, links, bnp.DPMixture(top=top), rng.integers(1, 4, 9) / 2 if weighted else None)
    posterior = start_of(model, batch, 3)
    step = model.assign(posterior, batch)
    resp = step.resp if top is None else step.resp.to_dense()
    if top is None:
        expected, entropy, units = naive(model, posterior, batch)
        assert_allclose(resp, expected, rtol=1e-10, atol=1e-12)
        assert_allclose(model.local_step(posterior, batch)["units"], units, rtol=1e-10)
        assert_allclose(step.values["H"], entropy, rtol=1e-10, atol=1e-10)
    weights = np.ones(9) if batch.weights is None else batch.weights
    for g in (2, 4):
        rows = np.flatnonzero(batch.links == g)
        assert_allclose(resp[rows] / weights[rows, None], np.tile(resp[rows[0]] / weights[rows[0]], (len(rows), 1)))
    # an atom that is a group of its own is an atom
    if not weighted:
        alone = replace(batch, links=np.where(np.isin(batch.links, [2, 4]), -1, batch.links))
        plain = model.assign(posterior, replace(alone, links=None))
        assert_allclose(
            (model.assign(posterior, alone).resp if top is None else model.assign(posterior, alone).resp.value),
            plain.resp if top is None else plain.resp.value,
            rtol=1e-10,
            atol=1e-12,
        )


def test_a_weight_is_so_many_copies_in_the_group():
    x = np.random.default_rng(1).normal(size=(6, 2))
    times, links = np.array([1, 3, 2, 1, 2, 1]), np.array([0, 0, 1, 1, -1, -1])
    model, batch = of_links(x, links, bnp.DPMixture(), times.astype(np.float64))
    copies = np.repeat(np.arange(6), times)
    repeated = Batch(x[copies], links=links[copies])
    posterior = start_of(model, replace(batch, weights=None), 2)
    one, many = model.local_step(posterior, batch), model.local_step(posterior, repeated)
    for name in one.values:
        assert_allclose(one[name], many[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_unions_and_trials_are_exact_and_part_no_group(monkeypatch):
    monkeypatch.setattr(visit, "ROWS", 5)  # pieces must not cut groups
    rng = np.random.default_rng(2)
    x, links = rng.normal(size=(40, 2)), rng.integers(-3, 12, 40)
    model, batch = of_links(x, np.maximum(links, -1), bnp.DPMixture(), rng.integers(1, 3, 40).astype(float))
    posterior = start_of(model, batch, 4)
    pairs = np.array([[0, 1], [2, 3]])
    tracked = model.local_step(posterior, batch, pairs)
    resp = model.assign(posterior, batch).resp
    of_group = {g: np.flatnonzero(batch.links == g) for g in np.unique(batch.links[batch.links >= 0])}

    def entropy(columns):
        out = np.zeros(columns.shape[1])
        units = [(rows[0], batch.weights[rows[0]], 1.0) for rows in of_group.values()]
        units += [(i, batch.weights[i], batch.weights[i]) for i in np.flatnonzero(batch.links < 0)]
        for row, weight, times in units:
            own = columns[row] / weight
            out -= times * own * np.log(np.maximum(own, 1e-300))
        return out

    def units_of(columns):
        out = sum((columns[rows[0]] / batch.weights[rows[0]] for rows in of_group.values()), np.zeros(columns.shape[1]))
        return out + columns[batch.links < 0].sum(axis=0)

    united = resp[:, :2].sum(axis=1, keepdims=True)
    merged = np.concatenate([united, resp[:, 2:]], axis=1)
    before, after = model.best_objective(tracked), gains_of(model, tracked, {}, [Merge(0, 1)])[0]
    summary = model.summarize(np.arange(3), batch, merged)
    summary = replace(summary, values={**summary.values, "H": entropy(merged)})
    assert_allclose(before + after, model.best_objective(summary), rtol=1e-10)
    # a trial that shares out the atoms of one cluster among two others, and a vanishing one
    receivers = model.global_step(tracked.without_pairs().take(np.array([2, 3])))
    trial = Trial("away", (0, 2, 3), receivers, focus=(0,), rest=2)
    found = model.visit(posterior, batch, np.zeros((0, 2), np.int64), [trial])
    part = found.parts["away"]
    noticed = resp[:, 0] > visit.NOTICEABLE * batch.weights
    held = resp[:, [0, 2, 3]].sum(axis=1) / batch.weights
    log_lik = model.observation.expected_log_lik(receivers.observation, batch)
    log_pi = model.allocation.log_weights(receivers.allocation)
    expected = resp[:, [2, 3]].copy()
    expected[:, 0] += resp[:, 0]
    for i in np.flatnonzero(noticed):
        rows = of_group.get(batch.links[i], [i])
        times = batch.weights[rows] if batch.links[i] >= 0 else np.ones(1)
        total = (times[:, None] * log_lik[rows]).sum(axis=0) + log_pi
        expected[i] = np.exp(total - logsumexp(total)) * held[i] * batch.weights[i]
    assert 0 < noticed.sum() < 40
    sums = model.summarize(receivers.ids, batch, expected)
    for name in ("N", "x", "xx"):
        assert_allclose(part[name], sums[name], rtol=1e-9, atol=1e-9, err_msg=name)
    assert_allclose(part["H"], entropy(expected), rtol=1e-9)
    assert_allclose(part["units"], units_of(expected), rtol=1e-9)
    assert_allclose(tracked["units"], units_of(resp), rtol=1e-9)


def test_groups_stay_whole_in_tiles():
    links = np.array([-1, 5, 5, -1, 2, 9, 2, -1, 9, -1])
    assert_array_equal(np.flatnonzero(uncut(links)), [0, 1, 3, 4, 9, 10])
    batch = Batch(np.arange(10.0)[:, None], links=links)
    tiles = list(whole_tiles(batch, [batch.rows(i, i + 2) for i in range(0, 10, 2)]))
    assert [tile.n_atoms for tile in tiles] == [4, 6]
    assert_array_equal(concatenate(tiles).x, batch.x)
    assert_array_equal(whole_groups(np.array([0, 4]), batch), [0, 4, 6])
    assert_array_equal(uncut(np.full(3, -1)), np.ones(4, bool))


def test_links_travel_with_the_rows_of_a_batch():
    batch = Batch(np.arange(12.0)[:, None], np.arange(12) + 0.5, links=np.arange(12) % 4 - 1)
    assert_array_equal(batch.rows(2, 5).links, batch.links[2:5])
    assert_array_equal(batch.take(np.array([7, 1])).links, [2, 0])
    assert_array_equal(concatenate([batch, replace(batch, links=None)]).links[12:], np.full(12, -1))
    assert_array_equal(
        concatenate([batch, batch]).links, [*batch.links, *np.where(batch.links < 0, -1, batch.links + 3)]
    )
    # groups of a third batch are none of the two before
    assert_array_equal(concatenate([batch] * 3).links[24:], np.where(batch.links < 0, -1, batch.links + 6))
    assert_array_equal(batch_from_arrays(batch_to_arrays(batch), "again").links, batch.links)
    assert checksum(batch) != checksum(replace(batch, links=batch.links[::-1].copy()))
    with pytest.raises(DataError, match="one for each of 12 atoms"):
        replace(batch, links=np.zeros(3, np.int64))


# -- runs ---------------------------------------------------------------------------------------------------------
def linked_blobs(n_groups=60, seed=5):
    """Rows of three blobs that overlap, groups of one to four of them, and the blobs."""
    rng = np.random.default_rng(seed)
    blob, size = rng.integers(3, size=n_groups), rng.integers(1, 5, size=n_groups)
    links, z = np.repeat(np.arange(n_groups), size), np.repeat(blob, size)
    x = rng.normal(size=(len(z), 2)) + 1.8 * np.array([[0, 0], [1, 1], [-1, 2]])[z]
    offsets = np.concatenate([[0], np.cumsum(size)])
    return x, np.where(links % 5 == 4, -1, links), z, offsets


def trained(x, links, offsets, **settings):
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    facts = {"schedule": bnp.Memoized(laps=30), "batch_size": 40, "init": bnp.BregmanKMeans(6), **settings}
    return bnp.train(model, bnp.as_source(x, groups=offsets, batch_size=facts.pop("batch_size")), links=links, **facts)


def values_of(result):
    return np.array([row["elbo"] for row in result.history if row["exact"]])


def together(resp, links):
    """Whether all rows of each group have the same responsibilities, to the bit."""
    return all(np.ptp(resp[links == g], axis=0).max() == 0.0 for g in np.unique(links[links >= 0]))


def test_the_objective_of_a_run_never_falls_and_no_move_parts_a_group():
    x, links, z, offsets = linked_blobs(seed=6)
    found = trained(x, links, offsets)
    made = {move["kind"] for row in found.history for move in row.get("moves", ()) if move["accepted"]}
    assert made >= {"merge", "delete"}, "the run made no move that could part a group"
    assert (np.diff(values_of(found)) > -1e-6).all(), "the objective fell"
    # the total of batches is that of one local step on all rows, in which groups are whole
    model, posterior = found.posterior.model, found.posterior
    batch = Batch(x, links=links.astype(np.int64))
    summary = model.local_step(posterior, batch)
    assert_allclose(sum(model.elbo(model.global_step(summary), summary).values()), values_of(found)[-1], atol=1e-4)
    resp = model.assign(posterior, batch).resp
    assert together(resp, links)
    # rows of one group help one another
    whole = bnp.predict(posterior, x, links=links)
    assert_array_equal(whole, posterior.ids[resp.argmax(axis=1)])
    assert adjusted_rand_score(z, whole) > adjusted_rand_score(z, bnp.predict(posterior, x))


@pytest.mark.parametrize(
    "observation",
    [pytest.param(bnp.DiagGaussian(), marks=pytest.mark.long), bnp.Gaussian()],
    ids=["diagonal", "screened"],
)
def test_groups_of_one_row_change_no_bit(observation, monkeypatch):
    # small runs of rows without groups are compiled and round in another order
    monkeypatch.setattr(bnp.Gaussian, "small_run", lambda *given: None)
    x, _, _, _ = linked_blobs(30)
    facts = {"init": bnp.BregmanKMeans(4), "schedule": bnp.Memoized(laps=20), "batch_size": 30}
    model = bnp.Model(bnp.DPMixture(), observation, learn_concentrations="always")
    plain, alone = bnp.train(model, x, **facts), bnp.train(model, x, links=np.arange(len(x)), **facts)
    assert_array_equal(values_of(plain), values_of(alone))
    assert plain.posterior.ids.tolist() == alone.posterior.ids.tolist()
    for name, value in plain.posterior.summary.values.items():
        assert_array_equal(value, alone.posterior.summary[name], err_msg=name)
    assert_array_equal(alone.posterior.summary["units"], alone.posterior.summary["N"])
    assert plain.posterior.model.linked is None


@pytest.mark.parametrize("allocation", [bnp.DPMixture(), bnp.PitmanYorMixture(), bnp.FiniteMixture(3.0)], ids=str)
def test_weights_are_of_units_and_data_of_rows(allocation):
    """Two far blobs: 10 groups of 9 rows, and 30 single rows."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(0.0, 1.0, (90, 2)), rng.normal(30.0, 1.0, (30, 2))])
    links = np.concatenate([np.arange(90) // 9, np.full(30, -1)])
    model = bnp.Model(allocation, bnp.DiagGaussian(), learn_concentrations="never")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = bnp.train(model, x, links=links, init=bnp.BregmanKMeans(2), moves=(), schedule=bnp.Memoized(laps=4))
    posterior = found.posterior
    order = np.argsort(-posterior.summary["N"])
    assert_allclose(posterior.summary["N"][order], [90.0, 30.0], rtol=1e-12)
    assert_allclose(posterior.summary["units"][order], [10.0, 30.0], rtol=1e-12)
    counts = replace(posterior.summary, values={**posterior.summary.values, "N": posterior.summary["units"]})
    assert_allclose(posterior.weights, allocation.weights(allocation.global_step(counts)), rtol=1e-12)
    assert bnp.tree(posterior).losses[0] > 0.0  # of unions, with the same counts


@pytest.mark.long
def test_a_posterior_of_rows_begins_a_run_with_links_and_the_other_way_round():
    x, links, _, offsets = linked_blobs(30)
    posteriors = [trained(x, given, offsets).posterior for given in (None, links)]
    for begun, given in zip(posteriors, (links, None), strict=True):
        found = trained(x, given, offsets, init=bnp.FromPosterior(begun))
        assert (np.diff(values_of(found)) > -1e-6).all()
        assert ("units" in found.posterior.summary) == (given is not None)
        n_units = len(np.unique(links[links >= 0])) + np.count_nonzero(links < 0)
        assert_allclose(found.posterior.summary.units.sum(), len(x) if given is None else n_units, rtol=1e-12)


def test_a_birth_shares_out_whole_groups():
    rng = np.random.default_rng(0)
    z = np.repeat(np.arange(40) % 2, 4)
    x = rng.normal(size=(160, 2)) + 5.0 * z[:, None]
    links, offsets = np.repeat(np.arange(40), 4), np.arange(0, 161, 4)
    found = trained(x, links, offsets, init=bnp.BregmanKMeans(1), moves=(bnp.Birth(),))
    made = [move for row in found.history for move in row.get("moves", ()) if move["accepted"]]
    assert {move["kind"] for move in made} >= {"birth"} and found.posterior.n_clusters >= 2
    assert (np.diff(values_of(found)) > -1e-6).all(), "the objective fell"
    resp = found.posterior.model.assign(found.posterior, Batch(x, links=links)).resp
    assert together(resp, links)
    assert adjusted_rand_score(z, resp.argmax(axis=1)) == 1.0


@pytest.mark.first_case
@pytest.mark.parametrize("schedule", [bnp.FullBatch(laps=3), bnp.Stochastic(laps=2)], ids=["full", "stochastic"])
def test_links_beside_weights_and_missing_entries_in_other_schedules(schedule):
    x, links, _, offsets = linked_blobs(30)
    rng = np.random.default_rng(0)
    gaps = np.where(rng.random(x.shape) < 0.1, np.nan, x)
    source = bnp.as_source(gaps, groups=offsets, batch_size=40, weights=rng.integers(3, size=len(x)).astype(float))
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise"))
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        found = bnp.train(model, source, links=links, schedule=schedule, init=bnp.BregmanKMeans(3), moves=())
    batch = Batch(gaps, links=links.astype(np.int64))
    assert together(found.posterior.model.assign(found.posterior, batch).resp, links)
    if isinstance(schedule, bnp.FullBatch):
        assert (np.diff(values_of(found)) > -1e-6).all()


@pytest.mark.parametrize("row", [[0.5, np.nan], [np.nan, np.nan]])
def test_missing_entries_of_linked_rows_are_integrated_over_in_the_sum_over_all_assignments(row):
    x = np.array([[0.0, 1.0], row, [5.0, 5.0], [5.1, np.nan]])
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(missing="marginalise"), linked=True)
    model = model.with_prior(survey_of(Batch(np.nan_to_num(x))))
    posterior = start_of(model, Batch(np.nan_to_num(x)), 2)
    own = model.local_step(posterior, Batch(x, links=np.array([0, 0, -1, -1])))
    log_lik = model.observation.expected_log_lik(posterior.observation, Batch(x))
    scores = np.stack([log_lik[0] + log_lik[1], log_lik[2], log_lik[3]]) + model.allocation.log_weights(
        posterior.allocation
    )
    every = [scores[np.arange(3), list(z)].sum() for z in itertools.product(range(2), repeat=3)]
    without = sum(model.elbo(posterior, model.empty_summary(posterior.ids)).values())
    assert_allclose(sum(model.elbo(posterior, own).values()) - without, logsumexp(every), rtol=1e-10)


def test_linked_rows_are_not_screened():
    x, links, _, _ = linked_blobs(30)
    batch = Batch(x, links=links.astype(np.int64))
    summaries = []
    for precision in ("double", "mixed"):
        model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(), learn_prior="never", precision=precision)
        model = model.with_prior(survey_of(batch))
        posterior = start_of(model, batch, 3)
        summaries.append(model.local_step(posterior.for_visits(10**6), batch))
    for name, value in summaries[0].values.items():
        assert_array_equal(value, summaries[1][name])


def test_a_group_of_one_atom_is_none_unless_its_weight_says_more():
    links = np.array([4, 7, 4, -1, 9, 2, 11])
    assert without_alone(links, None).tolist() == [4, -1, 4, -1, -1, -1, -1]
    weights = np.array([1.0, 1.0, 1.0, 3.0, 2.0, 0.5, 1.0])
    assert without_alone(links, weights).tolist() == [4, -1, 4, -1, 9, 2, -1]
    x = np.arange(7.0)[:, None]
    alone = with_links(bnp.as_source(x), links_of(np.arange(7))).reader(0)()
    assert alone.links is None
    three = with_links(bnp.as_source(x), links_of(links)).reader(0)()
    assert three.links[0] == three.links[2] >= 0 and (np.delete(three.links, [0, 2]) == -1).all()


def test_the_label_of_a_group_is_the_one_that_any_of_its_atoms_has():
    labels = np.array([-1, 2, -1, 0, -1, 5, -1, 3])
    codes = np.array([8, 8, 8, 1, 1, -1, 6, -1])
    assert labels_of_groups(labels, codes).tolist() == [2, 2, 2, 0, 0, 5, -1, 3]


def test_other_values_beside_the_data_are_other_data():
    source = bnp.as_source(np.arange(6.0)[:, None])
    codes = np.array([0, 0, 1, 1, -1, 2])
    one, same, other = (with_links(source, links_of(own)) for own in (codes, codes.copy(), codes[::-1].copy()))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert one.describe() == same.describe() != other.describe()


def test_of_many_groups_the_ones_with_two_labels_or_in_two_batches_are_named():
    x, links = np.arange(40.0)[:, None], np.repeat(np.arange(20), 2)
    labelled = with_labels(bnp.as_source(x), labels_of(np.repeat(np.arange(20), 2)))
    with_links(labelled, links_of(links))
    wrong = np.repeat(np.arange(20), 2)
    wrong[37] = 3
    with pytest.raises(DataError, match=r"group 18 has rows of two labels, 3 \(row 37\) and 18 \(row 36\)"):
        with_links(with_labels(bnp.as_source(x), labels_of(wrong)), links_of(links))
    with pytest.raises(DataError, match=r"such as 8, in batches 0 and 1"):
        with_links(bnp.as_source(x, batch_size=17), links_of(links))


def test_a_label_of_a_row_is_that_of_its_group():
    x, links, z, offsets = linked_blobs(30)
    labels = np.full(len(x), -1)
    known = [int(np.flatnonzero((z == k) & (links >= 0))[0]) for k in range(3)]
    labels[known] = z[known]
    found = trained(x, links, offsets, labels=labels)
    held = found.posterior.summary[KNOWN]
    size = [(links == links[row]).sum() for row in known]
    assert_allclose(held.sum(axis=0), size, rtol=1e-12)
    assert (np.count_nonzero(held, axis=1) <= 1).all()
    assert (np.diff(values_of(found)) > -1e-6).all()
    g = next(g for g in np.unique(links[links >= 0]) if (links == g).sum() > 1)
    labels[np.flatnonzero(links == g)[:2]] = [0, 1]
    with pytest.raises(DataError, match=rf"group {g} has rows of two labels, 0 \(row .*\) and 1 \(row"):
        trained(x, links, offsets, labels=labels)


def test_the_same_bits_after_a_resume_and_from_files(tmp_path):
    x, links, _, offsets = linked_blobs(30)
    np.save(tmp_path / "links.npy", links)
    whole, few = trained(x, links, offsets), bnp.Memoized(laps=2)
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        short = trained(x, links, offsets, store=tmp_path / "run", schedule=few)
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        found = trained(x, str(tmp_path / "links.npy"), offsets, schedule=few)
    assert_array_equal(values_of(found), values_of(short))
    again = trained(x, links, offsets, store=tmp_path / "run", resume=True)
    assert_array_equal(values_of(again), values_of(whole))
    other = np.where(links == links.max(), -1, links)
    with pytest.raises(StoreError, match="links"):
        trained(x, other, offsets, store=tmp_path / "run", resume=True)


class KilledInLap:
    """Kills a run in a lap once so many batches of it are done."""

    def __init__(self, lap, done):
        self.lap, self.done, self.now = lap, done, 1

    def on_start(self, info): ...

    def on_batch(self, done):
        if self.now == self.lap and done >= self.done:
            raise Killed

    def on_lap(self, row, posterior):
        self.now = row["lap"] + 1

    def on_end(self, reason): ...


@pytest.mark.long
def test_two_workers_and_a_run_that_is_killed_and_resumed_have_the_same_bits(tmp_path, dask_client):
    x, links, _, offsets = linked_blobs(50, seed=6)
    whole = trained(x, links, offsets)
    with pytest.raises(Killed):
        trained(x, links, offsets, store=tmp_path / "run", callbacks=[KilledInLap(3, 2)], checkpoint_minutes=1e-9)
    again = trained(x, links, offsets, store=tmp_path / "run", resume=True, client=dask_client(2))
    assert_array_equal(values_of(again), values_of(whole))
    back = bnp.load(tmp_path / "run" / "posterior.zarr")
    assert back.model.linked is True
    for name, value in whole.posterior.summary.values.items():
        assert_array_equal(again.posterior.summary[name], value, err_msg=name)
        assert_array_equal(back.summary[name], value, err_msg=name)
    batches = bnp.as_source(x, groups=offsets, batch_size=40)
    pooled = bnp.predict(back, batches, links=links, soft=True, client=dask_client(2))
    assert_array_equal(pooled, bnp.predict(whole.posterior, x, links=links, soft=True))


def test_predictions_of_groups_are_those_of_all_their_rows(tmp_path):
    x, links, _, offsets = linked_blobs(40, seed=6)
    posterior = trained(x, None, offsets).posterior  # the model of units is the same, whatever it was trained with
    names = np.where(links < 0, None, links.astype(str)).tolist()
    light = posterior.light()
    log_lik = posterior.model.observation.expected_log_lik(light.observation, Batch(x))
    score = posterior.model.allocation.log_weights(light.allocation) + log_lik
    for g in np.unique(links[links >= 0]):
        rows = np.flatnonzero(links == g)
        score[rows] = score[rows[0]] - log_lik[rows[0]] + log_lik[rows].sum(axis=0)
    expected = np.exp(score - logsumexp(score, axis=1, keepdims=True))
    soft = bnp.predict(posterior, x, soft=True, links=names)
    assert_allclose(soft, expected, rtol=1e-8, atol=1e-12)
    hard = bnp.predict(posterior, x, links=names)
    assert_array_equal(hard, posterior.ids[expected.argmax(axis=1)])
    assert (hard != bnp.predict(posterior, x)).any()
    best = bnp.predict(posterior, x, top=1, links=names)
    assert_array_equal(best.label[:, 0], hard)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "links.npy", links)
    posterior.save(tmp_path / "model.zarr")
    places = [str(tmp_path / name) for name in ("model.zarr", "x.npy", "out.zarr", "links.npy")]
    assert main(["predict", *places[:3], "--links", places[3], "--quiet"]) == 0
    assert_array_equal(zarr.open_group(places[2], mode="r")["label"][:], hard)
    with pytest.raises(DataError, match=f"several batches .* batch_size={len(x)}"):
        bnp.predict(posterior, x, links=links, batch_size=20)
    with pytest.raises(DataError, match=r"links: lazy Dask data .*; write the result with out="):
        bnp.predict(posterior, da.from_array(x, chunks=(20, 2)), links=links)
    words = sparse.csr_array(np.eye(4))
    topics = bnp.Model(bnp.LDA(), bnp.Multinomial()).with_prior(survey_of(Batch(words)))
    with pytest.raises(SettingError, match="links: atoms of LDA depend on their group"):
        bnp.predict(topics.global_step(topics.empty_summary(np.arange(2))), words, links=[0, 0, -1, -1])


def test_autoregressive_steps_take_links():
    """The first step of a sequence has no row of its own, and its link goes with it."""
    rng = np.random.default_rng(0)
    x, offsets = rng.normal(size=(40, 1)).cumsum(axis=0), [0, 20, 40]
    links = np.where(np.arange(40) < 20, 7, -1)
    model = bnp.Model(bnp.DPMixture(), bnp.AutoRegressiveGaussian(lags=1))
    source = bnp.as_source(x, groups=offsets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = bnp.train(
            model, source, links=links, init=bnp.RandomExamples(2), moves=(), schedule=bnp.Memoized(laps=2)
        )
    assert_allclose(found.posterior.summary["N"].sum(), 38.0, rtol=1e-12)
    assert_allclose(found.posterior.summary["units"].sum(), 20.0, rtol=1e-12)
    assert len(set(bnp.predict(found.posterior, source, links=links)[:20].tolist())) == 1


@pytest.mark.long
def test_job_files_updates_and_the_estimator_take_links(tmp_path):
    x, links, _, _ = linked_blobs(30)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "links.npy", links)
    content = {
        "model": {"allocation": "DPMixture", "observation": "DiagGaussian"},
        "data": {"path": "x.npy", "links": "links.npy"},
        "init": {"type": "BregmanKMeans", "n_clusters": 4},
        "schedule": {"type": "Memoized", "laps": 30},
        "store": "run",
    }
    found = parse_job(content, tmp_path).train()
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    same = bnp.train(model, x, links=links, init=bnp.BregmanKMeans(4), schedule=bnp.Memoized(laps=30))
    assert_array_equal(values_of(found), values_of(same))
    # groups of later data are their own, and groups of earlier data hold when these are visited again
    more = bnp.update(tmp_path / "run", x[:40] + 0.1, links=np.where(np.arange(40) < 20, 3, -1), revisit=2)
    assert_allclose(more.posterior.summary["N"].sum(), len(x) + 40, rtol=1e-12)
    settled = bnp.update(tmp_path / "run", x[:4], laps=1)
    assert settled.posterior.n_clusters >= 1
    made = bnp.DirichletProcessMixture(observation="diag_gaussian", n_clusters=4, random_state=0)
    names = [None if g < 0 else f"animal {g:02}" for g in links]
    assert made.fit(x, links=names).lower_bound_ == made.fit(x, links=links).lower_bound_ != made.fit(x).lower_bound_
    made.fit(x, links=names)
    assert_array_equal(made.labels_, made.predict(x, links=names))
    assert together(made.predict_proba(x, links=links), links)


def test_an_update_with_links_needs_a_run_that_counts_units(tmp_path):
    x, links, _, _ = linked_blobs(20)
    facts = {"init": bnp.BregmanKMeans(2), "moves": (), "schedule": bnp.Memoized(laps=2)}
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), x, store=tmp_path / "plain", **facts)
    with pytest.raises(SettingError, match=r"begun without.*Model\(..., linked=True\)"):
        bnp.update(tmp_path / "plain", x, links=links)
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(), linked=True), x, store=tmp_path / "run", **facts)
    more = bnp.update(tmp_path / "run", x, links=links)
    n_units = len(x) + len(np.unique(links[links >= 0])) + np.count_nonzero(links < 0)
    assert_allclose(more.posterior.summary["units"].sum(), n_units, rtol=1e-12)
    with pytest.raises(SettingError, match="links: atoms of LDA depend on their group"):
        bnp.Model(bnp.LDA(), bnp.Multinomial(), linked=True)
    with pytest.raises(SettingError, match="would part groups"):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(), linked=True), x, schedule=bnp.Filter())


# -- what is refused ----------------------------------------------------------------------------------------------
def test_groups_that_batches_would_cut_are_refused_with_ways_out():
    x, links, _, _ = linked_blobs()
    model = bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())
    with pytest.raises(DataError, match=r"several batches .* batch_size=149; or sort the rows by group"):
        bnp.train(model, x, links=links, batch_size=20)
    facts = {"moves": (), "schedule": bnp.Memoized(laps=1), "init": bnp.BregmanKMeans(2)}
    with pytest.warns(ConvergenceWarning, match="stopped at the limit"):
        bnp.train(model, x, links=links, batch_size=149, **facts)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ([0, 1], "2 links for the 10 atoms"),
        ([-1] * 10, "links: no group is known"),
        ([0.5] * 10, "links: a group is 0.5"),
        ("column", "links='column': needs an array"),
        (np.arange(10) < 4, "links are truth values; needs the number or name of a group"),
        (np.array(["3", -1] * 5), "the text '-1' would be the name of a group"),
        (np.array([2.0**60, np.nan] * 5), "links: a group is the float64 1152921504606846976, which"),
        (np.array([-7, 3, -2] * 3 + [3]), "links: -7 and -2 are negative, and one negative number marks"),
        ([3.0, -1.0, -2.0] * 3 + [3.0], "links: -2.0 and -1.0 are negative"),
        ([3, None, -1, -2, 3] * 2, "links: -2 and -1 are negative"),
        ({0: 1}, "links are a dict, .* one group for each atom"),
    ],
)
def test_links_that_are_none(links, message):
    with pytest.raises(DataError, match=message):
        bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), np.zeros((10, 2)), links=links)
    assert links_of(["a", None, "a"]).codes.tolist() == [0, -1, 0]


@pytest.mark.parametrize(
    ("allocation", "settings", "message"),
    [
        (bnp.HDPTopics(), {}, "cannot be assigned together"),
        (bnp.DPMixture(), {"schedule": bnp.Gibbs()}, "would part groups"),
        (bnp.DPMixture(), {"schedule": bnp.Filter()}, "would part groups"),
        (bnp.DPMixture(), {"init": bnp.FromSample()}, "leave links out"),
    ],
)
def test_models_and_schedules_that_take_no_links(allocation, settings, message):
    with pytest.raises(SettingError, match=message):
        bnp.train(bnp.Model(allocation, bnp.Multinomial()), np.ones((10, 2)), links=[0] * 10, moves=(), **settings)
