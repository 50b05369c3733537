"""Ways to work, as scripts that a user writes from the docs alone, run in an empty directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROLES = Path(__file__).parent / "roles"
EXPECTED = {
    "cloud": "clusters: 3",
    "notebooks": "clusters: 3",
    "recordings": "states: 3",
    "scikit_learn": "species foretold: True",
    "slurm": "clusters: 3",
    "tables": "clusters: 3",
    "texts": "several topics: True",
    "weekly": "clusters: 3",
}


def test_each_role_has_a_script():
    assert sorted(EXPECTED) == sorted(path.stem for path in ROLES.glob("*.py"))


@pytest.mark.long
@pytest.mark.parametrize("role", EXPECTED)
def test_a_role_works_without_a_stumble(role, tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROLES / f"{role}.py")], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Traceback" not in said
    assert not re.findall(r"^.*Warning.*$", said, re.MULTILINE), said
    assert EXPECTED[role] in done.stdout.splitlines(), said
