"""Allocation models: one file is one way to assign atoms to clusters."""

from bnp_dask.allocation.dp_mixture import DPMixture, StickParams
from bnp_dask.allocation.finite_mixture import DirichletParams, FiniteMixture

ALLOCATIONS = (DPMixture, StickParams, FiniteMixture, DirichletParams)
"""Every class that a saved model may hold."""

__all__ = ["ALLOCATIONS", "DPMixture", "DirichletParams", "FiniteMixture", "StickParams"]
