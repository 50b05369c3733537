"""Mutation score of a folder: ``python -m benchmarks.mutants FOLDER [--sample N] [--seed S]``; needs ``.[mutation]``.

A mutant is a small change of one line of a function, made by the operators of mutmut.  Each is shown to the tests of
the first tier that :data:`FOLDERS` names for its folder; one that they pass with has survived.  ``scores/FOLDER.json``
has the score and the survivors.  A survivor that no test could find is named in its ``equivalent``, with the reason,
and counts neither for nor against.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCORES = Path(__file__).parent / "scores"

SLOW_AS_PYTHON = 60
"""Seconds after which a test of kernels is ended that were not compiled."""


@dataclass(frozen=True)
class Folder:
    """Pattern of sources, and the tests that are asked about them; ``compiled=False`` runs kernels as Python."""

    sources: str
    tests: tuple[str, ...]
    compiled: bool = True


FOLDERS = {
    "core": Folder(
        sources="bnp_dask/core/**/*.py",
        tests=(
            *(
                "core",
                "test_summary.py",
                "test_structure.py",
                "kernels/test_compensated.py",
                "kernels/test_sparse_sums.py",
            ),
            *("data/test_columns.py", "data/test_survey.py", "data/test_quantiles.py", "data/test_levels.py"),
            *("data/test_storage_errors.py", "data/test_corpus_words.py", "data/test_arrays.py", "data/test_groups.py"),
            *("faults/test_finite.py", "faults/test_strangers.py", "extend/test_door.py", "chains/test_exact.py"),
            *("results/test_serialize.py", "results/test_rows.py", "topics/test_exact.py", "topics/test_explain.py"),
            *("store/test_assignments.py", "growing/test_names.py"),
        ),
    ),
    "store": Folder(
        sources="bnp_dask/store/**/*.py",
        tests=("store", "growing/test_versions.py", "growing/test_update.py"),
    ),
    "moves": Folder(
        sources="bnp_dask/moves/**/*.py",
        tests=(
            "moves",
            "chains/test_moves.py",
            "chains/test_births.py",
            "topics/test_moves.py",
            "topics/test_document_births.py",
        ),
    ),
    "growing": Folder(sources="bnp_dask/training/growing/**/*.py", tests=("growing",)),
    "engine": Folder(sources="bnp_dask/inference/*.py", tests=("schedules", "growing", "train/test_same_bits.py")),
    "variational": Folder(sources="bnp_dask/inference/variational/*.py", tests=("schedules", "growing")),
    "streaming": Folder(sources="bnp_dask/inference/streaming/*.py", tests=("streaming",)),
    "sampling": Folder(sources="bnp_dask/inference/sampling/*.py", tests=("sampling",)),
    "kernels": Folder(sources="bnp_dask/kernels/**/*.py", tests=("kernels", "twins"), compiled=False),
}


def main(arguments: list[str]) -> int:
    """Measures one folder, prints each survivor, writes the score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("folder", choices=FOLDERS)
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="mutants, each on a line of its own")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which lines and which mutants of them")
    parser.add_argument("--file", default="", metavar="TEXT", help="only files whose path contains it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the score goes; default: scores/FOLDER.json")
    args = parser.parse_args(arguments)
    report = measured(FOLDERS[args.folder], args.sample, args.seed, args.file, _known(args.folder))
    out = args.out or SCORES / f"{args.folder}.json"
    if args.out or not args.file:
        out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(f"{args.folder}: {report['score']:.3f} +- {report['error']:.3f} of {report['mutants']} mutants")
    return 0


def measured(folder: Folder, sample: int, seed: int, only: str, equivalent: dict[str, str]) -> dict[str, object]:
    """Report of a folder: score, its standard error, survivors, and the mutants that are named equivalent."""
    if not folder.compiled:
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    import pytest

    from benchmarks.mutants.session import KILLED, SAME, Session
    from benchmarks.mutants.sources import Mutant

    def told(mutant: Mutant, outcome: str) -> None:
        if outcome != KILLED:
            print(f"{outcome}: {mutant.path}:{mutant.line} {mutant.before!r} -> {mutant.after!r}", flush=True)

    session = Session(ROOT, drawn(folder.sources, sample, seed, only), told)
    tests = [str(ROOT / "tests" / name) for name in folder.tests]
    limit = [] if folder.compiled else [f"--timeout={SLOW_AS_PYTHON}"]
    status = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *limit, *tests], plugins=[session])
    if not session.outcomes:
        raise SystemExit(f"pytest ended with status {int(status)} before the first mutant")
    judged = [(m, outcome) for m, outcome in session.outcomes if outcome != SAME and m.key not in equivalent]
    survivors = [(m, outcome) for m, outcome in judged if outcome != KILLED]
    score = 1.0 - len(survivors) / len(judged)
    return {
        "score": round(score, 4),
        "error": round(math.sqrt(score * (1.0 - score) / len(judged)), 4),
        "mutants": len(judged),
        "seed": seed,
        "tests": session.n_tests,
        "tests not used, because they fail or take long in this setting": session.unfit,
        "survivors": [f"{m.path}:{m.line} {o}: {m.before} -> {m.after}" for m, o in sorted(survivors, key=_place)],
        "equivalent": dict(sorted(equivalent.items())),
    }


def drawn(sources: str, sample: int, seed: int, only: str = "") -> list:
    """As many lines at random, and of each one mutant.

    The operator is drawn first, then a mutant by it: of a call there are many by one operator.
    """
    from benchmarks.mutants.sources import places

    modules, lines = {}, {}
    for file in sorted(ROOT.glob(sources)):
        path = file.relative_to(ROOT).as_posix()
        if only in path:
            modules[path], found = places(file.read_text())
            for place in found:
                lines.setdefault((path, place.line), {}).setdefault(place.operator, []).append(place)
    draw, mutants = random.Random(seed), []
    for path, line in draw.sample(sorted(lines), min(sample, len(lines))):
        operator = draw.choice(sorted(lines[path, line]))
        mutants.append(draw.choice(lines[path, line][operator]).mutant(path, modules[path]))
    return mutants


def _known(folder: str) -> dict[str, str]:
    file = SCORES / f"{folder}.json"
    return json.loads(file.read_text())["equivalent"] if file.exists() else {}


def _place(row: tuple) -> tuple[str, int]:
    return row[0].path, row[0].line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
