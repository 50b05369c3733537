"""Real data through the command line, from the files as they lie: one JSON line per figure.

``python -m benchmarks.real_data kos --fixed 100 --moves``: data set and runs.  ``--starts N`` repeats the fixed
run from N seeds; ``--laps`` limits every run, ``--minutes`` stops it; ``--work`` keeps stores and runs in a folder (a
second call goes on from there), ``--library`` runs another copy of the package.  Nothing here is a test.

Seconds are wall clock; memory is the largest resident set seen of the process that calls ``train``, and of its largest
child (a worker).  Scores of held-out atoms are ``bnp-dask score``; documents score with their multinomial coefficient.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from bnp_dask.analysis.metrics import majority_accuracy
from bnp_dask.data import as_source

REPO = Path(__file__).resolve().parents[1]
DATA = REPO / ".." / "shared" / "data"
TABLE_1 = {
    "ADF-DP": (-346023, 80),
    "ADF-IG": (-345588, 92),
    "EP-DP": (-342535, 104),
    "EP-IG": (-342195, 114),
    "Gibbs-DP": (-342164, 119),
    "Gibbs-IG": (-341468, 128),
}
"""Tank, Foti and Fox (2015), Table 1: held-out log likelihood of 20 % of KOS, and clusters."""


@dataclass(frozen=True)
class Bench:
    """Where and how runs are made."""

    work: Path
    workers: int
    minutes: float
    library: Path

    def call(self, *words: str) -> dict[str, Any]:
        """Run ``bnp-dask`` and watch it; its output, seconds and peak memory."""
        env = {**os.environ, "PYTHONPATH": str(self.library)}
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "bnp_dask", *words], cwd=self.work, env=env, stdout=out, stderr=subprocess.STDOUT
            )
            own, child = watch(process, started + 60 * self.minutes)
            out.seek(0)
            text = out.read()
        if process.returncode not in (0, 143):
            raise SystemExit(f"bnp-dask {' '.join(words)} failed:\n{text}")
        return {"seconds": time.perf_counter() - started, "mb": own, "worker_mb": child, "text": text}

    def ingest(self, source: Path, name: str, *words: str) -> Path:
        """A store; made once."""
        store = self.work / name
        if not store.exists():
            found = self.call("ingest", str(source), str(store), *words)
            source_kept = as_source(store)
            show(
                f"ingest {name}", seconds=found["seconds"], peak_mb=found["mb"], atoms=source_kept.n_atoms,
                features=source_kept.n_features, batches=source_kept.n_batches,
            )  # fmt: skip
        return store

    def score(self, run: Path, heldout: Path) -> float:
        """Mean log likelihood of held-out atoms, nats."""
        text = self.call("score", str(run), str(heldout))["text"]
        return float(text.split(" nats per atom")[0].split()[-1])

    def train(self, name: str, job: dict[str, Any], **more: Any) -> Path:
        """Train and print the figures of the run."""
        run = self.work / "runs" / name
        if not run.exists():
            file = self.work / f"{name}.yaml"
            file.write_text(yaml.safe_dump({**job, "store": str(run)}))
            found = self.call("train", str(file), "--workers", str(self.workers))
            (self.work / f"{name}.log").write_text(found["text"])
            if not (run / "posterior.zarr").exists():
                show(f"{name}: stopped after {self.minutes} minutes", **figures(run), **more)
                # the last checkpoint is a lap's end: a run with that many laps ends at once, with a posterior
                self.call("resume", str(run), "--laps", str(figures(run)["laps"]))
            memory = {"peak_mb": found["mb"], "peak_worker_mb": found["worker_mb"], "wall_seconds": found["seconds"]}
            (self.work / f"{name}.json").write_text(json.dumps(memory))
        memory = json.loads((self.work / f"{name}.json").read_text())
        show(name, **figures(run), **memory, **more)
        return run


def watch(process: subprocess.Popen, deadline: float) -> tuple[float, float]:
    """Wait; stop it at the deadline.  Largest resident set of the process and of any child, MB."""
    own = child = 0.0
    stopped = False
    while process.poll() is None:
        try:
            main = psutil.Process(process.pid)
            own = max(own, main.memory_info().rss / 2**20)
            child = max([child, *(c.memory_info().rss / 2**20 for c in main.children(recursive=True))])
        except psutil.Error:
            continue
        if time.perf_counter() > deadline and not stopped:
            process.terminate()
            stopped = True
        time.sleep(0.2)
    return round(own), round(child)


def figures(run: Path) -> dict[str, Any]:
    """What the history of a run says."""
    rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    last = rows[-1]
    ends = {row["lap"]: row["seconds"] for row in rows}
    moves = [move for row in rows for move in row.get("moves") or []]
    laps = len(ends)
    return {
        "laps": laps,
        "seconds": last["seconds"],
        "seconds_per_lap": (last["seconds"] - ends[min(ends)]) / max(laps - 1, 1),
        "clusters": last["n_clusters"],
        "objective": last["elbo"],
        "objective_per_atom": last["elbo"] / last["atoms"],
        "recomputed": sum(row.get("action") == "recomputed" for row in rows),
        "proposed": dict(Counter(move["kind"] for move in moves)),
        "accepted": dict(Counter(move["kind"] for move in moves if move["accepted"])),
    }


def show(bench: str, **values: Any) -> None:
    """Print one line."""
    tidy = {k: float(f"{v:.8g}") if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"bench": bench, **tidy}), flush=True)


def job(allocation: dict, observation: Any, data: Path, n_clusters: int, laps: int, seed: int, **more: Any) -> dict:
    """A job file."""
    return {
        "model": {"allocation": allocation, "observation": observation},
        "data": str(data),
        "init": {"type": "BregmanKMeans", "n_clusters": n_clusters},
        "schedule": {"type": "Memoized", "laps": laps, "tolerance": 1e-5},
        "rng": seed,
        **more,
    }


MOVES = {"moves": ["Birth", "Merge", "Delete"]}


def kos(bench: Bench, args: argparse.Namespace) -> None:
    """A DP mixture of multinomials with the settings of the paper's Table 1, on one split by documents."""
    train_file, held_file = split_docword(DATA / "kos" / "docword.kos.txt.gz", bench.work, args.held_out, args.split)
    vocabulary = ("--vocabulary", str(DATA / "kos" / "vocab.kos.txt"))
    name = f"kos{round(100 * args.held_out)}-split{args.split}"
    store = bench.ingest(train_file, f"{name}.zarr", "--batch-size", "250", *vocabulary)
    heldout = bench.ingest(held_file, f"{name}-held-out.zarr", *vocabulary)
    sizes = [as_source(heldout).reader(b)() for b in range(as_source(heldout).n_batches)]
    documents, tokens = sum(b.n_atoms for b in sizes), sum(float(b.x.sum()) for b in sizes)
    show(
        "kos: printed for another split of 80 / 20, held-out log likelihood and clusters", **TABLE_1
    )  # fmt: skip
    runs = {f"{name}-K1": (1, {})}  # one cluster is a smoothed unigram: what differences are compared to
    runs |= {f"{name}-K{k}-seed{s}": (k, {}) for k in args.fixed for s in range(args.starts)}
    runs |= {f"{name}-moves-from-{k}": (k, MOVES) for k in args.moves}
    unigram = None
    for seed, (run_name, (k, moves)) in zip([0, *[*range(args.starts)] * len(args.fixed), *[0] * 9], runs.items()):
        settings = job({"type": "DPMixture", "gamma": 100.0}, {"type": "Multinomial", "lam": 0.1}, store, k,
                       args.laps, seed, **moves)  # fmt: skip
        run = bench.train(run_name, settings)
        total = bench.score(run, heldout) * documents
        unigram = total if unigram is None else unigram
        show(
            f"{run_name}: held out", log_likelihood=total, above_unigram=total - unigram, documents=documents,
            per_document=total / documents, tokens=tokens, per_token=total / tokens,
        )  # fmt: skip


