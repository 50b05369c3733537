"""Allocation models: one file is one way to assign atoms to clusters."""

from bnp_dask.allocation.document_step import DocumentStep
from bnp_dask.allocation.dp_mixture import DPMixture, StickParams
from bnp_dask.allocation.finite_hmm import FiniteHMM, StateRows
from bnp_dask.allocation.finite_mixture import DirichletParams, FiniteMixture
from bnp_dask.allocation.hdp_hmm import HDPHMM, StateSticks
from bnp_dask.allocation.hdp_topics import HDPTopics, TopicSticks
from bnp_dask.allocation.lda import LDA, TopicShares

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
    HDPHMM,
    StateSticks,
    FiniteHMM,
    StateRows,
)
"""Every class that a saved model may hold."""

__all__ = [
    "ALLOCATIONS",
    "HDPHMM",
    "LDA",
    "DPMixture",
    "DirichletParams",
    "DocumentStep",
    "FiniteHMM",
    "FiniteMixture",
    "HDPTopics",
    "StateRows",
    "StateSticks",
    "StickParams",
    "TopicShares",
    "TopicSticks",
]
