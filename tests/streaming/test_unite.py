"""Which clusters are one, from their statistics."""

from __future__ import annotations

import numpy as np

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.inference.streaming.unite import unions
from bnp_dask.model import Model
from bnp_dask.testing.parts import survey_of


def test_of_a_pair_that_is_one_cluster_only_one_needs_to_have_grown():
    rng = np.random.default_rng(0)
    batch = Batch(np.concatenate([rng.normal(size=(80, 2)), rng.normal(size=(40, 2)) + 30.0]))
    model = Model(bnp.DPMixture(1.0), bnp.DiagGaussian()).with_prior(survey_of(batch))
    total = model.summarize(np.array([4, 7, 9]), batch, np.eye(3)[np.repeat([0, 1, 2], 40)])
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([7]))] == [(4, 7)]
    assert [pair[:2] for pair in unions(model, total, 0.0, np.array([4, 7]))] == [(4, 7)]
    assert unions(model, total, 0.0, np.array([9])) == []
    assert unions(model, total, 1e6, np.array([7])) == []
