"""Verbs of a model refuse arrays of wrong shapes: compiled loops would read beyond their ends."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.kernels.mixture import RaggedResp, SparseResp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
COUNTS = sparse.csr_array(RNG.poisson(0.5, size=(30, 12)).astype(float))
GROUPS = np.array([0, 20, 40, 60])
BITS = (X > 0.0).astype(float)
SITES = np.column_stack([RNG.integers(0, 3, 60).astype(float), X])

MODELS = {
    "points": (bnp.DPMixture(), bnp.Gaussian(), Batch(X)),
    "categories": (bnp.DPMixture(), bnp.Categorical(), Batch(BITS)),
    "counts": (bnp.DPMixture(), bnp.Multinomial(), Batch(COUNTS)),
    "documents": (bnp.HDPTopics(), bnp.Multinomial(), Batch(COUNTS)),
    "groups": (bnp.HDPTopics(), bnp.Gaussian(), Batch(X, groups=GROUPS)),
    "sequences": (bnp.HDPHMM(), bnp.Gaussian(), Batch(X, groups=GROUPS)),
    "strata": (
        bnp.StrataMixture(),
        bnp.Product({0: bnp.Given(), "1:4": bnp.Gaussian()}),
        Batch(SITES),
    ),
    "trees": (bnp.FiniteHMT(), bnp.Gaussian(), Batch(X[:30], groups=np.array([0, 15, 30]))),
}


def posterior_of(name):
    """A posterior with three clusters, and a batch that fits it."""
    allocation, observation, batch = MODELS[name]
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


@pytest.fixture(scope="module", params=MODELS)
def fitted(request):
    return posterior_of(request.param)


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


@pytest.mark.parametrize("places", [[[0, 99]], [[0, -1]], [[2**40, 0]], [[0, 1, 2]], [0, 1], [[0.0, 1.0]]], ids=str)
def test_unions_are_of_pairs_of_clusters_that_are_there(fitted, places):
    posterior, batch = fitted
    for verb in (posterior.model.assign, posterior.model.steps):
        with pytest.raises(DataError, match="places reach from|pairs of clusters are"):
            verb(posterior, batch, np.array(places))


@pytest.mark.parametrize("index", [99, -99, 2**40, 2**62])
def test_listed_responsibilities_name_clusters_that_are_there(fitted, index):
    posterior, batch = fitted
    n, k = batch.n_atoms, posterior.n_clusters
    listed, ones = np.full(n, index), np.ones(n)
    for resp in (
        SparseResp(listed[:, None], ones[:, None], k),
        RaggedResp(np.arange(n + 1), listed, ones, k),
    ):
        with pytest.raises(DataError, match="index is from"):
            posterior.model.summarize(posterior.ids, batch, resp)


def broken(n, k):
    """Responsibilities of ``n`` atoms in ``k`` clusters, each with one fault."""
    first, ones, offsets = np.zeros(n, np.int64), np.ones(n), np.arange(n + 1)
    yield SparseResp(first[:, None], ones[:3, None], k)
    yield SparseResp(first[:, None], ones, k)
    yield SparseResp(first[:, None].astype(float), ones[:, None], k)
    for wrong in (1000 * offsets, offsets - 1000, offsets + 1, offsets[::-1], offsets.astype(float)):
        yield RaggedResp(wrong, first, ones, k)
    yield RaggedResp(offsets, first[:4], ones, k)
    yield RaggedResp(offsets, first, ones[:4], k)
    for tail in (np.zeros((2, k)), np.zeros((n, 1)), np.full((n, k), np.nan)):
        yield RaggedResp(offsets, first, ones, k, tail.astype(np.float32))
    dense = np.full((n, k), 1.0 / k)
    yield from (np.nan * dense, np.inf * dense, -dense, dense.astype(int), dense.astype(object), dense.astype(str))
    yield from (dense + 1j, sparse.csr_array(dense))


def test_responsibilities_are_sound(fitted):
    posterior, batch = fitted
    for resp in broken(batch.n_atoms, posterior.n_clusters):
        with pytest.raises(DataError, match="resp"):
            posterior.model.summarize(posterior.ids, batch, resp)


def test_all_forms_of_responsibilities_give_the_same(fitted):
    """Also if their arrays are not contiguous."""
    posterior, batch = fitted
    n, k = batch.n_atoms, posterior.n_clusters
    index, value = np.tile([0, k - 1], (n, 1)), np.tile([0.25, 0.75], (n, 1))
    forms = [
        SparseResp(np.asfortranarray(index), np.asfortranarray(value), k),
        RaggedResp(np.arange(0, 2 * n + 1, 2), index.ravel(), value.ravel(), k),
    ]
    wanted = posterior.model.summarize(posterior.ids, batch, forms[0].to_dense()).values
    for resp in [*forms, np.asfortranarray(forms[0].to_dense())]:
        found = posterior.model.summarize(posterior.ids, batch, resp).values
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=name)


def test_ids_are_different_integers(fitted):
    posterior, batch = fitted
    k = posterior.n_clusters
    for ids in (np.zeros(k, np.int64), posterior.ids + 0.5, ["a"] * k, posterior.ids[:, None], [2**70] * k):
        with pytest.raises(DataError, match="different integers"):
            posterior.model.summarize(ids, batch, np.ones((batch.n_atoms, k)))


def test_posteriors_are_of_the_model(fitted):
    posterior, batch = fitted
    model = posterior.model
    others = [bnp.Model(bnp.FiniteMixture(), bnp.Gaussian()), bnp.Model(bnp.DPMixture(), bnp.Poisson())]
    for foreign in (replace(posterior, model=other) for other in others):
        for verb in (model.local_step, model.assign, model.steps, model.labels):
            with pytest.raises(SettingError, match="of another model"):
                verb(foreign, batch)


def test_posteriors_have_the_width_of_the_model():
    posterior, batch = posterior_of("points")
    observation = posterior.model.observation
    wide = replace(observation, center=np.zeros(64), m=np.zeros(64), B=np.eye(64), nu=70.0)
    foreign = replace(posterior, model=replace(posterior.model, observation=wide, reference=None))
    for verb in (posterior.model.local_step, posterior.model.labels):
        with pytest.raises(SettingError, match="of another model: its sizes"):
            verb(foreign, batch)


@pytest.mark.parametrize("weights", [[np.nan], [-1.0], [np.inf], ["1"], [None], [[1.0, 1.0]]], ids=str)
def test_weights_are_numbers(fitted, weights):
    posterior, batch = fitted
    with pytest.raises(DataError, match="weight"):
        posterior.model.local_step(posterior, replace(batch, weights=np.array(weights * batch.n_atoms)))


@pytest.mark.parametrize("name", ["counts", "documents"])
@pytest.mark.parametrize("part, times", [("indices", 1000), ("indices", -1), ("indptr", 1000), ("indptr", -1)])
def test_sparse_rows_are_sound(name, part, times):
    """SciPy takes pointers as they are."""
    posterior, batch = posterior_of(name)
    x = batch.x.copy()
    setattr(x, part, getattr(x, part) * times)
    model, broken = posterior.model, replace(batch, x=x)
    resp = np.ones((batch.n_atoms, posterior.n_clusters))
    for verb in (model.local_step, model.assign, model.labels):
        with pytest.raises(DataError, match="sparse matrix"):
            verb(posterior, broken)
    with pytest.raises(DataError, match="sparse matrix"):
        model.summarize(posterior.ids, broken, resp)


@pytest.mark.parametrize("ids", [[999], [-1], [0.5], [np.nan], ["a"], [2**70], None, True], ids=str)
def test_positions_are_of_ids_that_are_there(ids):
    posterior, batch = posterior_of("points")
    with pytest.raises(SettingError, match="no cluster has the id"):
        posterior.positions(ids)
    if isinstance(ids, list):
        with pytest.raises((SettingError, DataError), match="no cluster has the id|integers"):
            posterior.model.visit(posterior, batch, sought=ids)
