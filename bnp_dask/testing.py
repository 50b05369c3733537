"""Test suites that the author of a new model part subclasses.

A new likelihood is tested by saying what it is, what its data look like, how to draw its parameters from q, and
its density::

    class TestPoisson(ObservationSuite):
        def model(self):
            return Poisson(a=2.0)

        def batch(self, rng, n_atoms):
            return Batch(rng.poisson([1.0, 20.0], (n_atoms, 2)).astype(float))

        def draw(self, params, k, rng):
            return rng.gamma(params.a[k], 1 / params.b[k])

        def log_density(self, phi, x):
            return scipy.stats.poisson.logpmf(x, phi).sum(axis=1)

The strongest of the tests needs no oracle at all: for one cluster the objective is the exact log evidence, so it
must equal the sum of the log predictive densities of one atom after another.  Needs pytest.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp, xlogy

from bnp_dask.allocation.base import Allocation, LocalStep
from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.kernels.resp import Resp, SparseResp, cluster_sums
from bnp_dask.model import Model
from bnp_dask.observation.base import LOG_BASE, Observation
from bnp_dask.summary import Field, Summary
from bnp_dask.survey import Survey

NO_PAIRS = np.zeros((0, 2), np.int64)


def survey_of(batch: Batch) -> Survey:
    """Survey of one batch held in memory (counts are made dense: for tests only)."""
    x = batch.x if isinstance(batch.x, np.ndarray) else batch.x.toarray()
    weights = np.ones(len(x)) if batch.weights is None else batch.weights
    mean = np.average(x, axis=0, weights=weights)
    return Survey(
        n_atoms=batch.n_atoms,
        total_weight=batch.total_weight,
        mean=mean,
        variance=np.average((x - mean) ** 2, axis=0, weights=weights),
        minimum=x.min(axis=0),
        maximum=x.max(axis=0),
        is_sparse=batch.is_sparse,
        nbytes=batch.nbytes,
        batch_atoms=(batch.n_atoms,),
        batch_bytes=(batch.nbytes,),
        checksums=(0,),
    )


def random_resp(rng: np.random.Generator, n_atoms: int, n_clusters: int) -> np.ndarray:
    """Uneven responsibilities, ``(n, K)``."""
    return rng.dirichlet(np.full(n_clusters, 0.3), size=n_atoms)


def sparse_resp(resp: np.ndarray, top: int) -> SparseResp:
    """The ``top`` largest entries of each row, normalised, as the kernels hold them."""
    index = np.sort(np.argsort(-resp, axis=1)[:, :top], axis=1)
    value = np.take_along_axis(resp, index, axis=1)
    return SparseResp(index, value / value.sum(axis=1, keepdims=True), resp.shape[1])


def assert_stationary_maximum(objective: Any, best: Summary, other: Summary) -> None:
    """``objective(summary)`` falls on the way from ``best`` to ``other``, at first with the square of the step."""
    top = objective(best)
    drop = {step: top - objective(best.scale(1 - step) + other.scale(step)) for step in (0.02, 0.01)}
    slack = 1e-10 * max(1.0, abs(top))
    assert min(drop.values()) >= -slack
    if drop[0.01] > 1e3 * slack:
        assert 3.0 < drop[0.02] / drop[0.01] < 5.0, "the gradient is not zero: this is not the optimum"


class ObservationSuite:
    """Tests of one observation model.  Subclass as ``TestSomething`` and give the four methods below."""

    n_atoms = 40
    n_clusters = 3
    n_draws = 1500

    # -- given by the author ----------------------------------------------------------------------------------
    def model(self) -> Observation:
        """The model, with whatever prior settings you like; the rest is set from the data."""
        raise NotImplementedError

    def batch(self, rng: np.random.Generator, n_atoms: int) -> Batch:
        """Random atoms without weights that the model accepts."""
        raise NotImplementedError

    def draw(self, params: Any, k: int, rng: np.random.Generator) -> Any:
        """One draw of phi from q(phi_k)."""
        raise NotImplementedError

    def log_density(self, phi: Any, x: Any) -> np.ndarray:
        """log p(x | phi) of each row, ``(n,)`` nats, with everything: h(x) too."""
        raise NotImplementedError

    # -- helpers ----------------------------------------------------------------------------------------------
    def ready(self, seed: int = 0) -> tuple[Observation, Batch, np.random.Generator]:
        """The model with its prior set, and the batch it was set from."""
        rng = np.random.default_rng(seed)
        batch = self.batch(rng, self.n_atoms)
        return self.model().with_prior(survey_of(batch)), batch, rng

    def summary(self, model: Observation, batch: Batch, resp: Resp) -> Summary:
        """Summary with the fields of the observation model and N only."""
        values = {"N": cluster_sums(resp), **model.summarize(batch, resp)}
        n_clusters = len(values["N"])
        return Summary(np.arange(n_clusters), {"N": Field(("cluster",)), **model.fields}, values)

    def fitted(self, seed: int = 0) -> tuple[Observation, Batch, np.ndarray, Summary, Any]:
        """Model, batch, responsibilities, their summary and the parameters."""
        model, batch, rng = self.ready(seed)
        resp = random_resp(rng, batch.n_atoms, self.n_clusters)
        summary = self.summary(model, batch, resp)
        return model, batch, resp, summary, model.global_step(summary)

    def log_base(self, model: Observation, batch: Batch) -> np.ndarray:
        """log h(x) of each atom, ``(n,)``."""
        if LOG_BASE not in model.fields:
            return np.zeros(batch.n_atoms)
        one = np.ones((1, 1))
        return np.array([model.summarize(batch.rows(i, i + 1), one)[LOG_BASE] for i in range(batch.n_atoms)])

    # -- settings and checks ----------------------------------------------------------------------------------
    def test_with_prior_sets_everything_and_once(self):
        model, batch, _ = self.ready()
        settings = dict(_leaves(model))
        assert not [path for path, value in settings.items() if value is None]
        again = dict(_leaves(model.with_prior(survey_of(batch.rows(0, 3)))))
        assert again.keys() == settings.keys()
        for path, value in settings.items():
            assert_array_equal(again[path], value, err_msg=f"{path} was given, and must not follow the data")

    def test_check_accepts_its_data_and_refuses_others(self):
        model, batch, _ = self.ready()
        model.check(batch)
        model.check(batch.rows(3, 4))
        spoilt = batch.x.copy()
        numbers = spoilt.reshape(-1) if isinstance(spoilt, np.ndarray) else spoilt.data
        numbers[0] = np.nan
        with pytest.raises(DataError, match="nan"):
            model.check(replace(batch, x=spoilt, name="spoilt"))
        wider = batch.columns(np.append(np.arange(batch.n_features), 0))
        with pytest.raises(DataError, match=rf"\b{wider.n_features}\b"):
            model.check(wider)

    def test_pickling_keeps_the_bits(self):
        model, batch, _, summary, params = self.fitted()
        model2, params2 = pickle.loads(pickle.dumps((model, params)))
        assert_array_equal(model2.expected_log_lik(params2, batch), model.expected_log_lik(params, batch))
        assert_array_equal(model2.score(params2, summary), model.score(params, summary))

    # -- summaries --------------------------------------------------------------------------------------------
    def test_summary_has_the_declared_fields_and_sizes(self):
        model, batch, resp, summary, _ = self.fitted()
        sizes = {"cluster": self.n_clusters, **model.sizes}
        values = model.summarize(batch, resp)
        assert values.keys() == model.fields.keys()
        for name, field in model.fields.items():
            assert np.shape(values[name]) == tuple(sizes[dim] for dim in field.dims), name
            assert np.asarray(values[name]).dtype == np.float64, name
        assert Model(DPMixture(), model).empty_summary(summary.ids)["N"].shape == (self.n_clusters,)

    def test_summaries_add_over_any_split(self):
        model, batch, resp, summary, _ = self.fitted()
        for cuts in ([0, 1, 2, self.n_atoms], [0, 17, self.n_atoms], list(range(self.n_atoms + 1))):
            pieces = [(batch.rows(a, b), resp[a:b]) for a, b in itertools.pairwise(cuts)]
            parts = [self.summary(model, *piece) for piece in pieces]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            _assert_close(total, summary)

    def test_weight_is_repetition(self):
        model, batch, rng = self.ready()
        times = rng.integers(0, 4, batch.n_atoms)
        whole = Model(DPMixture(), model)
        start = whole.global_step(whole.summarize(np.arange(3), batch, random_resp(rng, batch.n_atoms, 3)))
        weighted = whole.local_step(start, replace(batch, weights=times.astype(np.float64)))
        repeated = whole.local_step(start, batch.take(np.repeat(np.arange(batch.n_atoms), times)))
        _assert_close(weighted, repeated)

    def test_sparse_responsibilities_are_dense_ones(self):
        model, batch, resp, summary, _ = self.fitted()
        _assert_close(self.summary(model, batch, sparse_resp(resp, self.n_clusters)), summary)
        some = sparse_resp(resp, 2)
        _assert_close(self.summary(model, batch, some), self.summary(model, batch, some.to_dense()))

    def test_clusters_are_exchangeable(self):
        model, batch, _, summary, params = self.fitted()
        order = np.arange(self.n_clusters)[::-1]
        turned = model.global_step(summary.take(order.tolist()))
        assert_allclose(model.expected_log_lik(turned, batch), model.expected_log_lik(params, batch)[:, order])
        assert_allclose(model.kl(turned), model.kl(params)[order])

    # -- likelihoods ------------------------------------------------------------------------------------------
    def test_score_is_the_sum_of_expected_log_lik(self):
        model, batch, resp, summary, params = self.fitted()
        for used in (params, model.at_mode(params)):
            expected = np.sum(resp * model.expected_log_lik(used, batch), axis=0)
            assert_allclose(model.score(used, summary), expected, rtol=1e-9, atol=1e-9)

    def test_likelihood_and_predictive_against_draws(self):
        """Means over draws from q of the log density and of the density, to 6 standard errors."""
        model, batch, _, _, params = self.fitted()
        few = batch.rows(0, 5)
        expected = model.expected_log_lik(params, few) + self.log_base(model, few)[:, None]
        predictive = model.log_predictive(params, few)
        for k in range(self.n_clusters):
            rng = np.random.default_rng(k)
            draws = np.array([self.log_density(self.draw(params, k, rng), few.x) for _ in range(self.n_draws)])
            ratio = np.exp(draws - predictive[:, k])
            for sample, mean in ((draws, expected[:, k]), (ratio, 1.0)):
                error = sample.std(axis=0) / np.sqrt(self.n_draws)
                assert np.all(np.abs(sample.mean(axis=0) - mean) < 6 * error + 1e-9)

    # -- the objective ----------------------------------------------------------------------------------------
    def test_objective_of_one_cluster_is_the_evidence(self):
        """log p(x_1..x_n) = sum of log p(x_i | x_<i) = score - kl + log_base, exactly, by conjugacy."""
        model, batch, _ = self.ready()
        one = np.ones((batch.n_atoms, 1))
        chain = 0.0
        for i in range(batch.n_atoms):
            before = self.summary(model, batch.rows(0, i), one[:i])
            chain += float(model.log_predictive(model.global_step(before), batch.rows(i, i + 1))[0, 0])
        summary = self.summary(model, batch, one)
        params = model.global_step(summary)
        evidence = model.score(params, summary).sum() - model.kl(params).sum()
        evidence += self.log_base(model, batch).sum()
        assert_allclose(evidence, chain, rtol=1e-8, atol=1e-8)

    def test_kl_is_zero_at_the_prior_and_positive_elsewhere(self):
        model, _, _, summary, params = self.fitted()
        assert np.all(model.kl(params) > 0)
        assert_allclose(model.kl(model.global_step(summary.zeros())), 0.0, atol=1e-9)

    def test_global_step_is_the_optimum(self):
        model, batch, _, summary, _ = self.fitted()

        def objective(used: Summary) -> float:
            params = model.global_step(used)
            return float(model.score(params, summary).sum() - model.kl(params).sum())

        other = random_resp(np.random.default_rng(5), batch.n_atoms, self.n_clusters)
        assert_stationary_maximum(objective, summary, self.summary(model, batch, other))

    def test_mode_is_the_optimum(self):
        model, batch, _, summary, _ = self.fitted()

        def objective(used: Summary) -> float:
            params = model.at_mode(model.global_step(used))
            return float(model.score(params, summary).sum() + model.log_prior(params).sum())

        other = random_resp(np.random.default_rng(5), batch.n_atoms, self.n_clusters)
        assert_stationary_maximum(objective, summary, self.summary(model, batch, other))

    @pytest.mark.parametrize("estimate", ["posterior", "map"])
    @pytest.mark.parametrize("top", [None, 2, 1])
    def test_objective_never_falls(self, estimate, top):
        model, batch, rng = self.ready()
        whole = Model(DPMixture(gamma=2.0, top=top), model, estimate)
        posterior = whole.global_step(whole.summarize(np.arange(4), batch, random_resp(rng, batch.n_atoms, 4)))
        trace = []
        for _ in range(10):
            summary = whole.local_step(posterior, batch)
            trace.append(sum(whole.elbo(posterior, summary).values()))
            posterior = whole.global_step(summary)
            trace.append(sum(whole.elbo(posterior, summary).values()))
        assert np.all(np.isfinite(trace))
        assert np.all(np.diff(trace) >= -1e-9 * np.maximum(1.0, np.abs(trace[1:])))

    def test_empty_clusters_are_finite(self):
        model, batch, resp, _, _ = self.fitted()
        resp = np.column_stack([resp, np.zeros(batch.n_atoms)])
        summary = self.summary(model, batch, resp)
        for params in (model.global_step(summary), model.global_step(summary.zeros())):
            mode = model.at_mode(params)
            for values in (
                model.expected_log_lik(params, batch),
                model.expected_log_lik(mode, batch),
                model.log_predictive(params, batch),
                model.score(params, summary),
                model.kl(params),
                model.log_prior(mode),
            ):
                assert np.all(np.isfinite(values))


class AllocationSuite:
    """Tests of one allocation model of independent atoms.  Subclass as ``TestSomething``, give :meth:`model`."""

    n_atoms = 50
    n_clusters = 5

    def model(self, top: int | None = None) -> Allocation:
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

    def stepped(self, top: int | None, weighted: bool, pairs: np.ndarray = NO_PAIRS):
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
        dense = _dense(step.resp)
        assert_allclose(dense, weights[:, None] * resp, rtol=1e-9, atol=1e-12)
        assert_allclose(dense.sum(axis=1), weights, rtol=1e-12)
        assert np.max(np.count_nonzero(dense, axis=1)) <= kept
        assert_allclose(step.values["H"], -weights @ xlogy(resp, resp), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("top", [None, 2])
    def test_local_step_is_the_optimum(self, top):
        model, params, log_lik, weights, step = self.stepped(top, weighted=True)
        scores = log_lik + model.log_weights(params)
        rng = np.random.default_rng(0)
        best = np.sum(_dense(step.resp) * scores) + step.values["H"].sum()
        for _ in range(200):
            resp = random_resp(rng, self.n_atoms, self.n_clusters)
            if top is not None:
                order = rng.permuted(np.tile(np.arange(self.n_clusters), (self.n_atoms, 1)), axis=1)
                np.put_along_axis(resp, order[:, top:], 0.0, axis=1)
            resp = np.where(rng.random((self.n_atoms, 1)) < 0.5, _dense(step.resp) / weights[:, None], resp)
            resp /= np.maximum(resp.sum(axis=1, keepdims=True), 1e-300)
            if np.allclose(resp.sum(axis=1), 1.0):
                assert weights @ np.sum(resp * scores - xlogy(resp, resp), axis=1) <= best + 1e-9 * abs(best)

    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("top", [None, 2])
    def test_tracked_pairs_give_the_entropy_of_their_union(self, top, weighted):
        pairs = np.array([[0, 1], [4, 2], [0, 3]])
        model, _, _, weights, step = self.stepped(top, weighted, pairs)
        resp = _dense(step.resp) / weights[:, None]
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
        assert_allclose(np.exp(model.log_weights(model.at_mode(params))), weights)

    def test_global_step_is_the_optimum(self):
        model, params, _, _, step = self.stepped(None, weighted=True)
        summary = self.summary(model, step)
        for terms in (model.elbo(params, summary), model.log_joint(params, summary)):
            assert_allclose(terms["entropy"], step.values["H"].sum())
        other = self.counts(model, summary["N"][::-1])
        assert_stationary_maximum(lambda s: model.elbo(model.global_step(s), summary)["allocation"], summary, other)

    def test_mode_is_the_optimum(self):
        model, _, _, _, step = self.stepped(None, weighted=True)
        summary = self.summary(model, step)

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


def _dense(resp: Resp) -> np.ndarray:
    return resp.to_dense() if isinstance(resp, SparseResp) else resp


def _assert_close(a: Summary, b: Summary) -> None:
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        scale = np.max(np.abs(b[name]), initial=1.0)
        assert_allclose(value, b[name], rtol=1e-10, atol=1e-11 * scale, err_msg=name)


def _leaves(part: Any, path: str = ""):
    """Paths and values of all settings in nested dataclasses and tuples."""
    if isinstance(part, tuple):
        for i, item in enumerate(part):
            yield from _leaves(item, f"{path}[{i}]")
    elif is_dataclass(part):
        for field in dataclass_fields(part):
            yield from _leaves(getattr(part, field.name), f"{path}.{field.name}")
    else:
        yield path, part
