"""Small sequences and models for tests of hidden Markov models."""

from __future__ import annotations

import numpy as np

from bnp_dask.allocation import HDPHMM, FiniteHMM
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.model import Model
from bnp_dask.observation import DiagGaussian
from tests.chains import naive


def sequences(lengths=(30, 1, 0, 17, 25), k=4, seed=0, weighted=False, spread=3.0):
    """Sticky sequences of points in the plane, as a batch."""
    rng = np.random.default_rng(seed)
    means = rng.normal(scale=spread, size=(k, 2))
    rows = []
    for n in lengths:
        z = rng.integers(k)
        for _ in range(n):
            z = z if rng.random() < 0.8 else rng.integers(k)
            rows.append(means[z] + rng.normal(size=2))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    weights = np.repeat(rng.uniform(0.3, 3.0, len(lengths)), lengths) if weighted else None
    return Batch(np.array(rows).reshape(-1, 2), weights, groups=offsets)


def allocation(kind):
    if kind == "finite":
        return FiniteHMM(alpha=2.0, alpha0=1.5, kappa=0.7)
    return HDPHMM(gamma=3.0, alpha=0.6, alpha0=4.0, kappa=8.0 if kind == "sticky" else 0.0)


KINDS = ("plain", "sticky", "finite")


def model_of(kind, *batches):
    return Model(allocation(kind), DiagGaussian()).with_prior(combine([survey_batch(b) for b in batches]))


def begin(model, batch, seed=1, k=5):
    """Posterior after one local step from random responsibilities, ids 10, 11, ..."""
    rng = np.random.default_rng(seed)
    resp = rng.dirichlet(np.full(k, 0.3), batch.n_atoms)
    posterior = model.global_step(model.summarize(np.arange(k) + 10, batch, resp))
    return model.global_step(model.local_step(posterior, batch))


def chains_of(posterior, batch):
    """q(z) of every sequence that is not empty, by the slow twin."""
    log_lik = posterior.model.observation.expected_log_lik(posterior.observation, batch)
    own, out = posterior.allocation, []
    for first, last in zip(batch.groups[:-1], batch.groups[1:], strict=True):
        if last > first:
            weight = 1.0 if batch.weights is None else batch.weights[first]
            out.append(naive.forward_backward(own.log_start, own.log_trans, log_lik[first:last], weight)[1])
    return out


def allocation_by_hand(model, posterior, chains):
    """The allocation term at the posterior's parameters."""
    own, params = model.allocation, posterior.allocation
    start, trans = naive.counts(chains)
    if isinstance(own, FiniteHMM):
        k = len(start)
        prior0, prior = np.full(k, own.alpha0 / k), np.full((k, k), own.alpha / k) + own.kappa * np.eye(k)
        nothing = np.zeros_like(prior)
        value = naive.transition_term(start, trans, params.theta0, params.theta, prior0, prior)
        return value - naive.transition_term(0 * start, nothing, prior0, prior, prior0, prior)
    prior0, prior = own.concentrations.prior(params.u)
    value = naive.transition_term(start, trans, params.theta0, params.theta, prior0, prior)
    return value + naive.top_term(params.u, params.omega, own.gamma, own.alpha, own.alpha0, own.kappa)


def check_objective(model, summary, chains, batch):
    """All terms of the objective of a summary, at its best parameters, against those of chains written out."""
    after = model.global_step(summary)
    terms = model.elbo(after, summary)
    start, trans = naive.counts(chains)
    np.testing.assert_allclose(summary["M"], trans, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(summary["start"], start, rtol=1e-8, atol=1e-9)
    resp = np.concatenate([c.weight * c.resp for c in chains])
    np.testing.assert_allclose(summary["N"], resp.sum(axis=0), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(terms["entropy"], naive.entropy(chains), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(terms["allocation"], allocation_by_hand(model, after, chains), rtol=1e-9, atol=1e-8)
    log_lik = model.observation.expected_log_lik(after.observation, batch)
    fit = np.vdot(resp, log_lik) - model.observation.kl(after.observation).sum()
    np.testing.assert_allclose(terms["data"], fit, rtol=1e-8)
