"""Every kernel has a test that calls it by its name, and a slow twin where it has a loop; others say why not."""

from __future__ import annotations

import ast
from pathlib import Path

import bnp_dask as bnp

KERNELS = Path(bnp.__file__).parent / "kernels"
TESTS = Path(__file__).resolve().parents[1]
TWINS = {
    "twins/": "plain loops, or another library",
    "kernels/": "plain loops, or another library",
    "chains/": "tests/chains/naive.py: one step after the other, or all paths",
    "topics/": "tests/topics/naive.py: one token after the other",
    "streaming/": "all partitions of some atoms (oracle.py), and the way of any likelihood",
    "allocation/test_strata.py": "tests/twins/strata_top_level.py: the same in NumPy",
    "sampling/test_exact.py": "all partitions of some atoms, and quadrature",
    "sampling/test_top_levels.py": "plain loops",
    "initialize/test_topics.py": "all assignments of some tokens, and solvers of NumPy",
    "observation/test_semi_conjugate.py": "quadrature over means and precisions",
    "observation/test_von_mises_fisher.py": "quadrature and SciPy",
}
"""Tests that hold kernels against something slow, and what that is."""

LEARNED = "called where priors are learned, which tests/observation/test_learned.py holds to BFGS"
SERIES = "part of exp, log and digamma, which tests/kernels hold to SciPy"
UNTESTED = {
    "back": "step of a sweep: tests/chains/test_kernels.py holds the sweeps against all paths",
    "climb": "called by the top level's fit, which tests/chains/test_transitions.py holds to L-BFGS-B",
    "column_covariance": LEARNED,
    "column_precision": LEARNED,
    "direction": "step of maximise, which tests/kernels/test_quasi_newton.py holds against SciPy",
    "doubt_of": LEARNED,
    "exp_near_zero": SERIES,
    "filter_counts": "called as seat_batch, which tests/streaming/test_oracle.py holds against all partitions",
    "filter_gaussian": "called as seat_batch, which tests/streaming/test_oracle.py holds against all partitions",
    "fit_groups": "called as document_step, which tests/topics/test_document_step.py holds against naive.py",
    "gamma_settings": LEARNED,
    "log_covariance_hyperprior": LEARNED,
    "log_gamma_hyperprior": LEARNED,
    "log_scale_hyperprior": LEARNED,
    "log_series": SERIES,
    "matrix_of": "scratch of fit_groups",
    "pair_sums": "part of fit_groups and of the sweeps",
    "piece_losses": "called as chain_sweep, which tests/chains/test_sweep.py holds against whole sequences",
    "places_for": "scratch of fit_groups",
    "pseudo_counts": LEARNED,
    "psi_series": SERIES,
    "sample_document": "called by word_score, which tests/topics/test_word_score.py holds against all assignments",
    "space_for": "scratch of fit_groups",
    "sweep_back": "called as forward_backward, which tests/chains/test_kernels.py holds against naive.py",
    "sweep_topics": "called by TopicLearner, which tests/streaming/test_minibatches.py holds against enumerations",
    "turn": "step of a sweep: tests/chains/test_kernels.py holds the sweeps against all paths",
}
"""Kernels that no test names, and which test reaches them; it is the twin of those that have loops."""


def functions():
    """Public functions of the kernels, by name, with whether they have a loop."""
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, any(isinstance(part, ast.For | ast.While) for part in ast.walk(node))


def names_in(path: Path) -> set[str]:
    """Names that a test takes from kernels: imported, or as attributes of a module of kernels."""
    text = path.read_text()
    if "bnp_dask.kernels" not in text:  # most tests: parsing them all takes seconds
        return set()
    tree, names, modules = ast.parse(text), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bnp_dask.kernels"):
            names |= {alias.name for alias in node.names}
            modules |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names.add(node.attr)
    return names


def named(*under: str) -> set[str]:
    paths = [p for p in TESTS.rglob("*.py") if not under or p.relative_to(TESTS).as_posix().startswith(under)]
    return {name for path in paths for name in names_in(path)}


def test_every_kernel_is_called_by_a_test():
    known = named()
    assert sorted({name for name, _ in functions()} - known) == sorted(UNTESTED)


def test_every_kernel_with_a_loop_has_a_slow_twin():
    known = named(*TWINS)
    alone = {name for name, loops in functions() if loops} - known - set(UNTESTED)
    assert not alone, f"{sorted(alone)}: needs a slow twin in tests/twins"


def test_sums_in_any_order_are_added_in_loops_that_store_nothing():
    """Sums do not depend on where arrays lie in memory.

    A compiler takes several numbers at once only if the addresses of a loop's arrays show that they do not overlap: a
    sum in a loop that also stores numbers had other last bits in 4 to 7 of 100 runs on two threads.
    """
    checked = 0
    for path in sorted(KERNELS.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            options = [word for call in function.decorator_list if isinstance(call, ast.Call) for word in call.keywords]
            if not any(word.arg == "fastmath" and "contract" not in ast.unparse(word.value) for word in options):
                continue
            loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
            for loop in loops:
                inside = [node for node in ast.walk(loop) if node is not loop]
                if any(isinstance(node, ast.For) for node in inside):
                    continue
                targets = [node.target for node in inside if isinstance(node, ast.AugAssign)]
                targets += [one for node in inside if isinstance(node, ast.Assign) for one in node.targets]
                begun = {one.id for node in inside if isinstance(node, ast.Assign) for one in node.targets
                         if isinstance(one, ast.Name)}  # fmt: skip
                sums = [node.target.id for node in inside
                        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
                        and node.target.id not in begun and not isinstance(node.value, ast.Constant)]  # fmt: skip
                stores = any(isinstance(one, ast.Subscript) for one in targets)
                assert not (sums and stores), f"{path.name}:{loop.lineno} adds up {sums} and stores"
                checked += 1
    assert checked > 10
