"""Tests that every source has to pass."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Source, spans_of
from bnp_dask.inputs.protocols import require


class SourceSuite:
    """Tests of one source.  Subclass as ``TestSomething``, give :meth:`source`."""

    def source(self) -> Source:
        """A source of two batches or more; another object for the same data at each call."""
        raise NotImplementedError

    def batches(self, source: Source) -> list[Batch]:
        """All batches, read as workers read them: by readers that were pickled."""
        return [pickle.loads(pickle.dumps(source.reader(b)))() for b in range(source.n_batches)]

    def test_it_has_all_verbs(self) -> None:
        require("data", self.source(), Source, "a source with the verbs of bnp_dask.data.base.Source")

    def test_batches_are_the_same_whenever_they_are_read(self) -> None:
        source = self.source()
        for once, again in zip(self.batches(source), self.batches(self.source()), strict=True):
            for first, second in ((once.x, again.x), (once.weights, again.weights), (once.groups, again.groups)):
                assert _bits(first) == _bits(second), f"{once.name} differs when it is read again"

    def test_sizes_are_those_of_the_batches(self) -> None:
        source = self.source()
        batches = self.batches(source)
        lengths = [batch.n_atoms for batch in batches]
        assert len(batches) >= 2, "give a source of two batches or more"
        assert {batch.x.shape[1] for batch in batches} == {source.n_features}
        assert {batch.is_sparse for batch in batches} == {source.is_sparse}
        assert source.n_atoms in (None, sum(lengths))
        spans = spans_of(source)
        assert spans is None or [stop - start for start, stop in spans] == lengths

    def test_batches_have_names_of_their_own(self) -> None:
        names = [batch.name for batch in self.batches(self.source())]
        assert len(set(names)) == len(names), "a message about a batch names it"

    def test_what_tells_the_data_from_others_is_plain_and_stays(self) -> None:
        said = self.source().describe()
        assert json.loads(json.dumps(said)) == said
        assert self.source().describe() == said


def _bits(value: Any) -> object:
    if value is None:
        return None
    array = value.toarray() if sparse.issparse(value) else np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()
