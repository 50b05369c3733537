"""Notebooks of the gallery hold the code that the tests of pages run, what it printed, and its pictures."""

from __future__ import annotations

import base64
import json

import pytest

from tests.docs.notebooks import main, notebook
from tests.docs.pages import DOCS, blocks

PAGES = sorted((DOCS / "gallery").glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_has_the_blocks_of_its_page_and_what_they_print(path):
    made = notebook(path)
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    shown = blocks(path.read_text(encoding="utf-8"))
    assert ["".join(cell["source"]) for cell in code] == [b.text.rstrip("\n") for b in shown if b.language == "python"]
    printed = ["".join(output["text"]) for cell in code for output in cell["outputs"]]
    assert printed == [b.text for b in shown if b.language == "text"]
    for cell in made["cells"]:
        assert "<!--" not in "".join(cell["source"])
        for picture in cell.get("attachments", {}).values():
            assert base64.b64decode(picture["image/png"]).startswith(b"\x89PNG")
    assert sum(len(cell.get("attachments", {})) for cell in made["cells"]) >= 1
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


def test_the_gallery_is_written_as_notebooks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["notebooks", "--out", str(tmp_path / "notebooks")])
    main()
    assert len(capsys.readouterr().out.splitlines()) == len(PAGES)
    for path in PAGES:
        assert json.loads((tmp_path / "notebooks" / f"{path.stem}.ipynb").read_text())["nbformat"] == 4
