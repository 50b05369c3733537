"""Kinds of allocations, and the check that one has all that its kind asks for."""

from __future__ import annotations

from typing import Any

from bnp_dask.allocation.base import Allocation, ChainedAllocation, GroupedAllocation, PointAllocation
from bnp_dask.errors import SettingError
from bnp_dask.inputs.protocols import require


def is_chained(allocation: Allocation) -> bool:
    """Whether atoms are steps of sequences: then it is a :class:`~bnp_dask.allocation.base.ChainedAllocation`."""
    return any(field.n_cluster_axes == 2 for field in allocation.fields.values())


def require_allocation(allocation: Any, estimate: str) -> None:
    """SettingError unless this is an instance with all verbs of its kind, and has the ``estimate`` asked for."""
    require("allocation", allocation, Allocation, "DPMixture()")
    if allocation.grouped:
        require("allocation", allocation, GroupedAllocation, "HDPTopics()")
    if is_chained(allocation):
        require("allocation", allocation, ChainedAllocation, "HDPHMM()")
    if estimate == "map" and not isinstance(allocation, PointAllocation):
        raise SettingError(
            f"{type(allocation).__name__} has no point estimate: {_beliefs(allocation)} are beliefs; "
            'use estimate="posterior"'
        )


def _beliefs(allocation: Allocation) -> str:
    """Of an allocation without a point estimate: what has a posterior, in words."""
    if is_chained(allocation):
        return "the transitions of its states"
    return "the weights of its groups" if allocation.grouped else "its weights"
