"""The best state that the objective knows, on small tables: starts beside one another, and beside other libraries.

    python -m benchmarks.tables states [--sets wine,iris] [--seeds 5] [--starts default,truth,one,many]
    python -m benchmarks.tables peers [--sets wine,iris] [--folds 3]

``states`` trains each table with nothing but data and a seed, from the default start, from the true clusters, from one
cluster and from many.  From each start it shows objectives, clusters, adjusted Rand indices and CPU seconds.  The best
state should be found from every start: no seed of the default start should end far below another, or below the run from
the truth.

``peers`` holds out each of three folds in turn and compares, on the same columns divided by their deviations, held-out
nats per row, adjusted Rand index, clusters and CPU seconds with scikit-learn's BayesianGaussianMixture(30) and
GaussianMixture by BIC.  Of each peer the regularisation of :data:`REGULARISED` is chosen on the rows that are trained
on, by a fifth of them that is kept apart; its CPU seconds include that choice.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bnp_dask as bnp
from benchmarks import learned_priors
from benchmarks.learned_priors import Data, digits, of_sklearn, table


@dataclass(frozen=True)
class Table:
    """Rows, their true clusters (None where there are none), and whether columns are taken as independent."""

    x: np.ndarray
    y: np.ndarray | None
    diagonal: bool = False

    @property
    def model(self) -> bnp.Model:
        """Mixture with default settings."""
        return bnp.Model(bnp.DPMixture(), bnp.DiagGaussian() if self.diagonal else bnp.Gaussian())


# -- drawn tables ---------------------------------------------------------------------------------------------------
def far_apart(k: int, d: int, n: int, seed: int) -> Data:
    """Clusters of unit variance whose means are 4 deviations long in each feature."""
    rng = np.random.default_rng([41, seed])
    y = rng.integers(k, size=n)
    return 4.0 * rng.normal(size=(k, d))[y] + rng.normal(size=(n, d)), y


def grid(side: int, n: int, apart: float = 3.5) -> Data:
    """``side`` by ``side + 1`` round clusters of two features on a shaken grid, neighbours some deviations apart."""
    rng = np.random.default_rng([42, side])
    places = np.array([(i, j) for i in range(side) for j in range(side + 1)]) * apart
    means = places + 0.3 * rng.normal(size=places.shape)
    y = rng.integers(len(means), size=n)
    return means[y] + rng.normal(size=(n, 2)), y


def informative(k: int, d: int, n: int) -> Data:
    """``d`` columns, of which the first five tell ``k`` clusters apart."""
    rng = np.random.default_rng([43, k])
    y, x = rng.integers(k, size=n), rng.normal(size=(n, d))
    x[:, :5] += (3.0 * rng.normal(size=(k, 5)))[y]
    return x, y


def tails(k: int, n: int) -> Data:
    """Clusters of three features with Student-t tails of four degrees of freedom."""
    rng = np.random.default_rng([44, k])
    y = rng.integers(k, size=n)
    return 8.0 * rng.normal(size=(k, 3))[y] + rng.standard_t(4.0, (n, 3)), y


def elongated(k: int, n: int) -> Data:
    """Clusters of two features, ten times as long as wide, in random directions."""
    rng = np.random.default_rng([45, k])
    y, angle = rng.integers(k, size=n), rng.uniform(0.0, np.pi, k)
    along = np.column_stack([np.cos(angle), np.sin(angle)])
    across = np.column_stack([-along[:, 1], along[:, 0]])
    z = rng.normal(size=(n, 2)) * [3.0, 0.3]
    return 5.0 * rng.normal(size=(k, 2))[y] + z[:, :1] * along[y] + z[:, 1:] * across[y], y


def unequal(k: int, n: int) -> Data:
    """Clusters of four features whose sizes fall geometrically, by two fifths from one to the next."""
    rng = np.random.default_rng([46, k])
    share = 0.6 ** np.arange(k)
    y = rng.choice(k, n, p=share / share.sum())
    return 3.0 * rng.normal(size=(k, 4))[y] + rng.uniform(0.5, 1.5, (k, 4))[y] * rng.normal(size=(n, 4)), y


SETS: dict[str, Callable[[], Table]] = {
    "iris": lambda: Table(*of_sklearn("iris")),
    "wine": lambda: Table(*of_sklearn("wine")),
    "breast": lambda: Table(*of_sklearn("breast_cancer")),
    "digits": lambda: Table(*digits()),
    "crabs": lambda: Table(*table("crabs", ["FL", "RW", "CL", "CW", "BD"], ["sp", "sex"])),
    "faithful": lambda: Table(*table("faithful", ["eruptions", "waiting"], [])),
    "geyser": lambda: Table(*table("geyser", ["waiting", "duration"], [])),
    "galaxies": lambda: Table(*table("galaxies", ["dat"], [])),
    "twelve": lambda: Table(*far_apart(12, 4, 1200, 0)),
    "sixty": lambda: Table(*grid(7, 4000)),
    "diag30": lambda: Table(*informative(8, 30, 1500), diagonal=True),
    "tails": lambda: Table(*tails(6, 1500)),
    "elongated": lambda: Table(*elongated(8, 1200)),
    "unequal": lambda: Table(*unequal(9, 2000)),
    "few": lambda: Table(*far_apart(5, 8, 120, 1)),
    "dense": lambda: Table(*grid(3, 900, 2.8)),
    "rows_few": lambda: Table(*learned_priors.SETS["rows_few"]()),
    "scales": lambda: Table(*learned_priors.SETS["scales"]()),
}


# -- starts ---------------------------------------------------------------------------------------------------------
def from_labels(y: np.ndarray) -> bnp.Responsibilities:
    """The start in which each row belongs to its true cluster alone."""
    classes, at = np.unique(y, return_inverse=True)
    return bnp.Responsibilities(np.eye(len(classes))[at])


def starts(table: Table) -> dict[str, bnp.Initialization | None]:
    """Starts by name; None is the default."""
    many = min(100, len(table.x) // 4)
    truth = {} if table.y is None else {"truth": from_labels(table.y)}
    return {"default": None, **truth, "one": bnp.BregmanKMeans(1), "many": bnp.BregmanKMeans(many)}


@dataclass(frozen=True)
class End:
    """End of a run: objective in nats, clusters, adjusted Rand index, laps and CPU seconds."""

    elbo: float
    k: int
    ari: float
    laps: int
    cpu: float


def ended(table: Table, init: bnp.Initialization | None, seed: int, **settings: object) -> tuple[End, bnp.TrainResult]:
    """Train with default settings."""
    from sklearn.metrics import adjusted_rand_score

    begun = time.process_time()
    result = bnp.train(table.model, table.x, init=init, rng=seed, **settings)  # type: ignore[arg-type]
    cpu = time.process_time() - begun
    labels = bnp.predict(result.posterior, table.x)
    ari = np.nan if table.y is None else adjusted_rand_score(table.y, labels)
    last = result.history[-1]
    return End(float(last["elbo"]), len(np.unique(labels)), float(ari), int(last["lap"]), cpu), result


def show_states(names: list[str], seeds: int, chosen: list[str], n_init: int = 1) -> None:
    """A line for each table and start; the gap is that of the start's best and worst seed to the best state known."""
    for name in names:
        table = SETS[name]()
        ends = {
            start: [ended(table, init, seed, **({"n_init": n_init} if n_init > 1 else {}))[0] for seed in range(seeds)]
            for start, init in starts(table).items()
            if start in chosen
        }
        best = max(end.elbo for found in ends.values() for end in found)
        for start, found in ends.items():
            gaps = " ".join(f"{best - end.elbo:7.2f}" for end in found)
            k = "/".join(str(end.k) for end in found)
            ari = "/".join(f"{end.ari:.2f}".lstrip("0") for end in found)
            cpu, laps = np.mean([end.cpu for end in found]), np.mean([end.laps for end in found])
            best_text = f"best {best:.2f}" if start == "default" else ""
            print(
                f"{name:10} {start:8} gap {gaps}  K {k}  ARI {ari}  {laps:.0f} laps  {cpu:.2f} s  {best_text}",
                flush=True,
            )


