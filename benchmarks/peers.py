"""This package and other libraries on the same tasks, from a file to an answer, in one run on one machine.

``python -m benchmarks peers [--quick] [--tasks points topics ...] [--page FILE]``

It installs nothing and runs what can be imported.  Each program runs in a process of its own, with one thread; counted
are the CPU seconds from reading the file to the answer, without imports (which ``cold`` counts), and the largest
resident memory of the process.  Tasks of several sets (``SETS``) count each set alone, in one process for each program;
sets whose data are not there (``../shared/data``) are left out.  A run of all tasks writes the page of the site,
docs/peers.md, and the table of README that is cut from it; one without ``--quick`` also the tables of docs/coming_from.
``--page FILE`` writes another page, ``--cut`` only cuts the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "peers.md"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
OURS = "bnp-dask"
SECONDS = 3600
"""Time limit of one program."""

AHEAD = ("points", "topics", "sequences")
"""Tasks that this package runs once before it is measured: its kernels are compiled by the first run on a machine."""

Line = dict[str, Any]
Found = dict[str, Any]
Answer = Callable[[], Found]
"""What scores an answer; it is not counted."""


def sizes(quick: bool) -> dict[str, Any]:
    """How large the tasks are."""
    if quick:
        own = {"rows": 6000, "width": 4, "docs": 200, "vocabulary": 200, "passes": (40,), "steps": 200}
    else:
        own = {"rows": 100_000, "width": 16, "docs": 3000, "vocabulary": 2000, "passes": (10, 50, 200), "steps": 2000}
    return {"quick": quick, **own}


# -- data -------------------------------------------------------------------------------------------------------------
def write_data(folder: Path, quick: bool) -> None:
    """Files of all tasks, and the truth beside them."""
    rng, size = np.random.default_rng(0), sizes(quick)
    centres = 2.0 * rng.normal(size=(12, size["width"]))
    labels = rng.integers(12, size=size["rows"])
    scales = rng.uniform(0.5, 1.2, (12, size["width"]))
    np.save(folder / "points.npy", centres[labels] + scales[labels] * rng.normal(size=(size["rows"], size["width"])))
    np.save(folder / "points_truth.npy", labels)
    topics = rng.dirichlet(np.full(size["vocabulary"], 0.05), 20)
    shares = rng.dirichlet(np.full(20, 0.1), size["docs"] + 100)
    counts = np.array([rng.multinomial(80, share @ topics) for share in shares]).astype(float)
    np.save(folder / "counts.npy", counts[100:])
    np.save(folder / "held.npy", counts[:100])
    means = 1.5 * rng.normal(size=(8, 4))
    states = [np.repeat(rng.integers(8, size=size["steps"] // 20), 20) for _ in range(10)]
    rows = np.concatenate([means[z] + rng.normal(size=(len(z), 4)) for z in states])
    np.savez(folder / "sequences.npz", rows=rows, lengths=[len(z) for z in states])
    np.save(folder / "sequences_truth.npy", np.concatenate(states))


def agreement(folder: Path, task: str, labels: np.ndarray) -> Found:
    """Adjusted Rand index with the truth (0 for chance, 1 for the same), and the number of clusters."""
    truth = np.load(folder / f"{task}_truth.npy")
    table = np.zeros((truth.max() + 1, int(labels.max()) + 1))
    np.add.at(table, (truth, np.asarray(labels, int)), 1.0)

    def pairs(counts: np.ndarray) -> float:
        return float((counts * (counts - 1.0)).sum() / 2.0)

    both, chance = pairs(table), pairs(table.sum(axis=0)) * pairs(table.sum(axis=1)) / pairs(np.array([len(truth)]))
    most = 0.5 * (pairs(table.sum(axis=0)) + pairs(table.sum(axis=1)))
    return {"quality": round((both - chance) / (most - chance), 3), "found": len(np.unique(labels))}


def held_score(folder: Path, topics: np.ndarray) -> Found:
    """Held-out nats per token by the one evaluator of ``benchmarks/topics/score.py``."""
    from scipy import sparse

    from benchmarks.topics.score import completion

    topics = topics / topics.sum(axis=1, keepdims=True)
    return {
        "quality": round(completion(sparse.csr_array(np.load(folder / "held.npy")), topics), 3),
        "found": len(topics),
    }


# -- points -----------------------------------------------------------------------------------------------------------
def points_ours(folder: Path) -> Answer:
    import bnp_dask as bnp

    path = str(folder / "points.npy")
    result = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), path, rng=0)
    labels = bnp.predict(result.posterior, path)
    return lambda: agreement(folder, "points", labels)


def points_sklearn(folder: Path) -> Answer:
    mixture = import_module("sklearn.mixture")
    x = np.load(folder / "points.npy")
    labels = mixture.BayesianGaussianMixture(n_components=30, max_iter=200, random_state=0).fit_predict(x)
    return lambda: agreement(folder, "points", labels)


def points_faiss(folder: Path) -> Answer:
    faiss = import_module("faiss")
    x = np.load(folder / "points.npy").astype(np.float32)
    kmeans = faiss.Kmeans(x.shape[1], 12, niter=50, nredo=5, seed=1, max_points_per_centroid=10**9)
    kmeans.train(x)
    labels = kmeans.index.search(x, 1)[1].ravel()
    return lambda: agreement(folder, "points", labels)


def points_river(folder: Path) -> Answer:
    cluster = import_module("river.cluster")
    model = cluster.KMeans(n_clusters=12, halflife=0.01, seed=0)
    rows = [dict(enumerate(row)) for row in np.load(folder / "points.npy").tolist()]
    for row in rows:
        model.learn_one(row)
    labels = np.array([model.predict_one(row) for row in rows])
    return lambda: agreement(folder, "points", labels)


def points_pomegranate(folder: Path) -> Answer:
    torch = import_module("torch")
    gmm, distributions = import_module("pomegranate.gmm"), import_module("pomegranate.distributions")
    x = torch.tensor(np.load(folder / "points.npy"), dtype=torch.float32)
    labels = gmm.GeneralMixtureModel([distributions.Normal() for _ in range(12)], max_iter=100).fit(x).predict(x)
    return lambda: agreement(folder, "points", np.asarray(labels))


# -- topics -----------------------------------------------------------------------------------------------------------
def topics_ours(folder: Path) -> Answer:
    from scipy import sparse

    import bnp_dask as bnp

    counts = sparse.csr_array(np.load(folder / "counts.npy"))
    result = bnp.train(bnp.Model(bnp.HDPTopics(), bnp.Multinomial()), counts, rng=0)
    lam = result.posterior.observation.lam
    return lambda: held_score(folder, lam)


def topics_of(program: str) -> Callable[[Path], Answer]:
    """A program of ``benchmarks/topics/peers.py`` with the true number of topics."""

    def run(folder: Path) -> Answer:
        from scipy import sparse

        from benchmarks.topics.peers import ETA, PROGRAMS

        counts = sparse.csr_array(np.load(folder / "counts.npy"))
        passes = list(json.loads((folder / "size.json").read_text())["passes"])
        (phi,) = PROGRAMS[program](counts, 20, passes[-1:], 1, ETA)()
        return lambda: held_score(folder, phi)

    return run


def topics_lda(folder: Path) -> Answer:
    lda = import_module("lda")
    import_module("logging").getLogger("lda").setLevel("ERROR")
    passes = json.loads((folder / "size.json").read_text())["passes"][-1]
    counts = np.load(folder / "counts.npy").astype(int)
    model = lda.LDA(20, n_iter=passes, alpha=0.025, eta=0.1, random_state=1).fit(counts)
    return lambda: held_score(folder, model.topic_word_)


# -- sequences --------------------------------------------------------------------------------------------------------
def sequences_ours(folder: Path) -> Answer:
    import bnp_dask as bnp

    with np.load(folder / "sequences.npz") as stored:
        rows = np.split(stored["rows"], np.cumsum(stored["lengths"])[:-1])
    labels = bnp.SequenceModel(random_state=0).fit_predict(rows)
    return lambda: agreement(folder, "sequences", labels)


def sequences_hmmlearn(folder: Path) -> Answer:
    hmm = import_module("hmmlearn.hmm")
    with np.load(folder / "sequences.npz") as stored:
        rows, lengths = stored["rows"], stored["lengths"]
    model = hmm.GaussianHMM(8, covariance_type="full", n_iter=100, random_state=0, implementation="scaling")
    labels = model.fit(rows, lengths).predict(rows, lengths)
    return lambda: agreement(folder, "sequences", labels)


def sequences_dynamax(folder: Path) -> Answer:
    jax, hmm = import_module("jax"), import_module("dynamax.hidden_markov_model")
    with np.load(folder / "sequences.npz") as stored:
        rows = jax.numpy.asarray(stored["rows"].reshape(len(stored["lengths"]), -1, 4))
    model = hmm.GaussianHMM(8, 4)
    params, props = model.initialize(jax.random.PRNGKey(0), method="kmeans", emissions=rows)
    params, _ = model.fit_em(params, props, rows, num_iters=50, verbose=False)
    labels = np.concatenate([np.asarray(model.most_likely_states(params, row)) for row in rows])
    return lambda: agreement(folder, "sequences", labels)


# -- laps -------------------------------------------------------------------------------------------------------------
def laps_ours(folder: Path) -> Answer:
    """CPU seconds of a lap with 30 clusters, from the difference of two runs."""
    import bnp_dask as bnp

    x = np.load(folder / "points.npy")
    labels = np.random.default_rng(0).integers(30, size=len(x))
    model = bnp.Model(bnp.DPMixture(), bnp.Gaussian())

    def laps(number: int) -> float:
        start = time.process_time()
        schedule = bnp.FullBatch(laps=number, tolerance=0.0, count_tolerance=0.0)
        bnp.train(model, x, init=bnp.Responsibilities(labels), schedule=schedule, moves=())
        return time.process_time() - start

    laps(2)
    seconds = (laps(12) - laps(2)) / 10
    return lambda: {"quality": round(seconds, 4), "found": 30}


def laps_sklearn(folder: Path) -> Answer:
    """The same of an iteration of scikit-learn's."""
    mixture = import_module("sklearn.mixture")
    x = np.load(folder / "points.npy")

    def laps(number: int) -> float:
        start = time.process_time()
        mixture.BayesianGaussianMixture(
            n_components=30, max_iter=number, tol=0.0, init_params="random_from_data", random_state=0
        ).fit(x)
        return time.process_time() - start

    seconds = (laps(12) - laps(2)) / 10
    return lambda: {"quality": round(seconds, 4), "found": 30}


