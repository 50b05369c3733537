"""The best state that the objective knows, on small tables: starts beside one another, and beside other libraries.

    python -m benchmarks.tables states [--sets wine,iris] [--seeds 5] [--starts default,truth,one,many]
    python -m benchmarks.tables peers [--sets wine,iris] [--folds 3] [--draw 0] [--out FILE]

``states`` trains each table with nothing but data and a seed, from the default start, from the true clusters, from one
cluster and from many.  From each start it shows objectives, clusters, adjusted Rand indices and CPU seconds.  The best
state should be found from every start: no seed of the default start should end far below another, or below the run from
the truth.

``peers`` holds out each of three folds in turn and compares ``DirichletProcessMixture()`` as it comes, on the same
columns divided by their deviations, with scikit-learn's BayesianGaussianMixture(30) and GaussianMixture by BIC:
held-out nats per row, adjusted Rand index, clusters and CPU seconds.  Of each peer the regularisation of
:data:`REGULARISED` and the type of covariance are chosen on the rows that are trained on, by a fifth of them that is
kept apart; its CPU seconds include that choice.  The tables are :data:`FIFTEEN` and two of mixed columns, for which
this package has ``observation="auto"`` and the peers have numbers for levels; a mass of whole numbers is no density, so
that their held-out nats are not compared.  Stand-ins are drawn with shapes as tables of that kind have; ``--draw``
draws others of the same kinds, so that what was chosen on one draw is checked on another.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bnp_dask as bnp
from benchmarks import learned_priors
from benchmarks.learned_priors import Data, digits, of_sklearn, table


@dataclass(frozen=True)
class Table:
    """Rows, their true clusters (None where there are none), and whether columns are taken as independent.

    ``mixed`` has the same rows with columns of several kinds.
    """

    x: np.ndarray
    y: np.ndarray | None
    diagonal: bool = False
    mixed: pd.DataFrame | None = None

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


# -- stand-ins ----------------------------------------------------------------------------------------------------
DRAW = 0
"""Which draw of the stand-ins."""


def drawn_for(kind: int) -> np.random.Generator:
    """Random numbers of a stand-in."""
    return np.random.default_rng([47, kind, DRAW])


def of_sizes(sizes: list[int]) -> np.ndarray:
    """Classes of given sizes."""
    return np.repeat(np.arange(len(sizes)), sizes)


def glass() -> Data:
    """As the glass table: 214 x 9, six unequal classes, skewed shares with two decimals."""
    rng, y = drawn_for(0), of_sizes([70, 76, 17, 13, 9, 29])
    means, spread = rng.normal(0.0, 0.7, (6, 9)), rng.uniform(0.15, 0.5, (6, 9))
    x = np.exp(means[y] + spread[y] * rng.normal(size=(len(y), 9)) + 0.2 * rng.normal(size=(len(y), 1)))
    return np.round(x, 2), y


def seeds() -> Data:
    """As kernels of wheat: 210 x 7, three classes; all lengths follow one size, and one column nearly follows two."""
    rng, y = drawn_for(1), of_sizes([70, 70, 70])
    size, shape = np.array([0.0, 1.8, -1.6])[y] + 0.6 * rng.normal(size=210), rng.normal(size=(2, 210))
    x = np.outer(size, rng.uniform(0.5, 1.5, 7)) + np.outer(shape[0], rng.normal(size=7) * 0.4)
    x += rng.normal(size=(3, 7))[y] * 0.6 + 0.25 * rng.normal(size=x.shape)
    x[:, 2] = x[:, 0] + 0.5 * x[:, 1] + 0.03 * shape[1]
    return x, y


def ecoli() -> Data:
    """As the scores of proteins: 336 x 7 between 0 and 1, eight classes from 143 rows to two."""
    rng, y = drawn_for(2), of_sizes([143, 77, 52, 35, 20, 5, 2, 2])
    x = rng.normal(0.0, 1.0, (8, 7))[y] + rng.uniform(0.3, 0.7, (8, 7))[y] * rng.normal(size=(len(y), 7))
    return np.round(1.0 / (1.0 + np.exp(-x)), 2), y


def thyroid() -> Data:
    """As tests of the thyroid: 215 x 5, one tight class and two wide ones with long tails."""
    rng, y = drawn_for(3), of_sizes([150, 35, 30])
    centres = np.array([[0.0] * 5, [2.0, 3.5, 2.5, -0.7, -0.5], [-2.0, -2.2, -0.9, 3.0, 2.5]])
    centres, spread = centres + 0.3 * rng.normal(size=(3, 5)), np.array([0.6, 1.2, 1.2])
    return centres[y] + spread[y, None] * rng.standard_t(5.0, (len(y), 5)), y


def olive() -> Data:
    """As oils of three regions: 572 x 8, nine unequal classes within them, correlated acids that sum to nearly one."""
    rng, y = drawn_for(4), of_sizes([25, 56, 206, 36, 65, 33, 50, 50, 51])
    regions, kinds = 2.0 * rng.normal(size=(3, 8)), 0.9 * rng.normal(size=(9, 8))
    loads = 0.4 * rng.normal(size=(9, 8, 2))
    x = regions[np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])[y]] + kinds[y]
    x += np.einsum("njf,nf->nj", loads[y], rng.normal(size=(len(y), 2))) + 0.3 * rng.normal(size=x.shape)
    x[:, 7] = -x[:, :7].sum(axis=1) + 0.1 * rng.normal(size=len(y))
    return x, y


def sonar() -> Data:
    """As echoes of two objects: 208 x 30, smooth curves with a hump whose place depends on the class."""
    rng, y, t = drawn_for(5), of_sizes([97, 111]), np.linspace(0.0, 1.0, 30)
    waves = np.array([np.sin(np.pi * (k + 1) * t) / (k + 1) for k in range(6)])
    hump = np.exp(-0.5 * ((t - np.array([0.35, 0.6])[y, None] - 0.05 * rng.normal(size=(208, 1))) / 0.12) ** 2)
    return hump + 0.25 * rng.normal(size=(208, 6)) @ waves + 0.08 * rng.normal(size=(208, 30)), y


def notes() -> Data:
    """As images of bank notes: 1,372 x 4, two classes, each bent."""
    rng, y = drawn_for(6), of_sizes([762, 610])
    bend, rest = rng.normal(size=1372), rng.normal(size=(1372, 3))
    side = np.where(y == 0, 1.0, -1.0)
    x = np.column_stack([bend * 1.5, side * (bend**2 - 1.0) * 0.8 + 0.5 * rest[:, 0] + 1.2 * side])
    return np.column_stack([x, 0.6 * bend + rest[:, 1] + 0.8 * side, 0.5 * x[:, 1] + 0.7 * rest[:, 2]]), y


def with_levels(x: np.ndarray, columns: dict[str, np.ndarray], y: np.ndarray) -> Table:
    """A table of measures and of other columns; peers get numbers for levels."""
    frame = pd.DataFrame(x, columns=[f"measure{i}" for i in range(x.shape[1])]).assign(**columns)
    coded = frame.apply(lambda column: column if column.dtype.kind in "iufb" else column.astype("category").cat.codes)
    return Table(coded.to_numpy(float), y, mixed=frame)


def penguins() -> Table:
    """As penguins: 333 rows, three species, four measures, an island and a sex."""
    rng, y = drawn_for(7), of_sizes([146, 68, 119])
    sex = rng.integers(2, size=333)
    means = np.array([[38.8, 18.3, 190.0, 3700.0], [48.8, 18.4, 196.0, 3730.0], [47.6, 15.0, 217.0, 5090.0]])
    sizes, add = np.array([2.2, 0.9, 6.0, 320.0]), np.array([3.3, 1.4, 6.5, 650.0])
    x = means[y] + (sex[:, None] - 0.5) * add + sizes * rng.normal(size=(333, 4))
    shares = np.array([[0.3, 0.38, 0.32], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    island = np.array(["Biscoe", "Dream", "Torgersen"])[(rng.random((333, 1)) > shares.cumsum(axis=1)[y]).sum(axis=1)]
    return with_levels(np.round(x, 1), {"island": island, "sex": np.array(["female", "male"])[sex]}, y)


def customers() -> Table:
    """As customers: 600 rows, four kinds, two measures of which one is skewed, a count, two levels and a flag."""
    rng, y = drawn_for(8), of_sizes([240, 180, 120, 60])
    x = np.column_stack([
        np.array([25.0, 45.0, 60.0, 38.0])[y] + 5.0 * rng.normal(size=600),
        np.exp(np.array([6.0, 7.5, 6.5, 9.0])[y] + 0.5 * rng.normal(size=600)),
    ])  # fmt: skip
    visits = rng.poisson(np.array([12.0, 4.0, 1.5, 20.0])[y])
    levels = rng.dirichlet(np.full(4, 0.7), 4)
    channel = np.array(["shop", "phone", "web", "fair"])[(rng.random((600, 1)) > levels.cumsum(axis=1)[y]).sum(axis=1)]
    member = rng.random(600) < np.array([0.1, 0.5, 0.9, 0.6])[y]
    return with_levels(np.round(x, 2), {"visits": visits, "channel": channel, "member": member}, y)


FIFTEEN = (
    *("iris", "wine", "breast", "digits", "crabs", "faithful", "geyser", "galaxies"),
    *("glass", "seeds", "ecoli", "thyroid", "olive", "sonar", "notes"),
)
"""Tables of columns of measures; the last seven are drawn."""

MIXED = ("penguins", "customers")
"""Drawn tables of columns of several kinds."""

SETS: dict[str, Callable[[], Table]] = {
    "glass": lambda: Table(*glass()),
    "seeds": lambda: Table(*seeds()),
    "ecoli": lambda: Table(*ecoli()),
    "thyroid": lambda: Table(*thyroid()),
    "olive": lambda: Table(*olive()),
    "sonar": lambda: Table(*sonar()),
    "notes": lambda: Table(*notes()),
    "penguins": penguins,
    "customers": customers,
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

COVARIANCES = ("full", "tied", "diag")
"""Types of covariance of scikit-learn's mixtures."""

