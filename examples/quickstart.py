"""The whole way in one file, in a few seconds: data on disk -> train -> look -> assign and score new atoms.

python examples/quickstart.py
"""

import tempfile
from pathlib import Path

import numpy as np

import bnp_dask as bnp


def make_data(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Atoms ``(n, 2)`` of five clusters of different shapes and sizes, and which cluster each came from."""
    shares = [0.35, 0.25, 0.2, 0.15, 0.05]
    means = np.array([[0.0, 0.0], [6.0, 1.0], [-5.0, 4.0], [2.0, 7.0], [7.0, 7.0]])
    roots = np.array(
        [[[1.5, 0], [1, 0.4]], [[0.5, 0], [0, 1.2]], [[1, 0], [-0.7, 0.5]], [[0.6, 0], [0, 0.6]], [[0.3, 0], [0, 0.3]]]
    )
    truth = rng.choice(len(shares), n, p=shares)
    return means[truth] + np.einsum("nij,nj->ni", roots[truth], rng.standard_normal((n, 2))), truth


def main() -> None:
    rng = np.random.default_rng(0)
    atoms, _ = make_data(20_000, rng)
    new, truth = make_data(2_000, rng)
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "atoms.npy", atoms)
        print(bnp.ingest(Path(folder) / "atoms.npy", Path(folder) / "atoms.zarr", batch_size=2_000))

        # a Dirichlet process takes as many clusters as the data call for; it starts with 12
        model = bnp.Model(bnp.DPMixture(gamma=1.0), bnp.Gaussian())
        result = bnp.train(
            model,
            str(Path(folder) / "atoms.zarr"),
            init=bnp.BregmanKMeans(n_clusters=12),
            schedule=bnp.Memoized(laps=200, tolerance=1e-5),
            callbacks=[bnp.Progress()],
            rng=0,
        )
        print(result)
        print(bnp.inspect(result.posterior))

        bnp.save(result.posterior, Path(folder) / "posterior.zarr")
        posterior = bnp.load(Path(folder) / "posterior.zarr")

    labels = bnp.predict(posterior, new)
    agree = sum(np.bincount(truth[labels == k]).max() for k in np.unique(labels)) / len(new)
    print(f"new atoms: {bnp.score(posterior, new):.3f} nats each; {agree:.1%} lie in a cluster of their own kind")


if __name__ == "__main__":
    main()