# -- several sets -----------------------------------------------------------------------------------------------------
SETS: dict[str, tuple[str, ...]] = {
    "tables": ("held-out nats a row", "agreement", "found", "CPU s"),
    "recordings": ("held-out nats a step", "steps under another label", "found", "CPU s"),
    "corpora": ("held-out nats a token", "found", "CPU s"),
    "passes": ("CPU µs a step",),
    "documents": ("CPU ms a document", "distance from the end"),
}
"""Tasks of several sets, and what is said of each set."""

DRAWN = {"tables": ("rows_few",), "recordings": ("drift", "heavy")}
"""Sets that need no files: the small task has them alone."""


def of_sets(task: str, found: dict[str, Sequence[float]]) -> Answer:
    """What is said of each set, by the names of its columns."""
    return lambda: {"sets": {name: dict(zip(SETS[task], map(float, row), strict=True)) for name, row in found.items()}}


def is_quick(folder: Path) -> bool:
    return bool(json.loads((folder / "size.json").read_text())["quick"])


def tables_of(program: str) -> Callable[[Path], Answer]:
    """Means over folds of ``benchmarks/tables.py``."""

    def run(folder: Path) -> Answer:
        from benchmarks import tables

        if program == "ours":
            tables.ours(tables.SETS["rows_few"]().x, 0)  # compiles
        names = DRAWN["tables"] if is_quick(folder) else tables.FIFTEEN
        found = {}
        for name in names:
            try:
                folds = tables.compared(name, 2 if is_quick(folder) else 3, [program])[program]
            except FileNotFoundError:
                continue
            found[name] = np.mean(folds, axis=0)
        return of_sets("tables", found)

    return run


