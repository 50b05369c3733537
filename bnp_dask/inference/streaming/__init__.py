"""Inference without a truncation: atoms seated one after the other, in one pass or in many.

    batch, statistics of all others (the cavity) -> atoms in order, each given earlier ones -> site -> total

The site of a batch is its summary.  The total minus a site is the cavity from which the next visit of the batch starts
(expectation propagation).  In one pass every site is added once and forgotten (assumed density filtering).

    batch, beliefs -> minibatch by minibatch: clusters drawn together, a step of the learning rate -> change

The change by a batch consists of the share of the beliefs that remains and the statistics that are added; changes
follow one another (truncation-free stochastic variational inference).
"""

from bnp_dask.inference.streaming.filtering import Filter
from bnp_dask.inference.streaming.propagation import ExpectationPropagation
from bnp_dask.inference.streaming.truncation_free import TruncationFreeSVI

__all__ = ["ExpectationPropagation", "Filter", "TruncationFreeSVI"]
