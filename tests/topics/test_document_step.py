"""The document step against its slow twin, and the sums it leaves behind."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from bnp_dask.allocation import DocumentStep
from bnp_dask.allocation.document_step import document_step
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, GroupStates, replay
from bnp_dask.errors import DataError, SettingError
from bnp_dask.model import Model
from bnp_dask.observation import Multinomial, Poisson
from bnp_dask.structure.base import Trial
from bnp_dask.structure.tokens import lay_out
from tests.pairwise import in_pairs
from tests.topics import naive
from tests.topics.parts import K, begin, corpus, fixed, point_model, points, prior_of, tokens_of, word_model

NO_PAIRS = np.zeros((0, 2), np.int64)


def cases():
    rng = np.random.default_rng(5)
    counts, _ = corpus()
    empty = sparse.csr_array(sparse.vstack([counts, sparse.csr_array((1, counts.shape[1])), counts[:3]]))
    cloud = points()
    return {
        "words": Batch(counts),
        "weighted documents": Batch(counts, rng.uniform(0.2, 3.0, counts.shape[0])),
        "with a document without words": Batch(empty),
        "points": cloud,
        "weighted points": replace(cloud, weights=rng.uniform(0.2, 3.0, cloud.n_atoms)),
    }


def model_for(kind, batch, **step):
    return word_model(kind, **step) if batch.is_sparse else point_model(kind, batch, **step)


def solved(posterior, batch, sweeps, **rules):
    prior, rest = prior_of(posterior)
    tokens = tokens_of(posterior, batch)
    docs = [naive.document(log_lik, weight, prior, rest, sweeps, **rules) for log_lik, weight, _ in tokens]
    return docs, [times for *_, times in tokens]


def allocation_term(model, posterior, docs, times):
    prior, rest = prior_of(posterior)
    value = naive.document_term(docs, times, prior, rest)
    groups = sum(times)
    if rest == 0.0:
        return value + groups * naive.cumulant(prior)
    params, own = posterior.allocation, model.allocation
    return value + naive.top_term(params.u, params.omega, own.gamma, own.alpha, groups)


@pytest.mark.parametrize(*in_pairs(name=cases(), kind=["hdp", "lda"], shrink=[True, False]))
def test_summary_and_objective_against_the_slow_twin(name, kind, shrink):
    batch = cases()[name]
    model = model_for(kind, batch, **fixed(shrink=shrink))
    posterior = begin(model, batch)
    pairs = posterior.ids[np.array([[0, 1], [4, 2], [0, 5]])]
    summary = model.local_step(posterior, batch, pairs)
    docs, times = solved(posterior, batch, 12)
    assert_allclose(summary["N"], sum(t * d.count for d, t in zip(docs, times, strict=True)), rtol=1e-9, atol=1e-9)
    assert summary["docs"] == pytest.approx(sum(times))
    # at the parameters of the local step, and at the next, where theta is no longer optimal
    for used in (posterior, model.global_step(summary)):
        terms = model.allocation.elbo(used.allocation, summary)
        assert terms["entropy"] == pytest.approx(naive.entropy(docs, times), rel=1e-8)
        assert terms["allocation"] == pytest.approx(allocation_term(model, used, docs, times), rel=1e-9)
    prior, _ = prior_of(posterior)
    for m, (a, b) in enumerate(posterior.positions(pairs)):
        expected = naive.pair_values(docs, times, a, b, prior)
        found = [summary.pair_values[name][m] for name in ("P", "Q", "H")]
        assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    *in_pairs(
        name=["words", "weighted documents", "weighted points"],
        kind=["hdp", "lda"],
        top=[1, 2, 4],
        shrink=[True, False],
    )
)
def test_topics_of_each_token_are_chosen_at_every_sweep(name, kind, top, shrink):
    batch = cases()[name]
    model = model_for(kind, batch, **fixed(top=top, shrink=shrink))
    posterior = begin(model, batch)
    summary = model.local_step(posterior, batch)
    docs, times = solved(posterior, batch, 12, top=top, active=shrink)
    assert_allclose(summary["N"], sum(t * d.count for d, t in zip(docs, times, strict=True)), rtol=1e-9, atol=1e-9)
    terms = model.allocation.elbo(posterior.allocation, summary)
    assert terms["entropy"] == pytest.approx(naive.entropy(docs, times), rel=1e-8, abs=1e-9)
    assert terms["allocation"] == pytest.approx(allocation_term(model, posterior, docs, times), rel=1e-9)


@pytest.mark.parametrize("start", ["best", "warm"])
def test_documents_of_few_topics_a_token_end_where_nothing_can_be_gained(start):
    """Neither other topics of a token nor other shares of a document raise its objective, which never falls."""
    batch, laid, log_phi, prior = wide(k=30)
    step = DocumentStep(start, top=2, tolerance=1e-10, sweeps=2000, restarts=0)
    found, values = run(step, laid, log_phi, prior), []
    for shift in (0.0, 0.3, 0.6):
        moved = log_phi + shift * np.random.default_rng(3).normal(size=log_phi.shape)
        before = documents_of(found, batch, moved, laid, prior, sweeps=0)
        found = run(step, laid, moved, prior, found.states)
        values.append((before, documents_of(found, batch, moved, laid, prior, sweeps=0)))
        assert documents_of(found, batch, moved, laid, prior, sweeps=5) == pytest.approx(values[-1][1], abs=1e-7)
    assert all(after >= before - 1e-9 for before, after in values)


def documents_of(found, batch, log_phi, laid, prior, sweeps):
    """Objective of all documents when each token takes its best two topics by the stored counts, and climbs on."""
    value, states = 0.0, found.states
    for d in range(batch.n_atoms):
        rows = slice(laid.tokens.offsets[d], laid.tokens.offsets[d + 1])
        log_lik, weight = log_phi[laid.tokens.row[rows]], laid.tokens.weight[rows]
        count, span = np.zeros(len(prior)), slice(states.offsets[d], states.offsets[d + 1])
        count[states.cluster[span]] = states.count[span]
        resp, count = naive.climb(log_lik, weight, prior, count, sweeps + 1, 2)
        value += naive.own_objective(log_lik, weight, prior, resp, count)
    return value


@pytest.mark.parametrize("kind", ["hdp", "lda"])
def test_statistics_of_the_likelihood_are_those_of_the_tokens(kind):
    batch = cases()["weighted documents"]
    model = word_model(kind, **fixed())
    posterior = begin(model, batch)
    summary = model.local_step(posterior, batch)
    docs, times = solved(posterior, batch, 12)
    expected = np.zeros((K, batch.n_features))
    for d, (doc, t) in enumerate(zip(docs, times, strict=True)):
        words = batch.x.indices[batch.x.indptr[d] : batch.x.indptr[d + 1]]
        np.add.at(expected.T, words, t * doc.weight[:, None] * doc.resp)
    assert_allclose(summary["x"], expected, rtol=1e-9, atol=1e-9)
    assert_allclose(summary["N"], summary["x"].sum(axis=1))
    assert summary["log_base"] == 0.0


def test_a_point_cloud_is_cut_between_groups_only():
    batch = points(400, seed=2)
    model = point_model("hdp", batch, **fixed())
    posterior = begin(model, batch)
    tiles = list(model.allocation.tiles(batch, 2000))
    assert len(tiles) > 3
    assert np.concatenate([np.diff(t.groups) for t in tiles]).tolist() == np.diff(batch.groups).tolist()
    whole = model.local_step(posterior, batch)
    halves = [batch.take_groups(np.arange(0, 150)), batch.take_groups(np.arange(150, 400))]
    parts = [model.local_step(posterior, half) for half in halves]
    for name, value in whole.values.items():
        assert_allclose(parts[0][name] + parts[1][name], value, rtol=1e-10, atol=1e-10)


# -- what the settings do ---------------------------------------------------------------------------------------
def wide(k=120, n_docs=40, seed=0):
    """Documents of few among many topics, with a small prior on each."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(500, 0.05), k)
    rows = [rng.multinomial(150, rng.dirichlet(np.ones(6)) @ phi[rng.choice(k, 6)]) for _ in range(n_docs)]
    batch = Batch(sparse.csr_array(np.array(rows, np.float64)))
    laid = lay_out(batch)
    log_phi = np.log(phi + 1e-4).T[laid.words]
    prior = rng.dirichlet(np.full(k, 2.0)) * 0.5
    return batch, laid, log_phi, prior


