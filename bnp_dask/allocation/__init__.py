"""Allocation models: one file is one way to assign atoms to clusters."""

from bnp_dask.allocation.dp_mixture import DPMixture, StickParams
from bnp_dask.allocation.finite_mixture import DirichletParams, FiniteMixture
from bnp_dask.allocation.hdp_topics import HDPTopics, TopicSticks
from bnp_dask.allocation.lda import LDA, TopicShares
from bnp_dask.allocation.topics import DocumentStep

ALLOCATIONS = (
    DPMixture,
    StickParams,
    FiniteMixture,
    DirichletParams,
    LDA,
    TopicShares,
    HDPTopics,
    TopicSticks,
    DocumentStep,
)
"""Every class that a saved model may hold."""

__all__ = [
    "ALLOCATIONS",
    "LDA",
    "DPMixture",
    "DirichletParams",
    "DocumentStep",
    "FiniteMixture",
    "HDPTopics",
    "StickParams",
    "TopicShares",
    "TopicSticks",
]