def split_docword(source: Path, work: Path, share: float, seed: int) -> tuple[Path, Path]:
    """Two docword files of a part of the documents each."""
    lines = gzip.decompress(source.read_bytes()).decode().splitlines()
    n, words = int(lines[0]), lines[1]
    held = np.zeros(n, bool)
    held[np.random.default_rng(seed).permutation(n)[: round(share * n)]] = True
    out = []
    for part, chosen in (("train", ~held), ("held-out", held)):
        place = np.cumsum(chosen)
        triples = [line.split() for line in lines[3:]]
        kept = [f"{place[int(d) - 1]} {w} {c}" for d, w, c in triples if chosen[int(d) - 1]]
        path = work / f"docword.kos-{share}-{seed}-{part}.txt"
        path.write_text("\n".join([str(chosen.sum()), words, str(len(kept)), *kept]) + "\n")
        out.append(path)
    return out[0], out[1]


def mnist(bench: Bench, args: argparse.Namespace) -> None:
    """Digits on 50 principal components in 100 batches: DP mixture of Gaussians."""
    store = bench.ingest(DATA / "mnist" / "train-images-idx3-ubyte.gz", "mnist.zarr", "--project", "50",
                         "--batch-size", "600")  # fmt: skip
    test = bench.ingest(DATA / "mnist" / "t10k-images-idx3-ubyte.gz", "mnist-test.zarr", "--project", str(store))
    truth = rows(DATA / "mnist" / "train-labels-idx1-ubyte.gz").ravel().astype(int)
    allocation = {"type": "DPMixture", "gamma": 10.0}
    runs = {f"mnist-K{k}-seed{s}": (k, s, {}) for k in args.fixed for s in range(args.starts)}
    runs |= {f"mnist-moves-from-{k}": (k, 0, MOVES) for k in args.moves}
    for name, (k, seed, moves) in runs.items():
        run = bench.train(name, job(allocation, "Gaussian", store, k, args.laps, seed, **moves))
        labels = bench.work / f"{name}-labels.parquet"
        if not labels.exists():
            bench.call("predict", str(run), str(store), str(labels))
        found = rows(labels).ravel().astype(int)
        show(
            f"{name}: digits and held out", majority_accuracy=majority_accuracy(truth, found),
            held_out_per_atom=bench.score(run, test), clusters_used=len(np.unique(found)),
        )  # fmt: skip