def run(step, laid, log_phi, prior, states=None):
    everything = np.ones((1, len(prior)), bool)
    return document_step(step, prior, 0.01, laid.tokens, log_phi.copy(), NO_PAIRS, everything, states)


def proportions(found, n_docs, prior):
    dense = np.tile(prior, (n_docs, 1))
    states = found.states
    for d in range(n_docs):
        span = slice(states.offsets[d], states.offsets[d + 1])
        dense[d, states.cluster[span]] += states.count[span]
    return dense / dense.sum(axis=1, keepdims=True)


def test_shrinking_gives_the_dense_answer():
    batch, laid, log_phi, prior = wide()
    found = {
        s: run(DocumentStep("best", tolerance=1e-4, restarts=0, shrink=s), laid, log_phi, prior) for s in (True, False)
    }
    small, dense = (proportions(found[s], batch.n_atoms, prior) for s in (True, False))
    assert 0.5 * np.abs(small - dense).sum(axis=1).max() < 1e-6
    for name, value in found[False].values.items():
        assert_allclose(found[True].values[name], value, rtol=1e-6, atol=1e-6)
    assert len(found[True].states.count) < 0.3 * batch.n_atoms * len(prior)


def test_top_keeps_that_many_topics_per_token_and_all_of_its_mass():
    _, laid, log_phi, prior = wide()
    one = run(DocumentStep("cold", top=1), laid, log_phi, prior)
    assert one.values["H"].sum() == pytest.approx(0.0, abs=1e-9)
    some = run(DocumentStep("cold", top=3), laid, log_phi, prior)
    full = run(DocumentStep("cold"), laid, log_phi, prior)
    assert np.count_nonzero(some.sums) < np.count_nonzero(full.sums)
    for step in (one, some, full):
        assert_allclose(step.mass[:, 0], laid.tokens.weight, rtol=1e-12)


