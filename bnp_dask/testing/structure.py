"""Tests that every structure has to pass."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.core import Batch, Summary, concatenate
from bnp_dask.inputs import require
from bnp_dask.model import Model, Posterior
from bnp_dask.structure import NO_PLACES, Structure
from bnp_dask.testing.parts import random_resp, survey_of, to_dense


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
