"""Which clusters are one, from their statistics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming.unite import rows, union_gains, unions
from bnp_dask.model import Model
from bnp_dask.moves.pairs import best_first, evidence_gains
from bnp_dask.testing import survey_of


def test_of_a_pair_that_is_one_cluster_only_one_needs_to_have_grown():
    rng = np.random.default_rng(0)
    batch = Batch(np.concatenate([rng.normal(size=(80, 2)), rng.normal(size=(40, 2)) + 30.0]))
    model = Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.array([4, 7, 9]), batch, np.eye(3)[np.repeat([0, 1, 2], 40)])
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([7]))] == [(4, 7)]
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([4, 7]))] == [(4, 7)]
    assert unions(model, total, 0.0, np.array([9])) == []
    assert unions(model, total, 1e6, np.array([7])) == []


def test_of_many_clusters_the_near_ones_are_united_as_if_all_pairs_were_scored():
    rng, label = np.random.default_rng(0), np.repeat(np.arange(300), 12)
    batch = Batch(rng.uniform(-300.0, 300.0, size=(150, 2))[label // 2] + rng.normal(size=(len(label), 2)))
    model = Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.arange(300), batch, np.eye(300)[label])
    first, second = np.triu_indices(300, 1)
    gains = union_gains(model, rows(total, first), rows(total, second), total)
    every = np.stack([first, second], axis=1)
    found = unions(model, total, 0.0, total.ids)
    assert [pair[:2] for pair in found] == [tuple(every[m]) for m in best_first(every, gains)]
    assert len(found) > 100
    few = unions(model, total, 0.0, np.array([7]))  # all pairs of a few clusters are scored
    assert few[0][:2] == tuple(every[max(np.flatnonzero((every == 7).any(axis=1)), key=gains.__getitem__)])


@pytest.mark.parametrize("prior", [bnp.DPMixture(1.0), bnp.NGGPMixture(1.0, 0.5, 1.0)], ids=["DP", "NGGP"])
def test_gains_of_unions_do_not_depend_on_the_order_of_a_pair(prior):
    rng = np.random.default_rng(1)
    batch = Batch(rng.normal(size=(100, 2)))
    model = Model(prior, bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.arange(3), batch, np.eye(3)[np.repeat([0, 1, 2], [3, 17, 80])])
    first, second = rows(total, np.array([0, 0, 1])), rows(total, np.array([1, 2, 2]))
    gains = union_gains(model, first, second, total)
    np.testing.assert_allclose(gains, union_gains(model, second, first, total), rtol=1e-10)
    if isinstance(prior, bnp.DPMixture):  # Gamma(n_a + n_b) / (Gamma(n_a) Gamma(n_b) gamma)
        n_a, n_b = np.array([3, 3, 17]), np.array([17, 80, 80])
        data = evidence_gains(model, first, second)
        np.testing.assert_allclose(gains - data, gammaln(n_a + n_b) - gammaln(n_a) - gammaln(n_b), rtol=1e-10)
