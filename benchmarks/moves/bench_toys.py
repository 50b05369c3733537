"""Which toys of the thesis are solved from which start: one JSON line per run.

``python -m benchmarks.moves.bench_toys edges 25 0 1 2``: toy, clusters to start with, seeds.
"""

from __future__ import annotations

import json
import sys

from bnp_dask.execute import one_blas_thread
from tests.moves import toys

TOYS = {"edges": toys.edges, "letters": toys.letters, "bars": toys.bars}


def main(name: str, n_clusters: int, seeds: list[int]) -> None:
    """Run one toy from some seeds."""
    solved = 0
    for seed in seeds:
        toy = TOYS[name](seed=seed)
        with one_blas_thread():
            run = toys.solve(toy, n_clusters, seed)
        good = run.n_clusters == toy.n_true == run.found
        solved += good
        figures = {
            "bench": f"{name} from K={n_clusters}",
            "seed": seed,
            "solved": good,
            "clusters": run.n_clusters,
            "found": run.found,
            "laps": run.laps,
            "seconds": round(run.seconds, 1),
            "proposed": run.proposed,
            "accepted": run.accepted,
            "finished": run.finished,
            "elbo": run.rows[-1]["elbo"],
        }
        print(json.dumps(figures), flush=True)
    print(json.dumps({"bench": f"{name} from K={n_clusters}", "seeds": len(seeds), "solved": solved}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(s) for s in sys.argv[3:]])
