"""The ways through the code that the page on the architecture tells are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import bnp_dask as bnp
from bnp_dask._names import names_in_stub

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bnp_dask"
PAGE = (ROOT / "docs" / "architecture.md").read_text()

MOST_FILES = 7
"""Files from a batch on disk to the total."""

MOST_OF_A_BIRTH = 5
"""Files from the plan of a birth to its acceptance."""


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def way_of_a_batch() -> list[Path]:
    return [PACKAGE / name for name in re.findall(r"^\d+\. `([^`]+\.py)`", section("The way of a batch"), re.M)]


def imports(path: Path) -> set[Path]:
    """Files of the package that a file imports by name, also from a chapter that only lists what they define."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            folder = ROOT / node.module.replace(".", "/")
            listed = names_in_stub(folder) if (folder / "__init__.pyi").exists() and folder != PACKAGE else {}
            modules = {listed.get(name.name, node.module) for name in node.names}
            found |= {ROOT / f"{module.replace('.', '/')}.py" for module in modules}
    return found


def test_a_batch_passes_few_files_and_each_is_reached_from_those_before_it():
    way = way_of_a_batch()
    assert 5 <= len(way) <= MOST_FILES
    for number, path in enumerate(way[1:], 1):
        assert any(path in imports(before) for before in way[:number]), f"none of those before imports {path}"


def test_a_birth_is_read_in_few_files_that_define_what_the_page_names():
    told = re.findall(r"^\d+\. `([^`]+\.py)`:((?:.|\n(?=   ))*)", section("The way of a birth"), re.M)
    assert 4 <= len(told) <= MOST_OF_A_BIRTH
    for name, text in told:
        tree = ast.parse((PACKAGE / name).read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        named = set(re.findall(r"`(\w+)`", text))
        assert named and named <= defined, f"{name} does not define {named - defined}"
    files = [PACKAGE / name for name, _ in told]
    planned, move, created, trial, judge = files
    assert judge in imports(planned) and created in imports(move)
    assert trial in imports(PACKAGE / "structure" / "independent.py")


SCHEDULES = [bnp.FullBatch, bnp.Memoized, bnp.Stochastic, bnp.Filter, bnp.ExpectationPropagation]
SCHEDULES += [bnp.TruncationFreeSVI, bnp.Gibbs]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_three_functions_and_the_loop_is_elsewhere(schedule):
    (found,) = (
        node
        for path in PACKAGE.rglob("*.py")
        if f"class {schedule.__name__}" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name == schedule.__name__
    )
    methods = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
    assert {"groups", "fold", "end_lap"} <= methods.keys()
    assert ast.unparse(methods["run"].body[-1]) == "return drive(self, work, state)"
    assert not [node for node in ast.walk(found) if isinstance(node, ast.While)]
