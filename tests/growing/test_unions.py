"""Merges in a pure stream are decided on a bound of the objective that totals give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import xlogy

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Unite
from bnp_dask.core.survey import survey_batch
from bnp_dask.inference.variational.growing import UNITED
from bnp_dask.moves.pairs import best_share
from bnp_dask.store import RunStore
from tests.growing.parts import MODELS, begin, day, gap, grow

RNG = np.random.default_rng(4)


def summary_of(resp):
    model = MODELS["mixture"].with_prior(survey_batch(Batch(day(0))))
    found = model.summarize(np.arange(resp.shape[1]), Batch(np.zeros((len(resp), 3))), resp)
    return replace(found, values={**found.values, "H": -xlogy(resp, resp).sum(axis=0)})


def shared(softness):
    """Responsibilities of three clusters, of which two share atoms the more evenly the softer they are."""
    resp = RNG.dirichlet([softness, softness, 0.3], 200)
    return resp / resp.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("softness", [0.02, 0.3, 2.0, 500.0])
def test_an_entropy_is_bounded_from_below_and_batches_add_up(softness):
    resp = shared(softness)
    whole = summary_of(resp)
    share = best_share(whole, 0, 1)
    union = Unite(0, 1, share).apply(whole, {})
    true = -xlogy(resp[:, 0] + resp[:, 1], resp[:, 0] + resp[:, 1]).sum()
    a, b = whole["N"][:2]
    expected = max(0.0, whole["H"][:2].sum() + xlogy(a, a / (a + b)) + xlogy(b, b / (a + b)))
    assert union["H"][union.position(0)] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert union["H"][union.position(0)] <= true + 1e-9
    assert (share is None) == (expected == 0.0)
    parts = [Unite(0, 1, share).apply(summary_of(some), {}) for some in np.split(resp, [30, 170])]
    for name in union.values:
        assert sum(part[name] for part in parts) == pytest.approx(union[name], rel=1e-12, abs=1e-10)
    assert union["N"] == pytest.approx([a + b, whole["N"][2]])


def test_the_bound_is_exact_where_atoms_are_shared_evenly_or_not_at_all():
    alike = RNG.random((50, 1)) * np.array([[0.3, 0.6]])
    resp = np.column_stack([alike, 1.0 - alike.sum(axis=1)])
    whole = summary_of(resp)
    union = Unite(0, 1, best_share(whole, 0, 1)).apply(whole, {})
    assert union["H"][0] == pytest.approx(-xlogy(resp[:, :2].sum(axis=1), resp[:, :2].sum(axis=1)).sum(), rel=1e-12)
    apart = np.eye(3)[RNG.integers(3, size=50)]
    assert best_share(summary_of(apart), 0, 1) is None
    assert Unite(0, 1, None).apply(summary_of(apart), {})["H"][0] == 0.0


def test_a_cluster_without_atoms_can_be_united():
    whole = summary_of(np.eye(3)[[0, 0, 2]])
    for keep, drop in ((0, 1), (1, 0), (1, 1 + 1)):
        union = Unite(keep, drop, best_share(whole, keep, drop)).apply(whole, {})
        assert np.isfinite(union["H"]).all() and union["N"].sum() == 3


def test_a_stream_unites_what_is_one_cluster(tmp_path):
    begin(tmp_path / "run", day(0, k=3), laps=1, k=8)
    assert RunStore.view(tmp_path / "run").load().state["lap"] == 1
    counts = []
    for number in (1, 2, 3):
        found = grow(tmp_path / "run", day(number, k=3), revisit=0)
        counts.append(found.posterior.n_clusters)
        for before, row in zip(found.history, found.history[1:], strict=False):
            if row["action"] == UNITED:
                gains = [move["gain"] for move in row["moves"] if move["accepted"]]
                assert min(gains) > -1e-9 and row["elbo"] == pytest.approx(before["elbo"] + sum(gains), rel=1e-12)
        assert gap(tmp_path / "run") < 1e-12
        assert sum(c.kind == "merged" for c in found.changes) == sum(
            move["accepted"] and move["kind"] == "merge" for row in found.history for move in row["moves"]
        )
    assert counts[-1] == 3


def test_chains_and_topics_wait():
    assert not MODELS["chains"].structure.policy.bounds_unions
    assert not MODELS["topics"].structure.policy.bounds_unions
