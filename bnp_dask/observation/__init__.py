"""Observation models: one file is one likelihood with its conjugate prior."""

from bnp_dask.observation.autoregressive import AutoRegressiveGaussian, with_previous
from bnp_dask.observation.base import (
    KNOWN,
    LOG_BASE,
    CalmLearningObservation,
    EvidenceObservation,
    ExtrapolatingObservation,
    LeanObservation,
    LearningObservation,
    NamingObservation,
    Observation,
    Params,
    QuadraticObservation,
    RoundedObservation,
    ScaleShape,
    SmallRunObservation,
    TokenObservation,
    WideningObservation,
    chosen_columns,
    correlated_columns,
    lags_of,
    level_keys,
    numbers_per_cluster,
    read_as,
)
from bnp_dask.observation.bernoulli import Bernoulli, BetaBits
from bnp_dask.observation.categorical import Categorical, LevelShares
from bnp_dask.observation.checks import as_csr
from bnp_dask.observation.diag_gaussian import DiagGaussian, NormalGamma
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian, NormalMean
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.given import Given, GivenParams
from bnp_dask.observation.interface import (
    SETTINGS,
    Axis,
    Density,
    DescribedObservation,
    DrawingObservation,
    DrawingSteps,
    DrawingWords,
    Estimate,
    SampledObservation,
    by_feature,
    describe_cluster,
    estimates_of,
    sequential_predictive,
)
from bnp_dask.observation.labelled import HALF, Labelled, unlabelled, with_part
from bnp_dask.observation.missing import (
    CompletingObservation,
    MarginalObservation,
    is_about_missing,
    lacks_any,
    marginalises,
    require_exact_atoms,
)
from bnp_dask.observation.multinomial import DirichletWords, Multinomial
from bnp_dask.observation.negative_binomial import BetaOdds, NegativeBinomial
from bnp_dask.observation.normal_wishart import MatrixNormalWishart, NormalWishart
from bnp_dask.observation.poisson import GammaRates, Poisson
from bnp_dask.observation.product import Product, ProductParams
from bnp_dask.observation.semi_conjugate import IndependentWishart, SemiConjugateGaussian
from bnp_dask.observation.von_mises_fisher import Directions, VonMisesFisher
from bnp_dask.observation.zero_mean_gaussian import WishartParams, ZeroMeanGaussian

__all__ = [
    "HALF",
    "KNOWN",
    "LOG_BASE",
    "SETTINGS",
    "AutoRegressiveGaussian",
    "Axis",
    "Bernoulli",
    "BetaBits",
    "BetaOdds",
    "CalmLearningObservation",
    "Categorical",
    "CompletingObservation",
    "Density",
    "DescribedObservation",
    "DiagGaussian",
    "Directions",
    "DirichletWords",
    "DrawingObservation",
    "DrawingSteps",
    "DrawingWords",
    "Estimate",
    "EvidenceObservation",
    "ExtrapolatingObservation",
    "FixedVarianceGaussian",
    "GammaRates",
    "Gaussian",
    "Given",
    "GivenParams",
    "IndependentWishart",
    "Labelled",
    "LeanObservation",
    "LearningObservation",
    "LevelShares",
    "MarginalObservation",
    "MatrixNormalWishart",
    "Multinomial",
    "NamingObservation",
    "NegativeBinomial",
    "NormalGamma",
    "NormalMean",
    "NormalWishart",
    "Observation",
    "Params",
    "Poisson",
    "Product",
    "ProductParams",
    "QuadraticObservation",
    "RoundedObservation",
    "SampledObservation",
    "ScaleShape",
    "SemiConjugateGaussian",
    "SmallRunObservation",
    "TokenObservation",
    "VonMisesFisher",
    "WideningObservation",
    "WishartParams",
    "ZeroMeanGaussian",
    "as_csr",
    "by_feature",
    "chosen_columns",
    "correlated_columns",
    "describe_cluster",
    "estimates_of",
    "is_about_missing",
    "lacks_any",
    "lags_of",
    "level_keys",
    "marginalises",
    "numbers_per_cluster",
    "read_as",
    "require_exact_atoms",
    "sequential_predictive",
    "unlabelled",
    "with_part",
    "with_previous",
]
