"""The rules of the house: who imports whom, and what no tool of ``.ci/lint`` knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

from bnp_dask._names import names_in_stub

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bnp_dask"
SOURCES = sorted(PACKAGE.rglob("*.py"))

DASK_DOORS = {f"bnp_dask.execute.{name}" for name in ("dask", "local", "message", "reach")}
DASK_DOORS |= {"bnp_dask.training.train", "bnp_dask.cli", "bnp_dask.cli.console", "bnp_dask.training.memory_plan"}
"""Who may import Dask, besides the modules of ``data`` that read and write its collections."""

DASK_COLLECTIONS = {"bnp_dask.data.sources.dask_collections", "bnp_dask.data.output_lazy"}

OPTIONAL = {"bokeh", "matplotlib", "pandas", "PIL", "sklearn", "xarray"}
"""Packages of the extras."""

FACES = (
    "allocation",
    "analysis",
    "core",
    "data",
    "execute",
    "inference",
    "initialize",
    "inputs",
    "kernels",
    "moves",
    "observation",
    "store",
    "structure",
    "training",
)
"""Chapters whose stub lists the names that others use."""

PICKLING = {f"{m}.{f}" for m in ("pickle", "cloudpickle", "joblib", "dill") for f in ("dump", "load")}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_imports_run_in_circles():
    """Those of functions count as well, and those that only types need."""
    graph = grimp.build_graph("bnp_dask", cache_dir=None)
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    loose = set()
    while free := {module for module, others in needs.items() if module not in loose and not others - loose}:
        loose |= free
    stuck = {module: others - loose for module, others in needs.items() if module not in loose}
    used = {other for others in stuck.values() for other in others}
    assert not stuck, f"circles among {sorted(set(stuck) & used)}"


# -- rules that no tool knows -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Top-level packages that each module imports when it runs, in functions too."""
    graph = grimp.build_graph(
        "bnp_dask", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    ours = [m for m in graph.modules if m.split(".")[0] == "bnp_dask"]
    return {m: {x.split(".")[0] for x in graph.find_modules_directly_imported_by(m)} for m in ours}


def test_dask_has_few_doors(imports):
    using = {m for m, names in imports.items() if names & {"dask", "distributed"}}
    allowed = {m for m in using if m in DASK_DOORS | DASK_COLLECTIONS or m.startswith("bnp_dask.cli.")}
    assert using == allowed, f"{sorted(using - allowed)} import Dask; only {sorted(DASK_DOORS | DASK_COLLECTIONS)} may"
    assert "bnp_dask.execute.dask" in using


CLEAN = ("core", "kernels", "observation", "allocation", "structure", "model", "initialize", "moves", "inference")
"""The mathematics: what it imports when it is imported, through whatever others, holds none of :data:`HEAVY`."""

HEAVY = ("dask", "distributed", "zarr", "pyarrow")

LOADS = """
import importlib, pkgutil, sys
for name in {clean}:
    top = importlib.import_module("bnp_dask." + name)
    inner = pkgutil.walk_packages(getattr(top, "__path__", ()), top.__name__ + ".")
    for module in [top.__name__, *(found.name for found in inner)]:
        importlib.import_module(module)
        loaded = [heavy for heavy in {heavy} if heavy in sys.modules]
        if loaded:
            sys.exit(module + " loads " + ", ".join(loaded))
"""


def test_the_mathematics_loads_no_dask_zarr_or_arrow():
    code = LOADS.format(clean=CLEAN, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kernels_import_only_arrays(imports):
    # llvmlite is how numba is told of vectors (kernels/lanes.py)
    allowed = {"bnp_dask", "numpy", "scipy", "numba", "llvmlite", *sys.stdlib_module_names}
    found = {m: names - allowed for m, names in imports.items() if m.startswith("bnp_dask.kernels")}
    assert not any(found.values()), found


def test_names_of_a_face_are_imported_from_the_chapter():
    """What ``bnp_dask.core`` and others list, no other chapter takes from a module inside of it."""
    faces = {f"bnp_dask.{chapter}": names_in_stub(PACKAGE / chapter) for chapter in FACES}
    found = set()
    for path in SOURCES:
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(parsed(path)):
            face = ".".join((getattr(node, "module", None) or "").split(".")[:2])
            if face in faces and f"bnp_dask.{file}".split("/")[0] != face:
                found |= {(file, face, a.name) for a in node.names if faces[face].get(a.name) == node.module}
    assert not found, [f"{file}: from {face} import {name}" for file, face, name in sorted(found)]


@pytest.mark.parametrize("first", ["kernels.rounds", "kernels.urns", "plot", "Gaussian", "NGGPMixture"])
def test_any_name_can_be_the_first_that_is_asked_for(first):
    """Also one whose module, or which itself as a module, nothing has imported before."""
    face, _, name = f"bnp_dask.{first}".rpartition(".")
    subprocess.run([sys.executable, "-c", f"import {face}; {face}.{name}"], check=True)


def test_nobody_tells_the_type_checker_what_it_does_not_know():
    """``as_a`` of ``inputs/settings.py`` asks the value itself."""
    names = [f"{path.relative_to(PACKAGE)}" for path in SOURCES if re.search(r"import.*\bcast\b", path.read_text())]
    assert not names, f"{names} use typing.cast; ask with as_a(value, role)"


FIELD_WORDS = {
    "parcel": "message", "errand": "memo slot", "heir": "receiver, absorbing set or successor", "losing": "bad batch",
}  # fmt: skip
"""Words of our own that the field has others for."""


def test_names_are_the_words_of_the_field():
    found = set()
    for path in SOURCES:
        file = path.relative_to(PACKAGE).as_posix()
        names = {part for node in ast.walk(parsed(path)) for part in names_of(node)}
        for name in names:
            parts = {part.removesuffix("s") for part in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")}
            found |= {(word, file) for word in FIELD_WORDS if word.removesuffix("s") in parts}
    assert not found, {f"{file}: {word}": f"say {FIELD_WORDS[word]}" for word, file in sorted(found)}


def names_of(node: ast.AST) -> list[str]:
    """Names that a node of the syntax tree gives to something."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.attr]
    return []


def test_nobody_pickles_to_files():
    """What lies on disk is loaded without running code."""
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in PICKLING, f"{path}:{node.lineno}"
                allowing = [k for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"]
                assert not allowing, f"{path}:{node.lineno}"


def test_optional_packages_are_imported_when_they_are_needed():
    for path in SOURCES:
        eager = {name.split(".")[0] for node in parsed(path).body for name in imported_names(node)}
        assert not eager & OPTIONAL, f"{path} imports {sorted(eager & OPTIONAL)} at module level"


def imported_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [node.module or ""]
    return []
