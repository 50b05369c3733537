"""Tests that every allocation model has to pass."""

from __future__ import annotations

import pickle
from typing import Protocol

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, xlogy

from bnp_dask.allocation.base import Allocation, Params, PointAllocation
from bnp_dask.core import Batch, Field, Summary
from bnp_dask.kernels.mixture.resp import cluster_sums
from bnp_dask.structure import LocalStep, MixtureAllocation
from bnp_dask.testing.parts import (
    NO_PAIRS,
    assert_stationary_maximum,
    random_resp,
    to_dense,
)


class Mixture(Allocation, MixtureAllocation, Protocol):
    """Allocation model of independent atoms, with the methods of its local step."""


class AllocationSuite:
    """Tests of one allocation model of independent atoms.  Subclass as ``TestSomething``, give :meth:`model`."""

    n_atoms = 50
    n_clusters = 5

    def model(self, top: int | None = None) -> Mixture:
        """The model, keeping ``top`` clusters per atom."""
        raise NotImplementedError

    # -- helpers ----------------------------------------------------------------------------------------------
    def summary(self, model: Allocation, step: LocalStep, pairs: np.ndarray = NO_PAIRS) -> Summary:
        """Summary with the fields of the allocation model and N only; cluster ids are positions."""
        values = {"N": cluster_sums(step.resp), **step.values}
        fields = {"N": Field(("cluster",)), **model.fields}
        return Summary(np.arange(len(values["N"])), fields, values, pairs, step.pair_values if len(pairs) else {})

    def counts(self, model: Allocation, n: np.ndarray) -> Summary:
        """Summary of atoms assigned with certainty, ``n (K,)`` to each cluster."""
        shapes = {name: (len(n),) * field.n_cluster_axes for name, field in model.fields.items()}
        values = {"N": np.asarray(n, np.float64), **{name: np.zeros(shape) for name, shape in shapes.items()}}
        return Summary(np.arange(len(n)), {"N": Field(("cluster",)), **model.fields}, values)

    def stepped(
        self, top: int | None, weighted: bool, pairs: np.ndarray = NO_PAIRS
    ) -> tuple[Mixture, Params, np.ndarray, np.ndarray, LocalStep]:
        """Model, parameters, log likelihoods, weights and the local step on them."""
        rng = np.random.default_rng(3)
        model = self.model(top)
        params = model.global_step(self.counts(model, rng.gamma(1.0, 20.0, self.n_clusters)))
        log_lik = rng.normal(0.0, 2.0, (self.n_atoms, self.n_clusters)) - 1e3
        weights = rng.gamma(1.0, 1.0, self.n_atoms) if weighted else None
        batch = Batch(np.zeros((self.n_atoms, 1)), weights)
        step = model.local_step(params, log_lik.copy(), batch, pairs)
        return model, params, log_lik, np.ones(self.n_atoms) if weights is None else weights, step

    # -- the local step ---------------------------------------------------------------------------------------
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("top", [None, 1, 2, 5, 9])
    def test_local_step_against_brute_force(self, top, weighted):
        model, params, log_lik, weights, step = self.stepped(top, weighted)
        scores = log_lik + model.log_weights(params)
        kept = min(top or self.n_clusters, self.n_clusters)
        left_out = np.argsort(-scores, axis=1, kind="stable")[:, kept:]
        np.put_along_axis(scores, left_out, -np.inf, axis=1)
        total = logsumexp(scores, axis=1)
        resp = np.exp(scores - total[:, None])
        dense = to_dense(step.resp)
        assert_allclose(dense, weights[:, None] * resp, rtol=1e-9, atol=1e-12)
        assert_allclose(dense.sum(axis=1), weights, rtol=1e-12)
        assert np.max(np.count_nonzero(dense, axis=1)) <= kept
        assert_allclose(step.values["H"], -weights @ xlogy(resp, resp), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("top", [None, 2])
    def test_local_step_is_the_optimum(self, top):
        model, params, log_lik, weights, step = self.stepped(top, weighted=True)
        scores = log_lik + model.log_weights(params)
        rng = np.random.default_rng(0)
        best = np.sum(to_dense(step.resp) * scores) + step.values["H"].sum()
        for _ in range(200):
            resp = random_resp(rng, self.n_atoms, self.n_clusters)
            if top is not None:
                order = rng.permuted(np.tile(np.arange(self.n_clusters), (self.n_atoms, 1)), axis=1)
                np.put_along_axis(resp, order[:, top:], 0.0, axis=1)
            resp = np.where(rng.random((self.n_atoms, 1)) < 0.5, to_dense(step.resp) / weights[:, None], resp)
            resp /= np.maximum(resp.sum(axis=1, keepdims=True), 1e-300)
            if np.allclose(resp.sum(axis=1), 1.0):
                assert weights @ np.sum(resp * scores - xlogy(resp, resp), axis=1) <= best + 1e-9 * abs(best)

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("top", [None, 2])
    def test_tracked_pairs_give_the_entropy_of_their_union(self, top, weighted):
        pairs = np.array([[0, 1], [4, 2], [0, 3]])
        model, _, _, weights, step = self.stepped(top, weighted, pairs)
        resp = to_dense(step.resp) / weights[:, None]
        summary = self.summary(model, step, pairs)
        for a, b in pairs:
            union = resp[:, a] + resp[:, b]
            merged = summary.merge(int(a), int(b))
            place = merged.position(int(a))
            assert_allclose(merged["H"][place], -weights @ xlogy(union, union), rtol=1e-9, atol=1e-9)
            assert_allclose(merged["N"][place], weights @ union)
            assert merged.n_clusters == self.n_clusters - 1

    def test_tiles_are_the_batch_in_order(self):
        model = self.model()
        for n_atoms, n_clusters in ((0, 3), (1, 1), (20_000, 7), (3000, 10_000)):
            batch = Batch(np.arange(n_atoms, dtype=np.float64)[:, None], np.arange(n_atoms) + 0.5)
            tiles = list(model.tiles(batch, n_clusters))
            assert all(tile.n_atoms > 0 for tile in tiles)
            assert_array_equal(np.concatenate([np.zeros((0, 1)), *[tile.x for tile in tiles]]), batch.x)
            assert_array_equal(np.concatenate([np.zeros(0), *[tile.weights for tile in tiles]]), batch.weights)

    # -- weights and objective --------------------------------------------------------------------------------
    def test_weights(self):
        model, params, *_ = self.stepped(None, weighted=False)
        weights = model.weights(params)
        assert np.all(weights > 0)
        assert weights.sum() <= 1.0 + 1e-12
        # E[log w] <= log E[w], with equality at a point estimate
        assert np.all(model.log_weights(params) <= np.log(weights))
        if isinstance(model, PointAllocation):
            assert_allclose(np.exp(model.log_weights(model.at_mode(params))), weights)

    def test_global_step_is_the_optimum(self):
        model, params, _, _, step = self.stepped(None, weighted=True)
        summary = self.summary(model, step)
        assert_allclose(model.elbo(params, summary)["entropy"], step.values["H"].sum())
        other = self.counts(model, summary["N"][::-1])
        assert_stationary_maximum(lambda s: model.elbo(model.global_step(s), summary)["allocation"], summary, other)

    def test_mode_is_the_optimum(self):
        model, params, _, _, step = self.stepped(None, weighted=True)
        if not isinstance(model, PointAllocation):
            pytest.skip(f"{type(model).__name__} has no point estimate: no at_mode() and log_joint()")
        summary = self.summary(model, step)
        assert_allclose(model.log_joint(params, summary)["entropy"], step.values["H"].sum())

        def objective(used: Summary) -> float:
            return model.log_joint(model.at_mode(model.global_step(used)), summary)["allocation"]

        assert_stationary_maximum(objective, summary, self.counts(model, summary["N"][::-1]))

    def test_without_data_the_objective_is_zero(self):
        model = self.model()
        nothing = self.counts(model, np.zeros(self.n_clusters))
        terms = model.elbo(model.global_step(nothing), nothing)
        assert_allclose(list(terms.values()), 0.0, atol=1e-12)

    def test_pickling_keeps_the_bits(self):
        model, params, *_ = self.stepped(None, weighted=False)
        model2, params2 = pickle.loads(pickle.dumps((model, params)))
        assert model2 == model
        assert_array_equal(model2.log_weights(params2), model.log_weights(params))
