"""Tests that every observation model has to pass."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.core import Batch, Field, Summary
from bnp_dask.errors import DataError
from bnp_dask.kernels.mixture.resp import Resp, cluster_sums
from bnp_dask.model import Model
from bnp_dask.observation import (
    LOG_BASE,
    DescribedObservation,
    EvidenceObservation,
    LeanObservation,
    Observation,
    QuadraticObservation,
    sequential_predictive,
)
from bnp_dask.testing.parts import assert_close, assert_stationary_maximum, leaves, random_resp, sparse_resp, survey_of

SWITCHES = (".missing", ".fractional", ".others", ".lags")
"""Settings that are not set from data: None is off."""


class ObservationSuite:
    """Tests of one observation model.  Subclass as ``TestSomething`` and give the four methods below."""

    n_atoms = 40
    n_clusters = 3
    n_draws = 1500

    # -- given by the author ----------------------------------------------------------------------------------
    def model(self) -> Observation:
        """The model, with any prior settings; the rest is set from the data."""
        raise NotImplementedError

    def batch(self, rng: np.random.Generator, n_atoms: int) -> Batch:
        """Random atoms without weights that the model accepts."""
        raise NotImplementedError

    def draw(self, params: Any, k: int, rng: np.random.Generator) -> Any:
        """One draw of phi from q(phi_k)."""
        raise NotImplementedError

    def log_density(self, phi: Any, x: Any) -> np.ndarray:
        """log p(x | phi) of each row, ``(n,)`` nats, including h(x)."""
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
        settings = dict(leaves(model))
        assert not [path for path, value in settings.items() if value is None and not path.endswith(SWITCHES)]
        again = dict(leaves(model.with_prior(survey_of(batch.rows(0, 3)))))
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

    def test_describes_itself_with_the_names_of_its_columns(self):
        model, batch, _, _, params = self.fitted()
        if not isinstance(model, DescribedObservation):
            pytest.skip(f"{type(model).__name__} says nothing about its parameters")
        names = [f"column {chr(97 + i)}" for i in range(batch.n_features)]
        for known in (None, names):
            for name, value in model.estimates(params, known).items():
                assert value.values.shape[0] == self.n_clusters, f"{name}: clusters come first"
                assert len(value.axes) == value.values.ndim - 1, f"{name}: an axis for each of its dimensions"
                assert np.isfinite(value.values).all(), name
                for axis, size in zip(value.axes, value.values.shape[1:], strict=True):
                    assert axis.labels is None or len(axis.labels) == size, f"{name}: a label for each entry"
                    if known is not None and axis.labels is not None:
                        assert all(label.startswith(tuple(names)) for label in axis.labels), name
            assert model.describe(params, 1, known)
        assert "column " in model.describe(params, 1, names)

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
            assert_close(total, summary)

    def test_weight_is_repetition(self):
        model, batch, rng = self.ready()
        times = rng.integers(0, 4, batch.n_atoms)
        whole = Model(DPMixture(), model)
        start = whole.global_step(whole.summarize(np.arange(3), batch, random_resp(rng, batch.n_atoms, 3)))
        weighted = whole.local_step(start, replace(batch, weights=times.astype(np.float64)))
        repeated = whole.local_step(start, batch.take(np.repeat(np.arange(batch.n_atoms), times)))
        assert_close(weighted, repeated)

    def test_sparse_responsibilities_are_dense_ones(self):
        model, batch, resp, summary, _ = self.fitted()
        assert_close(self.summary(model, batch, sparse_resp(resp, self.n_clusters)), summary)
        some = sparse_resp(resp, 2)
        assert_close(self.summary(model, batch, some), self.summary(model, batch, some.to_dense()))

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

    def test_density_of_single_atoms_is_that_of_all_atoms_of_a_cluster(self):
        model, batch, _, summary, _ = self.fitted()
        base = summary.insert_empty([self.n_clusters])
        density = sequential_predictive(model, model.global_step(base), batch)
        if density is None:
            pytest.skip(f"{type(model).__name__} has no closed form of it for such atoms")
        for others, k in itertools.product(([], [2], [5, 0, 7]), range(self.n_clusters + 1)):
            joined = np.zeros((len(others), self.n_clusters + 1))
            joined[:, k] = 1.0
            few = replace(self.summary(model, batch.take(np.array(others, np.int64)), joined), fields=base.fields)
            expected = model.log_predictive(model.global_step(base + few), batch.rows(4, 5))[0, k]
            assert_allclose(density(4, k, others), expected, rtol=1e-9, atol=1e-9)

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

    def test_evidence_in_closed_form_is_that_of_the_parameters(self):
        model, _, _, summary, params = self.fitted()
        if isinstance(model, EvidenceObservation):
            assert_allclose(model.evidence(summary), model.score(params, summary) - model.kl(params), rtol=1e-9)
            assert_allclose(model.evidence(summary.zeros()), 0.0, atol=1e-9)

    def test_what_visits_get_is_enough(self):
        model, batch, _, _, params = self.fitted()
        if not isinstance(model, LeanObservation):
            return
        for screened in (False, True):
            lean = model.lean(params, screened)
            assert_array_equal(model.expected_log_lik(lean, batch), model.expected_log_lik(params, batch))
            assert len(pickle.dumps(lean)) <= len(pickle.dumps(params))
        if isinstance(model, QuadraticObservation):
            for name, value in vars(model.forms(params)).items():
                assert_array_equal(getattr(model.forms(lean), name), value)

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
