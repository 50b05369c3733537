"""Forward-backward with pair statistics, per step: one JSON line per figure.

``python -m benchmarks.chains.bench_forward_backward`` compares with hmmlearn's compiled code, both of its
implementations, and with dynamax' smoother (compiled by jax, double precision, one sequence), in the same run and
alternating with them, where these can be imported; and times whole local steps of 41 bits, from which it tells how
long a lap over 15.4 million steps takes two workers.  ``PEERS`` may name a folder with the other programs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

import numpy as np

from benchmarks.timing import emit, keep_memory, median
from bnp_dask.allocation import HDPHMM
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import one_blas_thread
from bnp_dask.kernels.hmm import forward_backward as kernel
from bnp_dask.model import Model
from bnp_dask.observation import Bernoulli

STEPS = 1000
GENOME = 15_400_000


def problem(k: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, transitions of states that stay nine times of ten, and log likelihoods with the best at zero."""
    rng = np.random.default_rng(0)
    trans = 0.1 * rng.dirichlet(np.ones(k), k) + 0.9 * np.eye(k)
    log_lik = rng.normal(size=(n, k)) * 3
    return rng.dirichlet(np.ones(k)), trans, log_lik - log_lik.max(axis=1, keepdims=True)


def hmmlearn_code() -> ModuleType | None:
    """hmmlearn's compiled recursions, or None."""
    try:
        _hmmc = import_module("hmmlearn._hmmc")  # a program of another environment
    except ImportError:
        return None
    return _hmmc


def dynamax_code() -> Callable[[int], Callable[[], np.ndarray]] | None:
    """A function that makes dynamax' pair sums for K states, or None."""
    try:
        jax = import_module("jax")
        inference = import_module("dynamax.hidden_markov_model.inference")
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def smooth(start, trans, log_lik):
        return inference.hmm_smoother(start, trans, log_lik).trans_probs

    def of(k: int) -> Callable[[], np.ndarray]:
        arrays = [jax.numpy.asarray(a) for a in problem(k, STEPS)]
        return lambda: np.asarray(smooth(*arrays).block_until_ready())

    return of


def compare(k: int, peer: ModuleType | None, dynamax: Callable[[int], Callable[[], np.ndarray]] | None = None) -> None:
    """Ours and the others' on one sequence."""
    start, trans, log_lik = problem(k, STEPS)
    log_start, log_trans = np.log(start), np.log(trans)
    offsets, once = np.array([0, STEPS]), np.ones(1)

    def ours() -> np.ndarray:
        return kernel.forward_backward(log_start, log_trans, log_lik, offsets, once).pair_sums()

    def scaling() -> np.ndarray:
        lik = np.exp(log_lik)
        _, forward, scale = peer.forward_scaling(start, trans, lik)
        return peer.compute_scaling_xi_sum(forward, trans, peer.backward_scaling(start, trans, lik, scale), lik)

    def logarithms() -> np.ndarray:
        _, forward = peer.forward_log(start, trans, log_lik)
        return peer.compute_log_xi_sum(forward, trans, peer.backward_log(start, trans, log_lik), log_lik)

    seconds = median(ours, 40)
    emit("forward-backward", 1e6 * seconds / STEPS, "us per step", 40, K=k, ns_per_k2=1e9 * seconds / STEPS / k**2)
    if dynamax is not None:
        other = dynamax(k)
        np.testing.assert_allclose(ours(), other(), atol=1e-8)
        # wall time on both sides: jax has threads of its own
        theirs, own = median(other, 5, time.perf_counter), median(ours, 40, time.perf_counter)
        emit("dynamax smoother", 1e6 * theirs / STEPS, "us per step", 5, K=k, times_ours=theirs / own)
    if peer is None:
        return
    np.testing.assert_allclose(ours(), scaling(), atol=1e-9)
    for name, function, repeats in (("scaling", scaling, 7), ("log", logarithms, 3)):
        theirs = median(function, repeats)
        seconds = min(seconds, median(ours, 40))
        emit(f"hmmlearn {name}", 1e6 * theirs / STEPS, "us per step", repeats, K=k, times_ours=theirs / seconds)


def lap(k: int = 50, n: int = 100_000, width: int = 41) -> None:
    """A local step on bits, as in the thesis' genome run."""
    rng = np.random.default_rng(0)
    bits = rng.beta(0.3, 1.0, (k, width))
    states = np.repeat(rng.integers(k, size=n // 20), 20)
    x = (rng.random((n, width)) < bits[states]).astype(np.float64)
    batch = Batch(x, groups=np.arange(0, n + 1, n // 10))
    model = Model(HDPHMM(kappa=10.0), Bernoulli(lam1=0.1, lam0=0.3)).with_prior(survey_batch(batch))
    posterior = model.global_step(model.summarize(np.arange(k), batch, np.eye(k)[states]))
    seconds = median(lambda: model.local_step(posterior, batch), 7) / n
    emit("local step of 41 bits", 1e6 * seconds, "us per step", 7, K=k, genome_lap_two_workers=seconds * GENOME / 2)


def main() -> None:
    """All figures."""
    keep_memory()
    sys.path.extend(p for p in os.environ.get("PEERS", "").split(os.pathsep) if p)
    peer, dynamax = hmmlearn_code(), dynamax_code()
    with one_blas_thread():
        for k in (10, 50, 100, 200):
            compare(k, peer, dynamax)
        lap()


if __name__ == "__main__":
    main()
