"""Sequences of a batch: offsets, weights, and likelihoods on a scale that does not underflow."""

from __future__ import annotations

import numpy as np

from bnp_dask.core import Batch
from bnp_dask.errors import DataError, NumericalError
from bnp_dask.kernels import hmm as kernel


def sequence_offsets(batch: Batch) -> np.ndarray:
    """Rows of each sequence, ``(G + 1,)``; DataError for rows without sequences."""
    if batch.groups is None:
        raise DataError(
            f"{batch.name}: rows without sequences; a hidden Markov model needs to know which rows follow one another. "
            "Give Batch(x, groups=offsets), rows of each sequence in order; name the column of groups of a table, or a "
            ".npy file of offsets: as_source(..., groups=) (data.groups in a job file, --group-column); or train a "
            "mixture"
        )
    return batch.groups


def sequence_weights(batch: Batch, offsets: np.ndarray) -> np.ndarray:
    """Weight of each sequence, ``(G,)``; DataError if rows of one sequence have different weights."""
    lengths = np.diff(offsets)
    if batch.weights is None:
        return np.ones(len(lengths))
    first = np.where(lengths > 0, batch.weights[np.minimum(offsets[:-1], batch.n_atoms - 1)] if batch.n_atoms else 0, 0)
    wrong = np.flatnonzero(np.repeat(first, lengths) != batch.weights)
    if len(wrong):
        g = int(np.searchsorted(offsets, wrong[0], side="right")) - 1
        raise DataError(
            f"{batch.name}: rows of sequence {g} have weights {first[g]} and {batch.weights[wrong[0]]}; in a hidden "
            "Markov model a weight says how often a whole sequence counts: give all its rows the same"
        )
    return np.asarray(first, np.float64)


def shifted(log_lik: np.ndarray, batch: Batch, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log likelihoods shifted so that the largest of each row is zero (overwritten), and the shifts, ``(n,)``.

    They belong to the rows of a batch from ``first`` on.
    """
    log_lik = np.ascontiguousarray(log_lik, np.float64)
    top = kernel.shift_rows(log_lik)
    if not np.isfinite(top).all():
        row = int(np.argmin(np.isfinite(top)))
        raise NumericalError(
            f"{batch.name}, row {first + row}: its log likelihood is {top[row]} under the best of {log_lik.shape[1]} "
            "states; the values are too far from all that was seen for double precision: rescale the columns, or drop "
            "the row"
        )
    return log_lik, top


def shifted_potentials(log_start: np.ndarray, log_trans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logs of the start ``(K,)`` and of transitions ``(K, K)`` with the largest at zero: the same posterior."""
    start = np.maximum(log_start - log_start.max(), kernel.NEVER)
    return start, np.maximum(log_trans - log_trans.max(), kernel.NEVER)
