"""Gibbs sampling: assignments on workers given parameters, parameters from totals.

    total -> weights and parameters drawn -> batch -> a cluster drawn for each atom -> summary -> total

Parameters are drawn on the coordinator at the start of a lap, and are used for all its batches.  Atoms are assigned
given the parameters alone, so batches are swept side by side.  Atoms of one batch are seated again given all others,
with parameters integrated out: this opens clusters and gives them up.
"""

from bnp_dask.inference.sampling.draws import Draws
from bnp_dask.inference.sampling.gibbs import Gibbs

__all__ = ["Draws", "Gibbs"]
