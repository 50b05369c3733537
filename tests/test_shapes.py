"""Verbs of a model refuse arrays of wrong shapes: compiled loops would read beyond their ends."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core import Batch
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
COUNTS = sparse.csr_array(RNG.poisson(0.5, size=(30, 12)).astype(float))
GROUPS = np.array([0, 20, 40, 60])
BITS = (X > 0.0).astype(float)

MODELS = {
    "points": (bnp.DPMixture(), bnp.Gaussian(), Batch(X)),
    "categories": (bnp.DPMixture(), bnp.Categorical(), Batch(BITS)),
    "counts": (bnp.DPMixture(), bnp.Multinomial(), Batch(COUNTS)),
    "documents": (bnp.HDPTopics(), bnp.Multinomial(), Batch(COUNTS)),
    "groups": (bnp.HDPTopics(), bnp.Gaussian(), Batch(X, groups=GROUPS)),
    "sequences": (bnp.HDPHMM(), bnp.Gaussian(), Batch(X, groups=GROUPS)),
}


@pytest.fixture(params=MODELS)
def fitted(request):
    """A posterior with three clusters, and a batch that fits it."""
    allocation, observation, batch = MODELS[request.param]
    with pytest.warns(bnp.ConvergenceWarning):
        result = bnp.train(
            bnp.Model(allocation, observation),
            bnp.as_source(batch.x, groups=batch.groups),
            schedule=bnp.Memoized(laps=2),
            init=bnp.RandomExamples(3),
            moves=(),
            client=SerialExecutor(),
            rng=0,
        )
    return result.posterior, batch


def test_responsibilities_are_of_the_atoms_and_clusters(fitted):
    posterior, batch = fitted
    n, k = batch.n_atoms, posterior.n_clusters
    for shape in ((n // 3, k), (3 * n, k), (n, k - 1), (n, 5 * k), (n,)):
        with pytest.raises(DataError, match=r"resp has shape .*needs \("):
            posterior.model.summarize(posterior.ids, batch, np.ones(shape))


@pytest.mark.parametrize("times", [0.34, 30])
def test_batches_have_the_columns_of_the_model(fitted, times):
    posterior, batch = fitted
    model, width = posterior.model, max(1, round(times * batch.n_features))
    x = np.ones((batch.n_atoms, width))
    other = replace(batch, x=sparse.csr_array(x) if batch.is_sparse else x)
    resp = np.ones((batch.n_atoms, posterior.n_clusters))
    for verb in (model.local_step, model.assign, model.steps, model.labels):
        with pytest.raises(DataError, match="columns|words|features"):
            verb(posterior, other)
    with pytest.raises(DataError, match="columns|words|features"):
        model.summarize(posterior.ids, other, resp)


def test_weights_are_one_a_row():
    with pytest.raises(DataError, match=r"weights have shape \(2,\); needs one per atom, \(60,\)"):
        Batch(X, np.ones(2))
