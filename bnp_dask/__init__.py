"""Bayesian nonparametric clustering of data that no single machine holds.

A model is an allocation times an observation model; :func:`train` learns its posterior, here or on a Dask cluster::

    import bnp_dask as bnp

    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.ZeroMeanGaussian())
    result = bnp.train(model, "patches.zarr", callbacks=[bnp.Progress()])
    bnp.save(result.posterior, "posterior.zarr")
    labels = bnp.predict(result.posterior, "patches.zarr")

Names are looked up when they are first used, so ``import bnp_dask`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bnp_dask._names import PUBLIC as _PUBLIC

if TYPE_CHECKING:
    from bnp_dask._version import __version__ as __version__
    from bnp_dask.allocation import HDPHMM as HDPHMM
    from bnp_dask.allocation import LDA as LDA
    from bnp_dask.allocation import DocumentStep as DocumentStep
    from bnp_dask.allocation import DPMixture as DPMixture
    from bnp_dask.allocation import FiniteHMM as FiniteHMM
    from bnp_dask.allocation import FiniteMixture as FiniteMixture
    from bnp_dask.allocation import HDPTopics as HDPTopics
    from bnp_dask.allocation import NGGPMixture as NGGPMixture
    from bnp_dask.analysis.grid import Grid as Grid
    from bnp_dask.analysis.grid import grid as grid
    from bnp_dask.analysis.impute import impute as impute
    from bnp_dask.analysis.predict import predict as predict
    from bnp_dask.analysis.prices import prices as prices
    from bnp_dask.analysis.sample import sample as sample
    from bnp_dask.analysis.score import completion_score as completion_score
    from bnp_dask.analysis.score import score as score
    from bnp_dask.analysis.sequences import sequence_distances as sequence_distances
    from bnp_dask.analysis.sequences import state_durations as state_durations
    from bnp_dask.analysis.sequences import survey_sequences as survey_sequences
    from bnp_dask.analysis.sequences import transitions as transitions
    from bnp_dask.analysis.sequences import without_missing as without_missing
    from bnp_dask.analysis.topics import Completion as Completion
    from bnp_dask.analysis.topics import collapsed_topics as collapsed_topics
    from bnp_dask.analysis.topics import explain as explain
    from bnp_dask.analysis.topics import survey_documents as survey_documents
    from bnp_dask.analysis.topics import to_pyldavis as to_pyldavis
    from bnp_dask.analysis.topics import top_words as top_words
    from bnp_dask.analysis.topics import topics_over as topics_over
    from bnp_dask.analysis.topics import word_score as word_score
    from bnp_dask.core.batch import Batch as Batch
    from bnp_dask.core.columns import Columns as Columns
    from bnp_dask.core.registry import register as register
    from bnp_dask.data import Patches as Patches
    from bnp_dask.data import Text as Text
    from bnp_dask.data import Vocabulary as Vocabulary
    from bnp_dask.data import as_source as as_source
    from bnp_dask.data import ingest as ingest
    from bnp_dask.data import load_documents as load_documents
    from bnp_dask.data import load_dropped as load_dropped
    from bnp_dask.data import load_vocabulary as load_vocabulary
    from bnp_dask.data.base import Source as Source
    from bnp_dask.errors import BnpDaskError as BnpDaskError
    from bnp_dask.estimators.mixture import DirichletProcessMixture as DirichletProcessMixture
    from bnp_dask.estimators.sequences import SequenceModel as SequenceModel
    from bnp_dask.estimators.topics import TopicModel as TopicModel
    from bnp_dask.execute.local import local_client as local_client
    from bnp_dask.execute.local import worker_settings as worker_settings
    from bnp_dask.initialize import AnchorWords as AnchorWords
    from bnp_dask.initialize import BregmanKMeans as BregmanKMeans
    from bnp_dask.initialize import ContiguousBlocks as ContiguousBlocks
    from bnp_dask.initialize import FromNothing as FromNothing
    from bnp_dask.initialize import FromPosterior as FromPosterior
    from bnp_dask.initialize import KMeansParallel as KMeansParallel
    from bnp_dask.initialize import RandomExamples as RandomExamples
    from bnp_dask.initialize import Responsibilities as Responsibilities
    from bnp_dask.initialize import SampledTopics as SampledTopics
    from bnp_dask.model import Model as Model
    from bnp_dask.model import Posterior as Posterior
    from bnp_dask.moves import Birth as Birth
    from bnp_dask.moves import Delete as Delete
    from bnp_dask.moves import DocumentBirth as DocumentBirth
    from bnp_dask.moves import Merge as Merge
    from bnp_dask.observation import AutoRegressiveGaussian as AutoRegressiveGaussian
    from bnp_dask.observation import Bernoulli as Bernoulli
    from bnp_dask.observation import Categorical as Categorical
    from bnp_dask.observation import DiagGaussian as DiagGaussian
    from bnp_dask.observation import FixedVarianceGaussian as FixedVarianceGaussian
    from bnp_dask.observation import Gaussian as Gaussian
    from bnp_dask.observation import Multinomial as Multinomial
    from bnp_dask.observation import Poisson as Poisson
    from bnp_dask.observation import Product as Product
    from bnp_dask.observation import VonMisesFisher as VonMisesFisher
    from bnp_dask.observation import ZeroMeanGaussian as ZeroMeanGaussian
    from bnp_dask.reports import plot as plot
    from bnp_dask.reports.compare import compare as compare
    from bnp_dask.reports.lineage import lineage as lineage
    from bnp_dask.reports.run_page import inspect as inspect
    from bnp_dask.reports.run_page import report as report
    from bnp_dask.sampling import Draws as Draws
    from bnp_dask.sampling import Gibbs as Gibbs
    from bnp_dask.schedules import FullBatch as FullBatch
    from bnp_dask.schedules import Memoized as Memoized
    from bnp_dask.schedules import Stochastic as Stochastic
    from bnp_dask.streaming import ExpectationPropagation as ExpectationPropagation
    from bnp_dask.streaming import Filter as Filter
    from bnp_dask.streaming import TruncationFreeSVI as TruncationFreeSVI
    from bnp_dask.training.alternatives.shadow import Shadow as Shadow
    from bnp_dask.training.callbacks import Progress as Progress
    from bnp_dask.training.growing.changes import Change as Change
    from bnp_dask.training.growing.changes import changes as changes
    from bnp_dask.training.growing.follow import follow as follow
    from bnp_dask.training.growing.incoming.feed import Feed as Feed
    from bnp_dask.training.growing.loading import load as load
    from bnp_dask.training.growing.replace import replace as replace
    from bnp_dask.training.growing.retire import retire as retire
    from bnp_dask.training.growing.rollback import rollback as rollback
    from bnp_dask.training.growing.taking_in import UpdateResult as UpdateResult
    from bnp_dask.training.growing.update import update as update
    from bnp_dask.training.mlflow_log import LogToMLflow as LogToMLflow
    from bnp_dask.training.results import History as History
    from bnp_dask.training.results import TrainResult as TrainResult
    from bnp_dask.training.results import load_draws as load_draws
    from bnp_dask.training.results import save as save
    from bnp_dask.training.train import ConvergenceWarning as ConvergenceWarning
    from bnp_dask.training.train import train as train


class _Package(ModuleType):
    """This package, which may be named by functions that travel."""

    def __reduce__(self) -> tuple[Any, ...]:
        # workers import it themselves
        return importlib.import_module, (self.__name__,)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    message = f"module 'bnp_dask' has no attribute {name!r}"
    if not name.startswith("_"):
        from difflib import get_close_matches

        # case is forgiven first: a wrong capital is the commonest slip
        folded = {known.lower(): known for known in _PUBLIC}
        near = get_close_matches(name.lower(), folded, n=1)
        message += f"; did you mean {folded[near[0]]!r}?" if near else "; see dir(bnp_dask)"
    raise AttributeError(message, name=name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)


# a star import must not need scikit-learn
__all__ = sorted(set(_PUBLIC) - {"DirichletProcessMixture", "SequenceModel", "TopicModel"})

sys.modules[__name__].__class__ = _Package