def recordings_of(way: str) -> Callable[[Path], Answer]:
    """The sequences of ``benchmarks/chains``, one of them held out."""

    def run(folder: Path) -> Answer:
        from benchmarks.chains import __main__ as own

        if way == "default":
            own.compared(own.drawn("sticky", 2, n=2, length=60), way, 0)  # compiles
        names = DRAWN["recordings"] if is_quick(folder) else ("mocap6", "bee", "gesture", *DRAWN["recordings"])
        return of_sets(
            "recordings", {name: own.compared(data, way, 0) for name, data in own.there(list(names)).items()}
        )

    return run


def corpora_of(n_topics: int | None) -> Callable[[Path], Answer]:
    """Corpora of ``benchmarks/topics``; tomotopy's LDA of so many topics learns alpha, and its best pass counts."""

    def run(folder: Path) -> Answer:
        from benchmarks.topics import learned
        from benchmarks.topics.corpora import load

        if n_topics is None:
            learned.ours(load("bars"), "default", 0, False)  # compiles
        found: dict[str, Sequence[float]] = {}
        for name in () if is_quick(folder) else ("kos", "newsgroups20"):
            try:
                corpus = learned.part_of(load(name), 3000, 0)
            except FileNotFoundError:
                continue
            if n_topics is None:
                line = learned.ours(corpus, "default", 0, False)
            else:
                line = max(learned.peer(sys.executable, corpus, n_topics, 0.05, 0), key=lambda line: line["own"])
            found[corpus.name] = (line["own"], line["K"], line["cpu"])
        return of_sets("corpora", found)

    return run


