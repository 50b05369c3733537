"""Few atoms under every likelihood, for tests against enumeration."""

from __future__ import annotations

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.model import Model
from bnp_dask.testing import survey_of


def points(n: int, seed: int = 0) -> Batch:
    """Points in the plane about three places, far apart enough for some partitions to matter and not for one alone."""
    rng = np.random.default_rng(seed)
    centers = np.array([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]])
    return Batch(centers[rng.integers(3, size=n)] + rng.normal(size=(n, 2)), None, "points")


def documents(n: int, seed: int = 0) -> Batch:
    """Documents of some ten words out of six."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(6, 0.5), size=3)
    x = np.array([rng.multinomial(10, topics[rng.integers(3)]) for _ in range(n)], float)
    return Batch(sparse.csr_array(x), None, "documents")


def bits(n: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    chance = rng.beta(0.5, 0.5, size=(3, 6))
    return Batch((rng.random((n, 6)) < chance[rng.integers(3, size=n)]).astype(float), None, "bits")


def counts(n: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    rate = rng.gamma(1.0, 3.0, size=(3, 3))
    return Batch(rng.poisson(rate[rng.integers(3, size=n)]).astype(float), None, "counts")


def levels(n: int, seed: int = 0) -> Batch:
    """Four columns of three levels each."""
    rng = np.random.default_rng(seed)
    edges = np.cumsum(rng.dirichlet(np.full(3, 0.5), size=(3, 4)), axis=2)[rng.integers(3, size=n)]
    return Batch((rng.random((n, 4, 1)) > edges[:, :, :2]).sum(axis=2).astype(float), None, "levels")


def steps(n: int, seed: int = 0) -> Batch:
    """Steps of a path in the plane with those before them."""
    path = np.cumsum(np.random.default_rng(seed).normal(size=(n + 1, 2)), axis=0)
    return Batch(np.concatenate([path[1:], path[:-1]], axis=1), None, "steps")


def units(n: int, seed: int = 0) -> Batch:
    """Vectors of length one."""
    x = points(n, seed).x
    return Batch(x / np.linalg.norm(x, axis=1, keepdims=True), None, "units")


LIKELIHOODS = {
    "AutoRegressiveGaussian": (bnp.AutoRegressiveGaussian(), steps),
    "Gaussian": (bnp.Gaussian(), points),
    "ZeroMeanGaussian": (bnp.ZeroMeanGaussian(), points),
    "DiagGaussian": (bnp.DiagGaussian(), points),
    "FixedVarianceGaussian": (bnp.FixedVarianceGaussian(variance=1.0), points),
    "Bernoulli": (bnp.Bernoulli(), bits),
    "Categorical": (bnp.Categorical(), levels),
    "Multinomial": (bnp.Multinomial(0.5), documents),
    "NegativeBinomial": (bnp.NegativeBinomial(), counts),
    "Poisson": (bnp.Poisson(), counts),
    "SemiConjugateGaussian": (bnp.SemiConjugateGaussian(), points),
    "VonMisesFisher": (bnp.VonMisesFisher(), units),
    "Product": (bnp.Product({(0,): bnp.Poisson(), (1, 2): bnp.DiagGaussian()}), counts),
}


def case(likelihood: str, allocation: object, n: int, seed: int = 0) -> tuple[Model, Batch]:
    """A model with its prior set from twenty atoms, and the first of these."""
    observation, draw = LIKELIHOODS[likelihood]
    whole = draw(20, seed)
    return Model(allocation, observation).with_prior(survey_of(whole)), whole.rows(0, n)
