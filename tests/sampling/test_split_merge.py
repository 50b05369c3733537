"""Splits and unions of clusters over batches: the posterior that they keep, and what follows from one."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference import sides as sides_of
from bnp_dask.inference.sampling.split_merge import (
    Asked,
    Choices,
    followed,
    joined,
    lead,
    led,
    log_prior_ratio,
    partner_shares,
    union_chance,
    union_gains,
)
from bnp_dask.inference.sampling.visit import Labels
from bnp_dask.inference.sides import sequentially, statistics
from bnp_dask.inference.visit import Request
from bnp_dask.testing import survey_of
from tests.sampling.chains import (
    NO_ROWS,
    Few,
    canonical,
    halves,
    left_by_laps_and_rounds,
    left_by_rounds,
    surprise,
    variation,
)
from tests.sampling.test_runs import bits
from tests.sampling.top_levels import sampling_error
from tests.stopping import AfterSteps
from tests.streaming.cases import LIKELIHOODS, case
from tests.streaming.oracle import Oracle

NGGP = bnp.NGGPMixture(1.0, 0.5, 1.0)
LONG = 1800
"""Seconds that a test of some thousand rounds may take on a busy machine."""


@pytest.mark.first_case
@pytest.mark.parametrize(("likelihood", "n_batches"), [("DiagGaussian", 1), ("Poisson", 2)])
def test_some_rounds_are_near_the_exact_posterior(likelihood, n_batches):
    model, batch = case(likelihood, NGGP, 4)
    exact = Oracle(model, batch, None).posterior
    found, moved = left_by_rounds(exact, model, [batch] if n_batches == 1 else halves(batch), 500)
    assert moved > 25
    assert variation(found, exact) < 0.06  # of which sampling error is 0.02 to 0.04


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize(("likelihood", "n_batches"), list(zip(LIKELIHOODS, cycle([1, 2]), strict=False)))
def test_rounds_keep_the_exact_posterior(likelihood, n_batches):
    model, batch = case(likelihood, NGGP, 4)
    exact = Oracle(model, batch, None).posterior
    found, moved = left_by_rounds(exact, model, [batch] if n_batches == 1 else halves(batch), 6000)
    assert moved > 20
    assert variation(found, exact) < 0.02  # of which sampling error is 0.005 to 0.015


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_laps_that_rounds_end_keep_the_exact_posterior(likelihood):
    model, batch = case(likelihood, bnp.DPMixture(1.0), 4)
    exact = Oracle(model, batch, None).posterior
    times = 6000
    found = left_by_laps_and_rounds(exact, model, halves(batch), times)
    assert variation(found, exact) < 0.02, sampling_error(exact, times)  # of which up to 0.015 of independent draws


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("n_batches", [1, 2])
def test_rounds_of_several_proposals_for_six_points_have_the_frequencies_of_the_exact_posterior(n_batches):
    """Independent draws of all partitions as starts, so that the chi-squared statistic has its distribution."""
    model, batch = case("DiagGaussian", bnp.DPMixture(1.0), 6)
    exact = Oracle(model, batch, None).posterior
    known, chance, found = list(exact), np.array(list(exact.values())), Counter()
    for seed in range(5):
        starts = np.random.default_rng(seed).choice(len(known), 1500, p=chance / chance.sum())
        few = Few.of(model, [batch] if n_batches == 1 else halves(batch))
        for turn, start in enumerate(starts):
            lap = 10_000 * seed + turn + 1
            few.place(known[start], lap)
            few.round(lap, turn % n_batches)
            found[few.partition] += 1
    assert surprise(found, exact) > 1e-3


def three_clusters(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    side = np.arange(n) % 3
    return np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])[side] + rng.normal(size=(n, 2)), side


@pytest.mark.parametrize("likelihood", [bnp.Gaussian(), bnp.DiagGaussian(), bnp.FixedVarianceGaussian(variance=1.0)])
def test_a_cluster_that_is_three_is_split_over_batches(likelihood):
    """The chain comes to the three, atom for atom.  It need not stay: for full covariances the partitions with one to
    four atoms of one cluster apart have together .75 of the probability of the three, so that these have less than .58
    (sums of exact terms; chains are there in .42 to .44 of 300 laps)."""
    x, side = three_clusters(1200)
    model = bnp.Model(bnp.DPMixture(1.0), likelihood).with_prior(survey_of(Batch(x)))
    few, true = Few.of(model, [Batch(part) for part in np.split(x, 4)]), canonical(side)
    few.place((0,) * len(x), 1)
    for lap in range(1, 121, 2):  # a sweep gives single atoms back that a split put on the wrong side
        few.round(lap, lap // 2 % 4)
        few.lap(lap + 1, None)
        if few.partition == true:
            break
    assert few.partition == true


def test_clusters_of_documents_are_split_over_batches():
    words = np.repeat(np.eye(2), 20, axis=1) * 0.049 + 0.0005
    rng, side = np.random.default_rng(0), np.arange(100) % 2
    x = np.array([rng.multinomial(50, words[k] / words[k].sum()) for k in side], float)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Multinomial(0.1)).with_prior(survey_of(Batch(x)))
    few = Few.of(model, halves(Batch(x)))
    few.place((0,) * len(x), 1)
    for lap in range(1, 40, 2):
        few.round(lap, lap % 2)
        few.lap(lap + 1, lap % 2)
    found = np.array(few.partition)
    assert len(set(zip(found, side, strict=True))) == len(set(found)) < 5  # no cluster holds documents of both


def test_totals_rows_and_pins_are_those_of_the_labels_after_every_round():
    x, _ = three_clusters(90)
    model = bnp.Model(NGGP, bnp.Gaussian()).with_prior(survey_of(Batch(x)))
    few, seen = Few.of(model, halves(Batch(x))), set()
    few.place(tuple(np.arange(90) % 5), 1)
    for lap in range(1, 25):
        noted = few.round(lap, lap % 2)
        labels, total = np.concatenate([own.ids for own in few.labels]), few.chain.total
        assert noted.tolist() == labels.tolist()
        assert set(labels) == set(total.ids)
        assert few.chain.next_id > labels.max()
        expected = statistics(model, total.ids, Batch(x), total.positions(labels))
        for name, value in expected.values.items():
            assert_allclose(total.values[name], value, atol=1e-9)
        pins = few.chain.pins
        assert [few.labels[b].ids[r] for b, r in zip(pins.batch, pins.row, strict=True)] == total.ids.tolist()
        seen.add(len(total.ids))
    assert len(seen) > 1


def log_anchors(model, pairs, leading, ids, batch):
    """Log probability of the anchors ``pairs (P, 2)`` in the partition ``ids (n,)``, drawn one after the other."""
    names = np.unique(ids)
    total = statistics(model, names, batch, np.searchsorted(names, ids))
    left, out = np.flatnonzero(leading), 0.0
    for i, j in pairs.tolist():
        own, others = left[ids[left] == ids[i]], np.unique(ids[left][ids[left] != ids[i]])
        gains = union_gains(model, total.take(ids[[i]]), total.take(others))
        chance = union_chance(gains, len(own))
        if ids[i] == ids[j]:
            out += np.log((1.0 - chance) / (len(own) - 1.0) / len(left))
        else:
            share = partner_shares(gains)[others == ids[j]].item()
            out += np.log(chance * share / np.sum(ids[left] == ids[j]) / len(left))
        left = left[~np.isin(ids[left], ids[[i, j]])]
    return out


@pytest.mark.parametrize("seed", range(3))
def test_choices_of_anchors_are_those_of_every_partition_that_a_round_may_lead_to(seed):
    rng = np.random.default_rng(seed)
    model, batch = case("DiagGaussian", NGGP, 16, seed)
    leading, ids = np.arange(16) < 10, rng.integers(5, size=16)
    lead_batch, other = batch.rows(0, 10), batch.rows(10, 16)
    total = statistics(model, np.arange(5), batch, ids)
    total = total.take(total.ids[total["N"] > 0.0])
    proposals, first = led(model, 0.5, lead_batch, ids[:10], total, 16, rng)
    rest = followed(model, 0.5, proposals, other, ids[10:], rng)
    rows, place = np.append(first.rows, 10 + rest.rows), np.append(first.place, rest.place)
    pairs, n = first.rows[: 2 * len(proposals)].reshape(-1, 2), len(proposals)
    choices = Choices.of(model, proposals, joined([first, rest])[0], total)
    assert n > 1
    for state in np.ndindex(*[2] * n):
        choices.together, now = np.array(state, bool), []
        for p in range(n):
            for one in (False, True):
                after, together = ids.copy(), choices.together.copy()
                together[p] = one
                after[rows] = 100 + np.where(together[place // 2], place // 2 * 2, place)
                now.append(log_anchors(model, pairs, leading, after, batch))
            assert_allclose(choices.log_ratio(p), now[-2] - now[-1], atol=1e-9)


def nothing(model):
    return model.empty_summary(np.arange(1))


def test_a_batch_that_cannot_be_read_leaves_a_round_without_effect():
    def reader():
        raise OSError("gone")

    model, batch = case("Gaussian", NGGP, 4)
    request = Request(0, "few", reader, empty=lambda: batch)
    assert (
        lead(model, (Asked(0, 1, nothing(model)),), request, NO_ROWS, (Labels.of(np.arange(1), np.zeros(4, np.int64)),))
        is None
    )


def test_no_atoms_make_no_proposals():
    model, batch = case("Gaussian", NGGP, 4)
    empty, nobody = batch.rows(0, 0), Labels(np.zeros(0, np.int64), np.zeros(0, np.uint8))
    proposals, found = lead(
        model, (Asked(0, 1, nothing(model)),), Request(0, "few", lambda: empty), NO_ROWS, (nobody,)
    )[0]
    assert len(proposals) == len(found.sides.rows) == 0


def test_prior_of_a_split_is_that_of_partitions():
    model, _ = case("Gaussian", NGGP, 4)
    partition = model.allocation.log_partition
    expected = partition(np.array([4.0, 3.0, 2.0])) - partition(np.array([4.0, 5.0]))
    assert_allclose(log_prior_ratio(model, np.array([3.0, 2.0]), np.array([4.0])), expected)


@pytest.mark.long
def test_a_run_from_one_cluster_finds_all_with_the_same_bits_on_threads_and_resumed(tmp_path):
    x, side = three_clusters(600)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian())
    schedule = bnp.Gibbs(laps=24, burn_in=20, thin=1, chains=2, window=3)
    more = {"schedule": schedule, "init": bnp.RandomExamples(1), "batch_size": 150, "rng": 1}
    serial = bnp.train(model, x, client=SerialExecutor(), **more)
    labels = serial.draws.labels[0, -1]
    for k in range(3):
        own = labels[side[serial.draws.rows] == k]
        assert np.bincount(own - own.min()).max() > 0.97 * len(own)
    executor = ThreadExecutor(2)
    assert bits(bnp.train(model, x, client=executor, **more)) == bits(serial)
    executor.close()
    for stop in (4, 9):
        store = tmp_path / f"run{stop}"
        bnp.train(model, x, callbacks=[AfterSteps(stop)], store=store, **more)
        assert bits(bnp.train(model, x, store=store, resume=True, **more)) == bits(serial)


def test_partners_share_their_ranks_where_unions_gain_as_much():
    shares = partner_shares(np.array([3.0, -1.0, 3.0, 0.0]))
    raw = np.array([(1 + 1 / 4) / 2, 1 / 16, (1 + 1 / 4) / 2, 1 / 9])
    assert_allclose(shares, raw / raw.sum())
    assert_allclose(partner_shares(np.zeros(5)), 0.2)


def test_the_partner_of_a_cluster_is_probably_the_other_half_of_it():
    x, side = three_clusters(600)
    model = bnp.Model(bnp.DPMixture(1.0), bnp.Gaussian()).with_prior(survey_of(Batch(x)))
    half = 2 * side + (np.arange(600) % 2)
    ids = np.arange(6)
    held = statistics(model, ids, Batch(x), half)
    gains = union_gains(model, held.take([2]), held.take([0, 1, 3, 4, 5]))
    assert gains.argmax() == 2
    # under a Dirichlet process with equal counts the prior's part is one for all pairs, so that evidence decides
    whole = statistics(model, np.arange(1), Batch(x[side == 1]), np.zeros(200, np.int64))
    apart = model.best_data_terms(held.take([2, 3])).sum()
    counts = held["N"][[2, 3]]
    assert_allclose(gains[2], model.best_data_terms(whole)[0] - apart + gammaln(200.0) - gammaln(counts).sum())


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("n_clusters", [1, 25])
@pytest.mark.parametrize("batch_size", [None, 1500])
def test_a_hundred_laps_end_near_the_true_number_of_clusters_from_one_and_from_many(n_clusters, batch_size):
    """Six Gaussians in three dimensions, at least 5.8 deviations apart: five seeds."""
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        centers = rng.normal(size=(6, 3)) * 6.0
        while np.min(np.linalg.norm(centers[:, None] - centers, axis=2) + 100.0 * np.eye(6)) < 5.8:
            centers = rng.normal(size=(6, 3)) * 6.0
        x = centers[rng.integers(6, size=6000)] + rng.normal(size=(6000, 3))
        result = bnp.train(
            bnp.Model(bnp.DPMixture(), bnp.Gaussian()),
            x,
            schedule=bnp.Gibbs(laps=100, burn_in=80, thin=1),
            init=bnp.RandomExamples(n_clusters),
            batch_size=batch_size,
            rng=seed,
        )
        found.append(np.mean([row["n_clusters"] for row in result.history[-20:]]))
    assert sorted(found)[3] <= 7.5, found
    assert min(found) > 5.5, found


@pytest.mark.parametrize("at_once", [1, 2**20])
@pytest.mark.parametrize("seed", range(3))
def test_probabilities_of_all_ways_to_share_out_atoms_add_up_to_one(monkeypatch, seed, at_once):
    """Two proposals, side by side or in turn; every way is forced once, and its probability is that of drawing it."""
    monkeypatch.setattr(sides_of, "AT_ONCE", at_once)
    rng = np.random.default_rng(seed)
    batch = Batch(rng.normal(size=(10, 2)))
    model = bnp.Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    anchors, orders = np.array([[0, 1], [5, 6]]), [np.array([2, 3, 4]), np.array([7, 8])]
    found = np.zeros((2, 8))
    for way in range(8):
        ids = np.array([0, 1, *(way >> np.arange(3) & 1), 0, 1, *(way >> np.arange(2) & 1), 0])
        sides = sequentially(model, 0.0, batch, anchors, orders, ids, rng)
        assert dict(zip(sides.rows.tolist(), (sides.place % 2).tolist(), strict=True)) == {
            row: int(ids[row]) for row in range(9)
        }
        np.testing.assert_array_equal(
            sides.held["N"], [(ids[:5] == 0).sum(), ids[:5].sum(), (ids[5:9] == 0).sum(), ids[5:9].sum()]
        )
        found[:, way] = np.exp(sides.log_q)
    assert found[0].sum() == pytest.approx(1.0) and found[1, :4].sum() == pytest.approx(1.0)
    assert (found > 0).all() and len(np.unique(found[0].round(12))) == 8