def passes_of(program: str) -> Callable[[Path], Answer]:
    """Forward-backward with sums over pairs of states, a thousand steps."""

    def run(folder: Path) -> Answer:
        from benchmarks.chains import bench_forward_backward as bench
        from benchmarks.timing import median

        functions = {"ours": bench.our_passes, "hmmlearn": bench.hmmlearn_passes, "dynamax": bench.dynamax_passes}
        sizes = (10, 50) if is_quick(folder) else (10, 50, 100, 200)
        return of_sets(
            "passes", {f"{k} states": (1e6 * median(functions[program](k), 9) / bench.STEPS,) for k in sizes}
        )

    return run


def documents_of(program: str) -> Callable[[Path], Answer]:
    """The local step of documents with default tolerances, and how far shares are from those of many sweeps."""

    def run(folder: Path) -> Answer:
        from benchmarks.topics import document_step as bench

        sizes = ((20, 200),) if is_quick(folder) else ((100, 1000), (200, 600), (500, 300))
        return of_sets("documents", {f"{k} topics": bench.default_step(program, k, n) for k, n in sizes})

    return run


# -- cold start -------------------------------------------------------------------------------------------------------
def cold_of(needs: str) -> Callable[[Path], Answer]:
    """Nothing: what counts is the whole process, in which the library is imported and meets 300 rows of its task."""

    def run(folder: Path) -> Answer:
        program, task = next((p, t) for t, own in TASKS.items() for p in own if own[p][0] == needs and t in AHEAD)
        TASKS[task][program][1](folder / "small")
        return lambda: {"quality": 0.0, "found": 0}

    return run


Program = tuple[str, Callable[[Path], Answer], str]
"""Module that has to be there, what runs, and what one should know about it."""

