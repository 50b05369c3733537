"""The default window: a share of the batches, whatever the workers; and what is out of it at a time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Forget, InsertEmpty, RunningTotal, replay
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.execute import SerialExecutor, ThreadExecutor
from bnp_dask.inference.batch_memo import pack_sparse, total_from, unpack_sparse
from bnp_dask.inference.drive import in_flight
from bnp_dask.inference.local_steps import AHEAD
from tests.schedules.test_groups import bits, blobs, corpus, go


@pytest.mark.parametrize("n_batches, window", [(1, 8), (64, 8), (71, 8), (72, 9), (80, 10), (1000, 125)])
def test_an_eighth_of_the_batches_is_in_flight(n_batches, window):
    assert in_flight(None, n_batches) == window
    assert in_flight(3, n_batches) == 3


def test_a_window_is_a_number_or_left_out():
    assert bnp.Memoized().window is None
    assert bnp.FullBatch().window is None
    for make in (bnp.Memoized, bnp.FullBatch, bnp.Stochastic):
        with pytest.raises(SettingError, match="window=0"):
            make(window=0)
    with pytest.raises(SettingError, match="window=None"):
        bnp.Stochastic(window=None)


class Out(SerialExecutor):
    """Counts the local steps that are out, of ``n_workers`` workers."""

    def __init__(self, n_workers):
        super().__init__()
        self.n_workers, self.out, self.most = n_workers, set(), 0

    def submit(self, name, function, *args):
        handle = super().submit(name, function, *args)
        if name.startswith("local_step"):
            self.out.add(handle)
            self.most = max(self.most, len(self.out))
        return handle

    def result(self, handle):
        self.out.discard(handle)
        return super().result(handle)


def mixture(window, client=None, batch_size=20, **more):
    schedule = bnp.Memoized(laps=3, window=window)
    model = bnp.Model(bnp.DPMixture(3.0), bnp.Gaussian())
    return go(model, blobs(), bnp.RandomExamples(3), schedule, [], client, batch_size=batch_size, **more)


@pytest.mark.long
def test_by_default_the_bits_are_those_of_an_eighth_of_the_batches_on_any_number_of_workers():
    usual = bits(mixture(15))  # of 120 batches
    assert bits(mixture(None)) == usual
    assert bits(mixture(8)) != usual
    client = ThreadExecutor(3)
    assert bits(mixture(None, client)) == usual
    client.close()


def topics(window, client, **more):
    from scipy import sparse

    model, schedule = bnp.Model(bnp.HDPTopics(2.0, 0.5), bnp.Multinomial(0.1)), bnp.Memoized(laps=2, window=window)
    return go(model, sparse.csr_array(corpus()), bnp.RandomExamples(4), schedule, [], client, batch_size=2, **more)


@pytest.mark.parametrize("run, window", [(mixture, 60), (topics, 24)])
def test_what_carries_results_of_the_last_visit_goes_out_a_few_at_a_time(run, window):
    """However large the window is, a process holds what a few batches left."""
    alone, few = Out(1), Out(2)
    usual = bits(run(window, alone))
    assert alone.most == AHEAD
    assert bits(run(window, few)) == usual
    assert few.most == 2 * AHEAD


def test_what_workers_keep_themselves_goes_out_at_once(tmp_path):
    client = Out(2)
    assert bits(topics(24, client, store=tmp_path / "run")) == bits(topics(24, None))
    assert client.most == 24


def test_words_that_are_mostly_zero_are_kept_packed_and_leave_a_total_packed():
    """Nothing is rounded; once clusters have changed they are unpacked."""
    rng = np.random.default_rng(0)
    batch = Batch(sparse.csr_array(rng.poisson(0.05, (20, 60)).astype(float)))
    model = bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)).with_prior(survey_batch(batch))
    own = model.summarize(np.arange(3), batch, np.eye(3)[np.arange(20) % 3])
    arrays = pack_sparse(own.to_arrays())
    assert "value.x" not in arrays and sum(a.nbytes for a in arrays.values()) < own["x"].nbytes
    again = unpack_sparse(arrays)
    assert again.keys() == own.to_arrays().keys()
    for name, array in own.to_arrays().items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    dense = pack_sparse({"value.x": np.ones((3, 60)), "value.N": np.zeros(3)})
    assert list(dense) == ["value.x", "value.N"]
    for edits, is_packed in (([], True), ([Forget()], True), ([InsertEmpty((7,))], False)):
        found = total_from(model, arrays, edits)
        assert (isinstance(found, RunningTotal) and bool(found.sparse)) is is_packed
        total = RunningTotal(replay(own, edits) + replay(own, edits))
        total.subtract(found)
        np.testing.assert_allclose(total.value()["x"], replay(own, edits)["x"], rtol=0, atol=0)
        np.testing.assert_array_equal(total.value()["N"], replay(own, edits)["N"])
