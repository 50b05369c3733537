"""Figures and tables of the papers that this package is built from, made anew: ``bnp-dask reproduce``.

Each experiment is one function (:mod:`~bnp_dask.reproduce.mixtures`, ``topics``, ``sequences``, ``sparse``,
``streams``); :mod:`~bnp_dask.reproduce.base` lists and runs them, and :mod:`~bnp_dask.reproduce.base` shows results.
"""

from bnp_dask.reproduce import mixtures, topics, sequences, sparse, streams  # noqa: I001 (the order of the papers)
from bnp_dask.reproduce.base import EXPERIMENTS, Check, Experiment, Outcome, Result, Task, chosen, listing, run

__all__ = [
    "EXPERIMENTS", "Check", "Experiment", "Outcome", "Result", "Task", "chosen", "listing", "mixtures", "run",
    "sequences", "sparse", "streams", "topics",
]  # fmt: skip
