"""The guest structure."""

from itertools import product

import numpy as np
import pytest
from linked import LinkedMixture

import bnp_dask as bnp
from bnp_dask.testing import StructureSuite


class TestLinked(StructureSuite):
    def model(self):
        return bnp.Model(LinkedMixture(), bnp.DiagGaussian())

    def batch(self, rng, n):
        return bnp.Batch(rng.normal(rng.integers(2, size=(n, 1)) * 3.0, 1.0, (n, 2)).repeat(2, axis=0))

    def assignments(self, batch, n_clusters):
        for places in product(range(n_clusters), repeat=batch.n_atoms // 2):
            yield np.repeat(places, 2)


def test_the_suite_sees_a_mean_in_place_of_a_sum_of_log_likelihoods(monkeypatch):
    right = bnp.DiagGaussian.expected_log_lik
    monkeypatch.setattr(bnp.DiagGaussian, "expected_log_lik", lambda *given: right(*given) / 2)
    with pytest.raises(AssertionError):
        TestLinked().test_a_local_step_sums_over_all_assignments()


def test_rows_of_a_link_have_one_cluster_and_clusters_beyond_those_of_the_data_are_merged():
    x = np.random.default_rng(0).normal([[0.0], [4.0]], 1.0, (2, 400)).reshape(-1, 1)
    model, start = bnp.Model(LinkedMixture(), bnp.DiagGaussian()), bnp.RandomExamples(5)
    result = bnp.train(model, x, init=start, moves=[bnp.Merge()], batch_size=100, schedule=bnp.Memoized(laps=60))
    labels = bnp.predict(result.posterior, x).reshape(2, 200, 2)
    assert (labels[..., 0] == labels[..., 1]).all()
    assert result.posterior.n_clusters == 2
