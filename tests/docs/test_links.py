"""Every link that leads out of the project is in one list, and all of the list are linked; no network is asked."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, ROOT
from tests.docs.run_notebooks import NOTEBOOKS, read

LIST = DOCS / "links.txt"
LISTED = {line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}

TEXTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "llms.txt", "codemeta.json")),
        *(ROOT / "CITATION.cff", ROOT / "cluster_configs" / "README.md"),
        *(ROOT / "paper").iterdir(),
        *DOCS.rglob("*.md"),
        *NOTEBOOKS.glob("*.ipynb"),
    ]
)

_LINK = re.compile(r"https?://[\w.~:/?#@!$&+,;=%-]*[\w/]")


def links(text: str) -> set[str]:
    return set(_LINK.findall(text))


def text_of(path) -> str:
    """The text of a file; of a notebook its prose and code, without the outputs."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join("".join(cell["source"]) for cell in read(path)["cells"])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_links_to_listed_places_only(path):
    assert links(text_of(path)) <= LISTED


def test_every_listed_place_is_linked_from_somewhere():
    assert set().union(*(links(text_of(path)) for path in TEXTS)) == LISTED


def test_a_link_is_found_as_it_stands_in_prose_in_a_table_and_in_a_bibliography():
    text = "see [a](https://a.org/b), https://c.org. | <https://d.org/e/> | url = {https://f.org/g-h_i.html}"
    assert links(text) == {"https://a.org/b", "https://c.org", "https://d.org/e/", "https://f.org/g-h_i.html"}
