"""Start without any cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.core.registry import register
from bnp_dask.core.summary import Summary
from bnp_dask.initialize.base import InitContext


@register
@dataclass(frozen=True)
class FromNothing:
    """Start in which no cluster holds any atom: the first atoms open the first clusters.

    For schedules that open clusters themselves, such as :class:`~bnp_dask.inference.streaming.Filter`.
    """

    def start(self, context: InitContext) -> Summary:
        """Statistics of one cluster without atoms: the prior."""
        return context.model.empty_summary(np.zeros(1, np.int64))