def bsds(bench: Bench, args: argparse.Namespace) -> None:
    """Patches of photographs less their mean: DP mixture of zero-mean Gaussians; other photographs are held out."""
    cut = ("--format", "images", "--patch", "8", "--remove-mean")
    n = args.patches
    store = bench.ingest(DATA / "bsds500" / "train", f"bsds-{n}.zarr", *cut, "--number", str(n), "--seed", "0",
                         "--batch-size", str(-(-n // args.batches)))  # fmt: skip
    heldout = bench.ingest(DATA / "bsds500" / "val", "bsds-val.zarr", *cut, "--number", "50000", "--seed", "1",
                           "--batch-size", "5000")  # fmt: skip
    allocation: dict[str, Any] = {"type": "DPMixture", "gamma": 10.0}
    if args.top:
        allocation["top"] = args.top
    tag = f"bsds-{n}" + (f"-top{args.top}" if args.top else "")
    runs = {f"{tag}-K{k}-seed{s}": (k, s, {}) for k in args.fixed for s in range(args.starts)}
    runs |= {f"{tag}-moves-from-{k}": (k, 0, MOVES) for k in args.moves}
    for name, (k, seed, moves) in runs.items():
        run = bench.train(name, job(allocation, "ZeroMeanGaussian", store, k, args.laps, seed, **moves))
        show(f"{name}: held out", held_out_per_atom=bench.score(run, heldout))


def rows(path: Path) -> np.ndarray:
    """All rows of a source."""
    source = as_source(path)
    return np.concatenate([source.reader(b)().x for b in range(source.n_batches)])


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["kos", "mnist", "bsds"])
    parser.add_argument("--fixed", type=int, nargs="*", default=[], metavar="K", help="clusters of fixed runs")
    parser.add_argument(
        "--moves", type=int, nargs="*", default=[], metavar="K", help="first clusters of runs that move"
    )
    parser.add_argument("--starts", type=int, default=1, help="seeds of each fixed run")
    parser.add_argument("--laps", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=20.0, help="a run is stopped after that long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "bnp-dask-real-data")
    parser.add_argument("--library", type=Path, default=REPO, help="folder of the package to run")
    parser.add_argument("--held-out", type=float, default=0.2, help="share of documents (kos)")
    parser.add_argument("--split", type=int, default=0, help="seed of the split (kos)")
    parser.add_argument("--patches", type=int, default=1_000_000, help="patches (bsds)")
    parser.add_argument("--batches", type=int, default=100, help="batches (bsds)")
    parser.add_argument("--top", type=int, help="responsibilities kept per atom (bsds)")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(args.work.resolve(), args.workers, args.minutes, args.library.resolve())
    {"kos": kos, "mnist": mnist, "bsds": bsds}[args.name](bench, args)


if __name__ == "__main__":
    main()
