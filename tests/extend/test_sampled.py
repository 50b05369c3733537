"""A guest likelihood under Gibbs sampling, with a closed form of the density of single atoms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from negbin import NegativeBinomial
from scipy.special import betaln
from test_negbin import TestNegativeBinomial as Plain

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.observation.interface import SequentialObservation, sequential_predictive


@bnp.register
@dataclass(frozen=True, eq=False)
class SampledCounts(NegativeBinomial):
    """Negative binomials whose parameters can be drawn."""

    def at_draw(self, params, rng):
        p = rng.beta(params.a, params.b)
        return self._with_coefficients(p, 1.0 - p, np.log(p), np.log1p(-p))

    def sequential_predictive(self, params, batch):
        def density(i, k, others):
            a, b = params.a[k] + batch.x[others].sum(axis=0), params.b[k] + self.r * len(others)
            grown = betaln(a + batch.x[i], b + self.r) - betaln(a, b)
            return float(grown.sum() + self._log_base(batch.rows(i, i + 1))[0])

        return density


class TestSampledCounts(Plain):
    def model(self):
        return SampledCounts(r=2.0)


def test_a_guest_without_a_closed_form_has_none():
    model, batch, _, _, params = Plain().fitted()
    assert sequential_predictive(model, params, batch) is None
    assert isinstance(SampledCounts(), SequentialObservation)


def test_chains_of_a_guest_find_its_clusters():
    rng = np.random.default_rng(0)
    x = rng.poisson(np.repeat([[1.0, 20.0], [15.0, 2.0]], 60, axis=0)).astype(float)
    model = bnp.Model(bnp.DPMixture(1.0), SampledCounts(r=50.0))
    result = bnp.train(model, x, schedule=bnp.Gibbs(laps=40), client=SerialExecutor(), batch_size=40)
    labels = result.draws.labels[0, -1]
    assert len(set(labels[:60])) == len(set(labels[60:])) == 1
