"""Pages as Jupyter notebooks: ``python -m tests.docs.notebooks [PAGE...] [--out FOLDER]``; without names the gallery.

Prose becomes Markdown cells and blocks of Python become code cells, with what the page shows as their output.  The
blocks are those that the tests of pages run, so a notebook holds nothing that was not executed.  Pictures are put into
the notebook.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from pathlib import Path
from typing import Any

from tests.docs.pages import DOCS, blocks

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\(([\w-]+\.png)\)")


def notebook(path: Path) -> dict[str, Any]:
    """Notebook of a page, in the format 4.5 of Jupyter.

    Parameters
    ----------
    path
        A page of Markdown.

    Returns
    -------
    dict
        The notebook, ready for ``json.dump``.
    """
    text = path.read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = []
    done = 0
    for block in blocks(text):
        begin, end = block.span[0] - len(f"```{block.language}\n"), block.span[1] + len("```\n")
        prose = text[done:begin]
        done = end
        if block.language == "text" and cells and cells[-1]["cell_type"] == "code" and not prose.strip():
            stream = {"output_type": "stream", "name": "stdout", "text": _lines(block.text)}
            cells[-1]["outputs"].append(stream)
            continue
        _add_prose(cells, prose, path.parent)
        if block.language == "python" and "not run" not in block.notes:
            code = {
                "cell_type": "code",
                "execution_count": None,
                "outputs": [],
                "source": _lines(block.text.rstrip("\n")),
            }
            cells.append({**code, "metadata": {}})
        else:
            _add_prose(cells, text[begin:end], path.parent)
    _add_prose(cells, text[done:], path.parent)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}


def _add_prose(cells: list[dict[str, Any]], text: str, folder: Path) -> None:
    """Add Markdown as a cell, with its pictures as attachments; nothing where there is no text."""
    text = _COMMENT.sub("", text).strip()
    if not text:
        return
    cell: dict[str, Any] = {"cell_type": "markdown", "metadata": {}, "attachments": {}}
    for _, name in _PICTURE.findall(text):
        picture = base64.b64encode((folder / name).read_bytes()).decode()
        cell["attachments"][name] = {"image/png": picture}
    cell["source"] = _lines(_PICTURE.sub(r"![\1](attachment:\2)", text))
    cells.append(cell)


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages; those of the gallery if none")
    parser.add_argument("--out", type=Path, default=Path("notebooks"), help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for page in args.pages or sorted((DOCS / "gallery").glob("*.md")):
        target = args.out / f"{page.stem}.ipynb"
        target.write_text(json.dumps(notebook(page), indent=1) + "\n", encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
