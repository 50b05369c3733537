"""Counts and bits: checks, products and sums of dense or sparse rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.core import Batch
from bnp_dask.errors import DataError
from bnp_dask.inputs import require_sound
from bnp_dask.kernels import (
    Resp,
    atom_sums,
    cluster_sums,
    count_sums,
    matmul,
    row_log_factorials,
    table_product,
    transposed,
)
from bnp_dask.observation.priors import MOST_COUNT

PIECE_NUMBERS = 2**17
"""Numbers that are checked at a time (1 MB)."""


def check_width(model: object, batch: Batch, n_features: int | None) -> None:
    """Raise DataError unless the batch has as many columns as the model expects, if that is known."""
    if n_features is not None and batch.n_features != n_features:
        raise DataError(
            f"{batch.name}: {batch.n_features} columns, but {type(model).__name__} was set up for {n_features}; "
            "all batches, and the data to predict, need the same columns in the same order"
        )
    if not isinstance(batch.x, np.ndarray):
        require_sound(batch.x, batch.name)


def check_counts(model: object, batch: Batch, n_features: int | None, fractional: bool = False) -> None:
    """Raise DataError unless the batch holds finite numbers >= 0, dense or sparse, of the right width.

    They must be integers unless ``fractional``.
    """
    check_width(model, batch, n_features)
    x = stored(batch)
    for start in range(0, len(x), _step(x)):  # in pieces: masks of a whole batch would be a good part of its size
        _check_piece(model, batch, x[start : start + _step(x)], start, fractional)
    if not isinstance(batch.x, np.ndarray) and not batch.x.has_canonical_format:
        merged = batch.x.copy()
        merged.sum_duplicates()
        if merged.nnz < batch.x.nnz:
            raise DataError(
                f"{batch.name}: {batch.x.nnz - merged.nnz} counts are given in several pieces (the same row and "
                "column twice); call counts.sum_duplicates() first"
            )


def check_bits(model: object, batch: Batch, n_features: int | None, may_miss: bool = False) -> None:
    """Raise DataError unless the batch holds zeros and ones, dense or sparse, of the right width.

    NaN in dense rows passes if entries ``may_miss``.
    """
    check_width(model, batch, n_features)
    x = stored(batch)
    wrong = (x != 0) & (x != 1)
    if may_miss and not batch.is_sparse:
        wrong &= ~np.isnan(x)
    if wrong.any():
        row, column, value = where_first(batch, wrong)
        raise DataError(
            f"{batch.name}: row {row}, {batch.column(column)} is {value}; {type(model).__name__} needs zeros and ones. "
            "Threshold the data, such as x > 0, or use Poisson or Multinomial for counts"
        )


def check_documents(batch: Batch) -> None:
    """Raise DataError for documents without words, or with more than the likelihood can hold."""
    length = np.asarray(batch.x.sum(axis=1))
    if length.max(initial=0.0) > MOST_COUNT:
        raise DataError(
            f"{batch.name}: row (document) {int(length.argmax())} has {length.max():.3g} words; double precision "
            f"holds the likelihood of up to {MOST_COUNT:.3g}. Divide its counts, or cut it into several"
        )
    empty = np.flatnonzero(length == 0)
    if len(empty):
        raise DataError(
            f"{batch.name}: {len(empty)} document(s) without any word, first at row {empty[0]}; they say "
            "nothing. Drop them before training or prediction: counts[counts.sum(axis=1) > 0]"
        )


def _step(x: np.ndarray) -> int:
    """Rows, or stored counts, of a piece."""
    return max(1, PIECE_NUMBERS // int(np.prod(x.shape[1:], dtype=np.int64) or 1))


def _check_piece(model: object, batch: Batch, piece: np.ndarray, start: int, fractional: bool) -> None:
    """Check some of the stored numbers of a batch, from row or entry ``start`` on."""
    for test, what, advice in (
        (lambda: ~np.isfinite(piece), "not a finite number", "Drop or impute such rows"),
        (lambda: piece < 0, "negative", "Counts start at zero; data that can be negative need a Gaussian"),
        (
            lambda: not fractional and piece != np.floor(piece),
            "not a whole number",
            "Give the raw counts, not frequencies or tf-idf",
        ),
        (
            lambda: piece > MOST_COUNT,
            "too large",
            f"Double precision holds log likelihoods of counts up to {MOST_COUNT:.3g}",
        ),
    ):
        wrong = np.asarray(test())
        if wrong.any():
            row, column, value = where_first(batch, wrong, start)
            raise DataError(
                f"{batch.name}: row (document) {row}, {_word(batch, column)} is {value}, which is {what}; "
                f"{type(model).__name__} needs counts. {advice}"
            )


def _word(batch: Batch, column: int) -> str:
    """Name of a column of counts in messages, which may be a word."""
    return f"column (word) {column}" if batch.names is None else batch.column(column)


def stored(batch: Batch) -> np.ndarray:
    """The numbers that a batch stores: all of a dense one, the nonzero counts of a sparse one."""
    return batch.x if isinstance(batch.x, np.ndarray) else batch.x.data


def where_first(batch: Batch, wrong: np.ndarray, start: int = 0) -> tuple[int, int, float]:
    """Row, column and value of the first true entry of a mask over :func:`stored` from row or entry ``start`` on."""
    if isinstance(batch.x, np.ndarray):
        row, column = np.argwhere(wrong)[0] + (start, 0)
        return int(row), int(column), float(batch.x[row, column])
    place = start + int(np.flatnonzero(wrong)[0])
    row = int(np.searchsorted(batch.x.indptr, place, side="right")) - 1
    return row, int(batch.x.indices[place]), float(batch.x.data[place])


def as_csr(batch: Batch) -> sparse.csr_array:
    """The counts of a batch as sparse rows."""
    return sparse.csr_array(batch.x)


def product(batch: Batch, table: np.ndarray) -> np.ndarray:
    """Atoms times ``table (K, D)`` transposed: ``(n, K)``."""
    if isinstance(batch.x, np.ndarray):
        return matmul(batch.x, table.T)
    return table_product(batch.x, table)


def sums(batch: Batch, resp: Resp) -> np.ndarray:
    """Sum over atoms of responsibility times atom: ``(K, D)``."""
    if isinstance(batch.x, np.ndarray):
        return cluster_sums(resp, batch.x)
    return count_sums(resp, batch.x)


def log_orders(counts: sparse.csr_array) -> np.ndarray:
    """Log of the orders in which the words of a document may stand, ``log(C! / prod x_v!)``, ``(n,)``."""
    length = np.asarray(counts.sum(axis=1), np.float64)
    return gammaln(length + 1.0) - row_log_factorials(counts)


def atom_mass(resp: Resp) -> np.ndarray:
    """Total responsibility of each atom, its weight, ``(n,)``."""
    return atom_sums(resp)


def cluster_fastest(table: np.ndarray) -> np.ndarray:
    """A ``(K, V)`` table stored with the cluster axis fastest, as the sparse products read it."""
    return transposed(np.ascontiguousarray(table)).T
