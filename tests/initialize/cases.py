"""Data in memory, and one model with fitting data for every observation model."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
from scipy import sparse

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import combine, survey_batch
from bnp_dask.execute.serial import SerialExecutor
from bnp_dask.initialize import InitContext
from bnp_dask.model import Model
from bnp_dask.observation.bernoulli import Bernoulli
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.multinomial import Multinomial
from bnp_dask.observation.poisson import Poisson
from bnp_dask.observation.product import Product
from bnp_dask.observation.zero_mean_gaussian import ZeroMeanGaussian
from tests.batches import Batches


class Travelling:
    """Runs a task at once, on copies of function and arguments that went through pickle, as on another machine."""

    n_workers = 4

    def share(self, name, value):
        return value

    def submit(self, name, function, *args):
        function, args = pickle.loads(pickle.dumps((function, args)))
        return pickle.loads(pickle.dumps(function(*args)))

    def result(self, handle):
        return handle

    def close(self):
        pass


def cut(batch: Batch, n_batches: int) -> Batches:
    """The atoms in nearly equal batches."""
    edges = np.linspace(0, batch.n_atoms, n_batches + 1).astype(int)
    return Batches(tuple(batch.rows(a, b) for a, b in pairwise(edges)))


def context(model, source: Batches, seed: int = 0, executor=None) -> InitContext:
    """A context whose model has its priors set from the source."""
    survey = combine([survey_batch(b) for b in source.batches])
    executor = SerialExecutor(retries=0) if executor is None else executor
    return InitContext(model.with_prior(survey), source, survey, executor, np.random.default_rng(seed))


def mixture(observation) -> Model:
    return Model(DPMixture(gamma=2.0), observation)


def blobs(seed: int, n_clusters: int = 8, n: int = 400, d: int = 4, spread: float = 8.0):
    """Well separated Gaussian blobs of equal size, rows shuffled: atoms (n, d) and their labels."""
    rng = np.random.default_rng(seed)
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * d)).reshape(d, -1).T
    centres = spread * rng.permutation(corners)[:n_clusters]
    labels = rng.permutation(np.arange(n) % n_clusters)
    return centres[labels] + rng.normal(size=(n, d)), labels


def _observations():
    rng = np.random.default_rng(7)
    real, labels = blobs(3, 4, 240, 3)
    topics = rng.dirichlet(np.full(12, 0.1), 4) + 1e-3
    counts = np.array([rng.multinomial(30 + rng.integers(30), topics[k] / topics[k].sum()) for k in labels])
    bits = (rng.random((240, 6)) < np.array([0.1, 0.9])[rng.integers(0, 2, (4, 6))][labels]).astype(float)
    rates = rng.poisson(rng.gamma(0.5, 20.0, (4, 5))[labels]).astype(float)
    scales = np.exp(rng.normal(0, 1.5, (4, 3)))
    zero_mean = rng.normal(size=(240, 3)) * scales[labels]
    return {
        "DiagGaussian": (DiagGaussian(), Batch(real)),
        "FixedVarianceGaussian": (FixedVarianceGaussian(), Batch(real)),
        "Gaussian": (Gaussian(), Batch(real)),
        "ZeroMeanGaussian": (ZeroMeanGaussian(), Batch(zero_mean)),
        "Bernoulli": (Bernoulli(), Batch(bits)),
        "Multinomial": (Multinomial(), Batch(sparse.csr_array(counts.astype(float)))),
        "Poisson": (Poisson(), Batch(rates)),
        "Product": (
            Product({"0:3": DiagGaussian(), "3:8": Poisson(), "8:14": Bernoulli()}),
            Batch(np.concatenate([real, rates, bits], axis=1)),
        ),
    }


OBSERVATIONS = _observations()