def test_each_start_and_restart_is_at_least_as_good_as_less_work():
    batch, laid, log_phi, prior = wide(seed=3)
    settings = {
        "cold": DocumentStep("cold", restarts=0), "best": DocumentStep("best", restarts=0),
        "warm": DocumentStep("warm", restarts=0),
        "restarts": DocumentStep("best", restarts=5),
    }  # fmt: skip
    before = run(DocumentStep("best", sweeps=5), laid, np.roll(log_phi, 1, axis=0), prior).states

    def value(step, states):
        sums = [0.0]
        for d in range(batch.n_atoms):
            one = lay_out(batch.rows(d, d + 1))
            table = log_phi[np.searchsorted(laid.words, one.words)]
            own = states.groups(d, d + 1)
            none = np.zeros((0, len(prior)), bool)
            found = document_step(step, prior, 0.01, one.tokens, table.copy(), NO_PAIRS, none, own)
            scaled = table - table.max(axis=1, keepdims=True)
            values = found.values
            sums.append(np.sum(found.sums * scaled) + values["H"].sum() + values["Q"].sum() + prior @ values["P"])
        return np.array(sums[1:])

    cold, best, warm, more = (value(settings[n], before) for n in ("cold", "best", "warm", "restarts"))
    assert_allclose(best, np.maximum(cold, warm), rtol=1e-12)
    assert (more >= best - 1e-9 * np.abs(best)).all()
    assert more.sum() > best.sum()


@pytest.mark.parametrize("start", ["cold", "best"])
def test_a_document_has_the_same_bits_among_others_and_on_its_own(start):
    batch, laid, log_phi, prior = wide()
    step = DocumentStep("best", restarts=2)
    before = run(DocumentStep("best", sweeps=3), laid, np.roll(log_phi, 1, axis=0), prior).states
    before = None if start == "cold" else before
    whole = run(step, laid, log_phi, prior, before).states
    for d in (0, 7, batch.n_atoms - 1):
        one = lay_out(batch.rows(d, d + 1))
        table = log_phi[np.searchsorted(laid.words, one.words)]
        alone = run(step, one, table, prior, None if before is None else before.groups(d, d + 1)).states
        np.testing.assert_array_equal(alone.cluster, whole.groups(d, d + 1).cluster)
        np.testing.assert_array_equal(alone.count, whole.groups(d, d + 1).count)


