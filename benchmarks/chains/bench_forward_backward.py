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
from functools import partial
from importlib import import_module

import numpy as np

from benchmarks.timing import emit, keep_memory, median
from bnp_dask.allocation import HDPHMM
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.execute import one_blas_thread
from bnp_dask.kernels import hmm as kernel
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


def our_passes(k: int) -> Callable[[], np.ndarray]:
    """Ours on one sequence of K states; returns the sums over pairs."""
    start, trans, log_lik = problem(k, STEPS)
    log_start, log_trans = np.log(start), np.log(trans)
    offsets, once = np.array([0, STEPS]), np.ones(1)
    return lambda: kernel.forward_backward(log_start, log_trans, log_lik, offsets, once).pair_sums()


def hmmlearn_passes(k: int, logarithms: bool = False) -> Callable[[], np.ndarray]:
    """hmmlearn's compiled recursions, with scaling or in logarithms; ImportError without it."""
    peer = import_module("hmmlearn._hmmc")  # a program of another environment
    start, trans, log_lik = problem(k, STEPS)

    def scaled() -> np.ndarray:
        lik = np.exp(log_lik)
        _, forward, scale = peer.forward_scaling(start, trans, lik)
        return np.asarray(
            peer.compute_scaling_xi_sum(forward, trans, peer.backward_scaling(start, trans, lik, scale), lik)
        )

    def in_logarithms() -> np.ndarray:
        _, forward = peer.forward_log(start, trans, log_lik)
        return np.asarray(peer.compute_log_xi_sum(forward, trans, peer.backward_log(start, trans, log_lik), log_lik))

    return in_logarithms if logarithms else scaled


def dynamax_passes(k: int) -> Callable[[], np.ndarray]:
    """dynamax' smoother, compiled by jax in double precision; ImportError without it."""
    jax = import_module("jax")
    inference = import_module("dynamax.hidden_markov_model.inference")
    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def smooth(start, trans, log_lik):
        return inference.hmm_smoother(start, trans, log_lik).trans_probs

    arrays = [jax.numpy.asarray(a) for a in problem(k, STEPS)]
    return lambda: np.asarray(smooth(*arrays).block_until_ready())


PEERS: dict[str, tuple[Callable[[int], Callable[[], np.ndarray]], int]] = {
    "dynamax smoother": (dynamax_passes, 5),
    "hmmlearn scaling": (hmmlearn_passes, 7),
    "hmmlearn log": (partial(hmmlearn_passes, logarithms=True), 3),
}
"""What else there is, and how often it is repeated."""


def compare(k: int) -> None:
    """Ours and the others' on one sequence, in turns."""
    ours = our_passes(k)
    seconds = median(ours, 40)
    emit("forward-backward", 1e6 * seconds / STEPS, "us per step", 40, K=k, ns_per_k2=1e9 * seconds / STEPS / k**2)
    for name, (make, repeats) in PEERS.items():
        try:
            peer = make(k)
        except ImportError:
            continue
        np.testing.assert_allclose(np.exp(peer()) if name.endswith("log") else peer(), ours(), atol=1e-8)
        # wall time on both sides for dynamax: jax has threads of its own
        clock = time.perf_counter if name.startswith("dynamax") else time.process_time
        theirs, own = median(peer, repeats, clock), median(ours, 40, clock)
        emit(name, 1e6 * theirs / STEPS, "us per step", repeats, K=k, times_ours=theirs / own)


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
    with one_blas_thread():
        for k in (10, 50, 100, 200):
            compare(k)
        lap()


if __name__ == "__main__":
    main()
