"""What a run does when the user says nothing: start, moves, when it ends, and what that means for older runs."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation import HDPHMM, LDA, DPMixture, FiniteHMM, FiniteMixture, HDPTopics
from bnp_dask.cli.jobfile import parse_job
from bnp_dask.errors import StoreError
from bnp_dask.execute import SerialExecutor
from bnp_dask.inference import FullBatch, Memoized, Stochastic
from bnp_dask.inference.variational.memoized import PATIENCE
from bnp_dask.initialize import BregmanKMeans, ContiguousBlocks, SampledTopics
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Delete, DocumentBirth, Merge
from bnp_dask.observation import AutoRegressiveGaussian, DiagGaussian, Gaussian, Multinomial
from bnp_dask.training import run_settings
from bnp_dask.training.train import train

ALL = (Birth(), Merge(), Delete())
OF_WORDS = (DocumentBirth(), run_settings.SPLITS_OF_TOPICS, Merge(), Delete())
MODEL = Model(DPMixture(), Gaussian())

go = partial(train, client=SerialExecutor(), batch_size=150)


def three_clusters(n=300, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    return np.array([[0.0, 0], [9, 0], [0, 9]])[labels] + rng.normal(size=(n, 2)), labels


def bits(result):
    return {name: a.tobytes() for name, a in result.posterior.summary.to_arrays().items()}


# -- K is learned -----------------------------------------------------------------------------------------------
def test_few_rows_are_no_cluster_each():
    """From one cluster a row, twenty rows of noise in thirty columns stayed as they were; pairs of rows are found."""
    noise = np.random.default_rng(0).normal(size=(20, 30))
    found = go(MODEL, noise)
    assert found.posterior.n_clusters <= 5
    assert found.history["elbo"][-1] > go(MODEL, noise, init=BregmanKMeans(20)).history["elbo"][-1]
    rng = np.random.default_rng(3)
    pairs = rng.normal(size=(4, 3))[np.repeat(np.arange(4), 2)] * 30 + rng.normal(size=(8, 3))
    assert go(MODEL, pairs).posterior.n_clusters == 4
    assert go(MODEL, pairs[:2]).posterior.n_clusters == 1


@pytest.mark.first_case
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_three_clear_clusters_are_three_and_the_objective_never_falls(d, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=300)
    x = np.outer([0.0, 9.0, 20.0], np.ones(d))[labels] + rng.normal(size=(300, d))
    result = go(Model(DPMixture(), DiagGaussian() if seed else Gaussian()), x, rng=seed)
    assert result.converged
    assert len(np.unique(np.stack([labels, bnp.predict(result.posterior, x)]), axis=1).T) == 3
    assert (result.posterior.summary["N"] >= 1).sum() == 3
    if d > 1:  # in one dimension what the prior takes of the atoms, 1e-3 of one, is worth 1e-3 nats at the end
        assert result.posterior.n_clusters == 3
    elbo = np.array([row["elbo"] for row in result.history if row["exact"]])
    assert np.diff(elbo).min() >= -1e-12 * abs(elbo[-1])


def test_the_estimator_finds_three_too():
    found = bnp.DirichletProcessMixture(random_state=0).fit(three_clusters()[0])
    assert found.n_clusters_ == found.posterior_.n_clusters == 3


@pytest.mark.parametrize("size", [pytest.param(1e4, marks=pytest.mark.long), 1e12])
def test_one_row_far_away_is_one_cluster_more(size):
    x, labels = three_clusters()
    x[17] = size
    result = go(MODEL, x)
    said = bnp.predict(result.posterior, x)
    assert result.posterior.n_clusters == 4
    rest = np.arange(len(x)) != 17
    assert len(np.unique(np.stack([labels[rest], said[rest]]), axis=1).T) == 3


@pytest.mark.parametrize("schedule", [Memoized(), FullBatch()])
@pytest.mark.parametrize("allocation", [DPMixture(), HDPTopics(), HDPHMM()])
def test_models_that_learn_k_make_all_moves(allocation, schedule):
    words = isinstance(allocation, HDPTopics)
    model = Model(allocation, Multinomial())
    assert run_settings.default_moves(model, schedule, is_sparse=True) == (OF_WORDS if words else ALL)
    assert run_settings.default_moves(model, schedule, is_sparse=False) == ALL


def test_when_more_texts_come_single_topics_are_born_too():
    first, documents, *rest = run_settings.moves_on_arrival((OF_WORDS[0], *OF_WORDS[2:]))
    assert (first, rest) == (Birth(), [*OF_WORDS[2:]])
    assert isinstance(documents, DocumentBirth)
    assert run_settings.moves_on_arrival(OF_WORDS)[1:] == (Birth(), *OF_WORDS[2:])  # at any number of topics
    assert isinstance(run_settings.moves_on_arrival((Birth(sample=7), DocumentBirth()))[1], DocumentBirth)
    for moves in (ALL, (Birth(sample=7), DocumentBirth(kept=True)), (Merge(),), ()):
        assert run_settings.moves_on_arrival(moves) == moves


def test_topics_of_whole_documents_are_sought_as_soon_as_a_corpus_has_grown():
    given = DocumentBirth(tokens=500, tries=3, every=7)
    (birth, found) = run_settings.moves_on_arrival((Birth(), given))
    assert (found.every, found.policy.very_few) == (1, given.policy.few)
    assert (birth, found.tokens, found.tries) == (Birth(), 500, 3)


def test_others_make_none():
    for allocation in (FiniteMixture(), LDA(), FiniteHMM()):
        assert run_settings.default_moves(Model(allocation, Multinomial()), Memoized(), is_sparse=True) == ()
    assert run_settings.default_moves(MODEL, Stochastic(), is_sparse=False) == ()
    assert run_settings.default_moves(Model(DPMixture(), Gaussian(), estimate="map"), Memoized(), False) == ()
    x, _ = three_clusters(150)
    for allocation in (FiniteMixture(), DPMixture()):
        moves = {} if isinstance(allocation, FiniteMixture) else {"moves": ()}
        assert not go(Model(allocation, Gaussian(), learn_prior="never"), x, **moves).history.moves()


def test_where_training_starts():
    words, rows = Model(HDPTopics(), Multinomial()), Model(HDPTopics(), Gaussian())
    lagged = AutoRegressiveGaussian()
    for model, is_sparse, n, k, expected in [
        (MODEL, False, 1000, None, BregmanKMeans(25)),
        (MODEL, False, 7, None, BregmanKMeans(3)),
        (MODEL, False, 1000, 4, BregmanKMeans(4)),
        (Model(DPMixture(), Multinomial()), True, 1000, None, BregmanKMeans(25)),
        (words, True, 1000, None, SampledTopics()),
        (Model(LDA(), Multinomial()), True, 1000, 20, SampledTopics(20)),
        (rows, False, 1000, None, BregmanKMeans(25)),
        (Model(HDPHMM(), Gaussian()), False, 1000, None, ContiguousBlocks(10)),
        (Model(HDPHMM(), Gaussian()), False, 6, None, ContiguousBlocks(6)),
        (Model(FiniteHMM(), Gaussian()), False, 1000, 4, BregmanKMeans(4)),
        (Model(FiniteHMM(), lagged), False, 1000, None, ContiguousBlocks(25)),
    ]:
        assert run_settings.default_init(model, is_sparse, n, k) == expected


def test_few_atoms_start_fewer_clusters():
    x, _ = three_clusters(12)
    assert go(MODEL, x).posterior.n_clusters <= 3


def test_topics_start_from_a_state_whose_size_the_data_set():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(60, 0.05), 4)
    shares = rng.dirichlet(np.full(4, 0.2), 300)
    counts = sparse.csr_array(np.array([rng.multinomial(40, s @ topics) for s in shares], np.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of laps: clusters come and go in the first
        result = go(Model(HDPTopics(), Multinomial()), counts, schedule=Memoized(laps=6))
    first = result.history[0]["n_clusters"]
    assert first == int(np.sqrt(12_000) / 4)
    assert 4 <= result.posterior.n_clusters <= 6 < first


# -- when it ends -----------------------------------------------------------------------------------------------
@pytest.mark.long
def test_a_run_ends_after_some_calm_laps_unless_a_tolerance_is_given():
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(0, 1, (300, 1)), rng.normal(2.0, 1, (300, 1))])  # overlapping: slow
    settings = {"moves": (), "init": BregmanKMeans(4), "rng": 3}
    usual = go(Model(FiniteMixture(), Gaussian()), x, schedule=Memoized(laps=2000), **settings)
    exact = go(Model(FiniteMixture(), Gaussian()), x, schedule=Memoized(laps=2000, tolerance=1e-6), **settings)
    assert usual.converged and exact.converged
    ends = {row["lap"]: row["elbo"] for row in usual.history}
    gains = np.diff([ends[lap] for lap in sorted(ends)])
    calm = np.abs(gains) <= 1e-4 * len(x)
    assert calm[-PATIENCE:].all() and np.convolve(calm[:-1], np.ones(PATIENCE), "valid").max() < PATIENCE
    assert exact.history[-1]["lap"] > usual.history[-1]["lap"]


# -- job files ----------------------------------------------------------------------------------------------------
def test_job_files_leave_moves_to_the_model_unless_they_name_them(tmp_path):
    job = {"model": {"allocation": "DPMixture", "observation": "Gaussian"}, "data": "x.npy"}
    assert parse_job(job, tmp_path).moves is None
    assert parse_job({**job, "moves": None}, tmp_path).moves is None
    assert parse_job({**job, "moves": []}, tmp_path).moves == ()
    assert parse_job({**job, "moves": ["Merge"], "n_init": 3}, tmp_path).moves == (Merge(),)
    assert parse_job({**job, "n_init": 3}, tmp_path).n_init == 3
    topics = {"model": {"allocation": "HDPTopics", "observation": "Multinomial"}, "data": "x", "init": "SampledTopics"}
    assert parse_job(topics, tmp_path).init == SampledTopics()


# -- runs go on as they began -------------------------------------------------------------------------------------
def test_what_is_left_out_when_resuming_is_as_the_run_began(tmp_path):
    x, _ = three_clusters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = {"init": BregmanKMeans(5), "moves": (Birth(fresh=4), Merge())}
        whole = go(MODEL, x, schedule=Memoized(laps=5, window=3, tolerance=1e-9), **begun)
        go(MODEL, x, store=tmp_path / "run", schedule=Memoized(laps=2, window=3, tolerance=1e-9), **begun)
        left = go(MODEL, x, store=tmp_path / "run", resume=True, schedule=Memoized(laps=5, window=3))
        assert bits(left) == bits(whole)
        again = go(MODEL, x, store=tmp_path / "run", resume=True)
        assert bits(again) == bits(whole)
        with pytest.raises(StoreError, match="settings differ .schedule"):
            go(MODEL, x, store=tmp_path / "run", resume=True, schedule=FullBatch())


def test_a_start_told_by_arrays_must_be_given_again(tmp_path):
    x, labels = three_clusters()
    start = bnp.Responsibilities(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        go(MODEL, x, store=tmp_path / "run", init=start, schedule=Memoized(laps=1))
    with pytest.raises(StoreError, match="settings differ .init"):
        go(MODEL, x, store=tmp_path / "run", resume=True)
    go(MODEL, x, store=tmp_path / "run", resume=True, init=start, schedule=Memoized(laps=50))


def test_a_sampled_start_that_leaves_its_passes_open_is_as_the_run_has_it(tmp_path):
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.5, (60, 12)).astype(np.float64))
    model, began = Model(LDA(), Multinomial()), SampledTopics(3, passes=20, averaged=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = go(model, counts, init=began, schedule=Memoized(laps=2))
        go(model, counts, init=began, schedule=Memoized(laps=1), store=tmp_path / "run")
        more = go(model, counts, init=SampledTopics(3), schedule=Memoized(laps=2), store=tmp_path / "run", resume=True)
    assert bits(more) == bits(whole)
    with pytest.raises(StoreError, match=r"init\.passes: the run has 20, this call 30"):
        go(model, counts, init=SampledTopics(3, passes=30), store=tmp_path / "run", resume=True)


def test_runs_of_this_version_are_resumed_with_their_own_prior_of_words(tmp_path):
    counts, way = np.eye(4) + 1.0, {"init": BregmanKMeans(2), "moves": (), "store": tmp_path / "run"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        go(Model(DPMixture(), Multinomial(common=0.0)), counts, schedule=Memoized(laps=1), **way)
    with pytest.raises(StoreError, match="settings differ .*common"):
        go(Model(DPMixture(), Multinomial()), counts, resume=True, **way)
