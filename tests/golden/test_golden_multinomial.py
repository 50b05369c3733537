"""A DP mixture of multinomials reproduces the recorded objective term by term at every step."""

import numpy as np
import pytest

from bnp_dask.core.batch import Batch
from tests.golden.cases import load

NAME = "dpmix_mult_vb"
TERMS = {"data": "merge_dL_data", "entropy": "merge_dL_entropy", "allocation": "merge_dL_alloc"}


def test_initial_parameters():
    case = load(NAME)
    _, posterior = case.start()
    np.testing.assert_allclose(posterior.observation.lam, case.arrays["init_lam"], rtol=1e-12)
    np.testing.assert_allclose(posterior.allocation.eta1, case.arrays["init_eta1"], rtol=1e-12)
    np.testing.assert_allclose(posterior.allocation.eta0, case.arrays["init_eta0"], rtol=1e-12)


@pytest.mark.parametrize("layout", ["sparse", "dense", "repeated", "pieces"])
def test_full_batch_trace(layout):
    """The same trace from sparse and dense rows, from half the rows with weight two, and from several batches."""
    case = load(NAME)
    _, posterior = case.start()
    batches = {
        "sparse": [case.data],
        "dense": [Batch(case.data.x.toarray())],
        "repeated": [Batch(case.data.x, np.full(case.data.n_atoms, 0.5))] * 2,
        "pieces": [case.data.rows(a, a + 130) for a in range(0, 800, 130)],
    }[layout]
    for step in range(case.n_steps):
        parts = [case.model.local_step(posterior, batch) for batch in batches]
        summary = parts[0]
        for part in parts[1:]:
            summary = summary + part
        posterior = case.model.global_step(summary)
        terms = case.model.elbo(posterior, summary)
        for name, trace in case.terms.items():
            assert terms[name] == pytest.approx(trace[step], rel=1e-9), f"{name} at step {step}"
        assert sum(terms.values()) == pytest.approx(case.arrays["L_total"][step], rel=1e-9)
        np.testing.assert_allclose(summary["N"], case.sizes[step], rtol=1e-9, atol=1e-9)
    for name in ("eta1", "eta0"):
        np.testing.assert_allclose(getattr(posterior.allocation, name), case.arrays[f"final_{name}"], rtol=1e-8)
    np.testing.assert_allclose(posterior.observation.lam, case.arrays["final_lam"], rtol=1e-8)


def test_base_measure():
    case = load(NAME)
    summary, _ = case.start()
    assert summary["log_base"] == pytest.approx(float(case.arrays["h_total"]), rel=1e-12)


def test_recorded_merge_gains():
    case = load(NAME)
    _, posterior = case.start()
    for _ in range(case.n_steps - 1):
        posterior = case.model.global_step(case.model.local_step(posterior, case.data))
    pairs = posterior.ids[case.arrays["merge_pairs"]]
    assert len(pairs) == 36
    summary = case.model.local_step(posterior, case.data, pairs)
    before = case.model.elbo(case.model.global_step(summary), summary)
    for m, (keep, drop) in enumerate(pairs):
        merged = summary.merge(int(keep), int(drop))
        after = case.model.elbo(case.model.global_step(merged), merged)
        for term, key in TERMS.items():
            gain, size = after[term] - before[term], abs(before[term])
            assert gain == pytest.approx(case.arrays[key][m], rel=1e-9, abs=1e-11 * size), (term, keep, drop)
