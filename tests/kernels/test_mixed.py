"""Mixtures with ``precision="mixed"`` against the same with ``"double"``: summaries, moves, labels."""

from dataclasses import replace

import numpy as np
import pytest

import bnp_dask as bnp
from bnp_dask.analysis.predict import assign_batch
from bnp_dask.core.batch import Batch
from bnp_dask.core.encoding import from_spec, to_spec
from bnp_dask.core.survey import survey_batch
from bnp_dask.errors import SettingError
from bnp_dask.kernels.gaussian import screen
from bnp_dask.kernels.mixture import RaggedResp, SparseResp, columns_of, resp_from_screened, scale_rows
from bnp_dask.structure import screened
from bnp_dask.structure.base import Trial
from tests.pairwise import in_pairs

K, D, N = 24, 6, 1500


@pytest.fixture(params=["coarse", "fine", "tail"])
def way(request, monkeypatch):
    """Every tile is screened, this way."""
    monkeypatch.setattr(screened, "worthwhile", lambda *_: True)
    monkeypatch.setattr(screened, "PIECE_NUMBERS", 700 * K)
    monkeypatch.setattr(screen, "_way", lambda *_: request.param)
    return request.param


def made_up(observation, weights="some", spread=2.0, top=None, estimate="posterior"):
    """A mixed model at the true clusters, two of them without atoms, and a batch."""
    rng = np.random.default_rng(1)
    label = rng.integers(K - 2, size=N)
    means = spread * rng.standard_normal((K, D)) * isinstance(observation, bnp.Gaussian)
    roots = rng.standard_normal((K, D, D)) / np.sqrt(D) + np.eye(D)
    x = means[label] + np.einsum("nij,nj->ni", roots[label], rng.standard_normal((N, D)))
    # once, never, and often
    counts = rng.choice([1.0, 0.0, 2.5], N, p=[0.8, 0.1, 0.1]) if weights == "some" else None
    batch = Batch(x, counts)
    model = bnp.Model(bnp.DPMixture(2.0, top=top), observation, estimate).with_prior(survey_batch(batch))
    resp = SparseResp(label[:, None], np.ones((N, 1)) if counts is None else counts[:, None], K)
    return model.global_step(model.summarize(np.arange(K), batch, resp)), batch


def close(one, other, digits=1e-9):
    assert one.values.keys() == other.values.keys()
    for name, value in other.values.items():
        size = np.abs(value).max()
        np.testing.assert_allclose(one.values[name], value, rtol=digits, atol=digits * size, err_msg=name)


def double(posterior):
    return replace(posterior, model=replace(posterior.model, precision="double"))


@pytest.mark.parametrize(
    *in_pairs(
        estimate=["posterior", "map"], weights=["some", "none"], observation=[bnp.Gaussian(), bnp.ZeroMeanGaussian()]
    )
)
def test_summary_and_objective(way, observation, weights, estimate):
    posterior, batch = made_up(observation, weights, estimate=estimate)
    pairs = np.array([[0, 1], [3, 2], [K - 1, 5], [7, 8]])
    mixed = posterior.model.local_step(posterior, batch, pairs)
    dense = double(posterior).model.local_step(posterior, batch, pairs)
    close(mixed, dense)
    np.testing.assert_allclose(mixed["N"], dense["N"], rtol=1e-10, atol=1e-10)
    for name, value in dense.pair_values.items():
        np.testing.assert_allclose(mixed.pair_values[name], value, rtol=1e-9, atol=1e-9)
    one, other = (sum(posterior.model.elbo(posterior, s).values()) for s in (mixed, dense))
    assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize("top", [1, 3, K - 1])
def test_few_clusters_per_atom(way, top):
    posterior, batch = made_up(bnp.Gaussian(), top=top)
    mixed = posterior.model.local_step(posterior, batch)
    close(mixed, double(posterior).model.local_step(posterior, batch), 1e-8)
    for _, step in posterior.model.steps(posterior, batch):
        assert isinstance(step.resp, SparseResp)
        assert step.resp.index.shape[1] == top
        assert (np.diff(step.resp.index, axis=1) > 0).all()


