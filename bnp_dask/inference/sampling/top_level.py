"""Weights of the top level of hierarchical Dirichlet processes, drawn given tables."""

from __future__ import annotations

import numpy as np

from bnp_dask.core.summary import Summary
from bnp_dask.inference.chains import TABLES, Chain, empty_of_chain
from bnp_dask.inference.sampling.chain import first_chain
from bnp_dask.inference.sampling.visit import WEIGHTS, generator
from bnp_dask.kernels.numeric.arithmetic import exp
from bnp_dask.kernels.numeric.draws import log_gammas, log_shares
from bnp_dask.model import Model

LEAST_SHARE = 1e-290
"""Least weight at the top level: its digamma function is finite."""


def shares(masses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of a Dirichlet distribution, ``(K,)``, each at least :data:`LEAST_SHARE`."""
    return np.maximum(exp(log_shares(log_gammas(masses, rng)[None])[0]), LEAST_SHARE)


def top_generator(number: int, lap: int, seed: int) -> np.random.Generator:
    """Random numbers of the top level of a chain in a lap."""
    return generator(seed, number, lap, WEIGHTS)


def first_tabled_chain(model: Model, start: Summary) -> Chain:
    """A chain at the statistics of an initialisation; its tables are a guess, which the first lap replaces."""
    chain = first_chain(model, start)
    empty = empty_of_chain(model, chain.total.ids)
    tables = np.sqrt(np.maximum(chain.total["N"], 1.0))
    chain.total = Summary(empty.ids, empty.fields, {**empty.values, **chain.total.values, TABLES: tables})
    return chain
