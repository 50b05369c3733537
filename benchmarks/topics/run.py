"""Topic models against other programs; prints one JSON line per run and asserts nothing.

``python -m benchmarks.topics.run WHAT [options]``; WHAT is ``synthetic``, ``bars``, ``corpora`` (kos, nips12,
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.topics import document_step, ours
from benchmarks.topics.corpora import DRAWN, REAL, Corpus, load, validation
from benchmarks.topics.peers import ETA
from benchmarks.topics.score import figures

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
    python: str, peer: str, corpus: Corpus, k: int, seed: int, eta: float, limit: float | None = None
) -> Iterator[dict[str, Any]]:
    """One other program in a process of its own, stopped after ``limit`` seconds; seconds are those of its fit.

    ``peer`` is a name, perhaps with ``:PASSES``; of several numbers of passes (``:100/200``) there is a line for each.
    """
    program, _, given = peer.partition(":")
    passes = given or str(PASSES[program])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "x.npz"
        sparse.save_npz(data, corpus.train)
        command = [python, str(Path(__file__).with_name("peers.py")), str(data), folder, program]
        why: Any = None
        try:
            done = subprocess.run(
                [*command, str(k), passes, str(seed), str(eta)],
                capture_output=True, text=True, check=False, timeout=limit,
            )  # fmt: skip
            if done.returncode != 0:
                why = done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            why = f"not done after {limit:.0f} s"
        for number in sorted(int(p) for p in passes.split("/")):
            facts = {"program": program, "corpus": corpus.name, "asked_K": k, "passes": number, "eta": eta}
            path = Path(folder) / f"{number}.npz"
            yield {**facts, **(peer_figures(path, corpus) if path.exists() else {"failed": why})}


def peer_figures(path: Path, corpus: Corpus) -> dict[str, Any]:
    """What a program's topics are worth, and what they cost."""
    with np.load(path) as found:
        phi = found["phi"] / found["phi"].sum(axis=1, keepdims=True)
        seconds, cpu = float(found["seconds"]), float(found["cpu"])
    # sizes of topics are not asked of each program: what their posterior gives the training words
    line = figures(corpus.test, phi, topic_sizes(corpus.train, phi), corpus.truth)
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), **line}


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
    parser.add_argument("what", choices=[*DRAWN, *REAL, "corpora", "step"])
    for field in dataclasses.fields(ours.Ours):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(field.default), default=field.default)
    parser.add_argument(
        "--peers", default="", help="names of programs, by comma, each perhaps with :PASSES or :PASSES/PASSES"
    )
    parser.add_argument("--peer-clusters", default="", help="numbers of topics for peers, by comma; default: as ours")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer-seconds", type=float, help="stop a peer that takes longer")
    parser.add_argument("--peer-eta", type=float, default=ETA, help="their prior for each word of a topic")
    parser.add_argument("--cache", type=Path, help="folder that keeps the counts of real corpora")
    parser.add_argument("--validate", action="store_true", help="score a tenth of the training documents, not the test")
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
        corpus = load(name, args.seed, args.cache)
        if args.validate:
            corpus = validation(corpus, args.seed)
        if corpus.truth is not None:
            emit({"program": "truth", "corpus": name, **figures(corpus.test, corpus.truth, np.ones(1), corpus.truth)})
        if not args.only_peers:
            line = ours.run(settings, corpus)
            emit({k: v for k, v in line.items() if not (args.brief and k == "laps_run")})
        for k in [int(k) for k in args.peer_clusters.split(",") if k] or [settings.n_clusters]:
            for peer in [p for p in args.peers.split(",") if p]:
                for line in run_peer(args.peer_python, peer, corpus, k, args.seed, args.peer_eta, args.peer_seconds):
                    emit(line)


if __name__ == "__main__":
    main()