PROGRAMS = ("ours", "bgm", "bic")


def regularised(fit: Callable[[np.ndarray, str, float], Any], x: np.ndarray, seed: int) -> Any:
    """The mixture of the type and regularisation under which a fifth of the rows, kept apart, is most probable."""
    order = np.random.default_rng(seed).permutation(len(x))
    kept, rest = x[order[: len(x) // 5]], x[order[len(x) // 5 :]]
    settings = [(kind, added) for kind in COVARIANCES for added in REGULARISED]
    return fit(x, *max(settings, key=lambda setting: float(fit(rest, *setting).score(kept))))


def by_bayes(x: np.ndarray, seed: int) -> Any:
    """BayesianGaussianMixture of 30."""
    from sklearn.mixture import BayesianGaussianMixture

    def fit(rows: np.ndarray, kind: str, added: float) -> Any:
        k = min(30, len(rows) // 2)
        found = BayesianGaussianMixture(
            n_components=k, covariance_type=kind, reg_covar=added, max_iter=300, random_state=seed
        )
        return found.fit(rows)

    return regularised(fit, x, seed)


def by_bic(x: np.ndarray, seed: int) -> Any:
    """GaussianMixture whose number of components, up to 15, has the best BIC."""
    from sklearn.mixture import GaussianMixture

    def fit(rows: np.ndarray, kind: str, added: float) -> Any:
        sizes = range(1, min(16, len(rows) // 4))
        tried = [
            GaussianMixture(n_components=k, covariance_type=kind, reg_covar=added, random_state=seed).fit(rows)
            for k in sizes
        ]
        return min(tried, key=lambda mixture: float(mixture.bic(rows)))

    return regularised(fit, x, seed)


def ours(x: Any, seed: int) -> Any:
    """This package with default settings; ``observation="auto"`` for mixed columns."""
    if isinstance(x, np.ndarray):
        return bnp.DirichletProcessMixture(random_state=seed).fit(x)
    return bnp.DirichletProcessMixture(observation="auto", random_state=seed).fit(x)


def compared(name: str, folds: int, chosen: list[str]) -> dict[str, list[list[float]]]:
    """Held-out nats a row, ARI, clusters and CPU seconds of each program, of each fold, on one table."""
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
        for program in chosen:
            rows = table.mixed[inside] if program == "ours" and table.mixed is not None else x
            fit = {"ours": ours, "bgm": by_bayes, "bic": by_bic}[program]
            begun = time.process_time()
            found = fit(rows, fold)
            cpu = time.process_time() - begun
            labels = found.predict(rows)
            score = np.nan if table.mixed is not None else float(found.score(held))
            ari = np.nan if table.y is None else float(adjusted_rand_score(table.y[inside], labels))
            out.setdefault(program, []).append([score, ari, len(np.unique(labels)), cpu])
    return out


def show_peers(names: list[str], folds: int, chosen: list[str], out: Path | None) -> None:
    """A line for each table and program, then the counts of the bars; each line is also appended to a file of JSON
    lines, of which known ones of the same draw and folds are not computed again."""
    known = [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.exists() else []
    kept = {(row["table"], row["program"], row["draw"], row["folds"]): row for row in known}
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        y = SETS[name]().y
        n_classes = 0 if y is None else len(np.unique(y))
        missing = [program for program in chosen if (name, program, DRAW, folds) not in kept]
        for program, values in compared(name, folds, missing).items() if missing else ():
            row = {"table": name, "program": program, "draw": DRAW, "folds": folds, "classes": n_classes}
            row |= dict(zip(("score", "ari", "k", "cpu"), np.transpose(values).tolist(), strict=True))
            kept[name, program, DRAW, folds] = row
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        for program in chosen:
            row = kept[name, program, DRAW, folds]
            found.setdefault(name, {})[program] = np.array([row[key] for key in ("score", "ari", "k", "cpu")])
            score, ari, k, cpu = (row[key] for key in ("score", "ari", "k", "cpu"))
            folded = "/".join(f"{value:.2f}" for value in score)
            print(
                f"{name:10} {program:4} held out {np.mean(score):8.3f} ({folded})  ARI {np.mean(ari):.3f}  "
                f"K {'/'.join(f'{value:.0f}' for value in k)} for {n_classes}  {np.mean(cpu):.2f} s",
                flush=True,
            )
    if set(PROGRAMS) <= set(chosen):
        print(bars(found, {name: kept[name, "ours", DRAW, folds]["classes"] for name in names}))


def bars(found: dict[str, dict[str, np.ndarray]], classes: dict[str, int]) -> str:
    """Number of tables on which this package is ahead, and the others."""
    means = {name: {p: values.mean(axis=1) for p, values in own.items()} for name, own in found.items()}

    def best(name: str, which: int) -> float:
        return float(max(means[name]["bgm"][which], means[name]["bic"][which]))

    scored = [name for name in means if not np.isnan(means[name]["ours"][0])]
    told = [name for name in means if classes[name]]
    lost = {
        "held out": (len(scored), [n for n in scored if means[n]["ours"][0] <= best(n, 0)]),
        "ARI": (len(told), [n for n in told if means[n]["ours"][1] < best(n, 1)]),
        "K": (len(told), [n for n in told if means[n]["ours"][2] > 1.5 * classes[n]]),
        "CPU": (len(means), [n for n in means if means[n]["ours"][3] > 3.0 * best(n, 3)]),
    }
    return "\n".join(f"{bar}: {n - len(names)} of {n}; not {', '.join(names)}" for bar, (n, names) in lost.items())


def main() -> None:
    global DRAW
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["states", "peers"])
    parser.add_argument("--sets", default="")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--starts", default="default,truth,one,many")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--draw", type=int, default=0, help="which draw of the stand-ins")
    parser.add_argument("--out", type=Path, help="file of results, to which those not yet there are added")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--n-init", type=int, default=1)
    parser.add_argument("--data", type=Path, default=learned_priors.TABLES, help="folder with crabs.csv and others")
    chosen = parser.parse_args()
    learned_priors.TABLES = chosen.data
    DRAW = chosen.draw
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    usual = [*FIFTEEN, *MIXED] if chosen.what == "peers" else list(SETS)
    names = chosen.sets.split(",") if chosen.sets else usual
    bnp.train(SETS["iris"]().model, SETS["iris"]().x, rng=0)  # compile
    if chosen.what == "peers":
        show_peers(names, chosen.folds, chosen.programs.split(","), chosen.out)
    else:
        show_states(names, chosen.seeds, chosen.starts.split(","), chosen.n_init)


if __name__ == "__main__":
    main()