def test_scratch_of_an_earlier_step_leaves_no_trace():
    batch, laid, log_phi, prior = wide()
    few = lay_out(batch.rows(0, 5))
    table = log_phi[np.searchsorted(laid.words, few.words)]
    first = run(DocumentStep("cold"), few, table, prior)
    run(DocumentStep("cold"), laid, log_phi, prior)  # a larger table in its place
    again = run(DocumentStep("cold"), few, table, prior)
    np.testing.assert_array_equal(again.sums, first.sums)
    for name, value in first.values.items():
        np.testing.assert_array_equal(again.values[name], value)


def test_settings_are_checked():
    for wrong in ({"start": "hot"}, {"sweeps": 0}, {"top": 0}, {"restarts": -1}, {"tolerance": np.nan}):
        with pytest.raises(SettingError):
            DocumentStep(**wrong)


def test_topic_models_say_what_they_need():
    cloud = points()
    model = point_model("hdp", cloud, **fixed())
    posterior = begin(model, cloud)
    with pytest.raises(DataError, match="groups"):
        model.local_step(posterior, replace(cloud, groups=None))
    with pytest.raises(DataError, match="offsets"):
        replace(cloud, groups=np.array([0, 3], np.int64))
    with pytest.raises(SettingError, match="posterior"):
        Model(model.allocation, model.observation, estimate="map")
    counts = Batch(corpus()[0])
    wrong = Model(model.allocation, Poisson(a=1.0, b=1.0))
    with pytest.raises(SettingError, match="Multinomial"):
        wrong.summarize(np.arange(2), counts, np.full((counts.n_atoms, 2), 0.5))


def test_states_of_all_topics_in_another_order():
    """Clusters are reordered between visits: a document that holds all of them starts from its own counts."""
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.full(9, 0.3), 4).T
    counts = sparse.csr_array(rng.poisson(2.0, size=(5, 9)).astype(np.float64))
    model = word_model("hdp", start="warm", restarts=0, sweeps=30)
    model = replace(model, observation=Multinomial(lam=np.full(9, 0.1)))
    summary = model.empty_summary(np.arange(4))
    summary.values["x"][:] = 40.0 * table.T
    summary.values["N"][:] = 40.0
    posterior, batch = model.global_step(summary), Batch(counts)
    states = model.visit(posterior, batch).states[""]
    everywhere = GroupStates(
        np.arange(0, 21, 4),
        np.tile([3, 1, 0, 2], 5),
        np.maximum(dense_states(states, 4)[:, [3, 1, 0, 2]], 1e-3).ravel(),
    )
    again = model.visit(posterior, batch, states=everywhere).summary
    naive = model.visit(posterior, batch, states=GroupStates(
        np.arange(0, 21, 4), np.tile(np.arange(4), 5), np.maximum(dense_states(states, 4), 1e-3).ravel()
    )).summary  # fmt: skip
    np.testing.assert_allclose(again["N"], naive["N"], rtol=1e-9)
    np.testing.assert_allclose(again["H"], naive["H"], rtol=1e-9)


def dense_states(states, k):
    out = np.zeros((states.n_groups, k), np.float32)
    for d in range(states.n_groups):
        here = slice(states.offsets[d], states.offsets[d + 1])
        out[d, states.cluster[here]] = states.count[here]
    return out


@pytest.mark.parametrize("top", [1, 2, None])
def test_a_trial_gives_a_token_no_more_topics_than_it_may_have(top):
    """Each receiver of a token that was one topic's stands for one topic more."""
    batch = Batch(corpus(1, length=300)[0])
    model = word_model("hdp", **fixed(top=top))
    posterior = begin(model, batch)
    rng = np.random.default_rng(0)
    beliefs = model.global_step(model.summarize(np.array([90, 91, 92]), batch, rng.dirichlet(np.ones(3), 1)))
    beliefs = replace(beliefs, observation=replace(beliefs.observation, lam=rng.gamma(1.0, 1.0, (3, batch.n_features))))
    donors = (10, 11, 12, 13)
    found = model.visit(posterior, batch, trials=[Trial("t", donors, beliefs)])
    shared = (found.parts["t"]["x"] > 0).sum(axis=0)
    own = (found.summary["x"] > 0).sum(axis=0)
    if top is None:
        assert shared.max() > 1
    else:
        assert own.max() == min(top, len(posterior.ids)) and shared.max() == 1
        after = replay(found.summary, [Exchange("t", donors)], found.parts)
        assert (after["x"] > 0).sum(axis=0).max() <= top
