"""The notebooks of the examples hold their outputs, and run from nothing to the same ones."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tests.docs.run_notebooks import NOTEBOOKS, code_cells, read

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def test_there_is_a_notebook_for_each_kind_of_user():
    assert {path.stem for path in PATHS} == {"cluster", "recordings", "tables", "texts", "weekly_updates"}


@by_name
def test_a_notebook_is_whole_and_shows_what_its_cells_do(path):
    found = read(path)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert found["cells"][0]["source"][0].startswith("# ")
    outputs = [output for cell in code_cells(found) for output in cell["outputs"]]
    assert len(outputs) >= 4
    # neither errors nor warnings
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    for number, cell in enumerate(code_cells(found), 1):
        assert cell["execution_count"] == number
        compile("".join(cell["source"]), str(path), "exec")
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert pictures or path.stem == "cluster"
    for picture in pictures:
        assert base64.b64decode(picture).startswith(b"\x89PNG")
        assert len(picture) < 100_000


@by_name
def test_a_notebook_names_no_place_of_the_machine_that_ran_it(path):
    found = read(path)
    text = json.dumps([{**cell, "outputs": _without_pictures(cell)} for cell in found["cells"]])
    assert not re.findall(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|var|opt|Users)\b|ipython-input|[A-Z]:\\\\", text)
    assert str(ROOT) not in text


def _without_pictures(cell):
    return [
        {**output, "data": {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}}
        for output in cell.get("outputs", ())
    ]


@pytest.mark.long
@pytest.mark.timeout(900)
@by_name
def test_a_notebook_runs_from_nothing_to_the_outputs_that_it_shows(path):
    command = [sys.executable, "-m", "tests.docs.run_notebooks", "--check", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
