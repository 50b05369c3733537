"""Assignments of a batch give its statistics again, bit by bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Fade, InsertEmpty, Merge, Widen
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import DataError, StoreError, SummaryError
from bnp_dask.inference.batch_memo import counts_from, is_assigned, summary_from, visit_to_arrays
from bnp_dask.kernels.mixture import RaggedResp
from bnp_dask.structure.assignments import DENSE, LISTED, RAGGED, TAILED, Assignments, Collector, room_for

PLENTY = 10**9


def rows(n=600, d=4, k=6, spread=3.0):
    rng = np.random.default_rng(1)
    return spread * rng.normal(size=(k, d))[rng.integers(k, size=n)] + rng.normal(size=(n, d))


def words(n=300, v=20):
    rng = np.random.default_rng(2)
    topics = rng.dirichlet(np.full(v, 0.2), 5)
    return sparse.csr_array(np.array([rng.multinomial(9, topics[z]) for z in rng.integers(5, size=n)], float))


def visited(model, x, k=6, weights=None, scale=1.0, pairs=((0, 1),)):
    """A batch, and the visit of it by a model whose clusters some of its atoms began, with assignments."""
    batch = Batch(x, weights)
    model = model.with_prior(survey_batch(batch, model.marginalises))
    begin = np.zeros((batch.n_atoms, k))
    begin[np.arange(batch.n_atoms), np.random.default_rng(3).integers(k, size=batch.n_atoms)] = 1.0
    begin[batch.n_atoms // 3 :] = 0.0
    posterior = model.global_step(model.summarize(np.arange(k), batch, begin))
    for _ in range(3):
        posterior = model.global_step(model.visit(posterior, batch).summary)
    return batch, posterior.model, model.visit(posterior, batch, np.array(pairs), room=PLENTY).scaled(scale)


def gappy():
    return np.where(rows() > 6, np.nan, rows())


PARTS = bnp.Product({(0, 1): bnp.Gaussian(), (2, 3): bnp.DiagGaussian()})

MIXED = {
    "dense": (bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian(), precision="double"), rows()),
    "screened": (bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian()), rows(9000, 16, 40, 9.0)),
    "two of all": (bnp.Model(bnp.FiniteMixture(2.0, top=2), bnp.DiagGaussian()), rows()),
    "zero mean": (bnp.Model(bnp.DPMixture(2.0), bnp.ZeroMeanGaussian()), rows()),
    "known variance": (bnp.Model(bnp.DPMixture(2.0), bnp.FixedVarianceGaussian(1.0)), rows()),
    "documents": (bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial(0.5)), words()),
    "bits": (bnp.Model(bnp.DPMixture(2.0), bnp.Bernoulli()), (rows() > 0).astype(float)),
    "counts": (bnp.Model(bnp.NGGPMixture(1.0), bnp.Poisson()), np.floor(np.abs(rows()))),
    "columns": (
        bnp.Model(bnp.DPMixture(2.0), bnp.Product({(0, 1): bnp.Gaussian(), (2, 3): bnp.DiagGaussian()})),
        rows(),
    ),
    "gaps": (
        bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian(missing="marginalise")),
        np.where(rows() > 6, np.nan, rows()),
    ),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("is_weighted", [False, True])
def test_statistics_come_out_again_to_the_same_bits(name, is_weighted):
    model, x = MIXED[name]
    k = 40 if name.startswith("screened") else 6
    weights = np.random.default_rng(4).uniform(0.5, 3.0, x.shape[0]) if is_weighted else None
    batch, model, found = visited(model, x, k, weights, scale=0.75 if is_weighted else 1.0)
    assert found.assignments is not None
    arrays, whole = visit_to_arrays(model, found), visit_to_arrays(model, replace(found, assignments=None))
    assert is_assigned(arrays) and not is_assigned(whole)
    edits = (InsertEmpty((70,)), Merge(0, 1), Fade(0.5))
    for some in ((), edits):
        again = summary_from(model, arrays, some, lambda: batch).to_arrays()
        once = summary_from(model, whole, some).to_arrays()
        assert again.keys() == once.keys()
        assert all(again[key].tobytes() == once[key].tobytes() for key in once)
        counts = counts_from(model, arrays, some)
        assert all(value.tobytes() == once[f"value.{key}"].tobytes() for key, value in counts.values.items())
    kinds = {"screened": RAGGED, "two of all": LISTED}
    assert set(found.assignments.kinds.tolist()) == {kinds.get(name, DENSE)}


def test_responsibilities_in_a_float32_tail_come_back_as_they_were():
    rng = np.random.default_rng(5)
    tail = np.where(rng.random((7, 300)) < 0.1, rng.random((7, 300)), 0.0).astype(np.float32)
    offsets = np.array([0, 1, 3, 3, 4, 5, 7, 8])
    both = RaggedResp(offsets, rng.integers(300, size=8), rng.random(8), 300, tail)
    collector = Collector(300, PLENTY)
    tiles = [both, replace(both, tail=None), rng.random((5, 300)), both]
    for resp in tiles:
        collector.see(resp)
    held = Assignments.from_arrays(collector.assignments().to_arrays())
    assert held.kinds.tolist() == [TAILED, RAGGED, DENSE, TAILED]
    for (start, stop, again), resp in zip(held.tiles(), tiles, strict=True):
        assert type(again) is type(resp) and stop - start == (5 if isinstance(resp, np.ndarray) else 7)
        if isinstance(resp, np.ndarray):
            assert again.tobytes() == resp.tobytes()
        else:
            assert again.to_dense().tobytes() == resp.to_dense().tobytes()
            assert (again.tail is None) == (resp.tail is None)


def test_words_that_came_since_have_places_of_zeros():
    batch, model, found = visited(*MIXED["documents"])
    wider = replace(model, observation=bnp.Multinomial(0.5)).with_prior(survey_batch(batch.widened(25)))
    edits = (Widen("word", 22), Widen("word", 25))
    again = summary_from(wider, visit_to_arrays(model, found), edits, lambda: batch.widened(25))
    once = summary_from(wider, visit_to_arrays(model, replace(found, assignments=None)), edits)
    assert all(again[key].tobytes() == once[key].tobytes() for key in once.values)


def test_entries_that_depend_on_beliefs_and_documents_keep_statistics():
    assert visited(bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian(missing="marginalise")), gappy())[2].assignments is None
    assert visited(bnp.Model(bnp.HDPTopics(), bnp.Multinomial(0.5)), words())[2].assignments is None
    found = visited(*MIXED["dense"])[2]
    assert found.with_summary(found.summary).assignments is None


def test_only_what_is_smaller_is_kept():
    model = MIXED["dense"][0].with_prior(survey_batch(Batch(rows(100, 16))))
    one = 8 * (16 + 16 * 17 // 2)
    assert room_for(model.observation, 1000, 100) == 1000 * one
    assert room_for(model.observation, 40, 100) == 0  # less than 64 kB
    assert room_for(model.observation, 1000, 130_000) == 0  # ten bytes an atom are more
    batch, model, found = visited(*MIXED["dense"])
    held = sum(a.nbytes for a in found.assignments.to_arrays().values())
    posterior = model.global_step(found.summary)
    assert model.visit(posterior, batch, room=held // 2).assignments is None
    assert model.visit(posterior, batch).assignments is None


def test_another_batch_is_named_and_damaged_assignments_are_refused():
    batch, model, found = visited(*MIXED["dense"])
    arrays = visit_to_arrays(model, found)
    with pytest.raises(StoreError, match="takes its data"):
        summary_from(model, arrays, ())
    with pytest.raises(DataError, match="it has 599 atoms, and had 600"):
        summary_from(model, arrays, (), lambda: batch.rows(0, 599))
    with pytest.raises(DataError, match="'x' sums to"):
        summary_from(model, arrays, (), lambda: Batch(batch.x + 1e-6))
    held = found.assignments.to_arrays()
    with pytest.raises(SummaryError, match="do not fit together"):
        Assignments.from_arrays({**held, "index": held["index"][:-1]})
