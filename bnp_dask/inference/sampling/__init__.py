"""Gibbs sampling: assignments on workers given parameters, parameters from totals.

    total -> weights and parameters drawn -> batch -> a cluster drawn for each atom -> summary -> total

Parameters are drawn on the coordinator, at the start of a lap, and hold for its batches; an atom is assigned given
these alone, so that batches are swept side by side.  Atoms of one batch are seated again given all others, with
parameters integrated out: that opens clusters and gives them up.
"""

from bnp_dask.inference.sampling.draws import Draws
from bnp_dask.inference.sampling.gibbs import Gibbs

__all__ = ["Draws", "Gibbs"]
