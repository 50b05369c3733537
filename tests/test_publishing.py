"""Files for publishing agree with the package: the workflow, the containers, the conda recipe and the metadata."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

import pytest
import yaml

import bnp_dask
from tests.test_packaging import DEMO_LINE, PROJECT, ROOT, TEST_LINE, requirements

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONTAINERS = ROOT / "containers"
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
REPOSITORY = PROJECT["urls"]["Repository"]


def commands(name: str) -> list[str]:
    """Lines that the steps of a workflow run."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


# -- the workflows --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_parses_and_each_step_runs_or_uses_something(path):
    found = yaml.safe_load(path.read_text())
    # YAML 1.1 reads the word "on" as a truth value
    assert {"name", True, "permissions", "jobs"} <= found.keys()
    for job in found["jobs"].values():
        assert job["runs-on"] == "ubuntu-latest"
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            if "run" in step:
                subprocess.run(["bash", "-n", "-c", re.sub(r"\$\{\{.*?\}\}", "x", step["run"])], check=True)


def test_the_workflow_runs_the_lines_of_the_readme_and_of_contributing():
    lines = commands("ci.yml")
    assert TEST_LINE in lines
    assert TEST_LINE.replace("pytest", "pytest -m long") in lines
    assert "pytest -m long" in CONTRIBUTING
    assert ".ci/lint" in lines
    assert 'pip install ".[docs]" && mkdocs build --strict' in lines
    assert "python -m build" in lines
    assert "twine check --strict dist/*" in lines


def test_the_workflow_tests_the_versions_of_python_that_the_metadata_name():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    named = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == named


def test_a_release_without_a_real_address_is_refused():
    assert "! grep -n OWNER pyproject.toml" in commands("release.yml")
    text = (ROOT / "pyproject.toml").read_text()
    assert all(address.startswith(REPOSITORY) for address in PROJECT["urls"].values())
    # nowhere else: whoever publishes changes one file
    tracked = [ROOT / name for name in ("CITATION.cff", "codemeta.json", "llms.txt", "README.md", "conda/recipe.yaml")]
    assert not [path.name for path in tracked if REPOSITORY in path.read_text()]
    assert text.count("[project.urls]") == 1


# -- containers -----------------------------------------------------------------------------------------------
def test_both_containers_are_made_by_the_same_steps():
    docker = (CONTAINERS / "Dockerfile").read_text()
    apptainer = (CONTAINERS / "bnp_dask.def").read_text()
    for line in ("find \"$package\" -name '*.py' -exec touch", "compileall", "/opt/bnp_dask/warm.py", "entry.sh"):
        assert line in docker
        assert line in apptainer
    for path in re.findall(r"^COPY (.+) \S+$", docker, re.MULTILINE):
        assert all((ROOT / name).exists() for name in path.split())
    for line in re.findall(r"^    (\S+) /(?:src|opt)", apptainer.split("%files")[1].split("%post")[0], re.MULTILINE):
        assert (ROOT / line).exists()
    subprocess.run(["sh", "-n", str(CONTAINERS / "entry.sh")], check=True)


def test_a_container_runs_its_command_with_the_kernels_that_it_carries(tmp_path):
    kernels, home = tmp_path / "image" / "bnp_dask" / "0123", tmp_path / "home"
    kernels.mkdir(parents=True)
    home.mkdir()
    (kernels / "kernel.nbc").write_text("compiled")
    facts = {"BNP_KERNELS": str(tmp_path / "image"), "HOME": str(home), "PATH": "/usr/bin:/bin"}
    entry = ["sh", str(CONTAINERS / "entry.sh"), "echo", "two words", "and more"]
    done = subprocess.run(entry, env=facts, capture_output=True, text=True, check=True)
    assert done.stdout == "two words and more\n"
    copied = home / ".cache" / "bnp_dask" / "0123" / "kernel.nbc"
    assert copied.read_text() == "compiled"
    copied.write_text("newer")
    subprocess.run(entry, env=facts, capture_output=True, check=True)
    assert copied.read_text() == "newer"
    # a home that cannot be written
    elsewhere = {**facts, "HOME": "/proc/nowhere"}
    assert subprocess.run(entry, env=elsewhere, capture_output=True, text=True, check=True).stdout == done.stdout


# -- metadata -------------------------------------------------------------------------------------------------
def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    asked = {line.replace(" ", "").replace("dask-core", "dask") for line in recipe["requirements"]["run"]}
    wanted = {str(requirement).replace(" ", "") for requirement in requirements()}
    assert asked == wanted | {f"python{PROJECT['requires-python']}"}
    host = {line.replace(" ", "") for line in recipe["requirements"]["host"]}
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]) <= host
    assert recipe["context"]["version"] == bnp_dask.__version__
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_codemeta_and_the_citation_say_what_the_package_says():
    found = json.loads((ROOT / "codemeta.json").read_text())
    assert found["@type"] == "SoftwareSourceCode"
    assert found["version"] == bnp_dask.__version__
    assert found["description"] == PROJECT["description"]
    assert found["license"].endswith(PROJECT["license"])
    assert found["keywords"] == PROJECT["keywords"]
    assert [author["name"] for author in found["author"]] == [author["name"] for author in PROJECT["authors"]]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == bnp_dask.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_paper_cites_what_its_bibliography_has_and_nothing_is_left_over():
    text = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    _, head, body = text.split("---\n", 2)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= yaml.safe_load(head).keys()
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / "paper.bib").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert set(re.findall(r"@(\w+)", body)) == set(entries)
    for title in ("Summary", "Statement of need", "State of the field", "Software design", "References"):
        assert f"\n# {title}\n" in body
    # the journal's bounds
    assert 250 < len(body.split()) < 1750


def test_the_list_for_language_models_names_pages_that_are_there_and_the_first_lines_of_the_readme():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# bnp_dask\n\n> ")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) >= 15
    for link in links:
        assert (ROOT / link).is_file(), link
    assert DEMO_LINE in text
    for name in re.findall(r"bnp\.(\w+)", text):
        assert getattr(bnp_dask, name) is not None
