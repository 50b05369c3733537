"""What an installed package carries, and what it asks for."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bnp_dask

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "bnp_dask"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

DEMO_LINE = 'pip install ".[all]" && bnp-dask demo'
TEST_LINE = 'pip install ".[test]" && pytest'

DISTRIBUTION = {
    "IPython": "ipython",
    "PIL": "pillow",
    "dask_jobqueue": "dask-jobqueue",
    "importlinter": "import-linter",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions that are not called like what one imports."""

CARRIED_BY_OTHERS = {
    "cloudpickle": "dask",
    "grimp": "import-linter",
    "packaging": "pytest",
    "tornado": "distributed",
    "toolz": "dask",
}
"""Packages that a required one cannot do without."""


def requirements(extra: str | None = None) -> list[Requirement]:
    lines = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def names_with(*extras: str) -> set[str]:
    """Distributions that the package and its extras require; extras may name others."""
    found = {r.name for r in requirements()}
    for extra in extras:
        for requirement in requirements(extra):
            found |= names_with(*requirement.extras) if requirement.name == "bnp-dask" else {requirement.name}
    return found


def third_parties(path: Path) -> tuple[set[str], set[str]]:
    """Distributions whose packages a file imports at module level, and at any level."""
    tree = ast.parse(path.read_text())
    return distributions(tree.body), distributions(ast.walk(tree))


def distributions(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    names -= {"bnp_dask", "tests", "benchmarks", "conformance", *sys.stdlib_module_names}
    return {CARRIED_BY_OTHERS.get(n, DISTRIBUTION.get(n, n)) for n in names}


# -- the package ----------------------------------------------------------------------------------------------
def test_version_is_that_of_the_installed_package():
    assert bnp_dask.__version__ == metadata.version("bnp-dask")
    version, changes = re.escape(bnp_dask.__version__), (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## (\[{version}\] - \d|\[Unreleased\] \({version}\)$)", changes, re.MULTILINE)


def test_templates_of_pages_lie_beside_the_code():
    names = {path.name for path in (PACKAGE / "reports" / "templates").iterdir()}
    assert names >= {"base.html.j2", "run.html.j2", "topics.html.j2", "tables.html.j2", "topics.js", "tables.css"}
    assert not list(PACKAGE.rglob("*.html"))


def test_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_import_is_fast_and_light():
    code = (
        "import sys, time, json; start = time.perf_counter(); import bnp_dask;"
        "print(json.dumps([time.perf_counter() - start, sorted(m.split('.')[0] for m in sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    assert seconds < 3.0
    assert not {"matplotlib", "sklearn", "pandas", "xarray", "bokeh", "IPython"} & set(modules)


def test_every_public_name_is_there():
    assert len(set(bnp_dask.__all__)) == len(bnp_dask.__all__)
    for name in bnp_dask.__all__:
        assert getattr(bnp_dask, name) is not None
    with pytest.raises(AttributeError):
        bnp_dask.no_such_name  # noqa: B018


def test_console_script():
    (script,) = (e for e in metadata.entry_points(group="console_scripts") if e.name == "bnp-dask")
    assert script.value == "bnp_dask.cli:main"
    assert callable(script.load())


def test_the_wheel_carries_the_whole_package_and_nothing_else():
    files = [f for f in metadata.files("bnp-dask") or [] if "__pycache__" not in f.parts]
    carried = {str(f) for f in files if f.parts[0] == "bnp_dask"}
    if not carried:
        pytest.skip("an editable install carries no files")
    kinds = {".py", ".j2", ".css", ".js", ".pyi"}
    assert carried >= {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*") if p.suffix in kinds}
    assert "bnp_dask/py.typed" in carried
    others = {f.parts[0] for f in files} - {"bnp_dask"}
    assert all(name == ".." or name.endswith(".dist-info") for name in others), others


# -- what it asks for -----------------------------------------------------------------------------------------
def test_lower_bounds_and_no_caps():
    assert PROJECT["requires-python"] == ">=3.11"
    every = [*requirements(), *(r for extra in PROJECT["optional-dependencies"] for r in requirements(extra))]
    for requirement in every:
        operators = [s.operator for s in requirement.specifier]
        assert operators == ([] if requirement.name == "bnp-dask" else [">="]), str(requirement)


def test_everything_imported_is_asked_for():
    core, everything = names_with(), names_with("all")
    for path in PACKAGE.rglob("*.py"):
        # the shipped test suites are for people who have the test extra
        extra = names_with("test") if path.name == "testing.py" else set()
        eager, anywhere = third_parties(path)
        assert eager <= core | extra, path
        assert anywhere <= everything | extra, path


def test_tests_import_only_what_the_test_extra_brings():
    guests = {path.stem for path in (ROOT / "tests" / "extend").glob("*.py")}  # imported by names of their own
    brought = names_with("test") | guests
    for path in (ROOT / "tests").rglob("*.py"):
        assert third_parties(path)[1] <= brought, path


def test_all_is_for_users():
    assert names_with("sklearn", "plot", "xarray") <= names_with("all")
    assert not {"pytest", "hypothesis", "ruff", "mypy"} & names_with("all")


# -- the tree -------------------------------------------------------------------------------------------------
def test_readme_shows_the_two_lines():
    text = (ROOT / "README.md").read_text()
    assert DEMO_LINE in text
    assert TEST_LINE in text
    assert text.index(DEMO_LINE) < text.index(TEST_LINE)


def test_ci_runs_the_line_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    # what the script looks for is what the README says
    (pattern,) = re.findall(r"grep -oE '(.*?)' README.md", script.read_text())
    found = subprocess.run(["grep", "-oE", pattern, "README.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout.startswith(TEST_LINE)


def test_ci_checks_style_layout_contracts_and_types_beside_the_tests():
    script = ROOT / ".ci" / "lint"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)
    tools = re.findall(r"^check (\S+(?: format)?)", script.read_text(), re.MULTILINE)
    assert tools == ["ruff", "ruff format", "lint-imports", "mypy"]
    assert re.search(r"^\.ci/lint", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_licence():
    assert PROJECT["license"] == "BSD-3-Clause"
    assert "The bnp_dask authors" in (ROOT / "LICENSE").read_text()


def test_the_conformance_suite_could_leave_on_any_day():
    """It has a project of its own, needs NumPy and SciPy alone, and only adapters import libraries."""
    suite = ROOT / "conformance"
    project = tomllib.loads((suite / "pyproject.toml").read_text())["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == {"numpy", "scipy"}
    assert (
        "/conformance"
        in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    )
    for path in suite.rglob("*.py"):
        if path.parent.name != "adapters":
            assert third_parties(path)[1] <= {"numpy", "scipy"}, path
            assert "bnp_dask" not in path.read_text(), path


@pytest.mark.parametrize("folder", ["examples", "cluster_configs"])
def test_scripts_that_come_along_compile(folder):
    if not (ROOT / folder).is_dir():
        pytest.skip(f"no {folder}/ here")
    scripts = list((ROOT / folder).rglob("*.py"))
    for path in scripts:
        compile(path.read_text(), str(path), "exec")
    assert scripts or folder != "examples"
