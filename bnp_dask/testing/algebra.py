"""Tests of the algebra of summaries: edits and sums may be done in either order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bnp_dask.core import (
    Edit,
    Exchange,
    Fade,
    Field,
    Forget,
    InsertEmpty,
    Merge,
    RunningTotal,
    Summary,
    Take,
    Unite,
    replay,
)

IDS = np.array([4, 7, 1, 9])
PAIRS = np.array([[4, 1], [7, 9]])
NEW = np.array([20, 21])
TRIAL, DONORS = "trial", (7, 9)

EDITS: dict[str, list[Edit]] = {
    "insert": [InsertEmpty((20, 21))],
    "take": [Take((9, 4, 1))],
    "merge": [Merge(4, 1)],
    "two merges": [Merge(4, 1), Merge(7, 9)],
    "unite": [Unite(4, 9, 0.5)],
    "exchange": [Exchange(TRIAL, DONORS)],
    "merge, then exchange": [Merge(4, 1), Exchange(TRIAL, DONORS)],
    "fade": [Fade(0.25)],
    "all": [Merge(4, 1), Exchange(TRIAL, DONORS), Forget(), InsertEmpty((30,)), Fade(0.5), Take((30, 21, 4))],
}
"""Changes of clusters that every set of fields must support."""


class AlgebraSuite:
    """Tests of the fields of one model.  Subclass as ``TestSomething``, give :meth:`fields`.

    It does not cover fields of chains of states, whose trials have links.
    """

    def fields(self) -> Mapping[str, Field]:
        """Declarations of all statistics, ``N`` among them."""
        raise NotImplementedError

    def size(self, dim: str) -> int:
        """Length of an axis that does not run over clusters."""
        return 3

    def summary(self, rng: np.random.Generator, ids: np.ndarray = IDS, pairs: np.ndarray = PAIRS) -> Summary:
        """Statistics of some atoms: positive numbers."""
        shapes = {
            name: tuple(len(ids) if dim == "cluster" else self.size(dim) for dim in field.dims)
            for name, field in self.fields().items()
        }
        values = {name: rng.gamma(2.0, 1.0, shape) for name, shape in shapes.items()}
        tracked = {
            name: rng.gamma(1.0, 1.0, (len(pairs), *shapes[name][1:]))
            for name, field in self.fields().items()
            if field.has_pairs and len(pairs)
        }
        return Summary(ids, self.fields(), values, pairs, tracked)

    def parts(self, n_parts: int) -> tuple[list[Summary], list[dict[str, Summary]]]:
        """Statistics of several batches, and statistics of a trial in each."""
        rng = np.random.default_rng(n_parts)
        nothing = np.zeros((0, 2), np.int64)
        summaries = [self.summary(rng) for _ in range(n_parts)]
        return summaries, [{TRIAL: self.summary(rng, NEW, nothing)} for _ in range(n_parts)]

    @pytest.mark.parametrize("n_parts", [2, 5])
    @pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
    def test_edits_of_the_sum_are_sums_of_the_edited(self, edits: list[Edit], n_parts: int) -> None:
        summaries, trials = self.parts(n_parts)
        whole = replay(_sum(summaries), edits, {TRIAL: _sum([trial[TRIAL] for trial in trials])})
        edited = _sum([replay(own, edits, trial) for own, trial in zip(summaries, trials, strict=True)])
        _assert_same(whole, edited)

    @pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
    def test_running_totals_follow_edits_and_let_batches_go(self, edits: list[Edit]) -> None:
        summaries, trials = self.parts(3)
        total, trial = (RunningTotal(_sum(one).zeros()) for one in (summaries, [t[TRIAL] for t in trials]))
        for summary, found in zip(summaries, trials, strict=True):
            total.add(summary)
            trial.add(found[TRIAL])
        total.apply(edits, {TRIAL: trial})
        edited = [replay(own, edits, found) for own, found in zip(summaries, trials, strict=True)]
        _assert_same(total.value(), _sum(edited))
        total.subtract(edited[0])
        _assert_same(total.value(), _sum(edited[1:]))

    def test_edits_may_be_replayed_in_two_goes(self) -> None:
        (summary, *_), (trial, *_) = self.parts(1)
        edits = EDITS["all"]
        _assert_same(replay(replay(summary, edits[:2], trial), edits[2:]), replay(summary, edits, trial))


def _sum(summaries: list[Summary]) -> Summary:
    total = summaries[0]
    for summary in summaries[1:]:
        total = total + summary
    return total


def _assert_same(first: Summary, second: Summary) -> None:
    assert_array_equal(first.ids, second.ids)
    assert_array_equal(first.pairs, second.pairs)
    for name in first.values:
        assert_allclose(first[name], second[name], rtol=1e-10, atol=1e-12, err_msg=name)
    for name in first.pair_values if len(first.pairs) else ():
        assert_allclose(first.pair_values[name], second.pair_values[name], rtol=1e-10, atol=1e-12, err_msg=name)
