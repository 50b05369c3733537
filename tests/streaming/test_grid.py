"""Settings by a grid on the first part of a stream (Tank, Foti & Fox 2015, section S4.1)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute import SerialExecutor
from bnp_dask.execute.serial import ThreadExecutor
from tests.faults.parts import Faulty, atoms
from tests.streaming.cases import documents
from tests.streaming.test_runs import blobs

SETTINGS = {"a": [0.1, 1.0, 10.0], "sigma": [0.0, 0.5], "tau": [1.0, 100.0]}
MODEL = bnp.Model(bnp.NGGPMixture(), bnp.Gaussian())


def tried(client=None, **more):
    return bnp.grid(MODEL, blobs(), SETTINGS, first=300, batch_size=100, client=client or SerialExecutor(), **more)


def bits(found):
    return [(dict(line.settings), line.score, line.n_clusters) for line in found]


def test_all_combinations_are_there_best_first():
    found = tried()
    assert len(found) == 12
    assert len({tuple(line.settings.items()) for line in found}) == 12
    assert [line.score for line in found] == sorted((line.score for line in found), reverse=True)
    best = found.best.allocation
    assert (best.a, best.sigma, best.tau) == tuple(found[0].settings.values())
    assert str(found).splitlines()[1].startswith(f"a={best.a}, sigma={best.sigma}, tau={best.tau}")
    assert len(found[:3]) == 3


def test_a_score_is_that_of_a_filter_over_the_first_atoms():
    for line in tried():
        result = bnp.train(line.model, blobs()[:300], schedule=bnp.Filter(), batch_size=100)
        assert line.score == result.history[-1]["log_predictive"] / 300
        assert line.n_clusters == result.posterior.n_clusters


def test_the_part_may_end_within_a_batch_or_be_all():
    part = bnp.grid(MODEL, blobs(), {"a": [1.0]}, first=150, batch_size=100)
    assert part.n_atoms == 150
    cut = bnp.train(part.best, blobs()[:150], schedule=bnp.Filter(), batch_size=100)
    assert part[0].score == cut.history[-1]["log_predictive"] / 150
    assert bnp.grid(MODEL, blobs(), {"a": [1.0]}, first=10_000, batch_size=100).n_atoms == 900


def test_workers_change_no_bit(dask_client):
    alone = bits(tried())
    executor = ThreadExecutor(2)
    assert bits(tried(executor)) == alone
    executor.close()
    assert bits(tried(dask_client(2))) == alone


def test_settings_of_the_likelihood_are_tried_too():
    x = sparse.csr_array(documents(200).x)
    model = bnp.Model(bnp.DPMixture(), bnp.Multinomial(1.0))
    found = bnp.grid(model, x, {"gamma": [1.0, 5.0], "lam": [0.5, 100.0]}, first=200)
    assert found.best.observation.lam == 0.5
    assert {line.model.allocation.gamma for line in found} == {1.0, 5.0}


def test_weights_count_atoms():
    found = bnp.grid(MODEL, blobs(60), {"a": [1.0]}, weights=np.full(60, 2.0))
    twice = bnp.train(found.best, blobs(60), schedule=bnp.Filter(), weights=np.full(60, 2.0))
    assert found[0].score == twice.history[-1]["log_predictive"] / 120.0


def test_the_rest_of_the_stream_is_not_read(tmp_path):
    fails = frozenset((batch, call) for batch in range(2, 8) for call in range(1, 9))
    source = Faulty(atoms(), str(tmp_path), fails=fails)
    n = len(atoms()) // 8
    assert bnp.grid(MODEL, source, {"a": [1.0, 2.0]}, first=2 * n, client=SerialExecutor()).n_atoms == 2 * n
    with pytest.raises((DataError, OSError), match="batch 2"):
        bnp.grid(MODEL, source, {"a": [1.0]}, first=3 * n, client=SerialExecutor())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "needs values of each setting"),
        ([("a", [1.0])], "needs values of each setting"),
        ({"alpha": [1.0]}, "no setting 'alpha'; NGGPMixture has a, sigma, tau"),
        ({"a": 1.0}, "a=1.0: needs a list of values"),
        ({"a": []}, "needs a list of values"),
        ({"a": [1.0, -1.0]}, "a=-1.0"),
        ({"a": range(1, 102), "tau": range(100)}, "more than 10000 combinations"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        bnp.grid(MODEL, blobs(50), settings)


def test_models_that_cannot_be_filtered_are_refused():
    with pytest.raises(SettingError, match=r"grid\(\): FiniteMixture has no predictive rule"):
        bnp.grid(bnp.Model(bnp.FiniteMixture(), bnp.Gaussian()), blobs(50), {"gamma": [1.0]})
    with pytest.raises(SettingError, match="model"):
        bnp.grid(bnp.Gaussian(), blobs(50), {"a": [1.0]})
    with pytest.raises(SettingError, match="first=0"):
        bnp.grid(MODEL, blobs(50), {"a": [1.0]}, first=0)
    with pytest.raises(DataError, match="3"):
        x = blobs(50)
        x[3, 1] = np.nan
        bnp.grid(MODEL, x, {"a": [1.0]})
