"""Bad inputs in bulk: every setting, argument and kind of data, with values that nobody means.

``python -m tests.faults.absurd --examples 400`` runs drawn cases, ``--examples 0`` all that are listed, in this
process, one line each.  A case is right when it ends in one of the package's errors that names the thing, or in an
answer that is that of the same numbers as plain float64 arrays, finite, with an objective that does not fall.  Whoever
starts it sees a crash.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter

import numpy as np

from tests.faults.absurd.arrays import data_cases, weight_cases
from tests.faults.absurd.drawn import draw
from tests.faults.absurd.faces import estimator_cases
from tests.faults.absurd.functions import argument_cases
from tests.faults.absurd.outcomes import Case, outcome
from tests.faults.absurd.settings import setting_cases

MEMORY = 10 * 2**30
"""Address space of the process."""


def all_cases() -> list[Case]:
    """Everything that is listed, some 20,000 cases."""
    makers = (data_cases, weight_cases, setting_cases, argument_cases, estimator_cases)
    return [case for make in makers for case in make()]


def tell(case: Case) -> str:
    """Run a case, with a line before it for whoever sees the process end, and one after it."""
    print(f"? {case.name}", flush=True)
    found, text = outcome(case)
    print(f"{found} | {case.name} | {text}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=40, help="cases drawn; 0 for all")
    parser.add_argument("--drawn", type=int, default=0, help="cases that hypothesis makes up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the names of cases")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    args = parser.parse_args()
    # memory that nobody has ends in an error of this process, and not in the end of others
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        cases = [case for case in all_cases() if args.only in case.name]
        order = np.random.default_rng(args.seed).permutation(len(cases))
        for i in order[: args.examples or None]:
            if time.monotonic() - begun > args.seconds:
                break
            counts[tell(cases[i])] += 1
        if args.drawn:
            draw(args.drawn, args.seed, lambda case: counts.update([tell(case)]))
        os.chdir("/")
    print("counts", dict(counts), f"{len(cases)} cases in all, {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
