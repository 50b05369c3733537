"""Sums of summaries that do not drift."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from bnp_dask.fields import combine_links
from bnp_dask.kernels.compensated import two_sum_into
from bnp_dask.summary import Edit, Summary, replay


class RunningTotal:
    """A sum of summaries that batches enter and leave for hundreds of laps without drifting.

    Every value is held as an unevaluated sum ``high + low`` of two doubles and updated by Knuth's error-free
    TwoSum, so the rounding error of one visit is about 1e-32 of the total instead of 1e-16.  All verbs of the
    summary algebra are linear or a selection, so they apply to both parts.

    Parameters
    ----------
    high, low
        Start of the sum; copied, so that summaries handed in are never overwritten.
    """

    def __init__(self, high: Summary, low: Summary | None = None) -> None:
        self.high = _contiguous(high.scale(1.0))
        self.low = _contiguous(high.zeros() if low is None else low.scale(1.0))

    def value(self) -> Summary:
        """The total as a summary."""
        return self.high + self.low

    def add(self, summary: Summary) -> None:
        """Include the statistics of more atoms."""
        self._accumulate(summary, 1.0)

    def subtract(self, summary: Summary) -> None:
        """Exclude statistics that were added before; pairs tracked only since then are left as they are."""
        if not np.array_equal(summary.pairs, self.high.pairs):
            summary = summary.with_pairs(self.high.pairs)
        self._accumulate(summary, -1.0)

    def join(self, other: RunningTotal) -> None:
        """Include another total, with all its digits."""
        self._accumulate(other.high, 1.0)
        self._accumulate(other.low, 1.0)

    def apply(self, edits: Iterable[Edit], parts: Mapping[str, RunningTotal] | None = None) -> None:
        """Change clusters in the total; ``parts`` are the totals of trials."""
        edits = list(edits)
        high = {name: part.high for name, part in (parts or {}).items()}
        low = {name: part.low for name, part in (parts or {}).items()}
        self.high = _contiguous(replay(self.high, edits, high))
        self.low = _contiguous(replay(self.low, edits, low))

    def track(self, pairs: np.ndarray) -> None:
        """Start to track pairs: what is added from now on has them, what is subtracted need not."""
        self.high, self.low = self.high.with_pairs(pairs), self.low.with_pairs(pairs)

    def copy(self) -> RunningTotal:
        """An independent total of the same value."""
        return RunningTotal(self.high, self.low)

    def _accumulate(self, summary: Summary, sign: float) -> None:
        self.high._require_aligned(summary)
        for mine, rest, new in (
            (self.high.values, self.low.values, summary.values),
            (self.high.pair_values, self.low.pair_values, summary.pair_values),
        ):
            for name, total in mine.items():
                if mine is self.high.pair_values and not self.high.n_pairs:
                    continue
                two_sum_into(total, rest[name], np.ascontiguousarray(new[name], np.float64), sign)
        if summary.links is not None:  # of one lap only: no error grows
            links = combine_links(self.high.links, summary.links, sign)
            self.high, self.low = replace(self.high, links=links), replace(self.low, links=links and links.zeros())


def _contiguous(summary: Summary) -> Summary:
    """The same in C-contiguous float64 arrays, which can be updated in place through a flat view."""
    values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.values.items()}
    pair_values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.pair_values.items()}
    return replace(summary, values=values, pair_values=pair_values)