def test_trials(way):
    """What receivers get, and atoms that are sought."""
    posterior, batch = made_up(bnp.Gaussian())
    model = posterior.model
    both = posterior.summary.take([4, 9])
    trials = (
        Trial("delete", (4, 9), model.global_step(both.take([9])), focus=(4,), rest=9),
        Trial("split", (4,), model.global_step(replace(both, ids=np.array([100, 101]))), rest=100),
    )
    mixed = model.visit(posterior, batch, trials=trials, sought=(4,))
    dense = double(posterior).model.visit(posterior, batch, trials=trials, sought=(4,))
    for name, part in dense.parts.items():
        close(mixed.parts[name], part, 1e-8)
    np.testing.assert_array_equal(mixed.members[4][0], dense.members[4][0])
    np.testing.assert_allclose(mixed.members[4][1], dense.members[4][1], rtol=1e-8)


def test_labels(way):
    posterior, batch = made_up(bnp.Gaussian())
    for kind in ({}, {"soft": True}, {"top": 2}):
        mixed, dense = (assign_batch(p, batch, **kind) for p in (posterior, double(posterior)))
        for name, value in dense.items():
            np.testing.assert_allclose(mixed[name], value, atol=1e-9)


def test_columns_and_scaling_are_those_of_the_dense_matrix(way):
    posterior, batch = made_up(bnp.Gaussian())
    model = posterior.model
    log_weights = model.allocation.log_weights(posterior.allocation)
    parts = screened.screened_pieces(posterior, model.observation.forms(posterior.observation), log_weights, batch)
    counts = np.linspace(0.0, 2.0, N)
    start = 0
    for piece, found in parts:
        resp, _ = resp_from_screened(found, None)
        dense = resp.to_dense()
        assert isinstance(resp, RaggedResp)
        assert (resp.tail is not None) == (way == "tail")
        columns = np.array([5, 2, K - 1])
        np.testing.assert_array_equal(columns_of(resp, columns), dense[:, columns])
        here = counts[start : start + piece.n_atoms]
        scaled = scale_rows(resp, here).to_dense()
        np.testing.assert_allclose(scaled, dense * here[:, None], rtol=1e-6, atol=1e-15)
        np.testing.assert_array_equal(resp.to_csr().toarray(), dense)
        start += piece.n_atoms
    assert start == N


def test_ill_conditioned_offset_and_scaled_data_end_like_double(monkeypatch):
    """Columns that nearly repeat each other, far from zero, in odd units; the ways are those chosen."""
    monkeypatch.setattr(screened, "worthwhile", lambda *_: True)
    rng = np.random.default_rng(8)
    n, k, d = 6000, 60, 12
    label = rng.integers(k, size=n)
    x = 5.0 * rng.standard_normal((k, d))[label] + rng.standard_normal((n, d))
    x[:, 1] = x[:, 0] + 1e-5 * x[:, 1]
    x = (x + 1e4) * np.geomspace(1e-12, 1e12, d)
    batch = Batch(x)
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian()).with_prior(survey_batch(batch))
    resp = SparseResp(label[:, None], np.ones((n, 1)), k)
    posterior = model.global_step(model.summarize(np.arange(k), batch, resp))
    taken = [found for _, found in model.structure.screened(model, posterior, batch)]
    assert any(found is not None for found in taken)
    mixed, dense = (m.local_step(posterior, batch) for m in (model, double(posterior).model))
    np.testing.assert_allclose(mixed["N"], dense["N"], rtol=1e-10)
    one, other = (sum(model.elbo(posterior, s).values()) for s in (mixed, dense))
    assert one == pytest.approx(other, rel=1e-10)


def test_bits_do_not_depend_on_where_a_batch_is_visited():
    posterior, batch = made_up(bnp.Gaussian(), spread=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screened, "worthwhile", lambda *_: True)
        first, second = (posterior.model.local_step(posterior.light(), batch) for _ in range(2))
    for name, value in first.values.items():
        np.testing.assert_array_equal(second.values[name], value)


def test_precision_is_checked_and_saved():
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian(), precision="double")
    assert from_spec(*to_spec(model)).precision == "double"
    written, arrays = to_spec(model)
    del written["fields"]["precision"]
    assert from_spec(written, arrays).precision == "mixed"
    with pytest.raises(SettingError, match="mixed"):
        bnp.Model(bnp.DPMixture(), bnp.Gaussian(), precision="single")
