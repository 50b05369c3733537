"""The table of likelihoods of documents, against NumPy, whichever topic is the most likely."""

from __future__ import annotations

import numpy as np
import pytest

from bnp_dask.kernels.topics.document_step import table_of


@pytest.mark.parametrize("n_topics", [1, 2, 3, 4, 5, 7, 8, 11])
def test_rows_are_likelihoods_up_to_a_factor_wherever_their_maximum_is(n_topics):
    log_lik = np.full((n_topics, n_topics), -800.0) + 900.0 * np.eye(n_topics)
    table = np.empty_like(log_lik)
    table_of(log_lik.copy(), -600.0, table)
    expected = np.exp(np.maximum(log_lik - log_lik.max(axis=1, keepdims=True), -600.0))
    np.testing.assert_allclose(table, expected, rtol=1e-13)
