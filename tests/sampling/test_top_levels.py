"""Chains of HDP topics and of sticky HDP-HMMs against all assignments of a few tokens or steps."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln, psi

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from bnp_dask.inference.chains import Chain, Pins, empty_of_chain
from bnp_dask.inference.sampling.topics import _unions, unite_topics
from bnp_dask.inference.sampling.visit import Labels
from bnp_dask.kernels.hmm import draw_paths
from bnp_dask.kernels.topics.document_step import sweep_documents
from bnp_dask.structure.sequences import shifted_potentials
from bnp_dask.testing import survey_of
from tests.sampling.chains import variation
from tests.sampling.test_runs import bits
from tests.sampling.top_levels import Paths, sampling_error, topics_exactly, visited
from tests.stopping import AfterSteps
from tests.streaming.cases import LIKELIHOODS, case


def few_documents():
    """Documents of four tokens in all, in two batches; the last of the first batch is empty."""
    x = np.array([[2.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    model = bnp.Model(bnp.HDPTopics(gamma=1.5, alpha=0.8), bnp.Multinomial(0.4))
    model = model.with_prior(survey_of(Batch(sparse.csr_array(x), None, "x")))
    return model, [Batch(sparse.csr_array(x[:2]), None, "x"), Batch(sparse.csr_array(x[2:]), None, "x")]


def few_sequences(likelihood, kappa):
    """Three sequences of five steps in all, in two batches."""
    model, batch = case(likelihood, bnp.HDPHMM(gamma=2.0, alpha=1.0, alpha0=1.5, kappa=kappa), 5)
    parts = [(batch.rows(0, 3), np.array([0, 3])), (batch.rows(3, 5), np.array([0, 1, 2]))]
    return model, [Batch(part.x, None, part.name, groups) for part, groups in parts]


def far(model, batches, exact, laps):
    """Total variation of a chain, and of independent draws."""
    return variation(visited(model, batches, laps), exact), sampling_error(exact, laps)


def test_topics_of_tokens_are_near_all_partitions():
    model, batches = few_documents()
    found, _ = far(model, batches, topics_exactly(model, batches), 1000)
    assert found < 0.12  # of which sampling error is .03 to .07


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("together", [False, True], ids=["two batches", "one batch"])
def test_topics_of_tokens_are_drawn_from_all_partitions(together):
    model, batches = few_documents()
    if together:
        x = sparse.csr_array(sparse.vstack([batch.x for batch in batches]))
        batches = [Batch(x, None, "x")]
    found, error = far(model, batches, topics_exactly(model, batches), 20_000)
    print(f"total variation {found:.4f}, of independent draws {error:.4f}")
    assert found < 0.02, error


@pytest.mark.long
@pytest.mark.parametrize("kappa", [2.0, pytest.param(0.0, marks=pytest.mark.long)])
def test_one_lap_from_all_paths_is_near_all_paths(kappa):
    exact = Paths.of(*few_sequences("Gaussian", kappa))
    assert variation(exact.left_by_one_lap(600), exact.posterior) < 0.06  # of which sampling error is .02 to .04


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_one_lap_from_all_paths_leads_to_all_paths(likelihood):
    exact = Paths.of(*few_sequences(likelihood, 2.0))
    laps = 4000  # spread evenly over the start, so that the error is below that of independent draws
    found, error = variation(exact.left_by_one_lap(laps), exact.posterior), sampling_error(exact.posterior, laps)
    print(f"{likelihood}: total variation {found:.4f}, of independent draws {error:.4f}")
    assert found < 0.02, error


# -- kernels -------------------------------------------------------------------------------------------------------
def first_above(mass, uniform):
    """The first place at which the sum of ``mass`` exceeds a share of the whole."""
    return int(np.argmax(np.cumsum(mass) > uniform * np.cumsum(mass)[-1]))


@pytest.mark.parametrize("scale", [1.0, 2000.0], ids=["scaled", "by logarithms"])
def test_paths_are_the_states_that_uniform_numbers_choose(scale):
    """Filtered probabilities by logarithms, in loops; some sequences are empty."""
    rng, k, offsets = np.random.default_rng(0), 3, np.array([0, 4, 4, 9, 10])
    log_start, log_trans = scale * np.log(rng.dirichlet(np.ones(k))), scale * np.log(rng.dirichlet(np.ones(k), k))
    log_start, log_trans = shifted_potentials(log_start, log_trans)
    log_lik, uniform = scale * rng.normal(size=(10, k)), rng.random(10)
    log_lik -= log_lik.max(axis=1, keepdims=True)
    expected = np.zeros(10, int)
    for a, b in itertools.pairwise(offsets):
        alpha = np.zeros((b - a, k))
        for t in range(b - a):
            prior = np.logaddexp.reduce(alpha[t - 1][:, None] + log_trans, axis=0) if t else log_start
            alpha[t] = prior + log_lik[a + t]
        for t in range(b - a - 1, -1, -1):
            logs = alpha[t] + (log_trans[:, expected[a + t + 1]] if t < b - a - 1 else 0.0)
            expected[a + t] = first_above(np.exp(logs - logs.max()), uniform[a + t])
    assert_array_equal(draw_paths(log_start, log_trans, log_lik, offsets, uniform), expected)


def test_topics_are_those_that_uniform_numbers_choose():
    rng, n, k = np.random.default_rng(0), 30, 4
    offsets, row, table = np.array([0, 12, 12, 30]), rng.integers(5, size=n), rng.random((5, k))
    prior, stays, uniform = rng.random(k), rng.random(n) < 0.2, rng.random(n)
    topic = rng.integers(-1, k, size=n)
    stays &= topic >= 0
    expected = topic.copy()
    for a, b in itertools.pairwise(offsets):
        for t in range(a, b):
            if not stays[t]:
                others = np.append(expected[a:t], expected[t + 1 : b])
                held = np.bincount(others[others >= 0], minlength=k)
                expected[t] = first_above((held + prior) * table[row[t]], uniform[t])
    sweep_documents(offsets, row, table, prior, stays, uniform, topic)
    assert_array_equal(topic, expected)


# -- formulas ------------------------------------------------------------------------------------------------------
def test_tables_of_sequences_have_the_law_of_their_numbers():
    """Tables of a kind of transitions by Antoniak 1974; one of staying is kept with probability alpha beta / (alpha
    beta + kappa), so that alone the sum over all numbers of tables gives the mean."""
    own, beta, n = bnp.HDPHMM(alpha=1.5, alpha0=2.0, kappa=3.0), np.array([0.3, 0.7]), 4
    start, trans, rng = np.array([2.0, 0.0]), np.array([[n, 3.0], [0.0, 0.0]]), np.random.default_rng(0)

    def mean(n, a):
        return sum(a / (a + i) for i in range(n))

    kept = 1.5 * 0.3 / (1.5 * 0.3 + 3.0)
    expected = [mean(2, 2.0 * 0.3) + kept * mean(n, 1.5 * 0.3 + 3.0), mean(3, 1.5 * 0.7)]
    drawn = np.array([own.draw_tables(start, trans, beta, rng) for _ in range(4000)])
    assert (np.abs(drawn.mean(axis=0) - expected) < 5.0 * drawn.std(axis=0) / np.sqrt(len(drawn))).all()


def test_statistics_of_topics_are_those_of_posteriors_of_documents():
    """P, Q and the rest from Dirichlet(theta_d) of each document, and Dirichlet-multinomials of its topics."""
    own, beta = bnp.HDPTopics(gamma=2.0, alpha=0.7), np.array([0.5, 0.2, 0.1])
    counts = np.array([[3.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
    model = bnp.Model(own, bnp.Multinomial(np.ones(2)))
    document, topic = np.nonzero(counts)
    values = own.certain_values(counts[document, topic], topic, counts.sum(axis=1), beta)
    empty = model.empty_summary(np.arange(3))
    summary = replace(empty, values={**empty.values, **values})
    prior = 0.7 * np.append(beta, 0.2)
    theta = np.column_stack([counts, np.zeros(3)]) + prior
    logs = psi(theta) - psi(theta.sum(axis=1, keepdims=True))
    found = own.completed(summary, beta)
    assert_allclose(np.append(found["P"], found["P_rest"]), logs.sum(axis=0))
    slack = np.column_stack([counts, np.zeros(3)]) - theta
    assert_allclose(np.append(found["Q"], found["Q_rest"]), (gammaln(theta) + slack * logs).sum(axis=0))
    assert_allclose(found["Q_0"], -gammaln(theta.sum(axis=1)).sum())
    expected = 3 * gammaln(prior.sum()) - gammaln(theta.sum(axis=1)).sum() + (gammaln(theta) - gammaln(prior)).sum()
    assert_allclose(own.log_assignments(summary), expected)


def test_topics_are_united_where_tokens_and_tables_are_more_probable():
    """Against Dirichlet-multinomials and the law of tables by topic, written out; all tables stay."""
    lam, gamma, ids = np.array([0.4, 0.4, 0.4]), 1.5, np.array([7, 3, 5])
    model = bnp.Model(bnp.HDPTopics(gamma=gamma), bnp.Multinomial(lam))
    x, tables = np.array([[5.0, 0, 1], [0, 8, 1], [6, 1, 0]]), np.array([2.0, 1.0, 3.0])

    def log_joint(x, m):
        data = gammaln(lam + x) - gammaln(lam)
        data = data.sum() - (gammaln(lam.sum() + x.sum(axis=1)) - gammaln(lam.sum())).sum()
        return data + len(m) * np.log(gamma) + gammaln(m).sum()

    empty = empty_of_chain(model, ids)
    summary = replace(empty, values={**empty.values, "N": x.sum(axis=1), "x": x, "tables": tables})
    pins = Pins(np.array([0.5, 0.1, 0.2]), np.array([1, 0, 0]), np.array([4, 5, 6]))
    pairs, gains = _unions(model, summary)
    for pair, gain in zip(pairs, gains, strict=True):
        rest = np.setdiff1d(np.arange(3), pair)
        one = np.vstack([x[pair].sum(axis=0), x[rest]]), np.append(tables[pair].sum(), tables[rest])
        assert_allclose(gain, log_joint(*one) - log_joint(x, tables), rtol=1e-9)
    chain = Chain(summary, pins, 9)
    assert unite_topics(model, chain) == {7: 5}
    assert chain.total.ids.tolist() == [3, 5]
    assert chain.total["x"].tolist() == [[0, 8, 1], [11, 1, 1]]
    assert (chain.total["tables"].tolist(), chain.pins.row.tolist()) == ([1.0, 5.0], [5, 6])
    labels = Labels(np.array([3, 5, 7]), np.array([2, 0, 1])).renamed({7: 5})
    assert labels.ids.tolist() == [5, 3, 5]


# -- runs ----------------------------------------------------------------------------------------------------------
GIBBS = bnp.Gibbs(laps=6, thin=1, chains=2, window=3, rows=40, states=6)


def documents():
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(12, 0.2), size=4)
    return sparse.csr_array(
        [rng.multinomial(20, rng.dirichlet(np.full(4, 0.3)) @ topics).astype(float) for _ in range(60)]
    )


def sequences():
    rng = np.random.default_rng(0)
    states = np.repeat(rng.integers(3, size=24), 10)
    return 6.0 * np.eye(3, 2)[states] + rng.normal(size=(240, 2))


def go(kind, **more):
    if kind == "topics":
        model, data = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.2)), documents()
        more = {"init": bnp.RandomExamples(3), **more}
    else:
        model = bnp.Model(bnp.HDPHMM(kappa=5.0), bnp.DiagGaussian())
        data = bnp.as_source(sequences(), groups=np.arange(0, 241, 30), batch_size=60)
        more["init"] = bnp.ContiguousBlocks(3)
    size = {"batch_size": 15} if kind == "topics" else {}
    return bnp.train(model, data, **{"schedule": GIBBS, **size, **more})


@pytest.fixture(scope="module", params=["topics", "sequences"])
def whole(request):
    return request.param, go(request.param, client=SerialExecutor())


def test_threads_change_no_bit(whole):
    executor = ThreadExecutor(2)
    assert bits(go(whole[0], client=executor)) == bits(whole[1])
    executor.close()


@pytest.mark.parametrize("stop", [6, 16])
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path, stop, whole):
    kind, result = whole
    assert go(kind, store=tmp_path / "run", callbacks=[AfterSteps(stop)]).reason == "stopped by a callback"
    assert bits(go(kind, store=tmp_path / "run", resume=True)) == bits(result)


def test_united_topics_keep_all_tokens_and_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("bnp_dask.inference.sampling.gibbs.UNITES", range(1, 3))
    more = {"schedule": replace(GIBBS, burn_in=3), "init": bnp.RandomExamples(8)}
    result = go("topics", **more)
    assert result.posterior.summary["N"].sum() == 1200
    go("topics", store=tmp_path / "run", callbacks=[AfterSteps(6)], **more)
    assert bits(go("topics", store=tmp_path / "run", resume=True, **more)) == bits(result)


@pytest.mark.long
def test_bars_are_found():
    """Ten topics that are rows and columns of five by five words, as many as the variational run finds."""
    rng, side = np.random.default_rng(0), np.eye(5)
    bars = np.concatenate([np.kron(side, np.ones(5)), np.kron(np.ones(5), side)]) / 5.0
    shares = rng.dirichlet(np.full(10, 0.1), size=400)
    x = sparse.csr_array([rng.multinomial(50, own @ bars).astype(float) for own in shares])
    model = bnp.Model(bnp.HDPTopics(gamma=5.0, alpha=1.0), bnp.Multinomial(0.1))
    sampled = bnp.train(model, x, schedule=bnp.Gibbs(laps=200, thin=20), batch_size=100)
    learned = bnp.train(model, x, batch_size=100)
    for draw in range(sampled.draws.n_draws):  # beside topics of few tokens, which come and go
        large = sampled.draws.summary(0, draw)["N"] > 0.01 * x.sum()
        assert abs(large.sum() - learned.posterior.n_clusters) <= 1
    assert bnp.score(sampled.posterior, x) > bnp.score(learned.posterior, x) - 0.02


@pytest.mark.long
def test_states_of_a_toy_chain_are_found_as_fast_as_by_laps():
    rng, k, groups = np.random.default_rng(0), 5, np.arange(0, 4001, 100)
    moves = (np.full((k, k), 0.02) + 0.9 * np.eye(k)).cumsum(axis=1)
    state = np.zeros(4000, int)
    for t in range(1, 4000):
        go_on = np.searchsorted(moves[state[t - 1]], rng.random() * moves[0, -1])
        state[t] = rng.integers(k) if t % 100 == 0 else go_on
    places = np.array([[0, 0], [6, 0], [0, 6], [6, 6], [3, 12]])
    source = bnp.as_source(places[state] + rng.normal(size=(4000, 2)), groups=groups, batch_size=1000)
    model = bnp.Model(bnp.HDPHMM(kappa=50.0), bnp.Gaussian())
    sampled = bnp.Gibbs(laps=300, thin=10)
    with pytest.warns(bnp.ConvergenceWarning):  # compiled before times are taken
        bnp.train(model, source, schedule=bnp.Memoized(laps=1), moves=())
    assert abs(bnp.train(model, source, schedule=sampled).posterior.n_clusters - k) <= 1
    seconds = []
    for schedule in (replace(sampled, laps=40), bnp.Memoized(laps=100)):
        start = time.process_time()
        result = bnp.train(model, source, schedule=schedule, moves=())
        seconds.append((time.process_time() - start) / result.history[-1]["lap"])
    assert seconds[0] < 2.0 * seconds[1]


def test_everything_that_uses_a_posterior_takes_the_point_estimate(tmp_path, whole):
    kind, result = whole
    draws, data = (
        result.draws,
        documents() if kind == "topics" else bnp.as_source(sequences(), groups=np.arange(0, 241, 30)),
    )
    assert (draws.n_draws, draws.labels.shape) == (3, (2, 3, 40))
    for chain, draw in np.ndindex(2, 3):
        assert draws.summary(chain, draw)["N"].sum() == (1200 if kind == "topics" else 240)
    assert np.isfinite(bnp.score(result.posterior, data))
    bnp.save(result.posterior, tmp_path / "p.zarr")
    again = bnp.load(tmp_path / "p.zarr")
    assert_array_equal(again.ids, result.posterior.ids)
    terms = again.model.elbo(again, again.summary)
    assert np.isfinite(sum(terms.values()))
    assert result.history[-1]["n_clusters"] == draws.n_clusters[0, -1]


def test_weights_of_sequences_are_how_often_they_are_there():
    times = np.repeat([1.0, 0.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0], 30)
    data = bnp.as_source(sequences(), groups=np.arange(0, 241, 30), batch_size=60, weights=times)
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    schedule = bnp.Gibbs(laps=2, thin=1, rows=(0, 30, 60), states=6)
    result = bnp.train(model, data, schedule=schedule, init=bnp.ContiguousBlocks(3))
    assert result.posterior.summary["N"].sum() == times.sum()
    assert result.posterior.summary["start"].sum() == times.sum() / 30
    assert (result.draws.labels[0, 0] >= 0).tolist() == [True, False, True]


def test_a_start_with_more_states_than_the_limit_is_cut_to_its_largest():
    data = bnp.as_source(sequences(), groups=np.arange(0, 241, 30), batch_size=60)
    model = bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())
    schedule = bnp.Gibbs(laps=4, burn_in=0, thin=1, states=3)
    result = bnp.train(model, data, schedule=schedule, init=bnp.ContiguousBlocks(8))
    assert result.draws.n_clusters.max() <= 3
    assert result.posterior.summary["N"].sum() == 240


def test_topics_of_fractions_of_tokens_are_refused():
    with pytest.raises(DataError, match="some counts are fractions"):
        model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(fractional=True))
        bnp.train(model, documents() * 0.5, schedule=GIBBS, init=bnp.RandomExamples(3))
