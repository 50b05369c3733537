"""Initializations: each class makes the first summary of training in one way."""

from bnp_dask.initialize.anchors import AnchorWords
from bnp_dask.initialize.base import InitContext, Initialization, LearnedStart
from bnp_dask.initialize.given import (
    ContiguousBlocks,
    FromNothing,
    FromPosterior,
    FromSample,
    RandomExamples,
    Responsibilities,
)
from bnp_dask.initialize.kmeans import BregmanKMeans, KMeansParallel
from bnp_dask.initialize.sampled import SampledTopics

__all__ = [
    "AnchorWords",
    "BregmanKMeans",
    "ContiguousBlocks",
    "FromNothing",
    "FromPosterior",
    "FromSample",
    "InitContext",
    "Initialization",
    "KMeansParallel",
    "LearnedStart",
    "RandomExamples",
    "Responsibilities",
    "SampledTopics",
]
