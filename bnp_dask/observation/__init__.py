"""Observation models: one file is one likelihood with its conjugate prior."""

from bnp_dask.observation.autoregressive import AutoRegressiveGaussian, with_previous
from bnp_dask.observation.bernoulli import Bernoulli, BetaBits
from bnp_dask.observation.categorical import Categorical, LevelShares
from bnp_dask.observation.diag_gaussian import DiagGaussian, NormalGamma
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian, NormalMean
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.given import Given, GivenParams
from bnp_dask.observation.multinomial import DirichletWords, Multinomial
from bnp_dask.observation.negative_binomial import BetaOdds, NegativeBinomial
from bnp_dask.observation.normal_wishart import MatrixNormalWishart, NormalWishart
from bnp_dask.observation.poisson import GammaRates, Poisson
from bnp_dask.observation.product import Product, ProductParams
from bnp_dask.observation.von_mises_fisher import Directions, VonMisesFisher
from bnp_dask.observation.zero_mean_gaussian import WishartParams, ZeroMeanGaussian

__all__ = [
    "AutoRegressiveGaussian",
    "Bernoulli",
    "BetaBits",
    "BetaOdds",
    "Categorical",
    "DiagGaussian",
    "Directions",
    "DirichletWords",
    "FixedVarianceGaussian",
    "GammaRates",
    "Gaussian",
    "Given",
    "GivenParams",
    "LevelShares",
    "MatrixNormalWishart",
    "Multinomial",
    "NegativeBinomial",
    "NormalGamma",
    "NormalMean",
    "NormalWishart",
    "Poisson",
    "Product",
    "ProductParams",
    "VonMisesFisher",
    "WishartParams",
    "ZeroMeanGaussian",
    "with_previous",
]
