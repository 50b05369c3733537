"""Topic models against other programs; prints one JSON line per run and asserts nothing.

``python -m tests.benchmarks.topics.run WHAT [options]``; WHAT is ``synthetic``, ``bars``, ``kos``, ``corpora`` (nips12,
newsgroups20, reuters21578, imdb), the name of one of these, or ``step`` (the document step by itself).
Peers need an environment that has them: ``--peers sklearn-batch,tomotopy-lda --peer-python /path/bin/python``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from tests.benchmarks.topics import document_step, ours
from tests.benchmarks.topics.corpora import CORPORA, Corpus
from tests.benchmarks.topics.score import figures

REAL = ("nips12", "newsgroups20", "reuters21578", "imdb")

PASSES = {
    "sklearn-online": 2, "sklearn-batch": 10, "gensim-lda": 2, "gensim-hdp": 1, "tomotopy-lda": 100,
    "tomotopy-hdp": 100,
}  # fmt: skip
"""Passes over the data by default."""


def emit(line: dict[str, Any]) -> None:
    """Print one run."""
    machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({**line, "machine": machine}, default=float), flush=True)


def run_peer(
    python: str, program: str, corpus: Corpus, k: int, passes: int, seed: int, limit: float | None = None
) -> dict[str, Any]:
    """One other program in a process of its own, stopped after ``limit`` seconds; seconds are those of its fit."""
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "x.npz", Path(folder) / "out.npz"
        sparse.save_npz(data, corpus.train)
        script = Path(__file__).with_name("peers.py")
        facts = {"program": program, "corpus": corpus.name, "asked_K": k, "passes": passes}
        try:
            done = subprocess.run(
                [python, str(script), str(data), str(out), program, str(k), str(passes), str(seed)],
                capture_output=True, text=True, check=False, timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {**facts, "failed": f"not done after {limit:.0f} s"}
        if done.returncode != 0:
            return {**facts, "failed": done.stderr.strip().splitlines()[-1:]}
        with np.load(out) as found:
            phi = found["phi"] / found["phi"].sum(axis=1, keepdims=True)
            # sizes of topics are not asked of each program: what their posterior gives the training words
            sizes = topic_sizes(corpus.train, phi)
            seconds, cpu = float(found["seconds"]), float(found["cpu"])
    line = figures(corpus.test, phi, sizes, corpus.truth)
    return {**facts, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), **line}


def topic_sizes(train: sparse.csr_array, phi: np.ndarray) -> np.ndarray:
    """Share of the tokens of each topic, by a few steps of EM for the mixture of all words, ``(K,)``."""
    words = np.asarray(train.sum(axis=0), np.float64)
    weights = np.full(len(phi), 1.0 / len(phi))
    for _ in range(50):
        mixed = np.maximum(weights @ phi, 1e-300)
        weights = weights * (phi @ (words / mixed)) / words.sum()
    return weights


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*CORPORA, "corpora", "step"])
    for field in dataclasses.fields(ours.Ours):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default)
    parser.add_argument("--peers", default="", help="names of programs, by comma, each perhaps with :PASSES")
    parser.add_argument("--peer-clusters", default="", help="numbers of topics for peers, by comma; default: as ours")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer-seconds", type=float, help="stop a peer that takes longer")
    parser.add_argument("--only-peers", action="store_true")
    parser.add_argument("--brief", action="store_true", help="leave out the figures of each lap")
    return parser


def main() -> None:
    """Run what the command line says."""
    args = options().parse_args()
    if args.what == "step":
        document_step.main()
        return
    names = REAL if args.what == "corpora" else (args.what,)
    settings = ours.Ours(**{f.name: getattr(args, f.name) for f in dataclasses.fields(ours.Ours)})
    for name in names:
        corpus = CORPORA[name](seed=args.seed)
        if corpus.truth is not None:
            emit({"program": "truth", "corpus": name, **figures(corpus.test, corpus.truth, np.ones(1), corpus.truth)})
        if not args.only_peers:
            line = ours.run(settings, corpus)
            emit({k: v for k, v in line.items() if not (args.brief and k == "laps_run")})
        for k in [int(k) for k in args.peer_clusters.split(",") if k] or [settings.n_clusters]:
            for peer in [p for p in args.peers.split(",") if p]:
                program, _, passes = peer.partition(":")
                n = int(passes or PASSES[program])
                emit(run_peer(args.peer_python, program, corpus, k, n, args.seed, args.peer_seconds))


if __name__ == "__main__":
    main()
