"""Sums of summaries that do not drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bnp_dask.core.edits import NO_PARTS, Edit, Fade, Merge, Unite, follow, replay
from bnp_dask.core.fields import Field, combine_links, lost_digits
from bnp_dask.core.summary import Summary
from bnp_dask.errors import SummaryError
from bnp_dask.kernels.numeric.compensated import product_rest, two_sum_into
from bnp_dask.kernels.numeric.sparse_sums import SparseSum, is_mostly_zero

WORDS = ("cluster", "word")
"""Axes of values that are mostly zero in one batch."""

FEW = 0.25
"""Largest share of nonzero values for which a difference stores only the nonzero ones."""


class RunningTotal:
    """A sum of summaries that batches enter and leave for hundreds of laps without drifting.

    Every value is held as an unevaluated sum ``high + low`` of two doubles and updated by Knuth's error-free
    TwoSum, so the rounding error of one visit is about 1e-32 of the total instead of 1e-16.  All verbs of the
    summary algebra are linear or a selection, so they apply to both parts.

    Parameters
    ----------
    high, low
        Start of the sum; copied, so that summaries handed in are never overwritten.
    sparse
        Mostly zero values that are held separately and are in neither of the two; only in a difference.
    """

    def __init__(
        self, high: Summary, low: Summary | None = None, sparse: Mapping[str, SparseSum] | None = None
    ) -> None:
        self.high = _contiguous(high.scale(1.0))
        self.low = _contiguous(high.zeros() if low is None else low.scale(1.0))
        self.sparse = dict(sparse or {})

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.high.nbytes + self.low.nbytes + sum(held.nbytes for held in self.sparse.values())

    def value(self) -> Summary:
        """The total as a summary."""
        whole = self.whole()
        return whole.high + whole.low

    def value_of(self, name: str) -> np.ndarray:
        """One value of the total, as in :meth:`value`."""
        if name in self.sparse:
            return self.value()[name]
        return self.high[name] + self.low[name]

    def whole(self) -> RunningTotal:
        """Total with no value held separately."""
        if not self.sparse:
            return self
        dense = {name: held.to_dense() for name, held in self.sparse.items()}
        high = _with_values(self.high, {name: both[0] for name, both in dense.items()})
        return RunningTotal(high, _with_values(self.low, {name: both[1] for name, both in dense.items()}))

    def insert_empty(self, ids: np.ndarray) -> RunningTotal:
        """Total with empty clusters appended."""
        sparse = {name: held.with_rows(len(ids)) for name, held in self.sparse.items()}
        return RunningTotal(self.high.insert_empty(ids), self.low.insert_empty(ids), sparse)

    def add(self, own: Summary | RunningTotal) -> None:
        """Include the statistics of more atoms."""
        if isinstance(own, RunningTotal):
            self.join(own)
        else:
            self._accumulate(own, 1.0)

    def subtract(self, own: Summary | RunningTotal) -> None:
        """Exclude statistics that were added before; pairs tracked only since then stay unchanged."""
        own = with_pairs(own, self.high.pairs)
        if isinstance(own, RunningTotal):
            self.join(own, -1.0)
        else:
            self._accumulate(own, -1.0)

    def join(self, other: RunningTotal, sign: float = 1.0) -> None:
        """Include another total with all its digits; exclude it with ``sign=-1``."""
        if self.sparse.keys() - other.sparse.keys():
            mine = self.whole()
            self.high, self.low, self.sparse = mine.high, mine.low, {}
        rest = {name: held for name, held in other.sparse.items() if name not in self.sparse}
        for name in self.sparse:
            self.sparse[name] = self.sparse[name].plus(other.sparse[name], sign)
        self._accumulate(other.high, sign, rest)
        self._accumulate(other.low, sign, rest)
        for name, held in rest.items():
            held.add_to(self.high.values[name], self.low.values[name], sign)

    def before(self, other: RunningTotal | None = None) -> Callable[[], None]:
        """Undo function that restores every bit of now after :meth:`join` of ``other``, or after any change for None.

        Of sparse values only the entries that ``other`` changes are copied, because a copy of all topics and words
        takes longer than the sum.
        """
        sparse, high, low = dict(self.sparse), self.high, self.low
        few_of = {} if other is None else other.sparse
        rest = {name: held.place for name, held in few_of.items() if name not in sparse}
        kept = [(part, _without(part, rest).scale(1.0)) for part in (high, low)]
        few = [(part.values[name].reshape(-1), at) for part in (high, low) for name, at in rest.items()]
        old = [values[at] for values, at in few]

        def undo() -> None:
            for (values, at), numbers in zip(few, old, strict=True):
                values[at] = numbers
            self.high, self.low = (
                replace(part, values={**part.values, **own.values}, pair_values=own.pair_values, links=own.links)
                for part, own in kept
            )
            self.sparse = sparse

        return undo

    def apply(self, edits: Iterable[Edit], parts: Mapping[str, RunningTotal] | None = None) -> None:
        """Change clusters in the total; ``parts`` are the totals of trials.

        Sums of united clusters, and sums that fade, keep all their digits.  A batch's sums change in the same way
        before they leave the total (:func:`edited`): what the batch rounded otherwise than the total would stay in it
        for ever, and may be all that is left of a cluster whose atoms go, or whose sums cancel.
        """
        if self.sparse:
            raise SummaryError("a difference is not edited: bring the total up to date")
        high: Mapping[str, Summary] = {name: part.high for name, part in (parts or {}).items()}
        low: Mapping[str, Summary] = {name: part.low for name, part in (parts or {}).items()}
        for edit in edits:
            lost = _lost_digits(self.high, edit)
            self.high, self.low = edit.apply(self.high, high), edit.apply(self.low, low)
            for name, digits in lost.items():
                self.low.values[name][...] += digits
            high, low = follow(high, edit), follow(low, edit)
        self.high, self.low = _contiguous(self.high), _contiguous(self.low)

    def track(self, pairs: np.ndarray) -> None:
        """Start to track pairs: summaries added from now on must have them, subtracted summaries need not."""
        self.high, self.low = self.high.with_pairs(pairs), self.low.with_pairs(pairs)

    def copy(self) -> RunningTotal:
        """An independent total of the same value."""
        return RunningTotal(self.high, self.low, self.sparse)

    def _accumulate(self, summary: Summary, sign: float, besides: Mapping[str, SparseSum] | None = None) -> None:
        """Add or subtract a summary; ``besides`` names values that it lacks, which stay unchanged."""
        lacking = besides or {}
        _without(self.high, lacking)._require_aligned(summary)
        for mine, rest, new in (
            (self.high.values, self.low.values, summary.values),
            (self.high.pair_values, self.low.pair_values, summary.pair_values),
        ):
            for name, total in mine.items():
                if name in lacking:
                    continue
                if mine is self.high.pair_values and not self.high.n_pairs:
                    continue
                two_sum_into(total, rest[name], np.ascontiguousarray(new[name], np.float64), sign)
        if summary.links is not None:  # links last one lap only, so that their rounding error does not grow
            links = combine_links(self.high.links, summary.links, sign)
            self.high, self.low = replace(self.high, links=links), replace(self.low, links=links and links.zeros())


def difference(new: Summary, old: Summary | RunningTotal | None = None) -> RunningTotal:
    """``new - old`` with all digits; mostly zero counts of words by topic are held separately.

    The bits do not depend on how ``old`` is stored.
    """
    names = [n for n, f in new.fields.items() if f.dims == WORDS and is_mostly_zero(new[n], FEW)]
    out = RunningTotal(_without(new, names), None, {name: SparseSum.of(new[name]) for name in names})
    if isinstance(old, Summary):
        out.sparse = {name: held.plus(SparseSum.of(old[name]), -1.0) for name, held in out.sparse.items()}
        out.subtract(_without(old, names))
    elif old is not None:
        out.subtract(old)
    return out


def edited(summary: Summary, edits: Sequence[Edit], parts: Mapping[str, Summary] = NO_PARTS) -> Summary | RunningTotal:
    """A stored summary brought up to date, to leave a total: with all digits, if its sums were changed since.

    ``parts`` are the statistics of some clusters under each trial, by the name of the trial.
    """
    if not any(isinstance(edit, Merge | Unite | Fade) for edit in edits):
        return replay(summary, edits, parts)
    out = RunningTotal(summary)
    out.apply(edits, {name: _total_of(part) for name, part in parts.items()})
    return out


def _total_of(part: Summary) -> RunningTotal:
    """Statistics of a trial as a total, with links in both of its parts."""
    return RunningTotal(part, replace(part.zeros(), links=part.links and part.links.zeros()))


def _lost_digits(summary: Summary, edit: Edit) -> dict[str, np.ndarray]:
    """What an edit rounds away, in the shape of its result, by field."""
    if isinstance(edit, Fade):
        return {name: product_rest(v, edit.factor) + v * edit.rest for name, v in summary.values.items()}
    if not isinstance(edit, Merge | Unite):
        return {}
    a, b = summary.position(edit.keep), summary.position(edit.drop)
    sums = {name: f.n_cluster_axes for name, f in summary.fields.items() if f.merge == "sum" and f.n_cluster_axes}
    return {name: lost_digits(summary[name], a, b, n_axes) for name, n_axes in sums.items()}


def with_pairs(own: Summary | RunningTotal, pairs: np.ndarray) -> Summary | RunningTotal:
    """Statistics that track these pairs: their own values if they tracked the same, else zeros."""
    if isinstance(own, Summary):
        return own if np.array_equal(own.pairs, pairs) else own.with_pairs(pairs)
    if np.array_equal(own.high.pairs, pairs):
        return own
    return RunningTotal(own.high.with_pairs(pairs), own.low.with_pairs(pairs), own.sparse)


def _without(summary: Summary, names: Iterable[str]) -> Summary:
    gone = set(names)
    if not gone:
        return summary
    fields = {name: declared for name, declared in summary.fields.items() if name not in gone}
    values = {name: value for name, value in summary.values.items() if name not in gone}
    return replace(summary, fields=fields, values=values)


def _with_values(summary: Summary, values: Mapping[str, np.ndarray]) -> Summary:
    fields = {**summary.fields, **dict.fromkeys(values, Field(WORDS))}
    return replace(summary, fields=fields, values={**summary.values, **values})


def _contiguous(summary: Summary) -> Summary:
    """Summary in C-contiguous float64 arrays, which can be updated in place through a flat view."""
    values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.values.items()}
    pair_values = {n: np.asarray(v, np.float64, order="C") for n, v in summary.pair_values.items()}
    return replace(summary, values=values, pair_values=pair_values)
