"""Suites for those who extend the package, on parts of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.data.sources.open import as_source
from bnp_dask.execute.serial import SerialExecutor, ThreadExecutor
from bnp_dask.testing import AlgebraSuite, ExecutorSuite, MoveSuite, SourceSuite, StructureSuite

WORDS = np.full(3, 0.1)
MODELS = {
    "mixture": bnp.Model(bnp.DPMixture(), bnp.DiagGaussian(m=np.zeros(3), kappa=1.0)),
    "finite": bnp.Model(bnp.FiniteMixture(), bnp.Multinomial(WORDS)),
    "topics": bnp.Model(bnp.HDPTopics(), bnp.Multinomial(WORDS)),
}


class TestSerial(ExecutorSuite):
    def executor(self):
        return SerialExecutor()


class TestThreads(ExecutorSuite):
    def executor(self):
        return ThreadExecutor(2)


class TestArray(SourceSuite):
    def source(self):
        return as_source(np.random.default_rng(0).normal(size=(25, 2)), batch_size=10)


@pytest.mark.parametrize("part", MODELS)
class TestFields(AlgebraSuite):
    @pytest.fixture(autouse=True)
    def choose(self, part):
        self.part = part

    def fields(self):
        return MODELS[self.part].fields


class TestMixtures(StructureSuite):
    def model(self):
        return bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())

    def batch(self, rng, n):
        return bnp.Batch(rng.normal(rng.integers(3, size=(n, 1)) * 5.0, 1.0, (n, 2)))


class TestSequences(StructureSuite):
    def model(self):
        return bnp.Model(bnp.HDPHMM(), bnp.DiagGaussian())

    def batch(self, rng, n):
        return bnp.Batch(rng.normal(size=(5 * n, 2)), groups=5 * np.arange(n + 1))

    def summary_of(self, model, ids, batch, places):
        summary = model.summarize(ids, batch, np.eye(len(ids))[places])
        paths = [places[i:j] for i, j in zip(batch.groups, batch.groups[1:], strict=False)]
        start, follow = np.zeros(len(ids)), np.zeros((len(ids), len(ids)))
        for path in paths:
            start[path[0]] += 1
            np.add.at(follow, (path[:-1], path[1:]), 1)
        empty = model.empty_summary(ids)
        return replace(empty, values={**empty.values, **summary.values, "start": start, "M": follow})


class TestBirth(MoveSuite):
    n_clusters = 1

    def move(self):
        return bnp.Birth(per_lap=2)

    def model(self):
        return bnp.Model(bnp.DPMixture(), bnp.DiagGaussian())

    def data(self):
        return np.random.default_rng(0).normal([[0.0], [30.0]], 1.0, (2, 100)).reshape(-1, 1)


class TestDelete(TestBirth):
    n_clusters = 6

    def move(self):
        return bnp.Delete()
