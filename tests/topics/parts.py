"""Small corpora and models for tests of topic models."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bnp_dask.allocation import LDA, DocumentStep, HDPTopics
from bnp_dask.allocation.hdp_topics import TopicSticks
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import DiagGaussian, Multinomial

K = 6
V = 40


def corpus(n_docs=60, seed=0, n_topics=5, length=60):
    """Documents of 1-3 topics, ``(D, V)`` csr, and the topics."""
    rng = np.random.default_rng(seed)
    phi = rng.dirichlet(np.full(V, 0.08), n_topics)
    rows = []
    for _ in range(n_docs):
        used = rng.choice(n_topics, rng.integers(1, 4), replace=False)
        rows.append(rng.multinomial(length, rng.dirichlet(np.ones(len(used))) @ phi[used]))
    return sparse.csr_array(np.array(rows, np.float64)), phi


def points(n_groups=30, seed=0, k=4):
    """Grouped points in the plane: a batch."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=8, size=(k, 2))
    parts = []
    for _ in range(n_groups):
        z = rng.choice(rng.choice(k, 2, replace=False), rng.integers(5, 30))
        parts.append(means[z] + rng.normal(size=(len(z), 2)))
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])]).astype(np.int64)
    return Batch(np.concatenate(parts), groups=offsets)


def allocation(kind, **step):
    made = DocumentStep(**step)
    return LDA(0.9, made) if kind == "lda" else HDPTopics(4.0, 0.6, made)


def fixed(**more):
    """Settings that do a fixed number of updates from scratch, as the slow twins do."""
    return {"start": "cold", "sweeps": 12, "tolerance": -1.0, "restarts": 0, **more}


def word_model(kind, **step):
    return Model(allocation(kind, **step), Multinomial(lam=np.full(V, 0.1)))


def point_model(kind, *batches, **step):
    model = Model(allocation(kind, **step), DiagGaussian())
    return model.with_prior(combine([survey_batch(b) for b in batches]))


def begin(model, batch, seed=1, k=K):
    """Posterior from random responsibilities, with uneven sticks where there are any."""
    rng = np.random.default_rng(seed)
    resp = rng.dirichlet(np.full(k, 0.3), batch.n_atoms)
    summary = model.summarize(np.arange(k) + 10, batch, resp)
    posterior = model.global_step(summary)
    if isinstance(model.allocation, HDPTopics):
        params = TopicSticks.of(rng.uniform(0.2, 0.5, k), np.full(k, 50.0))
        posterior = Posterior(model, posterior.ids, params, posterior.observation, summary)
    return posterior


def prior_of(posterior):
    """``alpha pi`` and ``alpha pi_{>K}``."""
    alpha, params = posterior.model.allocation.alpha, posterior.allocation
    return alpha * params.pi, alpha * getattr(params, "rest", 0.0)


def tokens_of(posterior, batch):
    """For each group its log likelihoods ``(n, K)``, weights ``(n,)``, and how often the group counts."""
    params = posterior.observation
    out = []
    if batch.is_sparse:
        table = posterior.model.observation.token_log_lik(params, np.arange(batch.n_features))
        for d in range(batch.n_atoms):
            span = slice(batch.x.indptr[d], batch.x.indptr[d + 1])
            times = 1.0 if batch.weights is None else batch.weights[d]
            out.append((table[batch.x.indices[span]], batch.x.data[span], times))
        return out
    log_lik = posterior.model.observation.expected_log_lik(params, batch)
    weights = np.ones(batch.n_atoms) if batch.weights is None else batch.weights
    for first, last in zip(batch.groups[:-1], batch.groups[1:], strict=True):
        out.append((log_lik[first:last], weights[first:last], 1.0))
    return out
