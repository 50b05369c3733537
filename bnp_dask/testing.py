"""Test suites that the author of a new model part subclasses.

A test of a new likelihood needs the model, random data, draws of its parameters from q, and its density::

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
must equal the sum of the log predictive densities of one atom after another.

Structures, moves, executors and sources have suites as well; :class:`AlgebraSuite` takes the fields of a model through
all changes of clusters and all ways to sum.  :class:`ScoreSuite` checks for an allocation times a likelihood that
held-out scores are probabilities: over all atoms, documents or sequences they sum to one.  Needs pytest.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.special import gammaln, logsumexp, xlogy

from bnp_dask.allocation import Allocation, DPMixture, Params, PointAllocation
from bnp_dask.analysis import complete_held, held_densities, log_density
from bnp_dask.core import (
    REGISTRY,
    Batch,
    Edit,
    Exchange,
    Fade,
    Field,
    Forget,
    InsertEmpty,
    RunningTotal,
    Summary,
    Survey,
    Take,
    Unite,
    concatenate,
    from_spec,
    replay,
    survey_batch,
    to_spec,
)
from bnp_dask.core import Merge as MergeEdit
from bnp_dask.data import Source, spans_of
from bnp_dask.errors import DataError, ExecutionError
from bnp_dask.execute import Executor, ThreadExecutor, in_order
from bnp_dask.inference import Memoized
from bnp_dask.initialize import RandomExamples
from bnp_dask.inputs import require
from bnp_dask.kernels import Resp, SparseResp, cluster_sums
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Merge, Move
from bnp_dask.observation import (
    LOG_BASE,
    DescribedObservation,
    EvidenceObservation,
    LeanObservation,
    Observation,
    QuadraticObservation,
    sequential_predictive,
)
from bnp_dask.structure import NO_PLACES, LocalStep, MixtureAllocation, Structure
from bnp_dask.training import ConvergenceWarning, TrainResult
from bnp_dask.training.train import train

__all__ = [
    "AlgebraSuite",
    "AllocationSuite",
    "ExecutorSuite",
    "MoveSuite",
    "ObservationSuite",
    "ScoreSuite",
    "SourceSuite",
    "StructureSuite",
    "assert_stationary_maximum",
    "circle",
    "documents",
    "levels",
    "line",
    "log_orders",
    "random_resp",
    "sparse_resp",
    "survey_of",
]


# -- Parts of the shipped suites ----------------------------------------------------------------------------------


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


def to_dense(resp: Resp) -> np.ndarray:
    return resp if isinstance(resp, np.ndarray) else resp.to_dense()


def assert_close(a: Summary, b: Summary) -> None:
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        scale = np.max(np.abs(b[name]), initial=1.0)
        assert_allclose(value, b[name], rtol=1e-10, atol=1e-11 * scale, err_msg=name)


def leaves(part: Any, path: str = ""):
    """Paths and values of all settings in nested dataclasses and tuples."""
    if isinstance(part, tuple):
        for i, item in enumerate(part):
            yield from leaves(item, f"{path}[{i}]")
    elif is_dataclass(part):
        for field in dataclass_fields(part):
            yield from leaves(getattr(part, field.name), f"{path}.{field.name}")
    else:
        yield path, part


# -- Tests of the algebra of summaries: edits and sums may be done in either order --------------------------------


IDS = np.array([4, 7, 1, 9])
PAIRS = np.array([[4, 1], [7, 9]])
NEW = np.array([20, 21])
TRIAL, DONORS = "trial", (7, 9)

EDITS: dict[str, list[Edit]] = {
    "insert": [InsertEmpty((20, 21))],
    "take": [Take((9, 4, 1))],
    "merge": [MergeEdit(4, 1)],
    "two merges": [MergeEdit(4, 1), MergeEdit(7, 9)],
    "unite": [Unite(4, 9, 0.5)],
    "exchange": [Exchange(TRIAL, DONORS)],
    "merge, then exchange": [MergeEdit(4, 1), Exchange(TRIAL, DONORS)],
    "fade": [Fade(0.25)],
    "all": [MergeEdit(4, 1), Exchange(TRIAL, DONORS), Forget(), InsertEmpty((30,)), Fade(0.5), Take((30, 21, 4))],
}
"""Changes of clusters that every set of fields must support."""


class AlgebraSuite:
    """Tests of the fields of one model.  Subclass as ``TestSomething``, give :meth:`fields`.

    It does not cover fields of chains of states, whose trials have links.
    """

    def fields(self) -> Mapping[str, Field]:
        """Declarations of all statistics, ``N`` among them."""
        raise NotImplementedError

    def size(self, dim: str) -> int:
        """Length of an axis that does not run over clusters."""
        return 3

    def summary(self, rng: np.random.Generator, ids: np.ndarray = IDS, pairs: np.ndarray = PAIRS) -> Summary:
        """Statistics of some atoms: positive numbers."""
        shapes = {
            name: tuple(len(ids) if dim == "cluster" else self.size(dim) for dim in field.dims)
            for name, field in self.fields().items()
        }
        values = {name: rng.gamma(2.0, 1.0, shape) for name, shape in shapes.items()}
        tracked = {
            name: rng.gamma(1.0, 1.0, (len(pairs), *shapes[name][1:]))
            for name, field in self.fields().items()
            if field.has_pairs and len(pairs)
        }
        return Summary(ids, self.fields(), values, pairs, tracked)

    def parts(self, n_parts: int) -> tuple[list[Summary], list[dict[str, Summary]]]:
        """Statistics of several batches, and statistics of a trial in each."""
        rng = np.random.default_rng(n_parts)
        nothing = np.zeros((0, 2), np.int64)
        summaries = [self.summary(rng) for _ in range(n_parts)]
        return summaries, [{TRIAL: self.summary(rng, NEW, nothing)} for _ in range(n_parts)]

    @pytest.mark.parametrize("n_parts", [2, 5])
    @pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
    def test_edits_of_the_sum_are_sums_of_the_edited(self, edits: list[Edit], n_parts: int) -> None:
        summaries, trials = self.parts(n_parts)
        whole = replay(_sum(summaries), edits, {TRIAL: _sum([trial[TRIAL] for trial in trials])})
        edited = _sum([replay(own, edits, trial) for own, trial in zip(summaries, trials, strict=True)])
        _assert_same_fields(whole, edited)

    @pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
    def test_running_totals_follow_edits_and_let_batches_go(self, edits: list[Edit]) -> None:
        summaries, trials = self.parts(3)
        total, trial = (RunningTotal(_sum(one).zeros()) for one in (summaries, [t[TRIAL] for t in trials]))
        for summary, found in zip(summaries, trials, strict=True):
            total.add(summary)
            trial.add(found[TRIAL])
        total.apply(edits, {TRIAL: trial})
        edited = [replay(own, edits, found) for own, found in zip(summaries, trials, strict=True)]
        _assert_same_fields(total.value(), _sum(edited))
        total.subtract(edited[0])
        _assert_same_fields(total.value(), _sum(edited[1:]))

    def test_edits_may_be_replayed_in_two_goes(self) -> None:
        (summary, *_), (trial, *_) = self.parts(1)
        edits = EDITS["all"]
        _assert_same_fields(replay(replay(summary, edits[:2], trial), edits[2:]), replay(summary, edits, trial))


def _sum(summaries: list[Summary]) -> Summary:
    total = summaries[0]
    for summary in summaries[1:]:
        total = total + summary
    return total


def _assert_same_fields(first: Summary, second: Summary) -> None:
    assert_array_equal(first.ids, second.ids)
    assert_array_equal(first.pairs, second.pairs)
    for name in first.values:
        assert_allclose(first[name], second[name], rtol=1e-10, atol=1e-12, err_msg=name)
    for name in first.pair_values if len(first.pairs) else ():
        assert_allclose(first.pair_values[name], second.pair_values[name], rtol=1e-10, atol=1e-12, err_msg=name)


# -- Tests that every observation model has to pass ---------------------------------------------------------------


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


# -- Tests that every allocation model has to pass ----------------------------------------------------------------


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


# -- Tests that every structure has to pass -----------------------------------------------------------------------


class StructureSuite:
    """Tests of one structure.  Subclass as ``TestSomething``, give :meth:`model` and :meth:`batch`.

    They check the promises of every structure: statistics add over batches and do not depend on how a batch is read,
    and the objective never falls.
    """

    n_clusters = 4

    def model(self) -> Model:
        """A model whose allocation names the structure."""
        raise NotImplementedError

    def batch(self, rng: np.random.Generator, n: int) -> Batch:
        """``n`` atoms, groups or sequences, all of them whole."""
        raise NotImplementedError

    def assignments(self, batch: Batch, n_clusters: int) -> Iterator[np.ndarray]:
        """Positions of the clusters of all atoms, ``(n,)``, in each way that the structure allows.

        Each atom may have any cluster unless this is overridden.  Return none if a local step is no exact maximum over
        them, as for documents, whose shares have a factor of q apart from the topics of their tokens.
        """
        for places in product(range(n_clusters), repeat=batch.n_atoms):
            yield np.array(places)

    def summary_of(self, model: Model, ids: np.ndarray, batch: Batch, places: np.ndarray) -> Summary:
        """Summary of one such assignment, whose entropy is zero; override if ``summarize`` leaves out ties."""
        return model.summarize(ids, batch, np.eye(len(ids))[places])

    # -- helpers ----------------------------------------------------------------------------------------------
    def start(self, seed: int = 0) -> tuple[Model, Posterior, Batch, Batch]:
        """A model with its prior, the posterior after one global step, and two batches."""
        rng = np.random.default_rng(seed)
        first, second = self.batch(rng, 12), self.batch(rng, 7)
        model = self.model().with_prior(survey_of(first))
        resp = random_resp(rng, first.n_atoms, self.n_clusters)
        return model, model.global_step(model.summarize(np.arange(self.n_clusters), first, resp)), first, second

    # -- tests ------------------------------------------------------------------------------------------------
    def test_it_has_all_verbs(self) -> None:
        require("structure", self.model().structure, Structure, "a structure with the verbs of Structure")

    def test_it_travels_to_workers(self) -> None:
        model, posterior, first, _ = self.start()
        there = pickle.loads(pickle.dumps((model, posterior)))
        _assert_same(there[0].local_step(there[1], first), model.local_step(posterior, first), 0.0)

    def test_statistics_add_over_batches(self) -> None:
        model, posterior, first, second = self.start()
        apart = model.local_step(posterior, first) + model.local_step(posterior, second)
        _assert_same(apart, model.local_step(posterior, concatenate([first, second])), 1e-9)

    def test_counts_have_the_mass_of_the_batch(self) -> None:
        model, posterior, first, _ = self.start()
        counts = model.local_step(posterior, first)["N"]
        assert_allclose(counts.sum(), model.structure.mass(first), rtol=1e-9)

    def test_steps_and_the_visit_agree(self) -> None:
        model, posterior, first, _ = self.start()
        steps = model.structure.steps(model, posterior, first, NO_PLACES)
        counts = sum(to_dense(step.resp).sum(axis=0) for _, step in steps)
        assert_allclose(counts, model.local_step(posterior, first)["N"], rtol=1e-9, atol=1e-9)

    def test_each_atom_has_a_most_probable_cluster(self) -> None:
        model, posterior, first, _ = self.start()
        labels = np.concatenate([own for _, own in model.structure.labels(model, posterior, first)])
        assert labels.min() >= 0
        assert labels.max() < self.n_clusters

    def test_the_objective_never_falls(self) -> None:
        model, posterior, first, second = self.start()
        before = -np.inf
        for _ in range(8):
            summary = model.local_step(posterior, first) + model.local_step(posterior, second)
            posterior = model.global_step(summary)
            value = sum(model.elbo(posterior, summary).values())
            assert value >= before - 1e-9 * abs(before), "a local and a global step lowered the objective"
            before = value

    def test_a_local_step_is_the_best_one_for_its_beliefs(self) -> None:
        """Assignments from other posteriors have a lower objective under this one."""
        model, posterior, first, _ = self.start()
        own = model.local_step(posterior, first)
        best = sum(model.elbo(posterior, own).values())
        other = posterior
        for _ in range(6):  # ever surer ones
            other = model.global_step(model.local_step(other, first))
            value = sum(model.elbo(posterior, model.local_step(other, first)).values())
            assert value <= best + 1e-9 * abs(best)

    def test_a_local_step_sums_over_all_assignments(self) -> None:
        """Its objective is the log of the sum over all assignments, each summarized by itself."""
        rng = np.random.default_rng(0)
        first, few = self.batch(rng, 12), self.batch(rng, 2)
        model = self.model().with_prior(survey_of(first))
        ids = np.arange(2)
        posterior = model.global_step(model.summarize(ids, first, random_resp(rng, first.n_atoms, 2)))
        values = [
            sum(model.elbo(posterior, self.summary_of(model, ids, few, places)).values())
            for places in self.assignments(few, 2)
        ]
        if values:
            own = sum(model.elbo(posterior, model.local_step(posterior, few)).values())
            assert_allclose(own, np.logaddexp.reduce(values), rtol=1e-9)

    def test_atoms_of_weight_two_count_twice(self) -> None:
        model, posterior, first, _ = self.start()
        twice = replace(first, weights=np.full(first.n_atoms, 2.0))
        own = model.local_step(posterior, first)
        _assert_same(model.local_step(posterior, twice), own + own, 1e-9)

    def test_unions_that_are_tracked_change_nothing_else(self) -> None:
        model, posterior, first, _ = self.start()
        tracked = model.local_step(posterior, first, np.array([[0, 2], [1, 3]]))
        _assert_same(tracked.without_pairs(), model.local_step(posterior, first), 1e-9)
        merged = tracked.merge(0, 2)
        assert_array_equal(merged.ids, [0, 1, 3])
        assert_allclose(merged["N"].sum(), tracked["N"].sum(), rtol=1e-12)
        assert np.isfinite(sum(model.elbo(model.global_step(merged), merged).values()))


def _assert_same(first: Summary, second: Summary, rtol: float) -> None:
    assert_array_equal(first.ids, second.ids)
    for name in first.values:
        scale = float(np.abs(second[name]).max(initial=1.0))
        assert_allclose(first[name], second[name], rtol=rtol, atol=rtol * scale, err_msg=name)


# -- Tests that every score is a probability: over all possible observations it sums, or integrates, to one -------


Space = tuple[np.ndarray, np.ndarray]
"""Values, and the log of the measure of each: zero for counts and levels, weights of a quadrature for numbers."""


def levels(n: int) -> Space:
    """Whole numbers from 0 to n - 1: levels, bits, or counts whose mass from n on is negligible."""
    return np.arange(float(n)), np.zeros(n)


def line(centre: float = 0.0, scale: float = 1.0, n: int = 161) -> Space:
    """All real numbers: a quadrature of ``n`` points for densities of about this ``centre`` and ``scale``.

    It is the trapezoidal rule after ``x = centre + scale sinh(pi / 2 sinh t)``, which ends doubly exponentially for
    densities with tails of any power (Takahasi & Mori 1974).  Densities must not be narrower than a fifth of the scale.
    """
    t = np.linspace(-3.8, 3.8, n)
    inner = 0.5 * np.pi * np.sinh(t)
    slope = scale * 0.5 * np.pi * np.cosh(t) * np.cosh(inner)
    return centre + scale * np.sinh(inner), np.log(slope * (t[1] - t[0]))


def circle(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """All vectors of length one in the plane, ``(n, 2)``."""
    angle = 2.0 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angle), np.sin(angle)]), np.full(n, np.log(2.0 * np.pi / n))


def documents(n_words: int, length: int) -> np.ndarray:
    """All documents of ``length`` tokens, as counts ``(m, n_words)``."""
    cuts = np.array(list(combinations(range(length + n_words - 1), n_words - 1)))
    ends = np.full((len(cuts), 1), length + n_words - 1)
    return np.diff(np.column_stack([-np.ones((len(cuts), 1)), cuts, ends])) - 1.0


def log_orders(counts: np.ndarray) -> np.ndarray:
    """Log of the number of orders of the tokens of each document, ``(m,)``: the multinomial coefficient."""
    return gammaln(counts.sum(axis=1) + 1.0) - gammaln(counts + 1.0).sum(axis=1)


class ScoreSuite:
    """Tests of the score of one model.  Subclass as ``TestSomething`` and give the first three methods below.

    ``bnp.score`` is the mean of these log densities: of an atom in a mixture, of a whole sequence in a hidden Markov
    model, of the held-out tokens given the rest of their document in a topic model.
    """

    n_clusters = 3
    tolerance = 1e-9
    most = 30_000
    """Most sequences in a sum."""
    never_missing: tuple[int, ...] = ()
    """Columns whose entries the likelihood needs even if it integrates over others, such as ``Given()``."""

    def model(self) -> Model:
        """An allocation times a likelihood."""
        raise NotImplementedError

    def batch(self, rng: np.random.Generator, n: int) -> Batch:
        """``n`` atoms to learn from, or as many groups or sequences of some rows, without entries missing."""
        raise NotImplementedError

    def space(self) -> Sequence[Space]:
        """All values of each column, by :func:`levels`, :func:`line`, or your own quadrature."""
        raise NotImplementedError

    def atoms(self, before: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """All rows ``(m, D)`` that may follow the row ``before`` (None for a first one), and their log measures.

        The product of :meth:`space` unless overridden, as for documents, directions, or steps with their predecessors.
        """
        return product_of(self.space())

    # -- helpers ----------------------------------------------------------------------------------------------
    def fitted(self) -> tuple[Posterior, Batch]:
        """Posterior after two local steps, and its batch."""
        rng = np.random.default_rng(0)
        batch = self.batch(rng, 12)
        bare = self.model()
        model = bare.with_prior(survey_batch(batch, may_miss=bare.marginalises))
        resp = random_resp(rng, batch.n_atoms, self.n_clusters)
        posterior = model.global_step(model.summarize(np.arange(self.n_clusters), batch, resp))
        for _ in range(2):
            posterior = model.global_step(model.local_step(posterior, batch))
        return posterior, batch

    def log_next(self, posterior: Posterior, history: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """Log density of each of some ``atoms (m, D)`` after the rows ``history (h, D)`` of one group, ``(m,)``."""
        structure = posterior.model.structure
        if not structure.is_tied:
            return log_density(posterior, Batch(atoms))
        n, h = len(atoms), len(history)
        if not structure.has_shares:  # the last atom is a step, or a leaf of a tree
            rows = np.concatenate([np.repeat(history[None], n, axis=0), atoms[:, None]], axis=1)
            before = self.log_sequences(posterior, history[None])[0] if h else 0.0
            return self.log_sequences(posterior, rows) - before
        if structure.takes_words(posterior.model):
            # words that a document has on both sides are one entry each
            counts = sparse.csr_array(history.sum(axis=0) + atoms)
            place = np.repeat(np.arange(n), np.diff(counts.indptr)), counts.indices
            return complete_held(posterior, Batch(counts), atoms[place]).value
        # held-out atoms do not affect the rest, so one group can hold out all atoms
        whole = Batch(np.concatenate([history, atoms]), groups=np.array([0, h + n]))
        return held_densities(posterior, whole, np.arange(h + n) >= h)[h:]

    def log_sequences(self, posterior: Posterior, rows: np.ndarray) -> np.ndarray:
        """Log densities of sequences of one length, ``(m, T, D)``, ``(m,)``."""
        m, length, width = rows.shape
        groups = length * np.arange(m + 1)
        batch = Batch(np.ascontiguousarray(rows.reshape(m * length, width)), groups=groups)
        return log_density(posterior, batch).reshape(m, length).sum(axis=1)

    def histories(self, posterior: Posterior, batch: Batch) -> list[np.ndarray]:
        """First rows of a group of the training batch: none, one, three; only none if atoms are independent."""
        structure = posterior.model.structure
        rows = batch.x if isinstance(batch.x, np.ndarray) else batch.x.toarray()
        if not structure.is_tied:
            return [rows[:0]]
        if batch.groups is not None:
            rows = rows[: batch.groups[1]]
        return [rows[:h] for h in (0, 1, 3)]

    def assert_one(self, log_values: np.ndarray, log_measure: np.ndarray, what: str) -> None:
        assert_allclose(np.exp(log_values + log_measure).sum(), 1.0, rtol=0.0, atol=self.tolerance, err_msg=what)

    # -- tests ------------------------------------------------------------------------------------------------
    def test_the_next_atom_has_a_probability(self) -> None:
        """Given earlier atoms of its group or sequence, if there are any."""
        posterior, batch = self.fitted()
        for history in self.histories(posterior, batch):
            atoms, measure = self.atoms(history[-1] if len(history) else None)
            self.assert_one(self.log_next(posterior, history, atoms), measure, f"after {len(history)} rows")

    def test_whole_sequences_have_a_probability(self) -> None:
        """All sequences of one length together, if there are few enough."""
        model = self.model()
        if not model.structure.is_tied or model.structure.has_shares:
            pytest.skip(f"{type(model.allocation).__name__} is about no sequences")
        posterior, _ = self.fitted()
        atoms, measure = self.atoms(None)
        for length in (1, 2, 3, 6):
            if len(atoms) ** length > self.most or type(self).atoms is not ScoreSuite.atoms:
                continue
            index = np.indices([len(atoms)] * length).reshape(length, -1).T
            self.assert_one(
                self.log_sequences(posterior, atoms[index]), measure[index].sum(axis=1), f"sequences of {length} steps"
            )

    def test_atoms_that_lack_entries_have_a_probability(self) -> None:
        """Over the entries that they have; an atom without any entry has probability one."""
        model = self.model()
        if not model.marginalises:
            pytest.skip(f"{type(model.observation).__name__} takes no missing entries here")
        posterior, batch = self.fitted()
        space = self.space()
        columns = [d for d in range(len(space)) if d not in self.never_missing]
        for history in self.histories(posterior, batch):
            gappy = history.copy()
            gappy[1:2, columns[0]] = np.nan
            for n_gone in range(1, len(columns) + 1):
                for gone in combinations(columns, n_gone):
                    nothing = np.array([np.nan]), np.zeros(1)
                    atoms, measure = product_of([nothing if d in gone else own for d, own in enumerate(space)])
                    what = f"after {len(history)} rows, without the columns {gone}"
                    self.assert_one(self.log_next(posterior, gappy, atoms), measure, what)


def product_of(space: Sequence[Space]) -> tuple[np.ndarray, np.ndarray]:
    """All rows ``(m, D)`` of values of each column, and the log of the measure of each, ``(m,)``."""
    values = np.meshgrid(*[own for own, _ in space], indexing="ij")
    measures = np.meshgrid(*[own for _, own in space], indexing="ij")
    return np.column_stack([v.ravel() for v in values]), np.sum([m.ravel() for m in measures], axis=0)


# -- Tests that every move, every source of data and every executor has to pass -----------------------------------


class MoveSuite:
    """Tests of one move.  Subclass as ``TestSomething``, give :meth:`move`, :meth:`model` and :meth:`data`.

    Runs of a few laps check properties that a move must keep: the objective never falls, the gains of accepted moves in
    the history account for it, and the bits depend neither on the executor nor on a stop.
    """

    n_clusters = 5
    laps = 8

    def move(self) -> Move:
        """The move."""
        raise NotImplementedError

    def model(self) -> Model:
        """A model whose clusters the move changes."""
        raise NotImplementedError

    def data(self) -> np.ndarray:
        """Some hundred rows, on which at least one proposal of the move is accepted."""
        raise NotImplementedError

    def run(self, **more: Any) -> TrainResult:
        """A run with the move, and with merges beside it."""
        data = self.data()
        schedule = Memoized(laps=more.pop("laps", self.laps), tolerance=0.0, count_tolerance=0.0, window=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return train(
                self.model(), data, init=RandomExamples(self.n_clusters), moves=[self.move(), Merge()],
                schedule=schedule, batch_size=-(-len(data) // 4), **more,
            )  # fmt: skip

    def test_it_has_all_verbs_and_files_keep_it(self) -> None:
        move = self.move()
        require("moves", move, Move, "a move with the verbs of bnp_dask.moves.Move")
        assert pickle.loads(pickle.dumps(move)) == move
        assert from_spec(to_spec(move, REGISTRY)[0], {}) == move

    def test_something_is_accepted(self) -> None:
        assert any(row["accepted"] for row in self.run().history.moves() if row["kind"] != Merge.kind)

    def test_the_objective_never_falls_and_is_accounted_for(self) -> None:
        rows = [row for row in self.run().history if row["exact"]]
        for before, row in zip(rows, rows[1:], strict=False):
            gains = sum(move["gain"] or 0.0 for move in row["moves"] if move["accepted"])
            expected = before["elbo"] + row["gain"] + gains
            rounding = 1e-9 * abs(before["elbo"])
            assert abs(row["elbo"] - expected) <= rounding
            assert row["elbo"] >= before["elbo"] - rounding

    def test_bits_do_not_depend_on_the_executor(self) -> None:
        executor = ThreadExecutor(2)
        try:
            assert _bits(self.run(client=executor)) == _bits(self.run())
        finally:
            executor.close()

    def test_a_run_that_was_stopped_ends_in_the_same_bits(self, tmp_path: Path) -> None:
        self.run(store=tmp_path / "run", laps=self.laps // 2)
        assert _bits(self.run(store=tmp_path / "run", resume=True)) == _bits(self.run())


def _bits(result: TrainResult) -> tuple[Any, ...]:
    summary = result.posterior.summary
    assert summary is not None
    return [row["elbo"] for row in result.history], summary.ids.tolist(), summary["N"].tobytes()


class SourceSuite:
    """Tests of one source.  Subclass as ``TestSomething``, give :meth:`source`."""

    def source(self) -> Source:
        """A source of two batches or more; another object for the same data at each call."""
        raise NotImplementedError

    def batches(self, source: Source) -> list[Batch]:
        """All batches, read as workers read them: by readers that were pickled."""
        return [pickle.loads(pickle.dumps(source.reader(b)))() for b in range(source.n_batches)]

    def test_it_has_all_verbs(self) -> None:
        require("data", self.source(), Source, "a source with the verbs of bnp_dask.data.base.Source")

    def test_batches_are_the_same_whenever_they_are_read(self) -> None:
        source = self.source()
        for once, again in zip(self.batches(source), self.batches(self.source()), strict=True):
            for first, second in ((once.x, again.x), (once.weights, again.weights), (once.groups, again.groups)):
                assert _bits_of_array(first) == _bits_of_array(second), f"{once.name} differs when it is read again"

    def test_sizes_are_those_of_the_batches(self) -> None:
        source = self.source()
        batches = self.batches(source)
        lengths = [batch.n_atoms for batch in batches]
        assert len(batches) >= 2, "give a source of two batches or more"
        assert {batch.x.shape[1] for batch in batches} == {source.n_features}
        assert {batch.is_sparse for batch in batches} == {source.is_sparse}
        assert source.n_atoms in (None, sum(lengths))
        spans = spans_of(source)
        assert spans is None or [stop - start for start, stop in spans] == lengths

    def test_batches_have_names_of_their_own(self) -> None:
        names = [batch.name for batch in self.batches(self.source())]
        assert len(set(names)) == len(names), "a message about a batch names it"

    def test_what_tells_the_data_from_others_is_plain_and_stays(self) -> None:
        said = self.source().describe()
        assert json.loads(json.dumps(said)) == said
        assert self.source().describe() == said


def _bits_of_array(value: Any) -> object:
    if value is None:
        return None
    array = value.toarray() if sparse.issparse(value) else np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


class ExecutorSuite:
    """Tests of one executor.  Subclass as ``TestSomething``, give :meth:`executor`."""

    def executor(self) -> Executor:
        """A new executor, which the tests close."""
        raise NotImplementedError

    def test_it_has_all_verbs(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            require("client", executor, Executor, "an executor with the verbs of bnp_dask.execute.base.Executor")
            assert executor.n_workers >= 0

    def test_tasks_take_values_of_others_and_shared_ones(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            three = executor.submit("add-1", operator.add, 1, 2)
            six = executor.submit("add-2", operator.add, three, executor.share("also", 3))
            assert (executor.result(six), executor.result(three)) == (6, 3)

    def test_handles_are_used_once(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            handle = executor.submit("add-1", operator.add, 1, 2)
            executor.result(handle)
            with pytest.raises(ExecutionError, match="void"):
                executor.result(handle)

    def test_the_error_of_a_task_is_that_of_its_result_and_others_go_on(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            bad, good = (executor.submit(f"divide-{i}", operator.truediv, 1, i) for i in (0, 1))
            with pytest.raises(ZeroDivisionError):
                executor.result(bad)
            assert executor.result(good) == 1.0

    def test_arrays_come_back_bit_by_bit(self) -> None:
        array = np.random.default_rng(0).normal(size=(200, 3))
        with contextlib.closing(self.executor()) as executor:
            back = executor.result(executor.submit("copy-1", np.copy, executor.share("array", array)))
        assert (back.dtype, back.tobytes()) == (array.dtype, array.tobytes())

    def test_results_of_many_tasks_come_in_the_order_of_submission(self) -> None:
        with contextlib.closing(self.executor()) as executor:
            tasks = [(f"square-{i}", operator.mul, (i, i)) for i in range(50)]
            assert list(in_order(executor, tasks, 8)) == [i * i for i in range(50)]
