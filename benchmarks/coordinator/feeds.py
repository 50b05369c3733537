"""How many workers the coordinator feeds, by simulation.

``python -m benchmarks.coordinator.feeds``: a table for W = 1 ... 1024 and up to 100,000 batches.
:mod:`benchmarks.coordinator.check` compares the simulation with real runs.
"""

from __future__ import annotations

import json
from dataclasses import replace

from bnp_dask.training.planning import Costs, Outcome, Simulation


def feeds(costs: Costs, n_workers: int, per_worker: int = 4, rounds: int = 40) -> Outcome:
    """A lap in which every worker visits ``rounds`` batches, with ``per_worker`` batches in flight for each."""
    return Simulation(costs, n_workers, min(100_000, rounds * n_workers), per_worker * n_workers).run()


def main() -> None:
    """The table."""
    costs = Costs()
    for n_workers in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for per_worker in (2, 4, 8):
            found = feeds(costs, n_workers, per_worker)
            figures = {
                "bench": "simulated lap",
                "workers": n_workers,
                "window": per_worker * n_workers,
                "seconds": round(found.seconds, 1),
                "workers busy": round(found.workers, 3),
                "coordinator busy": round(found.coordinator, 3),
                "scheduler busy": round(found.scheduler, 3),
                "ceiling": found.ceiling,
            }
            print(json.dumps(figures), flush=True)
    slow = replace(costs, spread=1.0)
    print(json.dumps({"bench": "stragglers", "workers busy": round(feeds(slow, 64).workers, 3)}))


if __name__ == "__main__":
    main()
