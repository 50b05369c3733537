"""Predict and score of hidden Markov models against every path there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.score import score_samples
from bnp_dask.analysis.sequences import state_path
from bnp_dask.errors import DataError
from tests.chains.parts import KINDS, begin, model_of, sequences


@pytest.fixture(params=KINDS)
def posterior(request):
    batch = sequences((30, 25, 40), k=3)
    return begin(model_of(request.param, batch), batch, k=3)


def test_score_sums_over_all_paths(posterior):
    few = sequences((4, 1, 5), k=3, seed=5)
    own = posterior.allocation
    start, trans = own.theta0 / own.theta0.sum(), own.theta / own.theta.sum(axis=1, keepdims=True)
    density = np.exp(posterior.model.observation.log_predictive(posterior.observation, few))
    expected = []
    for first, last in zip(few.groups[:-1], few.groups[1:], strict=True):
        total = 0.0
        for path in product(range(3), repeat=int(last - first)):
            value = start[path[0]] * density[first, path[0]]
            for t in range(1, len(path)):
                value *= trans[path[t - 1], path[t]] * density[first + t, path[t]]
            total += value
        expected.append(np.log(total))
    parts = [few.x[a:b] for a, b in zip(few.groups[:-1], few.groups[1:], strict=True)]
    assert bnp.score(posterior, parts) == pytest.approx(sum(expected) / few.n_atoms, rel=1e-12)
    each = score_samples(posterior, parts)
    np.testing.assert_allclose(np.add.reduceat(each, few.groups[:-1]), expected, rtol=1e-12)


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


def test_rows_without_sequences_are_refused(posterior):
    with pytest.raises(DataError, match="rows without sequences"):
        bnp.predict(posterior, np.zeros((5, 2)))
