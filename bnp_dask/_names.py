"""Where every public name lives: the package looks them up when they are used, job files when they name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

Group = Mapping[str, str]
"""Public names and the modules that define them."""

ALLOCATIONS: Group = MappingProxyType(
    {
        "DPMixture": "bnp_dask.allocation",
        "FiniteHMM": "bnp_dask.allocation",
        "FiniteMixture": "bnp_dask.allocation",
        "HDPHMM": "bnp_dask.allocation",
        "HDPTopics": "bnp_dask.allocation",
        "LDA": "bnp_dask.allocation",
        "NGGPMixture": "bnp_dask.allocation",
    }
)

OBSERVATIONS: Group = MappingProxyType(
    {
        "AutoRegressiveGaussian": "bnp_dask.observation",
        "Bernoulli": "bnp_dask.observation",
        "Categorical": "bnp_dask.observation",
        "DiagGaussian": "bnp_dask.observation",
        "FixedVarianceGaussian": "bnp_dask.observation",
        "Gaussian": "bnp_dask.observation",
        "Multinomial": "bnp_dask.observation",
        "Poisson": "bnp_dask.observation",
        "Product": "bnp_dask.observation",
        "VonMisesFisher": "bnp_dask.observation",
        "ZeroMeanGaussian": "bnp_dask.observation",
    }
)

SCHEDULES: Group = MappingProxyType(
    {
        "ExpectationPropagation": "bnp_dask.streaming",
        "Filter": "bnp_dask.streaming",
        "FullBatch": "bnp_dask.schedules",
        "Gibbs": "bnp_dask.sampling",
        "Memoized": "bnp_dask.schedules",
        "Stochastic": "bnp_dask.schedules",
        "TruncationFreeSVI": "bnp_dask.streaming",
    }
)

INITIALIZATIONS: Group = MappingProxyType(
    {
        "AnchorWords": "bnp_dask.initialize",
        "BregmanKMeans": "bnp_dask.initialize",
        "ContiguousBlocks": "bnp_dask.initialize",
        "FromNothing": "bnp_dask.initialize",
        "FromPosterior": "bnp_dask.initialize",
        "KMeansParallel": "bnp_dask.initialize",
        "RandomExamples": "bnp_dask.initialize",
        "Responsibilities": "bnp_dask.initialize",
        "SampledTopics": "bnp_dask.initialize",
    }
)

MOVES: Group = MappingProxyType(
    {
        "Birth": "bnp_dask.moves",
        "Delete": "bnp_dask.moves",
        "DocumentBirth": "bnp_dask.moves",
        "Merge": "bnp_dask.moves",
    }
)

VERBS: Group = MappingProxyType(
    {
        "as_source": "bnp_dask.data",
        "changes": "bnp_dask.training.growing.changes",
        "collapsed_topics": "bnp_dask.analysis.topics",
        "compare": "bnp_dask.reports.compare",
        "completion_score": "bnp_dask.analysis.score",
        "explain": "bnp_dask.analysis.topics",
        "follow": "bnp_dask.training.growing.follow",
        "grid": "bnp_dask.analysis.grid",
        "ingest": "bnp_dask.data",
        "impute": "bnp_dask.analysis.impute",
        "inspect": "bnp_dask.reports.run_page",
        "lineage": "bnp_dask.reports.lineage",
        "load": "bnp_dask.training.growing.loading",
        "load_documents": "bnp_dask.data",
        "load_draws": "bnp_dask.training.results",
        "load_dropped": "bnp_dask.data",
        "load_vocabulary": "bnp_dask.data",
        "local_client": "bnp_dask.execute.local",
        "predict": "bnp_dask.analysis.predict",
        "prices": "bnp_dask.analysis.prices",
        "register": "bnp_dask.core.registry",
        "replace": "bnp_dask.training.growing.replace",
        "report": "bnp_dask.reports.run_page",
        "retire": "bnp_dask.training.growing.retire",
        "rollback": "bnp_dask.training.growing.rollback",
        "sample": "bnp_dask.analysis.sample",
        "save": "bnp_dask.training.results",
        "score": "bnp_dask.analysis.score",
        "sequence_distances": "bnp_dask.analysis.sequences",
        "survey_documents": "bnp_dask.analysis.topics",
        "state_durations": "bnp_dask.analysis.sequences",
        "survey_sequences": "bnp_dask.analysis.sequences",
        "to_pyldavis": "bnp_dask.analysis.topics",
        "top_words": "bnp_dask.analysis.topics",
        "topics_over": "bnp_dask.analysis.topics",
        "train": "bnp_dask.training.train",
        "transitions": "bnp_dask.analysis.sequences",
        "update": "bnp_dask.training.growing.update",
        "without_missing": "bnp_dask.analysis.sequences",
        "word_score": "bnp_dask.analysis.topics",
        "worker_settings": "bnp_dask.execute.local",
    }
)

OTHERS: Group = MappingProxyType(
    {
        "Batch": "bnp_dask.core.batch",
        "BnpDaskError": "bnp_dask.errors",
        "Change": "bnp_dask.training.growing.changes",
        "Columns": "bnp_dask.core.columns",
        "Completion": "bnp_dask.analysis.topics",
        "ConvergenceWarning": "bnp_dask.training.train",
        "Draws": "bnp_dask.sampling",
        "DirichletProcessMixture": "bnp_dask.estimators.mixture",
        "DocumentStep": "bnp_dask.allocation",
        "Feed": "bnp_dask.training.growing.incoming.feed",
        "Grid": "bnp_dask.analysis.grid",
        "History": "bnp_dask.training.results",
        "LogToMLflow": "bnp_dask.training.mlflow_log",
        "Model": "bnp_dask.model",
        "Patches": "bnp_dask.data",
        "Posterior": "bnp_dask.model",
        "Progress": "bnp_dask.training.callbacks",
        "Shadow": "bnp_dask.training.alternatives.shadow",
        "SequenceModel": "bnp_dask.estimators.sequences",
        "Source": "bnp_dask.data.base",
        "Text": "bnp_dask.data",
        "TopicModel": "bnp_dask.estimators.topics",
        "TrainResult": "bnp_dask.training.results",
        "UpdateResult": "bnp_dask.training.growing.taking_in",
        "Vocabulary": "bnp_dask.data",
        "plot": "bnp_dask.reports",
        "__version__": "bnp_dask._version",
    }
)

METHODS: Group = MappingProxyType(
    {
        "posterior_html": "bnp_dask.reports.run_page",
        "result_html": "bnp_dask.reports.run_page",
        "save": "bnp_dask.training.results",
        "to_xarray": "bnp_dask.training.results",
        "topic_list": "bnp_dask.analysis.topics",
    }
)
"""Functions of upper layers by which posteriors and results save and show themselves: named there, never imported."""

PUBLIC: Group = MappingProxyType(
    {**OTHERS, **ALLOCATIONS, **OBSERVATIONS, **SCHEDULES, **INITIALIZATIONS, **MOVES, **VERBS},
)
"""All of them."""


def method(name: str) -> Callable[..., Any]:
    """A function of :data:`METHODS`, whose module is imported when it is called for."""
    found: Callable[..., Any] = getattr(import_module(METHODS[name]), name)
    return found
