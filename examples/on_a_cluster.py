"""Training on Dask workers, with a run directory that survives whatever stops the run.

    python examples/on_a_cluster.py                                   # starts two workers here
    python examples/on_a_cluster.py --scheduler tcp://host:8786       # uses a cluster that runs

Started again after Ctrl-C it goes on from the last checkpoint, to the same bits as if it had never stopped.  On a
cluster of several machines the directory (``--dir``) must be one that all of them see.
"""

import argparse
from pathlib import Path

import numpy as np
from distributed import Client

import bnp_dask as bnp


def make_store(path: Path, n_atoms: int, n_features: int = 16, n_clusters: int = 20) -> None:
    """A store of batches made of Gaussian clusters."""
    rng = np.random.default_rng(1)
    means = 4.0 * rng.standard_normal((n_clusters, n_features))
    atoms = means[rng.integers(n_clusters, size=n_atoms)] + rng.standard_normal((n_atoms, n_features))
    np.save(path.with_suffix(".npy"), atoms.astype(np.float32))
    print(bnp.ingest(path.with_suffix(".npy"), path, batch_size=max(1, n_atoms // 20)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", help="address of a Dask scheduler; default: start two workers here")
    parser.add_argument("--dir", default="on-a-cluster", help="where data and run go")
    parser.add_argument("--atoms", type=int, default=200_000)
    parser.add_argument("--laps", type=int, default=20)
    args = parser.parse_args()

    folder = Path(args.dir)
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "atoms.zarr"
    if not store.exists():
        make_store(store, args.atoms)

    with Client(args.scheduler) if args.scheduler else bnp.local_client(2, dashboard="127.0.0.1:0") as client:
        print(f"dashboard: {client.dashboard_link}")
        result = bnp.train(
            bnp.Model(bnp.DPMixture(gamma=5.0), bnp.Gaussian()),
            str(store),
            init=bnp.BregmanKMeans(n_clusters=30),
            schedule=bnp.Memoized(laps=args.laps, window=8),
            client=client,
            store=folder / "run",
            resume=True,  # starts anew where there is nothing to resume
            callbacks=[bnp.Progress()],
            rng=0,
        )
    print(result)
    print(bnp.inspect(result.posterior, limit=10))


if __name__ == "__main__":  # worker processes import this file
    main()
