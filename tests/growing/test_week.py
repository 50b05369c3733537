"""The week of texts of the guide on growing runs, from the command line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import bnp_dask as bnp

ROOT = Path(__file__).parents[2]


def block() -> str:
    """Commands of the guide that take the week."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "guides" / "growing.md").read_text("utf-8"), re.DOTALL)
    (found,) = (text for text in blocks if "growing_run.py" in text)
    return found.replace("examples/", f"{shlex.quote(str(ROOT / 'examples'))}/")


@pytest.mark.long
def test_a_week_from_the_command_line(tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block()], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "week" / "runs" / "week"
    posterior = bnp.load(run)
    assert len(posterior.words) > len(bnp.load(f"{run}@0").words)  # later days brought words of their own
    assert "Clusters" in (tmp_path / "week" / "page.html").read_text("utf-8")
    assert re.search(r"^born +\d", done.stdout, re.MULTILINE)
