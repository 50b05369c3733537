"""Every objective and every gain that a history tells is one computed from the responsibilities of all atoms."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.allocation import DPMixture, FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.execute.base import one_blas_thread
from bnp_dask.inference import FullBatch, Memoized
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, Merge
from bnp_dask.observation import DiagGaussian, Gaussian, Multinomial
from tests.chains.parts import allocation as chain_allocation
from tests.chains.parts import sequences
from tests.moves.parts import blobs, prepare, start_random
from tests.moves.test_neighbours import overlapping
from tests.pairwise import in_pairs
from tests.topics.parts import allocation as topic_allocation
from tests.topics.parts import corpus, fixed, points
from tests.twins.chains import ChainTwin
from tests.twins.follow import Follower, check_account, recorded, rows_of
from tests.twins.mixtures import MixtureTwin
from tests.twins.topics import TopicTwin

MOVES = (Birth(per_lap=3, sample=200, refine=6), Merge(), Delete(per_lap=2, absorbers=3, sweeps=3))
AT_BATCH = (Birth(where="batch", share=0.5, per_lap=2, refine=6), Merge(), Delete(per_lap=1, absorbers=2, sweeps=2))


@pytest.fixture
def run(monkeypatch):
    """``run(twin, model, batches, schedule, k, moves)``: a run that was followed; its rows and its follower."""

    def go(twin, model, batches, schedule, k, moves=MOVES, seed=0):
        monkeypatch.undo()
        work = prepare(model, batches, seed, moves)
        state = start_random(work, k)
        is_chain = work.model.structure.is_ordered
        made = twin(work.model, batches)
        seen = recorded(monkeypatch, batches)
        follower = Follower(made, len(batches), seen, is_chain, ordered=isinstance(made, MixtureTwin))
        with one_blas_thread():
            rows = follower.follow(rows_of(schedule.run(work, state)))
        for claim in follower.claims:
            claim.check()
        check_account(rows)
        follower.check_statistics(state.posterior.summary)
        exact = [row for row in rows if row["exact"]]
        for last, row in zip(exact, exact[1:], strict=False):
            size = sum(abs(row[name]) for name in ("data", "entropy", "allocation"))
            assert row["elbo"] >= last["elbo"] - 1e-12 * size
        return rows, follower

    return go


def memoized(window=3, laps=8):
    return Memoized(laps, window, order="fixed", tolerance=0.0, count_tolerance=0.0)


def outcomes(*followers):
    """Which kinds of proposals were decided, and how."""
    return {(claim.kind, claim.accepted) for follower in followers for claim in follower.claims}


# -- mixtures ---------------------------------------------------------------------------------------------------
@pytest.mark.first_case
@pytest.mark.parametrize(
    *in_pairs(
        made=[(MOVES, 1, 1), (MOVES, 4, 9), (AT_BATCH, 1, 2), (AT_BATCH, 3, 9)],
        top=[None, 2],
        estimate=["posterior", "map"],
    )
)
def test_memoized_mixtures(run, estimate, top, made):
    moves, window, k = made
    model = Model(DPMixture(2.0, top=top), DiagGaussian(), estimate)
    # a birth at one batch leaves the others' atoms behind, which pays only between clusters far apart
    batches = blobs(480, weights=window > 1, spread=3.0 if moves is MOVES else 15.0)
    run(MixtureTwin, model, batches, memoized(window), k, moves)


@pytest.mark.long
def test_births_beside_their_neighbours(run):
    """Donors that stay keep their places, and the gains of newborn clusters beside them are exact."""
    x, _, _ = overlapping(2, (3.0, 3.5), 1200, 2, 12)
    batches = [Batch(part) for part in np.array_split(x, 4)]
    _, follower = run(MixtureTwin, Model(DPMixture(2.0), Gaussian()), batches, memoized(2, 60), 1)
    assert follower.beside


@pytest.mark.parametrize("allocation", [DPMixture(2.0), FiniteMixture(0.5)])
def test_full_batches_of_mixtures(run, allocation):
    schedule = FullBatch(laps=10, window=2, tolerance=0.0, count_tolerance=0.0)
    run(MixtureTwin, Model(allocation, Gaussian()), blobs(480), schedule, 7)


def test_all_kinds_of_proposals_are_decided_both_ways(run):
    """The runs above would prove nothing if they made few proposals."""
    model = Model(DPMixture(2.0), DiagGaussian())
    followers = [run(MixtureTwin, model, blobs(480, seed=seed), memoized(), k, seed=seed)[1]
                 for seed in range(2) for k in (1, 12)]  # fmt: skip
    wanted = {(kind, yes) for kind in ("birth", "merge", "delete") for yes in (True, False)}
    assert outcomes(*followers) >= {*wanted, ("sort", True)}


def test_an_empty_batch_among_weighted_ones(run):
    batches = blobs(300, weights=True)
    batches[2] = Batch(batches[2].x[:0], np.zeros(0), batches[2].name)
    run(MixtureTwin, Model(DPMixture(1.0), DiagGaussian()), batches, memoized(2, 7), 4)


# -- topic models -----------------------------------------------------------------------------------------------
TOPIC_MOVES = (Birth(sample=200, min_atoms=5), Merge(), Delete(per_lap=2))


def words(weights=False):
    """Small corpora in batches."""
    counts, _ = corpus(28, length=40)
    often = np.random.default_rng(3).uniform(0.3, 2.0, 28)
    return [Batch(counts[b : b + 7], often[b : b + 7] if weights else None) for b in range(0, 28, 7)]


def topics(kind, **more):
    step = fixed(**{"sweeps": 5, "shrink": False, "states": "float64", "start": "best", **more})
    return topic_allocation(kind, **step)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["hdp", "lda"])
@pytest.mark.parametrize(("start", "k", "window", "weights"), [("best", 2, 3, False), ("warm", 12, 1, True)])
def test_memoized_topics(run, kind, start, k, window, weights):
    model = Model(topics(kind, start=start), Multinomial(lam=0.1))
    _, follower = run(TopicTwin, model, words(weights), memoized(window, 4), k, TOPIC_MOVES)
    few, many = {("birth", True), ("merge", False)}, {("delete", True)} if kind == "hdp" else {("delete", False)}
    assert outcomes(follower) >= {("merge", True), *(few if k == 2 else many)}


@pytest.mark.long
def test_births_of_topics_at_batches(run):
    moves = (Birth(where="batch", share=0.6, min_atoms=5), Merge(), Delete(per_lap=2))
    _, follower = run(TopicTwin, Model(topics("hdp"), Multinomial(lam=0.1)), words(True), memoized(2, 8), 1, moves)
    assert ("birth", True) in outcomes(follower)


def test_full_batches_of_topics(run):
    schedule = FullBatch(laps=4, window=2, tolerance=0.0, count_tolerance=0.0)
    run(TopicTwin, Model(topics("hdp"), Multinomial(lam=0.1)), words(), schedule, 5, TOPIC_MOVES)


def test_groups_of_points(run):
    cloud = points(24, seed=3)
    batches = [cloud.take_groups(np.arange(a, a + 8)) for a in range(0, 24, 8)]
    run(TopicTwin, Model(topics("hdp"), DiagGaussian()), batches, memoized(2, 4), 5, TOPIC_MOVES)


# -- sequences --------------------------------------------------------------------------------------------------
def chains(weighted=False):
    return [sequences((30, 0, 20, 1), seed=seed, weighted=weighted) for seed in range(4)]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("kind", "moves", "window", "k", "weighted"),
    [
        ("plain", MOVES, 3, 2, True),
        ("sticky", MOVES, 1, 8, False),
        ("finite", MOVES, 1, 8, True),
        ("plain", AT_BATCH, 3, 6, False),
        ("sticky", AT_BATCH, 1, 2, True),
    ],
)
def test_memoized_sequences(run, kind, moves, window, k, weighted):
    model = Model(chain_allocation(kind), DiagGaussian())
    _, follower = run(ChainTwin, model, chains(weighted), memoized(window, 6), k, moves)
    assert outcomes(follower) >= {("birth", True), ("birth", False)}


@pytest.mark.long
def test_full_batches_of_sequences(run):
    schedule = FullBatch(laps=5, window=2, tolerance=0.0, count_tolerance=0.0)
    _, follower = run(ChainTwin, Model(chain_allocation("sticky"), DiagGaussian()), chains(), schedule, 8)
    assert outcomes(follower) >= {("merge", True), ("birth", False)}