TASKS: dict[str, dict[str, Program]] = {
    "points": {
        OURS: ("bnp_dask", points_ours, "all defaults; the number is learned"),
        "scikit-learn": ("sklearn", points_sklearn, "BayesianGaussianMixture of 30 components"),
        "faiss-cpu": ("faiss", points_faiss, "k-means, told the true number, 5 starts"),
        "river": ("river", points_river, "streaming k-means, told the true number, one pass"),
        "pomegranate": ("pomegranate", points_pomegranate, "Gaussian mixture by EM, told the true number"),
    },
    "topics": {
        OURS: ("bnp_dask", topics_ours, "HDPTopics, all defaults; the number is learned"),
        "scikit-learn": ("sklearn", topics_of("sklearn-batch"), "LatentDirichletAllocation, told the true number"),
        "gensim": ("gensim", topics_of("gensim-lda"), "LdaModel, told the true number"),
        "tomotopy": ("tomotopy", topics_of("tomotopy-lda"), "LDAModel, told the true number"),
        "lda": ("lda", topics_lda, "told the true number"),
    },
    "sequences": {
        OURS: ("bnp_dask", sequences_ours, "SequenceModel, all defaults; the number is learned"),
        "hmmlearn": ("hmmlearn", sequences_hmmlearn, "GaussianHMM by EM, told the true number"),
        "dynamax": ("dynamax", sequences_dynamax, "GaussianHMM by EM, told the true number"),
    },
    "laps": {
        OURS: ("bnp_dask", laps_ours, "a lap without moves"),
        "scikit-learn": ("sklearn", laps_sklearn, "an iteration of BayesianGaussianMixture"),
    },
    "tables": {
        OURS: ("bnp_dask", tables_of("ours"), "all defaults"),
        "BayesianGaussianMixture": ("sklearn", tables_of("bgm"), "scikit-learn, 30 components"),
        "GaussianMixture": ("sklearn", tables_of("bic"), "scikit-learn, number of components by BIC"),
    },
    "recordings": {
        OURS: ("bnp_dask", recordings_of("default"), "SequenceModel, all defaults"),
        "hmmlearn": ("hmmlearn", recordings_of("hmmlearn"), "full covariances, number of states by BIC"),
    },
    "corpora": {
        OURS: ("bnp_dask", corpora_of(None), "HDPTopics, all defaults"),
        "tomotopy, K=100": ("tomotopy", corpora_of(100), "LDA, told the number"),
        "tomotopy, K=200": ("tomotopy", corpora_of(200), "LDA, told the number"),
    },
    "passes": {
        OURS: ("bnp_dask", passes_of("ours"), ""),
        "hmmlearn": ("hmmlearn", passes_of("hmmlearn"), "compiled recursions with scaling"),
        "dynamax": ("dynamax", passes_of("dynamax"), "smoother, double precision"),
    },
    "documents": {
        OURS: ("bnp_dask", documents_of("ours"), ""),
        "scikit-learn": ("sklearn", documents_of("scikit-learn"), "E-step of LatentDirichletAllocation"),
    },
    "cold": {
        name: (needs, cold_of(needs), "")
        for name, needs in {
            OURS: "bnp_dask", "scikit-learn": "sklearn", "hmmlearn": "hmmlearn", "tomotopy": "tomotopy",
            "gensim": "gensim", "lda": "lda", "river": "river", "faiss-cpu": "faiss", "dynamax": "dynamax",
            "pomegranate": "pomegranate",
        }.items()
    },
}  # fmt: skip


