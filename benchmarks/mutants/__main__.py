"""Mutation scores of folders: ``python -m benchmarks.mutants FOLDER... [--sample N] [--seed S] [--near]``.

Needs ``.[mutation]``.  A mutant is a small change of one line of a function, made by the operators of mutmut.  Each is
shown to the tests of the first tier that :data:`FOLDERS` names for its folder, or with ``--near`` to the few files that
:data:`~.near.NEAR` names for its module; one that they pass with has survived.  ``scores/FOLDER.json`` has the score
and the survivors.  A survivor that no test could find is named in its ``equivalent``, with the reason, and counts
neither for nor against.  Survivors that tests find which were written or named since are moved to ``found since``, and
the score stays: another ``--seed`` tells what these tests are worth.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.mutants.sources import Mutant

ROOT = Path(__file__).parents[2]
SCORES = Path(__file__).parent / "scores"

LIMIT = 180
"""Seconds after which a test is ended, on a machine that may be busy: :data:`~.session.SLOWEST` chooses among tests."""


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
            *("data/test_web.py", "observation/test_rounding.py"),
            *("faults/test_finite.py", "faults/test_strangers.py", "extend/test_door.py", "chains/test_exact.py"),
            *("results/test_serialize.py", "results/test_rows.py", "topics/test_exact.py", "topics/test_explain.py"),
            *("store/test_assignments.py", "growing/test_names.py", "schedules/test_frozen.py"),
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
    "growing": Folder(
        sources="bnp_dask/training/growing/**/*.py",
        tests=(
            *("growing", "face/test_partial_fit.py", "face/test_formats.py", "observation/test_labelled.py"),
            "schedules/test_frozen.py",
        ),
    ),
    "engine": Folder(
        sources="bnp_dask/inference/*.py",
        tests=(
            *("schedules", "train/test_same_bits.py", "train/test_shared_reads.py", "moves/test_pending.py"),
            *("sampling/test_runs.py", "memory/test_gathered.py", "memory/test_visit.py", "faults/test_bound.py"),
            *("growing/test_assignments.py", "growing/test_holding.py", "store/test_assignments.py"),
        ),
    ),
    "analysis": Folder(
        sources="bnp_dask/analysis/**/*.py",
        tests=("results", "chains/test_reading.py", "chains/test_independence.py", "streaming/test_grid.py"),
    ),
    "observation": Folder(sources="bnp_dask/observation/**/*.py", tests=("observation",)),
    "allocation": Folder(
        sources="bnp_dask/allocation/**/*.py",
        tests=("allocation", "chains", "topics/test_response.py", "topics/test_response_classes.py"),
    ),
    "data": Folder(sources="bnp_dask/data/**/*.py", tests=("data", "observation/test_linked_atoms.py")),
    "variational": Folder(sources="bnp_dask/inference/variational/*.py", tests=("schedules", "growing")),
    "streaming": Folder(sources="bnp_dask/inference/streaming/*.py", tests=("streaming",)),
    "sampling": Folder(sources="bnp_dask/inference/sampling/*.py", tests=("sampling",)),
    "kernels": Folder(
        sources="bnp_dask/kernels/**/*.py",
        tests=(
            *("kernels", "twins", "chains/test_kernels.py", "chains/test_transitions.py", "chains/test_sweep.py"),
            *("topics/test_document_step.py", "topics/test_collapsed.py", "topics/test_word_score.py"),
            *("initialize/test_topics.py", "streaming/test_oracle.py", "streaming/test_nggp.py"),
            *("streaming/test_measures.py", "streaming/test_minibatches.py", "streaming/test_sites_of_atoms.py"),
            *("sampling/test_exact.py", "sampling/test_top_levels.py", "observation/test_learned.py"),
            *("observation/test_von_mises_fisher.py", "allocation/test_strata.py"),
        ),
        compiled=False,
    ),
}


def main(arguments: list[str]) -> int:
    """Measures folders in one session, prints each survivor, writes the scores."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", choices=FOLDERS, metavar="FOLDER", help=", ".join(FOLDERS))
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="mutants of each, no two on one line")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which lines and which mutants of them")
    parser.add_argument("--out", type=Path, default=SCORES, metavar="PLACE", help="where FOLDER.json is written")
    parser.add_argument(
        "--book", type=Path, metavar="FILE", help="remembers which lines the tests run, for other seeds"
    )
    parser.add_argument("--near", action="store_true", help="show a mutant only the files of tests nearest its module")
    args = parser.parse_args(arguments)
    if len({FOLDERS[name].compiled for name in args.folders}) > 1:
        parser.error("kernels run as Python, and are measured by themselves")
    for name, report in measured(args.folders, args.sample, args.seed, args.book, args.near).items():
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (args.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {report['score']:.3f} +- {report['error']:.3f} of {report['mutants']} mutants")
    return 0


def measured(
    names: list[str], sample: int, seed: int, book: Path | None = None, near: bool = False
) -> dict[str, dict[str, Any]]:
    """Reports of folders; the tests of all are asked about each.  ``book``: see :class:`Session`."""
    folders = [FOLDERS[name] for name in names]
    if not folders[0].compiled:
        from benchmarks.mutants.plain import uncompiled

        uncompiled()
    import pytest

    from benchmarks.mutants.session import KILLED, Session

    def told(mutant: Mutant, outcome: str) -> None:
        if outcome != KILLED:
            print(f"{outcome}: {mutant.path}:{mutant.line} {mutant.before!r} -> {mutant.after!r}", flush=True)

    chosen = {name: drawn(FOLDERS[name].sources, sample, seed) for name in names}
    sources = [file for folder in folders for file in ROOT.glob(folder.sources)]
    mutants = [mutant for some in chosen.values() for mutant in some]
    shown = {mutant.path: nearest(mutant.path) for mutant in mutants} if near else None
    session = Session(ROOT, mutants, told, sources, book, shown)
    named = (folder.tests for folder in folders) if shown is None else shown.values()
    tests = dict.fromkeys(str(ROOT / "tests" / test) for some in named for test in some)
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--timeout={LIMIT}"]
    status = pytest.main([*options, *tests], plugins=[session])
    if len(session.outcomes) < len(session.chosen):
        raise SystemExit(f"pytest ended with status {int(status)} before the last mutant")
    found = dict(session.outcomes)
    facts = {
        "seed": seed,
        "date": date.today().isoformat(),
        "tests": session.n_tests,
        "tests shown": shown or "all of the folder",
        "tests that fail or take long without a mutant": session.unfit,
    }
    return {name: report({m: found[m] for m in some}, _known(name), facts) for name, some in chosen.items()}


def report(outcomes: dict[Mutant, str], equivalent: dict[str, str], facts: dict[str, Any]) -> dict[str, Any]:
    """Score of a folder with its standard error, and the survivors; ``equivalent`` are mutants with a reason."""
    from benchmarks.mutants.session import KILLED, SAME

    judged = {m: outcome for m, outcome in outcomes.items() if outcome != SAME and m.key not in equivalent}
    left = sorted((m.path, m.line, outcome, m.key) for m, outcome in judged.items() if outcome != KILLED)
    score = 1.0 - len(left) / len(judged)
    error = math.sqrt(score * (1.0 - score) / len(judged))
    return {
        "score": round(score, 4),
        "error": round(error, 4),
        "mutants": len(judged),
        **facts,
        "found since": [],
        "survivors": [{"line": line, "outcome": outcome, "mutant": key} for _, line, outcome, key in left],
        "equivalent": dict(sorted(equivalent.items())),
    }


def drawn(sources: str, sample: int, seed: int) -> list[Mutant]:
    """As many lines at random, and of each one mutant.

    The operator is drawn first, then a mutant by it: of a call there are many by one operator.
    """
    from benchmarks.mutants.sources import places

    modules: dict[str, Any] = {}
    lines: dict[tuple[str, int], dict[str, list[Any]]] = {}
    for file in sorted(ROOT.glob(sources)):
        path = file.relative_to(ROOT).as_posix()
        modules[path], found = places(file.read_text(encoding="utf-8"))
        for place in found:
            lines.setdefault((path, place.line), {}).setdefault(place.operator, []).append(place)
    draw, mutants = random.Random(seed), []
    for path, line in draw.sample(sorted(lines), min(sample, len(lines))):
        operator = draw.choice(sorted(lines[path, line]))
        mutants.append(draw.choice(lines[path, line][operator]).mutant(path, modules[path]))
    return mutants


def nearest(path: str) -> tuple[str, ...]:
    """Files of tests that are nearest to a source."""
    from benchmarks.mutants.near import NEAR

    module = path.removeprefix("bnp_dask/")
    if module not in NEAR:
        raise SystemExit(f"--near: benchmarks/mutants/near.py names no tests for {module}; name them there")
    return NEAR[module]


def _known(folder: str) -> dict[str, str]:
    file = SCORES / f"{folder}.json"
    return json.loads(file.read_text())["equivalent"] if file.exists() else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
