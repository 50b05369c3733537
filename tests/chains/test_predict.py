"""Predict and score of hidden Markov models against every path there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.score import log_density, score_samples
from bnp_dask.analysis.sequences import state_path
from bnp_dask.errors import DataError
from bnp_dask.structure.answers import chain_density, path_densities
from tests.chains.parts import KINDS, begin, model_of, sequences


@pytest.fixture(params=KINDS)
def posterior(request):
    batch = sequences((30, 25, 40), k=3)
    return begin(model_of(request.param, batch), batch, k=3)


def test_score_sums_over_all_paths(posterior):
    """Those through states that were not met yet too, which expect what the prior does."""
    few = sequences((4, 1, 5), k=3, seed=5)
    model = posterior.model
    start, trans = model.allocation.expected_chain(posterior.allocation)
    unseen = model.observation.global_step(model.empty_summary(np.zeros(1, np.int64)))
    density = np.exp(
        np.append(
            model.observation.log_predictive(posterior.observation, few),
            model.observation.log_predictive(unseen, few),
            axis=1,
        )
    )
    expected = []
    for first, last in zip(few.groups[:-1], few.groups[1:], strict=True):
        total = 0.0
        for path in product(range(len(start)), repeat=int(last - first)):
            value = start[path[0]] * density[first, path[0]]
            for t in range(1, len(path)):
                value *= trans[path[t - 1], path[t]] * density[first + t, path[t]]
            total += value
        expected.append(np.log(total))
    parts = [few.x[a:b] for a, b in zip(few.groups[:-1], few.groups[1:], strict=True)]
    assert bnp.score(posterior, parts) == pytest.approx(sum(expected) / few.n_atoms, rel=1e-12)
    each = score_samples(posterior, parts)
    np.testing.assert_allclose(np.add.reduceat(each, few.groups[:-1]), expected, rtol=1e-12)


def test_a_path_has_the_joint_density_of_its_states_and_the_data(posterior):
    """By enumeration: those of all paths through states in use sum to what is left of the score without the others."""
    few = sequences((4, 2), k=3, seed=5)
    few = replace(few, groups=np.array([0, 0, 4, 4, 6]))  # sequences without steps have none
    start, trans = posterior.model.allocation.expected_chain(posterior.allocation)
    log_lik = posterior.model.observation.log_predictive(posterior.observation, few)
    values = []
    for path in product(range(3), repeat=6):
        pairs = [(0, 1), (1, 2), (2, 3), (4, 5)]
        expected = np.log(start[path[0]]) + np.log(start[path[4]]) + sum(log_lik[t, k] for t, k in enumerate(path))
        expected += sum(np.log(trans[path[a], path[b]]) for a, b in pairs)
        found = path_densities(posterior.model, posterior, few, np.array(path))
        assert found.shape == (2,)
        np.testing.assert_allclose(found.sum(), expected, rtol=1e-12)
        values.append(found.sum())
    unseen = len(start) > posterior.n_clusters
    total = log_density(posterior, few).sum()
    assert (np.logaddexp.reduce(values) < total) if unseen else np.isclose(np.logaddexp.reduce(values), total)


def test_labels_are_the_best_path(posterior):
    few = sequences((5, 4), k=3, seed=6, spread=1.0)
    own = posterior.allocation
    log_lik = posterior.model.observation.expected_log_lik(posterior.observation, few)
    best = []
    for first, last in zip(few.groups[:-1], few.groups[1:], strict=True):
        paths = list(product(range(3), repeat=int(last - first)))
        values = [
            own.log_start[p[0]] + sum(log_lik[first + t, k] for t, k in enumerate(p))
            + sum(own.log_trans[a, b] for a, b in zip(p[:-1], p[1:], strict=True))
            for p in paths
        ]  # fmt: skip
        best += paths[int(np.argmax(values))]
    parts = [few.x[a:b] for a, b in zip(few.groups[:-1], few.groups[1:], strict=True)]
    np.testing.assert_array_equal(bnp.predict(posterior, parts), posterior.ids[best])
    np.testing.assert_array_equal(state_path(posterior, few), best)
    soft = bnp.predict(posterior, parts, soft=True)
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-12)
    assert bnp.predict(posterior, parts, top=2).label.shape == (9, 2)


def test_rows_in_memory_are_one_sequence_and_those_of_a_source_need_to_say_where_sequences_start(posterior):
    x = sequences((5,), k=3, seed=7, spread=1.0).x
    np.testing.assert_array_equal(bnp.predict(posterior, x), bnp.predict(posterior, [x]))
    with pytest.raises(DataError, match="rows without sequences"):
        bnp.predict(posterior, bnp.as_source(x))


def test_sequences_in_tiles_have_the_densities_that_they_have_together(posterior, monkeypatch):
    few = replace(sequences((4, 1, 3, 2), k=3, seed=5), groups=np.array([0, 0, 4, 5, 8, 8, 10]))
    path = np.array([0, 1, 2, 2, 1, 0, 2, 1, 1, 0])
    each = chain_density(posterior.model, posterior, few)
    joint = path_densities(posterior.model, posterior, few, path)
    assert each.shape == (10,) and joint.shape == (4,)

    def tiles(self, batch, n_clusters):
        yield replace(batch.rows(0, 5), groups=np.array([0, 0, 4, 5]))
        yield replace(batch.rows(5, 8), groups=np.array([0, 3]))
        yield replace(batch.rows(8, 10), groups=np.array([0, 0, 2]))

    monkeypatch.setattr(type(posterior.model.allocation), "tiles", tiles)
    np.testing.assert_allclose(chain_density(posterior.model, posterior, few), each, rtol=1e-12)
    np.testing.assert_allclose(path_densities(posterior.model, posterior, few, path), joint, rtol=1e-12)
