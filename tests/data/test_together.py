"""Small batches share a task in passes that compute next to nothing: the same survey, and bad ones are named."""

import math

import numpy as np
import pytest
from scipy import sparse

from bnp_dask import DPMixture, Gaussian, Model
from bnp_dask.data import as_source
from bnp_dask.data.base import SMALL_BYTES, bytes_told, in_words, n_together
from bnp_dask.errors import DataError
from bnp_dask.execute import SerialExecutor
from bnp_dask.training.survey_pass import take_survey

MODEL = Model(DPMixture(), Gaussian())
X = np.random.default_rng(0).normal(size=(4000, 3))


class Named(SerialExecutor):
    """Keeps the names of its tasks; has as many workers as it is told."""

    def __init__(self, n_workers):
        super().__init__(retries=0)
        self.names, self.count = [], n_workers

    @property
    def n_workers(self):
        return self.count

    def submit(self, name, function, *args):
        self.names.append(name)
        return super().submit(name, function, *args)


@pytest.mark.parametrize(
    "n_batches, nbytes, n_workers, together",
    [
        (100, 1e6, 2, 8),
        (100, 1e6, 10, 2),  # each worker gets some
        (100, 1e6, 100, 1),
        (100, 1e6, 0, 8),  # they may come back
        (3, 1e3, 1, 1),
        (100, 100.0 * SMALL_BYTES, 2, 8),
        (100, 101.0 * SMALL_BYTES, 2, 1),  # large ones
        (100, math.inf, 2, 1),
    ],
)
def test_how_many(n_batches, nbytes, n_workers, together):
    assert n_together(n_batches, nbytes, n_workers) == together


def test_what_sources_tell():
    assert bytes_told(as_source(X, batch_size=100)) == X.nbytes
    assert bytes_told(as_source(sparse.csr_array(X), batch_size=100)) == math.inf


@pytest.mark.parametrize("n_workers, tasks", [(1, 5), (2, 8), (50, 40)])
def test_the_survey_is_the_same(n_workers, tasks):
    source, executor = as_source(X, batch_size=100), Named(n_workers)
    survey = take_survey(MODEL, source, executor).survey
    assert len(executor.names) == tasks
    assert executor.names[0] == ("survey-batch0" if n_workers == 50 else f"survey-batch0-to-{[0, 7, 4][n_workers]}")
    alone = take_survey(MODEL, source, Named(50)).survey
    assert survey.batch_atoms == alone.batch_atoms and survey.checksums == alone.checksums
    np.testing.assert_array_equal(survey.mean, alone.mean)


def test_a_bad_batch_among_good_ones():
    x = X.copy()
    x[1234, 1] = np.nan
    source = as_source(x, batch_size=100)
    with pytest.raises(DataError, match=r"batch 12\b"):
        take_survey(MODEL, source, Named(1))
    found = take_survey(MODEL, source, Named(1), skips=True)
    survey, rest = found.survey, found.source
    assert survey.n_atoms == 3900 and rest.n_batches == 40
    assert [b for b, n in enumerate(survey.batch_atoms) if n == 0] == [12]


def test_names():
    assert [in_words([3]), in_words(range(3, 6))] == ["batch3", "batch3-to-5"]
