"""The site builds without a warning, loads nothing from other hosts, and says whose program a block is."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT

BUILDERS = ("mkdocs", "material", "mkdocstrings")


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    if missing := [name for name in BUILDERS if find_spec(name) is None]:
        pytest.skip(f'{", ".join(missing)} not installed: pip install ".[docs]"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", text), page
        assert not re.findall(r":\w+:<code>|::</p>", text), f"{page}: a docstring's markup that Markdown does not know"
    names = re.findall(r'<span class="filename">([^<]+)', (tmp_path / "coming_from" / "hmmlearn.html").read_text())
    assert names == ["hmmlearn", "hmmlearn, told that there are five", "bnp_dask"]


def test_every_page_is_in_the_contents_of_the_site():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/]+\.md", str(yaml.safe_load(text)["nav"])))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert listed == there