# -- one program, in its own process ----------------------------------------------------------------------------------
def cpu_seconds() -> float:
    """CPU time of this process and of those that it started and that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def run_here(task: str, program: str, folder: Path) -> Line:
    """Run a program and tell what it took."""
    warnings.simplefilter("ignore")
    needs, function, _ = TASKS[task][program]
    before = 0.0
    if task != "cold":
        import_module(needs)
        before = cpu_seconds()
    answer = function(folder)
    seconds = cpu_seconds() - before
    # what the kernel counts of a process itself begins with the memory of the one that started it
    own = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])
    memory = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1000.0
    return {"task": task, "program": program, "cpu": round(seconds, 2), "memory": round(memory), **answer()}


def run_apart(task: str, program: str, folder: Path) -> Line:
    """The same in a new process; what went wrong is the answer of a program that fails."""
    command = [sys.executable, "-m", "benchmarks.peers", "--here", task, program, str(folder)]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"task": task, "program": program, "failed": f"not done after {SECONDS} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"task": task, "program": program, "failed": last[0]}
    line: Line = json.loads(done.stdout.strip().splitlines()[-1])
    return line


# -- the page ---------------------------------------------------------------------------------------------------------
TITLES = {
    "points": "{rows:,} points of 12 overlapping Gaussians in {width} dimensions",
    "topics": "{docs:,} documents of 80 words out of {vocabulary:,}, from 20 topics",
    "sequences": "10 sequences of {steps:,} steps through 8 states, 4 columns",
    "laps": "A lap over {rows:,} points, 30 full Gaussians",
    "tables": "Small tables",
    "recordings": "Recordings and drawn sequences",
    "corpora": "Texts",
    "passes": "Forward-backward with sums over pairs of states, a thousand steps",
    "documents": "The local step of documents",
    "cold": "Cold start: a new process, imports, and a few rows",
}
QUALITY = {"points": "agreement", "topics": "held-out nats per token", "sequences": "agreement", "laps": "CPU s a lap"}


def table_of(task: str, lines: Sequence[Line]) -> str:
    """Markdown table of one task, the best first."""
    own = [line for line in lines if line["task"] == task and "failed" not in line]
    if task == "cold":
        rows = "".join(
            f"| {ln['program']} | {ln['cpu']:.1f} | {ln['memory']} |\n" for ln in sorted(own, key=lambda ln: ln["cpu"])
        )
        return f"| | CPU s | memory, MB |\n|---|---|---|\n{rows}"
    if task in SETS:
        return sets_table(task, own)
    if task == "laps":
        rows = "".join(
            f"| {line['program']}, {TASKS[task][line['program']][2]} | {line['quality']:.3g} |\n" for line in own
        )
        return f"| | CPU s |\n|---|---|\n{rows}"
    rows = "".join(
        f"| {line['program']} | {line['cpu']:.1f} | {line['memory']} | {line['quality']:.3f} | {line['found']} | "
        f"{TASKS[task][line['program']][2]} |\n"
        for line in sorted(own, key=lambda line: -line["quality"])
    )
    return f"| | CPU s | memory, MB | {QUALITY[task]} | found | |\n|---|---|---|---|---|---|\n{rows}"


WHAT = {
    "tables": "Means of folds (three, or two of the small task), of which each is held out in turn. Columns are "
    "divided by their deviations. "
    "Those of scikit-learn choose the type of their covariances and their regularisation by a fifth of the training "
    "rows, which counts as their time. glass to notes are drawn with shapes as tables of that name have.",
    "recordings": "One sequence, or a quarter of more than seven, is held out. Steps under another label are those of "
    "training in another state than their label's, when each label has one state. drift and heavy are drawn, with six "
    "states, steps that drift and Student t tails.",
    "corpora": "A fifth of the words of held-out documents is predicted from the others with the prior that each "
    "program learned (`benchmarks/topics/score.py`); of tomotopy the best of 100, 200 and 400 passes.",
    "passes": "Median of nine.",
    "documents": "From equal counts, each with its default tolerance, without restarts. Distance: mean total variation "
    "of the shares of topics from those after 2,000 sweeps.",
}
"""What a reader of a task of several sets has to know."""


def shown(value: float, column: str) -> str:
    """A cell: whole numbers as such, nothing for what has no truth."""
    if np.isnan(value):
        return ""
    if column == "found":
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.3g}" if column.startswith("CPU") else f"{value:.3f}"


def sets_table(task: str, own: Sequence[Line]) -> str:
    """A row for each set and program."""
    columns = SETS[task]
    names = list(dict.fromkeys(name for line in own for name in line["sets"]))
    rows = "".join(
        f"| {name} | {line['program']} | {' | '.join(shown(line['sets'][name][c], c) for c in columns)} |\n"
        for name in names
        for line in own
        if name in line["sets"]
    )
    who = [f"{ln['program']}: {TASKS[task][ln['program']][2]}" for ln in own if TASKS[task][ln["program"]][2]]
    said = f"{WHAT[task]} {'; '.join(who)}".strip() + "."
    return f"| | | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}\n{rows}\n{said.replace('..', '.')}\n"


def lost(task: str, lines: Sequence[Line]) -> str:
    """Of how many sets this package has the best score, and on which it has not."""
    own = {line["program"]: line["sets"] for line in lines if line["task"] == task and "failed" not in line}
    told = []
    for column in SETS[task]:
        if OURS not in own or len(own) < 2 or column in ("found", "CPU s"):
            continue
        sign = 1.0 if column.startswith("held-out") or column == "agreement" else -1.0
        others = [sets for program, sets in own.items() if program != OURS]
        scores = {
            name: [sign * sets[name][column] for sets in others if name in sets and not np.isnan(sets[name][column])]
            for name, row in own[OURS].items()
            if not np.isnan(row[column])
        }
        best = {name: max(found) for name, found in scores.items() if found}
        behind = [name for name in best if sign * own[OURS][name][column] < best[name]]
        told.append(f"{column}: best on {len(best) - len(behind)} of {len(best)}; not {', '.join(behind) or 'none'}")
    return f"{OURS}, {'. '.join(told)}.\n".replace("; not none", "") if told else ""


def verdict(task: str, lines: Sequence[Line]) -> str:
    """Who is as good as this package, or better, and faster: its losses."""
    own = {line["program"]: line for line in lines if line["task"] == task and "failed" not in line}
    if task in SETS:
        return lost(task, lines)
    if OURS not in own or task not in AHEAD:
        return ""
    ours, others = own[OURS], [line for line in own.values() if line["program"] != OURS]
    near = [line for line in others if line["quality"] >= ours["quality"] - 0.01]
    faster = [line["program"] for line in near if line["cpu"] < ours["cpu"]]
    better = [line["program"] for line in others if line["quality"] > ours["quality"] + 0.01]
    told = [f"At equal quality (0.01) or better and faster: {', '.join(faster) or 'none'}."]
    told.append(f"Better by more than 0.01: {', '.join(better) or 'none'}.")
    return " ".join(told) + "\n"


def page_of(lines: Sequence[Line], quick: bool, load: float) -> str:
    """The page."""
    programs = sorted(TASKS["cold"])
    there, missing = [], []
    for name in programs:
        try:
            there.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    how = "python -m benchmarks peers" + (" --quick" if quick else "")
    small = "The tasks are small (`--quick`): a table says nothing about larger data.\n\n" if quick else ""
    busy = "Other work ran on this machine at the same time" if load > 1.5 else "Nothing else ran on this machine"
    text = (
        "# Beside other libraries\n\n"
        f"Made on {datetime.now(UTC):%Y-%m-%d} by one command, `{how}`, on one machine: "
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}. "
        f"{busy} (load {load:.0f} at the end). CPU seconds are compared, never those of the clock; they are somewhat "
        "larger too on a busy machine, for all alike, and differ from run to run. "
        "Each program has a process and one thread, and one seed. Data are drawn at random, but for recordings, "
        "texts and tables with names of real ones. CPU seconds are counted from the file to the answer, those of "
        "tasks of several sets from arrays, both without imports, which the last table counts. "
        "Kernels of this package are compiled by the first run on a machine: the second counts, and what compiling "
        "took is not in any figure here. Agreement is the adjusted Rand index with the true clusters or classes.\n\n"
        f"Versions: {', '.join(there)}." + (f" Not installed: {', '.join(missing)}." if missing else "") + "\n\n"
        f"{small}Programs that are told the true number of clusters have an easier task than those that learn it.\n"
    )
    for task, title in TITLES.items():
        if any(line["task"] == task for line in lines):
            text += f"\n## {title.format(**sizes(quick))}\n\n<!-- task: {task} -->\n{table_of(task, lines)}"
            if told := verdict(task, lines):
                text += f"\n{told}"
    failed = [line for line in lines if "failed" in line]
    if failed:
        text += "\n## What failed\n\n" + "".join(
            f"* {ln['task']}, {ln['program']}: `{ln['failed']}`\n" for ln in failed
        )
    return text


# -- README -----------------------------------------------------------------------------------------------------------
PLACE = re.compile(r"(<!-- peers -->\n).*?(<!-- end of peers -->)", re.DOTALL)


def cut(page: str) -> str:
    """README's table: of each task of the page this package, and the best and the fastest of the others."""
    rows = "| CPU s, quality | bnp_dask | best of the others | fastest of the others |\n|---|---|---|---|\n"
    for task in AHEAD:
        found = re.search(rf"## ([^\n]*)\n\n<!-- task: {task} -->\n[^\n]*\n[^\n]*\n((?:\|[^\n]*\n)+)", page)
        if found is None:
            continue
        lines = [[cell.strip() for cell in row.strip("|").split("|")] for row in found[2].splitlines()]
        ours = [row for row in lines if row[0] == OURS]
        others = [row for row in lines if row[0] != OURS]
        if not ours or not others:
            continue
        chosen = [max(others, key=lambda row: float(row[3])), min(others, key=lambda row: float(row[1]))]
        cells = [f"{row[0]} {row[1]}, {row[3]}" for row in chosen]
        rows += f"| {found[1]} | {ours[0][1]}, {ours[0][3]} | {' | '.join(cells)} |\n"
    return rows


