"""Inference without a truncation: atoms seated one after the other, in one pass or in many.

    batch, statistics of all others (the cavity) -> atoms in order, each given those before -> site -> total

The site of a batch is its summary, and the total less a site is the cavity that the next visit of the batch starts from
(expectation propagation).  In one pass every site is added once and forgotten (assumed density filtering).
"""

from bnp_dask.streaming.filtering import Filter
from bnp_dask.streaming.propagation import ExpectationPropagation

__all__ = ["ExpectationPropagation", "Filter"]
