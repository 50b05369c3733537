"""The toy bar of hidden Markov models: one JSON line per run, from 1, 50 and 100 windows, sticky and not.

``python -m benchmarks.chains.bench_toy [seeds] [starts] [kappas]``, such as ``10 1,50,100 0,50``.
"""

from __future__ import annotations

import json
import sys

from benchmarks.chains.toy import run


def main() -> None:
    """All runs; the last line counts those that found the eight states and nothing else."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    starts = [int(k) for k in (sys.argv[2] if len(sys.argv) > 2 else "1,50,100").split(",")]
    kappas = [float(k) for k in (sys.argv[3] if len(sys.argv) > 3 else "0,50").split(",")]
    good: dict[str, int] = {}
    for start in starts:
        for kappa in kappas:
            name = f"from {start}, kappa {kappa:g}"
            good[name] = 0
            for seed in range(seeds):
                done = run(start, kappa, seed)
                good[name] += int(done.solved)
                row = {
                    "from": start, "kappa": kappa, "seed": seed, "K": done.n_clusters, "distance": done.distance,
                    "eight_since_lap": done.solved_at, "laps": done.laps, "elbo": done.elbo,
                    "seconds": round(done.seconds, 2),
                }  # fmt: skip
                print(json.dumps(row), flush=True)
    print(json.dumps({"seeds": seeds, "solved": good}))


if __name__ == "__main__":
    main()