def readme_with(page: str, readme: str) -> str:
    """README with the table that is cut from the page."""
    return PLACE.sub(lambda match: f"{match[1]}{cut(page)}{match[2]}", readme)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--page", type=Path, help="write the page to this file, not to docs/peers.md")
    parser.add_argument("--cut", action="store_true", help="cut README's table from docs/peers.md")
    parser.add_argument("--lines", type=Path, help="make the page from lines that a run printed, and measure nothing")
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.here:
        print(json.dumps(run_here(args.here[0], args.here[1], Path(args.here[2]))))
        return
    if args.lines:
        measured = [json.loads(line) for line in args.lines.read_text(encoding="utf-8").splitlines()]
    else:
        measured = [] if args.cut else measure(args.tasks, args.quick)
    is_whole = set(args.tasks) == set(TASKS)
    page = args.page or (PAGE if measured and is_whole else None)
    is_of_the_site = page is not None and page.resolve() == PAGE
    if page:
        page.write_text(page_of(measured, args.quick, os.getloadavg()[0]), encoding="utf-8")
    if args.cut or is_of_the_site:
        readme = ROOT / "README.md"
        readme.write_text(
            readme_with(PAGE.read_text(encoding="utf-8"), readme.read_text(encoding="utf-8")), encoding="utf-8"
        )
    if is_of_the_site and is_whole and not args.quick and not args.lines:
        from benchmarks import coming_from  # it imports this package, which other programs' processes must not

        coming_from.write_all()


def measure(tasks: Sequence[str], quick: bool) -> list[Line]:
    """Run all programs of some tasks that are installed; prints a JSON line for each."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, quick)
        write_small(folder)
        (folder / "size.json").write_text(json.dumps(sizes(quick)))
        for task in tasks:
            for program, (needs, _, _) in TASKS[task].items():
                if find_spec(needs) is not None:
                    if program == OURS and task in AHEAD:
                        run_apart(task, program, folder)
                    lines.append(run_apart(task, program, folder))
                    print(json.dumps(lines[-1]), flush=True)
    return lines


def write_small(folder: Path) -> None:
    """The first rows of all files, for cold starts."""
    small = folder / "small"
    small.mkdir()
    for name in ("points.npy", "points_truth.npy", "counts.npy", "held.npy", "sequences_truth.npy"):
        np.save(small / name, np.load(folder / name)[:300])
    with np.load(folder / "sequences.npz") as stored:
        rows = stored["rows"][:400]
    np.savez(small / "sequences.npz", rows=rows, lengths=[len(rows) // 2] * 2)
    (small / "size.json").write_text(json.dumps({"passes": [2]}))


if __name__ == "__main__":
    main()