# -- other libraries --------------------------------------------------------------------------------------------------
REGULARISED = (1e-6, 1e-3, 1e-2, 1e-1)
"""Numbers added to the variances of scikit-learn's mixtures, of columns of unit variance."""


def regularised(fit: Callable[[np.ndarray, float], Any], x: np.ndarray, seed: int) -> Any:
    """The mixture with the regularisation under which a fifth of the rows, kept apart, is most probable."""
    order = np.random.default_rng(seed).permutation(len(x))
    kept, rest = x[order[: len(x) // 5]], x[order[len(x) // 5 :]]
    return fit(x, max(REGULARISED, key=lambda added: float(fit(rest, added).score(kept))))


def by_bayes(x: np.ndarray, seed: int) -> Any:
    """BayesianGaussianMixture of 30."""
    from sklearn.mixture import BayesianGaussianMixture

    def fit(rows: np.ndarray, added: float) -> Any:
        k = min(30, len(rows) // 2)
        return BayesianGaussianMixture(n_components=k, reg_covar=added, max_iter=300, random_state=seed).fit(rows)

    return regularised(fit, x, seed)


def by_bic(x: np.ndarray, seed: int) -> Any:
    """GaussianMixture whose number of components, up to 15, has the best BIC."""
    from sklearn.mixture import GaussianMixture

    def fit(rows: np.ndarray, added: float) -> Any:
        sizes = range(1, min(16, len(rows) // 4))
        tried = [GaussianMixture(n_components=k, reg_covar=added, random_state=seed).fit(rows) for k in sizes]
        return min(tried, key=lambda mixture: float(mixture.bic(rows)))

    return regularised(fit, x, seed)


def ours(table: Table, x: np.ndarray, seed: int) -> Any:
    """This package with default settings."""
    return bnp.train(replace(table, x=x).model, x, rng=seed).posterior


def compared(name: str, folds: int, chosen: list[str]) -> dict[str, list[float]]:
    """Held-out nats a row, ARI, clusters and CPU seconds of each program, means over folds, on one table."""
    from sklearn.metrics import adjusted_rand_score

    table = SETS[name]()
    order = np.random.default_rng(7).permutation(len(table.x))
    out: dict[str, list[list[float]]] = {}
    for fold in range(folds):
        inside = np.ones(len(order), np.bool_)
        inside[order[fold::folds]] = False
        x, held = table.x[inside], table.x[~inside]
        mean, scale = x.mean(axis=0), x.std(axis=0)
        x, held = (x - mean) / scale, (held - mean) / scale
        programs = {"ours": partial(ours, table), "bgm": by_bayes, "bic": by_bic}
        for program, fit in ((name, programs[name]) for name in chosen):
            begun = time.process_time()
            found = fit(x, fold)
            cpu = time.process_time() - begun
            is_ours = program == "ours"
            labels = bnp.predict(found, x) if is_ours else found.predict(x)
            score = float(np.mean(bnp.score(found, held))) if is_ours else float(found.score(held))
            ari = np.nan if table.y is None else float(adjusted_rand_score(table.y[inside], labels))
            out.setdefault(program, []).append([score, ari, len(np.unique(labels)), cpu])
    return {program: np.mean(rows, axis=0).tolist() for program, rows in out.items()}


def show_peers(names: list[str], folds: int, chosen: list[str]) -> None:
    """A row of a Markdown table for each table: held-out nats, ARI, clusters, CPU seconds of each program."""
    print("| table | classes | held out | ARI | clusters | CPU s |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        y, found = SETS[name]().y, compared(name, folds, chosen)
        digits = zip(range(4), ("{:.2f}", "{:.2f}", "{:.1f}", "{:.1f}"), strict=True)
        cells = [" / ".join(text.format(found[p][i]) for p in chosen) for i, text in digits]
        classes = "-" if y is None else str(len(np.unique(y)))
        print(
            f"| {name} | {classes} | " + " | ".join(cells).replace(" / ".join(["nan"] * len(chosen)), "-") + " |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["states", "peers"])
    parser.add_argument("--sets", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--starts", default="default,truth,one,many")
    parser.add_argument("--programs", default="ours,bgm,bic")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--n-init", type=int, default=1)
    parser.add_argument("--data", type=Path, default=learned_priors.TABLES, help="folder with crabs.csv and others")
    chosen = parser.parse_args()
    learned_priors.TABLES = chosen.data
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = chosen.sets.split(",") if chosen.sets else list(SETS)
    bnp.train(SETS["iris"]().model, SETS["iris"]().x, rng=0)  # compile
    if chosen.what == "peers":
        show_peers(names, chosen.folds, chosen.programs.split(","))
    else:
        show_states(names, chosen.seeds, chosen.starts.split(","), chosen.n_init)


if __name__ == "__main__":
    main()
