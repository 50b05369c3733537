"""Gaussian mixtures reproduce the recorded objective term by term at every step."""

import numpy as np
import pytest

from bnp_dask.core.summary import RunningTotal
from bnp_dask.kernels.mixture import cluster_sums
from tests.golden.cases import Case, load

FULL = ["dpmix_gauss_vb", "dpmix_gauss_vb_sparse2", "dpmix_zmgauss_vb", "finmix_gauss_vb"]


def check_step(case: Case, step: int, posterior, summary) -> None:
    terms = case.model.elbo(posterior, summary)
    for name, trace in case.terms.items():
        assert terms[name] == pytest.approx(trace[step], rel=1e-9), f"{name} at step {step}"
    assert sum(terms.values()) == pytest.approx(case.arrays["L_total"][step], rel=1e-9)
    np.testing.assert_allclose(summary["N"], case.sizes[step], rtol=1e-9, atol=1e-9)


def check_final(case: Case, posterior) -> None:
    for part in ("allocation", "observation"):
        compared = case.final(part, posterior)
        assert compared
        for name, (expected, actual) in compared.items():
            scale = np.abs(expected).max()
            np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8 * scale, err_msg=name)


@pytest.mark.parametrize("name", FULL)
def test_full_batch_trace(name):
    case = load(name)
    _, posterior = case.start()
    for key in ("nu", "B", "m", "kappa"):
        if f"init_{key}" in case.arrays:
            np.testing.assert_allclose(getattr(posterior.observation, key), case.arrays[f"init_{key}"], rtol=1e-10)
    for step in range(case.n_steps):
        summary = case.model.local_step(posterior, case.data)
        posterior = case.model.global_step(summary)
        check_step(case, step, posterior, summary)
    check_final(case, posterior)


@pytest.mark.parametrize("name", ["dpmix_gauss_vb", "dpmix_zmgauss_vb"])
def test_recorded_merge_gains(name):
    case = load(name)
    _, posterior = case.start()
    for _ in range(case.n_steps - 1):
        posterior = case.model.global_step(case.model.local_step(posterior, case.data))
    pairs = posterior.ids[case.arrays["merge_pairs"]]
    summary = case.model.local_step(posterior, case.data, pairs)
    before = case.model.elbo(case.model.global_step(summary), summary)
    recorded = {"data": "merge_dL_data", "entropy": "merge_dL_entropy", "allocation": "merge_dL_alloc"}
    assert len(pairs) == summary.n_clusters * (summary.n_clusters - 1) // 2
    for m, (keep, drop) in enumerate(pairs):
        merged = summary.merge(int(keep), int(drop))
        after = case.model.elbo(case.model.global_step(merged), merged)
        for term, key in recorded.items():
            gain, size = after[term] - before[term], abs(before[term])
            assert gain == pytest.approx(case.arrays[key][m], rel=1e-9, abs=1e-11 * size), (
                f"{term}, pair {keep}, {drop}"
            )


def test_memoized_trace():
    """Thesis Algorithm 3.3, one batch in flight."""
    case = load("dpmix_gauss_movb")
    _, posterior = case.start()
    total = RunningTotal(case.model.empty_summary(posterior.ids))
    memo = {}
    for step, b in enumerate(case.order.ravel()):
        summary = case.model.local_step(posterior, case.batches[b])
        if b in memo:
            total.subtract(memo[b])
        total.add(summary)
        memo[b] = summary
        posterior = case.model.global_step(total.value())
        check_step(case, step, posterior, total.value())
    check_final(case, posterior)


def test_stochastic_trace():
    """Thesis Algorithm 3.2; the objective is that of the last statistics seen of every batch."""
    case = load("dpmix_gauss_sovb")
    blended, posterior = case.start()
    memo = {b: case.model.empty_summary(posterior.ids) for b in range(len(case.batches))}
    for step, b in enumerate(case.order.ravel()):
        memo[b] = case.model.local_step(posterior, case.batches[b])
        rate = case.learning_rate(step)
        assert rate == pytest.approx(case.arrays["learning_rate"][step], rel=1e-14)
        share = case.data.n_atoms / case.batches[b].n_atoms
        blended = blended.scale(1.0 - rate) + memo[b].scale(rate * share)
        posterior = case.model.global_step(blended)
        seen = RunningTotal(case.model.empty_summary(posterior.ids))
        for summary in memo.values():
            seen.add(summary)
        check_step(case, step, posterior, seen.value())
    check_final(case, posterior)


@pytest.mark.parametrize("name", [*FULL, "dpmix_gauss_movb", "dpmix_gauss_sovb"])
def test_cases_are_whole(name):
    case = load(name)
    assert sum(b.n_atoms for b in case.batches) == case.data.n_atoms
    np.testing.assert_allclose(cluster_sums(case.arrays["r0"]).sum(), case.data.n_atoms)
    total = sum(case.terms.values())
    np.testing.assert_allclose(total, case.arrays["L_total"], rtol=1e-12)
