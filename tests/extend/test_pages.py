"""The pages on extending hold the files that the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "extend"
PAGES = {
    "likelihood": "negbin",
    "allocation": "pitman_yor",
    "structure": "linked",
    "nested": "nested",
    "move": "smallest",
    "source": "sqlite_rows",
    "executor": "pool",
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_file_and_its_test(page):
    text = (DOCS / f"{page}.md").read_text()
    for name in (f"{PAGES[page]}.py", f"test_{PAGES[page]}.py"):
        assert f"`{name}`:\n\n```python\n{(HERE / name).read_text()}```" in text, (
            f"docs/extend/{page}.md: copy {name} anew"
        )


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_short(page):
    lines = len((HERE / f"{PAGES[page]}.py").read_text().splitlines())
    assert lines <= 110
