"""Estimators that learn from one batch after the other, by the engine of updates."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

import bnp_dask as bnp
from bnp_dask import DirichletProcessMixture, SequenceModel, TopicModel
from bnp_dask.data import as_source
from bnp_dask.errors import SettingError, StoreError
from tests.growing.parts import counts_of, day

ESTIMATORS = {
    "mixture": DirichletProcessMixture("diag_gaussian", max_laps=3, random_state=0, batch_size=50),
    "topics": TopicModel(2, max_laps=2, random_state=0, batch_size=20),
    "chains": SequenceModel("diag_gaussian", max_laps=2, random_state=0, batch_size=100),
}


def data_of(kind, number):
    return counts_of(number) if kind == "topics" else day(number, n=100, k=2 + number)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_bits_are_those_of_updates_of_a_run_directory(tmp_path, kind):
    here, there = clone(ESTIMATORS[kind]), clone(ESTIMATORS[kind]).set_params(store=tmp_path / "run")
    for number in range(4):
        here.partial_fit(data_of(kind, number))
    there.partial_fit(data_of(kind, 0))
    for number in range(1, 4):
        data = data_of(kind, number)
        source = as_source(data, batch_size=here.batch_size, groups=[0, len(data)] if kind == "chains" else None)
        bnp.update(tmp_path / "run", source)
    a, b = here.posterior_.summary.to_arrays(), bnp.load(tmp_path / "run").summary.to_arrays()
    assert {name: array.tobytes() for name, array in a.items()} == {name: array.tobytes() for name, array in b.items()}
    again = clone(there).partial_fit(data_of(kind, 4))  # as another process would
    here.partial_fit(data_of(kind, 4))
    assert again.posterior_.summary["N"].tobytes() == here.posterior_.summary["N"].tobytes()


def test_clusters_keep_their_ids_and_places_and_new_ones_come_after():
    estimator, ids = clone(ESTIMATORS["mixture"]), np.zeros(0)
    for number in range(4):
        x = data_of("mixture", number)
        np.testing.assert_array_equal(estimator.partial_fit(x).ids_[: len(ids)], ids)
        np.testing.assert_array_equal(estimator.predict(x), estimator.labels_)
        if number:  # the first training gave ids to clusters that are gone
            new = np.sort(estimator.ids_[len(ids) :])
            np.testing.assert_array_equal(new, ids.max() + 1 + np.arange(len(new)))
        ids = estimator.ids_
    assert estimator.n_clusters_ >= 4
    assert estimator.posterior_.summary["N"].sum() == pytest.approx(400)
    assert len(estimator.means_) == len(estimator.weights_) == len(ids)


def test_rows_count_as_often_as_they_are_given_and_by_their_weights():
    estimator = clone(ESTIMATORS["mixture"])
    for _ in range(3):
        estimator.partial_fit(day(0))
    estimator.partial_fit(day(1)[:1], sample_weight=[5.0])
    assert estimator.posterior_.summary["N"].sum() == pytest.approx(725)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_it_goes_on_after_fit_and_fit_starts_anew(kind):
    with warnings.catch_warnings(category=UserWarning, action="ignore"):
        estimator = clone(ESTIMATORS[kind]).fit(data_of(kind, 0))
        weights, ids = estimator.weights_, estimator.ids_
        alone = estimator.posterior_.summary["N"].sum()
        estimator.partial_fit(data_of(kind, 1)).partial_fit(data_of(kind, 2))
        np.testing.assert_array_equal(estimator.ids_[: len(ids)], ids)
        assert estimator.posterior_.summary["N"].sum() == pytest.approx(3 * alone)
        np.testing.assert_array_equal(estimator.fit(data_of(kind, 0)).weights_, weights)


def test_a_pickled_one_goes_on_to_the_same_bits():
    estimator = clone(ESTIMATORS["mixture"]).partial_fit(day(0)).partial_fit(day(1))
    other = pickle.loads(pickle.dumps(estimator)).partial_fit(day(2))
    np.testing.assert_array_equal(estimator.partial_fit(day(2)).weights_, other.weights_)


def test_what_fails_leaves_it_as_it_was():
    estimator = clone(ESTIMATORS["mixture"]).partial_fit(day(0))
    before = pickle.dumps(estimator.posterior_.summary.to_arrays())
    for wrong in (day(1)[:, :2], np.full((3, 3), np.nan)):
        with pytest.raises(ValueError):
            estimator.partial_fit(wrong)
    assert pickle.dumps(estimator.posterior_.summary.to_arrays()) == before
    assert estimator.partial_fit(day(1)).posterior_.summary["N"].sum() == pytest.approx(480)
    with pytest.raises(SettingError, match=r"partial_fit needs Memoized\(\)"):
        clone(estimator).set_params(schedule=bnp.FullBatch()).partial_fit(day(0))


def test_the_first_call_has_a_shadow():
    estimator = clone(ESTIMATORS["mixture"]).set_params(shadow=bnp.Shadow(laps=1), max_laps=20).partial_fit(day(0))
    assert estimator.partial_fit(day(1)).posterior_.summary["N"].sum() == pytest.approx(480)


def test_several_starts_and_empty_documents():
    estimator = clone(ESTIMATORS["mixture"]).set_params(n_init=2).partial_fit(day(0)).partial_fit(day(1))
    assert estimator.posterior_.summary["N"].sum() == pytest.approx(480)
    topics = clone(ESTIMATORS["topics"]).partial_fit(counts_of(0))
    before = topics.components_
    np.testing.assert_array_equal(topics.partial_fit(counts_of(0)[:2] * 0).components_, before)


def test_fit_does_not_replace_a_run(tmp_path):
    estimator = clone(ESTIMATORS["mixture"]).set_params(store=tmp_path / "run", max_laps=1)
    with pytest.warns(Warning, match="not converged"):
        estimator.fit(day(0))
    with pytest.raises(StoreError, match="already holds a run"):
        estimator.fit(day(0))
    assert estimator.partial_fit(day(1)).posterior_.summary["N"].sum() == pytest.approx(480)
