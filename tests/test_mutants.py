"""Mutants: which there are, that functions take their code, and which tests they are shown to."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
from textwrap import dedent
from types import SimpleNamespace

import numpy as np
import pytest
from numba import njit

from benchmarks.mutants.__main__ import FOLDERS, ROOT, SCORES

pytest.importorskip("mutmut", reason="needs the extra mutation")

from benchmarks.mutants import plain
from benchmarks.mutants.near import NEAR
from benchmarks.mutants.session import BUDGET, Reach, Session, _ring, selected
from benchmarks.mutants.sources import Mutant, functions_of, places, swap
from bnp_dask.kernels.numeric import simd
from bnp_dask.kernels.numeric.simd import fill, fused, load, store, total, where_above

MEASURED = sorted(file.stem for file in SCORES.glob("*.json"))

LANE_NAMES = ("load", "store", "fill", "fused", "total", "where_above")

SOURCE = '''\
from functools import lru_cache

LEAST = 3


@lru_cache(maxsize=7)
def kept(x: int = 4) -> int:
    """Words."""
    if x < 0:
        raise ValueError(f"x={x + 1}: needs more than {2 + 2}")
    inner = lambda y: y - 1
    return inner(x) * 2


class Box:
    size = 5

    @property
    def twice(self) -> int:
        def half(x):
            return x / 2

        return half(self.size + 8)
'''


@njit
def combine(x, y, z, out, sums):
    for i in range(3):
        found = where_above(load(x, 8 * i), -0.5, fused(load(x, 8 * i), load(y, 8 * i), load(z, 8 * i)))
        sums[i] = total(fused(found, fill(0.1), fill(3.0)))
        store(out, 8 * i, found)


def changes(source):
    module, found = places(dedent(source))
    mutants = [place.mutant("file.py", module) for place in found]
    return {(m.line, m.before, m.after) for m in mutants}


def test_statements_of_functions_change_and_nothing_else():
    found = changes(SOURCE)
    assert {line for line, _, _ in found} == {9, 11, 12, 21, 23}
    assert (9, "if x < 0:", "if x <= 0:") in found
    assert (12, "return inner(x) * 2", "return inner(x) / 2") in found
    assert (21, "return x / 2", "return x * 2") in found


def test_a_change_in_a_call_of_many_lines_knows_where_its_statement_begins():
    module, found = places("def f(a, b):\n    return g(\n        a,\n        b + 1,\n    )\n")
    (plus,) = [place for place in found if place.operator == "swap_op"]
    assert (plus.line, plus.statement) == (4, 2)
    assert "b - 1" in plus.mutant("f.py", module).source


def test_what_holds_by_construction_is_not_taken_away():
    assert all("strict=True" in after for _, _, after in changes("def f(a, b):\n    zip(a, b, strict=True)\n"))


def test_words_of_errors_and_of_the_log_stay():
    source = """
    def f(x):
        logger.info("%d of %d", x + 1, 2)
        raise ValueError(f"{x + 1}" + str(x - 1))
    """
    assert not changes(source)


def test_functions_take_the_code_of_a_mutant_wherever_they_are_held(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "held_by_others.py"
    path.write_text(SOURCE)
    importlib.import_module("held_by_others")
    gc.freeze()  # as conftest.py does once tests are collected
    functions = functions_of(tmp_path, {path.name})
    module = sys.modules["held_by_others"]
    kept, box = module.kept, module.Box()
    assert (kept(5), box.twice) == (8, 6.5)
    kept.cache_clear()
    other = SOURCE.replace("* 2", "* 3").replace("x / 2", "x * 2")
    assert swap(functions, path, SOURCE, other) == 2
    assert (kept(5), box.twice) == (12, 26)
    assert swap(functions, path, other, SOURCE) == 2
    assert box.twice == 6.5
    assert swap(functions, path, SOURCE, SOURCE + "\n") == 0


def test_a_mutant_is_shown_to_the_quickest_tests_that_run_its_line_and_then_to_their_files():
    mutant = Mutant("a.py", 7, 5, "number", "1", "2", "")
    reached = {
        "t.py::slow": Reach(3.0, {"a.py": [5, 6]}),
        "t.py::quick": Reach(0.1, {"a.py": [7]}),
        "t.py::elsewhere": Reach(0.2, {"a.py": [1]}),
        "t.py::long": Reach(BUDGET, {"a.py": [2]}),
        "u.py::other": Reach(0.1, {"b.py": [7]}),
    }
    assert selected(mutant, reached) == ["t.py::quick", "t.py::slow", "t.py::elsewhere"]
    assert selected(SimpleNamespace(path="a.py", line=99, statement=98), reached) == []


def test_a_mutant_can_be_shown_the_files_nearest_to_its_module_alone():
    mutant = Mutant("bnp_dask/a.py", 7, 5, "number", "1", "2", "")
    reached = {f"tests/{file}.py::test": Reach(0.1, {mutant.path: [7]}) for file in ("t", "u")}
    assert Session(ROOT, [mutant], print).shown(mutant, reached) == reached
    near = Session(ROOT, [mutant], print, near={mutant.path: ("u.py",)})
    assert list(near.shown(mutant, reached)) == ["tests/u.py::test"]


def test_a_book_that_knows_all_tests_needs_no_run(tmp_path, monkeypatch):
    book, item = tmp_path / "book.json", SimpleNamespace(nodeid="tests/t.py::test", path=ROOT / "tests" / "conftest.py")
    session = Session(ROOT, [Mutant("tests/conftest.py", 7, 5, "number", "1", "2", "")], print, book=book)
    ran = []
    monkeypatch.setattr(
        Session,
        "_run",
        lambda self, items, files, tests: ran.append(items) or {item.nodeid: [tests[item.nodeid], 0.1, {}]},
    )
    for _ in range(2):
        assert list(session._reached(SimpleNamespace(items=[item]))) == [item.nodeid]
    assert ran == [[item]]


def test_a_slow_test_ends_where_its_code_has_a_line(monkeypatch):
    """pytest cannot tell of a failure at code without one, and would end."""
    rings = []
    monkeypatch.setattr("benchmarks.mutants.session.signal.setitimer", lambda kind, seconds: rings.append(seconds))
    _ring(0, SimpleNamespace(f_lineno=None))
    assert rings == [0.1]
    with pytest.raises(pytest.fail.Exception, match="slow"):
        _ring(0, SimpleNamespace(f_lineno=7))


def test_the_files_nearest_to_a_module_and_the_module_exist():
    assert [module for module in NEAR if not (ROOT / "bnp_dask" / module).is_file()] == []
    assert [test for tests in NEAR.values() for test in tests if not (ROOT / "tests" / test).is_file()] == []


@pytest.mark.parametrize("folder", MEASURED)
def test_the_modules_and_files_of_tests_that_a_score_names_exist(folder):
    """Where a module was renamed or went into another, so are its mutants."""
    report = json.loads((SCORES / f"{folder}.json").read_text())
    named = shown if isinstance(shown := report.get("tests shown"), dict) else {}
    keys = [*report["found since"], *report["equivalent"], *(one["mutant"] for one in report["survivors"])]
    modules = {*named, *(key.split(": ")[0] for key in keys)}
    assert sorted(module for module in modules if not (ROOT / module).is_file()) == []
    assert sorted({test for tests in named.values() for test in tests if not (ROOT / "tests" / test).is_file()}) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_is_measured_with_the_nearest_files_names_them_for_each_module(folder):
    modules = [file for file in ROOT.glob(FOLDERS[folder].sources) if file.name != "__init__.py"]
    assert [m for m in modules if m.relative_to(ROOT / "bnp_dask").as_posix() not in NEAR] == []


def test_stand_ins_of_intrinsics_compute_as_compiled_code_does():
    x, y, z = np.random.default_rng(0).normal(size=(3, 24))
    out, rows = np.zeros(24), np.zeros((2, 3))
    combine(x, y, z, out, rows[0])
    found = np.zeros(24)
    combine.py_func.__globals__.update(names := {name: plain.STAND_INS[name] for name in LANE_NAMES})
    try:
        combine.py_func(x, y, z, found, rows[1])
    finally:
        combine.py_func.__globals__.update({name: getattr(simd, name) for name in names})
    np.testing.assert_array_equal(found, out)
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("folder", MEASURED)
def test_every_score_says_how_many_mutants_it_stands_for(folder):
    report = json.loads((SCORES / f"{folder}.json").read_text())
    assert folder in FOLDERS
    assert report["mutants"] > 0 and 0.0 <= report["score"] <= 1.0
    survived = round((1.0 - report["score"]) * report["mutants"])
    assert len(report["survivors"]) + len(report["found since"]) == survived
    assert all(reason for reason in report["equivalent"].values())


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("folder", MEASURED)
def test_a_new_sample_scores_as_the_recorded_one(folder, tmp_path):
    """Within three standard errors: tests did not lose sight of a folder since it was measured."""
    recorded = json.loads((SCORES / f"{folder}.json").read_text())
    asked = ["--sample", "40", "--seed", "7", "--out", str(tmp_path)]
    asked += ["--near"] if isinstance(recorded.get("tests shown"), dict) else []
    subprocess.run([sys.executable, "-m", "benchmarks.mutants", folder, *asked], cwd=ROOT, check=True)
    found = json.loads((tmp_path / f"{folder}.json").read_text())
    assert found["score"] >= recorded["score"] - 3.0 * (recorded["error"] ** 2 + found["error"] ** 2) ** 0.5
