"""Posteriors of every likelihood on small data."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bnp_dask.allocation import DPMixture
from bnp_dask.core.batch import Batch
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import (
    Bernoulli,
    DiagGaussian,
    FixedVarianceGaussian,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
    ZeroMeanGaussian,
)
from bnp_dask.testing import survey_of

OBSERVATIONS = {
    "gaussian": Gaussian(),
    "zero_mean": ZeroMeanGaussian(),
    "diag": DiagGaussian(),
    "fixed": FixedVarianceGaussian(),
    "bernoulli": Bernoulli(),
    "multinomial": Multinomial(),
    "poisson": Poisson(),
    "product": Product({"0:2": Gaussian(), "2:4": Poisson()}),
}


def atoms(kind: str, n: int = 60, seed: int = 0) -> np.ndarray | sparse.csr_array:
    """Atoms of four features in three clumps, ``(n, 4)``."""
    rng = np.random.default_rng(seed)
    which = np.arange(n) % 3
    if kind == "bernoulli":
        return (rng.random((n, 4)) < np.array([[0.1] * 4, [0.5] * 4, [0.9] * 4])[which]).astype(float)
    if kind in ("multinomial", "poisson"):
        counts = rng.poisson(np.array([[9, 1, 1, 1], [1, 9, 1, 1], [1, 1, 9, 9.0]])[which]) + 1.0
        return sparse.csr_array(counts) if kind == "multinomial" else counts
    dense = rng.normal(size=(n, 4)) + 3.0 * which[:, None]
    if kind == "product":
        dense[:, 2:] = rng.poisson(1.0 + 3.0 * which[:, None], size=(n, 2))
    return dense


def fitted(kind: str, allocation=None, estimate: str = "posterior", n_clusters: int = 3, seed: int = 0) -> Posterior:
    """A posterior with soft clusters of uneven size; ids are not positions."""
    batch = Batch(atoms(kind, seed=seed))
    model = Model(DPMixture(gamma=2.0) if allocation is None else allocation, OBSERVATIONS[kind], estimate)
    model = model.with_prior(survey_of(batch))
    rng = np.random.default_rng(seed + 1)
    resp = rng.dirichlet(np.full(n_clusters, 0.2), size=batch.n_atoms)
    right = np.eye(n_clusters)[np.arange(batch.n_atoms) % 3 % n_clusters]
    ids = np.array([7, 3, 11, 5, 2][:n_clusters])
    posterior = model.global_step(model.summarize(ids, batch, 0.15 * resp + 0.85 * right))
    return model.global_step(model.local_step(posterior, batch))
