"""One visit of one batch in a process of its own: what it takes beside the batch.

``python -m tests.memory.worker CASE`` prints bytes: batch, model (parameters and summary), most that the survey and
the visit held beside the batch.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.kernels.mixture import SparseResp
from bnp_dask.training.survey_pass import survey_task
from tests.memory import measure

BATCH_BYTES = 40 * measure.MB


def gaussian_rows(rng: np.random.Generator) -> np.ndarray:
    """64 features, one great cloud: every atom is of many clusters."""
    return rng.normal(size=(BATCH_BYTES // 512, 64))


def count_rows(rng: np.random.Generator) -> np.ndarray:
    """500 dense counts a row."""
    return rng.poisson(3.0, size=(BATCH_BYTES // 4000, 500)).astype(np.float64)


def documents(rng: np.random.Generator) -> sparse.csr_array:
    """About a hundred of 7000 words a document."""
    n = BATCH_BYTES // 1200
    word = rng.integers(7000, size=100 * n).astype(np.int32)
    counts = sparse.csr_array((np.ones(len(word)), word, np.arange(0, 100 * n + 1, 100, np.int32)), shape=(n, 7000))
    counts.sum_duplicates()
    return counts


CASES = {
    "gaussian": (bnp.Gaussian, None, 200, gaussian_rows),
    "gaussian-top": (bnp.Gaussian, 4, 200, gaussian_rows),
    "diagonal": (bnp.DiagGaussian, None, 100, gaussian_rows),
    "poisson": (bnp.Poisson, None, 50, count_rows),
    "multinomial": (bnp.Multinomial, None, 50, documents),
    "multinomial-top": (bnp.Multinomial, 4, 50, documents),
}


def main(case: str) -> None:
    """Compile on a small batch, then measure on the large one."""
    kind, top, n_clusters, rows = CASES[case]
    rng = np.random.default_rng(0)
    batch = Batch(rows(rng))
    small = Batch(batch.x[:4000].copy())
    model = bnp.Model(bnp.DPMixture(1.0, top=top), kind()).with_prior(survey_batch(small))
    label = rng.integers(n_clusters, size=small.n_atoms)
    resp = SparseResp(label[:, None], np.ones((len(label), 1)), n_clusters)
    posterior = model.global_step(model.summarize(np.arange(n_clusters), small, resp))
    survey_task(model, lambda: small)
    model.visit(posterior.light(), small)
    high = []
    for step in (lambda: survey_task(model, lambda: batch), lambda: model.visit(posterior.light(), batch)):
        before = measure.start()
        step()
        high.append(measure.highest() - before)
    print(batch.nbytes, measure.model_bytes(posterior), *high)


if __name__ == "__main__":
    main(sys.argv[1])
