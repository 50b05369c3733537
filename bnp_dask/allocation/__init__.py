"""Allocation models: one file is one way to assign atoms to clusters."""

from bnp_dask.allocation.base import UrnAllocation
from bnp_dask.allocation.document_step import DocumentStep
from bnp_dask.allocation.dp_mixture import DPMixture, StickParams
from bnp_dask.allocation.finite_hmm import FiniteHMM, StateRows
from bnp_dask.allocation.finite_hmt import FiniteHMT
from bnp_dask.allocation.finite_mixture import DirichletParams, FiniteMixture
from bnp_dask.allocation.hdp_hmm import HDPHMM, StateSticks
from bnp_dask.allocation.hdp_topics import HDPTopics, TopicSticks
from bnp_dask.allocation.lda import LDA, TopicShares
from bnp_dask.allocation.levy import GeneralizedGamma, KnownCumulants, LevyIntensity
from bnp_dask.allocation.nggp import NGGPMixture, NRMMixture, SeatParams
from bnp_dask.allocation.pitman_yor import PitmanYorMixture
from bnp_dask.allocation.response import CategoricalResponse, ClassCoefficients, Coefficients, GaussianResponse
from bnp_dask.allocation.strata import StrataMixture, StrataParams
from bnp_dask.kernels import Urn

__all__ = [
    "HDPHMM",
    "LDA",
    "CategoricalResponse",
    "ClassCoefficients",
    "Coefficients",
    "DPMixture",
    "DirichletParams",
    "DocumentStep",
    "FiniteHMM",
    "FiniteHMT",
    "FiniteMixture",
    "GaussianResponse",
    "GeneralizedGamma",
    "HDPTopics",
    "KnownCumulants",
    "LevyIntensity",
    "NGGPMixture",
    "NRMMixture",
    "PitmanYorMixture",
    "SeatParams",
    "StateRows",
    "StateSticks",
    "StickParams",
    "StrataMixture",
    "StrataParams",
    "TopicShares",
    "TopicSticks",
    "Urn",
    "UrnAllocation",
]
