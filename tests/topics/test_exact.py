"""Changes of clusters decided from summaries have exactly the objective that they have in the documents."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, Merge, replay
from bnp_dask.structure.base import Trial
from bnp_dask.structure.groups import take_members
from tests.pairwise import in_pairs
from tests.topics import naive
from tests.topics.parts import begin, corpus, fixed, prior_of, tokens_of
from tests.topics.test_document_step import allocation_term, cases, model_for, solved

SWEEPS = 12


@cache
def by_hand(name, kind):
    """A model, data, beliefs, and the documents that plain loops solve by them, with how often each counts.

    Made once for all changes: nothing writes to them.
    """
    batch = cases()[name]
    model = model_for(kind, batch, **fixed())
    posterior = begin(model, batch)
    return model, batch, posterior, *solved(posterior, batch, SWEEPS)


def receivers(model, batch, ids, seed):
    """Beliefs over some clusters, from random responsibilities."""
    rng = np.random.default_rng(seed)
    resp = rng.dirichlet(np.full(len(ids), 0.5), batch.n_atoms)
    return model.global_step(model.summarize(np.array(ids), batch, resp))


def check_terms(model, summary, docs, times, data_by_hand):
    after = model.global_step(summary)
    terms = model.elbo(after, summary)
    assert terms["entropy"] == pytest.approx(naive.entropy(docs, times), rel=1e-8)
    assert terms["allocation"] == pytest.approx(allocation_term(model, after, docs, times), rel=1e-8)
    fit = -model.observation.kl(after.observation).sum()
    for doc, t, log_lik in zip(docs, times, data_by_hand(after), strict=True):
        fit += t * np.sum(doc.weight[:, None] * doc.resp * log_lik)
    assert terms["data"] == pytest.approx(fit, rel=1e-8)


CHANGES = [
    ((12,), (90, 91, 92), ()),
    ((11, 13, 15), (13, 15), ()),
    ((11, 13, 15), (13, 15), (11,)),
    ((10, 11, 12, 14), (14,), (10, 12)),
    ((10, 14), (14, 70), ()),
    ((10, 11, 12, 13, 14, 15), (10, 11, 12, 13, 14, 15, 90, 91), ()),
]
"""Topics that give, topics that take, and topics that are freed."""


@pytest.mark.parametrize(
    *in_pairs(change=CHANGES, name=[n for n in cases() if "points" not in n or n == "points"], kind=["hdp", "lda"])
)
def test_exchange_with_a_trial(name, kind, change):
    """A birth, deletes with an absorbing set, something of both, and a birth that takes from all.

    What groups expect of clusters that are freed is left to clusters to come; LDA has no place for it.
    """
    donors, taking, freed = change
    model, batch, posterior, docs, times = by_hand(name, kind)
    beliefs = receivers(model, batch, taking, seed=4)
    trial = Trial("t", donors, beliefs, freed=freed)
    found = model.visit(posterior, batch, trials=[trial])
    summary = replay(found.summary, [Exchange("t", donors, bool(freed))], found.parts)
    prior, _ = prior_of(posterior)
    given = posterior.positions(np.array(donors))
    left = posterior.positions(np.array(freed, np.int64)) if kind == "hdp" else []
    mass, more = prior[given].sum() - prior[left].sum(), prior[left].sum()
    weights = model.allocation.weights(beliefs.allocation)
    own, theirs = tokens_of(posterior, batch), tokens_of(beliefs, batch)
    assert len(own) == len(theirs) == len(docs)
    where = {int(i): k for k, i in enumerate(posterior.ids)}
    changed = []
    for doc, (log_lik, *_) in zip(docs, theirs, strict=True):
        resp, theta = naive.share_out(doc, given, weights, mass, log_lik, SWEEPS)
        columns, thetas = [], []
        for i in summary.ids:
            j = taking.index(i) if i in taking else None
            columns.append(doc.resp[:, where[i]] if j is None else resp[:, j])
            thetas.append(doc.theta[where[i]] if j is None else theta[j])
        changed.append(replace(doc, resp=np.stack(columns, axis=1), theta=np.array(thetas), rest=doc.rest + more))
    assert_allclose(summary["N"], sum(t * d.count for d, t in zip(changed, times, strict=True)), rtol=1e-8, atol=1e-8)
    check_terms(model, summary, changed, times, lambda p: [log_lik for log_lik, *_ in tokens_of(p, batch)])


@pytest.mark.parametrize("kind", ["hdp", "lda"])
@pytest.mark.parametrize("name", ["weighted documents", "with a document without words", "points"])
def test_merge_of_a_tracked_pair(name, kind):
    model, batch, posterior, docs, times = by_hand(name, kind)
    pairs = np.array([[10, 13], [12, 15]])
    summary = model.local_step(posterior, batch, pairs)
    merged = replay(summary, [Merge(10, 13), Merge(12, 15)])
    changed = []
    for doc in docs:
        resp, theta = doc.resp.copy(), doc.theta.copy()
        for a, b in ((0, 3), (2, 5)):
            resp[:, a] += resp[:, b]
            theta[a] += theta[b]
        stay = [0, 1, 2, 4]
        changed.append(replace(doc, resp=resp[:, stay], theta=theta[stay]))
    check_terms(model, merged, changed, times, lambda p: [log_lik for log_lik, *_ in tokens_of(p, batch)])


@pytest.mark.parametrize("kind", ["hdp", "lda"])
def test_states_follow_the_same_changes(kind):
    batch = Batch(corpus()[0])
    model = model_for(kind, batch, **{**fixed(), "start": "warm"})
    posterior = begin(model, batch)
    trial = Trial("t", (12, 14), receivers(model, batch, (14, 90), seed=4))
    found = model.visit(posterior, batch, trials=[trial])
    own = found.states[""]
    counts = dense(own, posterior.ids)
    assert_allclose(counts.sum(axis=0), found.summary["N"], rtol=1e-6)
    assert_allclose(dense(own.merge(10, 13), posterior.ids)[:, 0], counts[:, 0] + counts[:, 3], rtol=1e-6)
    after = replay(found.summary, [Exchange("t", (12, 14))], found.parts)
    exchanged = own.exchange((12, 14), found.states["t"])
    assert_allclose(dense(exchanged, after.ids).sum(axis=0), after["N"], rtol=1e-5, atol=1e-5)
    assert_allclose(dense(exchanged, after.ids).sum(axis=1), batch.x.sum(axis=1), rtol=1e-5)
    again = type(own).from_arrays(own.to_arrays())
    assert_array_equal(again.cluster, own.cluster)
    assert_array_equal(again.offsets, own.offsets)
    assert_array_equal(own.placed(np.array([11, 10])).cluster[own.cluster == 10], 1)
    assert (own.placed(np.array([11, 10])).cluster[own.cluster > 11] == -1).all()


def dense(states, ids):
    out = np.zeros((states.n_groups, len(ids)))
    for d in range(states.n_groups):
        span = slice(states.offsets[d], states.offsets[d + 1])
        for i, n in zip(states.cluster[span], states.count[span], strict=True):
            if i in ids:
                out[d, list(ids).index(i)] += n
    return out


@pytest.mark.parametrize("name", ["words", "weighted documents", "points", "weighted points"])
def test_parts_of_groups_that_belong_to_a_cluster(name):
    batch = cases()[name]
    model = model_for("hdp", batch, **fixed())
    posterior = begin(model, batch)
    found = model.visit(posterior, batch, sought=(11, 14))
    docs, _ = solved(posterior, batch, SWEEPS)
    for cluster, k in ((11, 1), (14, 4)):
        members = found.shares[cluster]
        counts = np.array([doc.count[k] for doc in docs])
        assert_array_equal(members.groups, np.flatnonzero(counts >= 1.0))
        everyone = take_members(batch, members, np.arange(batch.n_groups))
        assert everyone.n_groups == batch.n_groups
        if batch.is_sparse:
            assert_allclose(everyone.x.sum(axis=1), counts, rtol=1e-8, atol=1e-10)
            weights = np.ones(len(docs)) if everyone.weights is None else everyone.weights
            assert_allclose(weights @ everyone.x.sum(axis=1), found.summary["N"][k])
        else:
            assert everyone.total_weight == pytest.approx(found.summary["N"][k])
        few = model.gather(batch, found, cluster, 5, np.random.default_rng(0))
        assert few.n_groups == min(5, len(members.groups))
        if few.n_groups:
            assert model.local_step(posterior, few)["N"].sum() > 0
