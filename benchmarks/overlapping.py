"""Default fits of overlapping Gaussians: clusters, objective beside a run from the truth, CPU seconds.

``python -m benchmarks.overlapping [OTHER] [--sets 0.7,full] [--seeds 0,1] [--truth]``: OTHER is a folder with another
version of the package, whose fits are made in turns with those of this tree.  Each fit is a process of its own with one
thread, on kernels that were compiled before; its CPU seconds contain the import.  A line per fit has the number of
clusters, the objective, the adjusted Rand index, the laps and the CPU seconds in all; ``oracle`` is the index of the
true parameters.  With ``--truth`` a run of this tree that begins at the true clusters, without moves, is a line too.

All sets but the last three have 100,000 points of 32 clusters in 16 dimensions:

* a number: independent features whose deviations lie between 0.5 and 1.5; the number is the deviation of the means;
* ``full``: means of deviation 1, and covariances ``A A' / 16 + 0.285 I`` of normal ``A``.

``eight``: 20,000 x 8 with 12 clusters; ``diagonal`` and ``poisson``: 50,000 rows of 20 clusters, 8 columns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

K, D, N = 32, 16, 100_000


def independent(spread: float, rng: np.random.Generator, n: int = N, k: int = K, d: int = D) -> tuple[Any, Any, Any]:
    """Points, their clusters, and the cluster of each by the true parameters."""
    means, scale = spread * rng.normal(size=(k, d)), rng.uniform(0.5, 1.5, size=(k, d))
    return drawn(means, np.einsum("kd,de->kde", scale, np.eye(d)), n, rng)


def full(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """As :func:`independent`, with full covariances.  The floor was chosen so that the index of the truth is 0.929."""
    means, a = rng.normal(size=(K, D)), rng.normal(size=(K, D, D))
    covariances = np.einsum("kij,klj->kil", a, a) / D + 0.285 * np.eye(D)
    return drawn(means, np.linalg.cholesky(covariances), N, rng)


def drawn(means: np.ndarray, roots: np.ndarray, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Points of Gaussians with these means ``(K, D)`` and lower factors of covariances ``(K, D, D)``."""
    k, d = means.shape
    y = rng.integers(k, size=n)
    x = means[y] + np.einsum("nij,nj->ni", roots[y], rng.normal(size=(n, d)))
    levels = np.empty((n, k))
    for j in range(k):
        white = np.linalg.solve(roots[j], (x - means[j]).T)
        levels[:, j] = -0.5 * np.square(white).sum(axis=0) - np.log(np.diag(roots[j])).sum()
    return x, y, levels.argmax(axis=1)


def counts(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Poisson counts of 20 clusters."""
    rates = rng.gamma(2.0, 3.0, size=(20, 8))
    y = rng.integers(20, size=50_000)
    x = rng.poisson(rates[y]).astype(float)
    return x, y, (x @ np.log(rates.T) - rates.sum(axis=1)).argmax(axis=1)


def made(name: str, seed: int) -> tuple[Any, Any, Any]:
    """A set by its name."""
    rng = np.random.default_rng([48, seed])
    if name == "full":
        return full(rng)
    if name == "eight":
        return independent(1.5, rng, 20_000, 12, 8)
    if name == "diagonal":
        return independent(1.5, rng, 50_000, 20, 8)
    if name == "poisson":
        return counts(rng)
    return independent(float(name), rng)


def likelihood(name: str) -> Any:
    """Likelihood of a set."""
    import bnp_dask as bnp

    return {"diagonal": bnp.DiagGaussian, "poisson": bnp.Poisson}.get(name, bnp.Gaussian)()


def used() -> float:
    """CPU seconds of this process, also of the system."""
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime


class Laps:
    """Callback: CPU seconds at the end of each lap."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_start(self, info: Any) -> None:
        self.at.append(used())

    def on_batch(self, done: int) -> None:
        pass

    def on_lap(self, row: Any, posterior: Any) -> None:
        self.at.append(used())

    def on_end(self, reason: str) -> None:
        pass


def told(name: str, result: Any, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Facts of a fit; scores take no part of its CPU seconds."""
    from sklearn.metrics import adjusted_rand_score

    import bnp_dask as bnp

    rows = result.history
    index = float(adjusted_rand_score(y, bnp.predict(result.posterior, x)))
    return {"set": name, "K": result.posterior.n_clusters, "elbo": round(float(rows[-1]["elbo"]), 1),
            "ari": round(index, 4), "laps": int(rows[-1]["lap"]), "reason": result.reason}  # fmt: skip


def fit(name: str, seed: int, run: int, trace: str | None) -> dict[str, Any]:
    """One default fit in this process."""
    x, y, best = made(name, seed)
    begun = used()
    import bnp_dask as bnp

    imported, clock = used() - begun, Laps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bnp.train(bnp.Model(bnp.DPMixture(), likelihood(name)), x, rng=run, callbacks=[clock])
    seconds = used() - begun
    if trace is not None:
        found = [dict(row) for row in result.history]
        Path(trace).write_text(json.dumps([found, np.diff(clock.at).tolist()], default=str))
    from sklearn.metrics import adjusted_rand_score

    times = {"import": round(imported, 2), "laps_cpu": round(clock.at[-1] - clock.at[0], 2), "cpu": round(seconds, 2)}
    return {**told(name, result, x, y), **times, "oracle": round(float(adjusted_rand_score(y, best)), 4)}


def from_truth(name: str, seed: int) -> dict[str, Any]:
    """Laps that begin at the true clusters, without moves, with the learned prior."""
    x, y, _ = made(name, seed)
    import bnp_dask as bnp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bnp.Model(bnp.DPMixture(), likelihood(name))
        result = bnp.train(
            model, x, init=bnp.Responsibilities(np.eye(y.max() + 1)[y]), moves=(), schedule=bnp.Memoized(laps=30)
        )
    return {"from": "truth", **told(name, result, x, y)}


def of_tree(tree: Path, *words: str) -> None:
    """A fit by a process that imports the package from a folder; prints its line."""
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "NUMBA", "OPENBLAS")}
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "", **one}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--here", *words]
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    line = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({"tree": tree.name, **line, "load": round(os.getloadavg()[0], 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, nargs="?")
    parser.add_argument("--sets", default="0.5,0.7,1.0,full,eight,diagonal,poisson")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--run", default="0", help="seed of the fit")
    parser.add_argument("--truth", action="store_true")
    parser.add_argument("--trace", help="file for the history of the last fit")
    parser.add_argument("--here", action="store_true", help="fit in this process, once")
    args = parser.parse_args()
    if args.here:
        one = args.sets, int(args.seeds)
        print(json.dumps(from_truth(*one) if args.truth else fit(*one, int(args.run), args.trace)))
        return
    own = Path(__file__).resolve().parents[1]
    trees = [own] if args.other is None else [args.other.resolve(), own]
    trace = ["--trace", str(Path(args.trace).resolve())] if args.trace else []
    for name in args.sets.split(","):
        for seed in args.seeds.split(","):
            words = "--sets", name, "--seeds", seed, "--run", args.run
            for tree in trees:
                of_tree(tree, *words, *trace)
            if args.truth:
                of_tree(own, *words, "--truth")


if __name__ == "__main__":
    main()
