"""Notebooks of ``examples/notebooks``, executed: ``python -m tests.docs.run_notebooks [NOTEBOOK...]``.

Cells run in order in an empty folder, in IPython as Jupyter's kernel runs them, without a server: what they print, what
their last line shows, and their pictures are stored as the outputs of the notebook.  The tests run the same function
and compare what is printed; a cell whose tags have ``varies`` shows what depends on versions of other packages, and is
not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"

Cell = dict[str, Any]

KINDS = ("image/png", "text/html", "text/plain")
"""Representations that are stored, of those that IPython makes."""


def read(path: Path) -> dict[str, Any]:
    """A notebook, in the format 4.5 of Jupyter."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook as Jupyter does, a key a line."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    """The cells of code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: Cell) -> str:
    """All text of a cell's outputs: streams, and the plain form of what is shown.

    The line that tells of compiling is left out: it comes in the first run of a machine alone.
    """
    parts = (output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell["outputs"])
    lines = "".join("".join(part) for part in parts).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("compiling kernels"))


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs that its cells have now, run in the current folder.

    Raises
    ------
    AssertionError
        A cell raised an error; it is named with its source.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    # what a cell shows is caught of the shell that is known as the one of this process
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.history_manager.enabled = False  # it would be a file in the user's home
    shell.enable_gui = lambda gui=None: None  # pictures inline need no event loop
    shell.enable_matplotlib("inline")
    cells, count = [], 0
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                count += 1
                with capture_output() as caught:
                    outcome = shell.run_cell("".join(cell["source"]), store_history=False)
                if not outcome.success:
                    raise AssertionError(f"cell {count}:\n{''.join(cell['source'])}\n{caught.stdout}{caught.stderr}")
                cell = {**cell, "execution_count": count, "outputs": _outputs(caught)}
            cells.append(cell)
    finally:
        InteractiveShell.clear_instance()
    return {**notebook, "cells": cells}


def _outputs(caught: Any) -> list[dict[str, Any]]:
    """Outputs of a cell as Jupyter stores them: streams, then what is shown, in order."""
    streams = (("stdout", caught.stdout), ("stderr", caught.stderr))
    found: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": text.splitlines(keepends=True)}
        for name, text in streams
        if text
    ]
    return found + [{"output_type": "display_data", **_data(output.data)} for output in caught.outputs]


def _data(data: dict[str, Any]) -> dict[str, Any]:
    kept = {kind: data[kind] for kind in KINDS if kind in data}
    lines = {kind: value if kind == "image/png" else value.splitlines(keepends=True) for kind, value in kept.items()}
    return {"data": lines, "metadata": {}}


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run notebooks and store their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; print what differs")
    args = parser.parse_args()
    paths = [given.resolve() for given in args.notebooks] or sorted(NOTEBOOKS.glob("*.ipynb"))
    if len(paths) > 1:  # a process for each: in the second shell of a process no picture is shown
        more = ["--check"] if args.check else []
        runs = [subprocess.run([sys.executable, "-m", "tests.docs.run_notebooks", str(path), *more]) for path in paths]
        sys.exit(max(run.returncode for run in runs))
    for path in paths:
        wall, cpu, before = time.perf_counter(), time.process_time(), read(path)
        with _empty_folder():
            after = executed(before)
        print(
            f"{path.name}: {time.perf_counter() - wall:.1f} s, CPU {time.process_time() - cpu:.1f} s", file=sys.stderr
        )
        if not args.check:
            write(path, after)
            continue
        for old, new in zip(code_cells(before), code_cells(after)):
            if "varies" not in old["metadata"].get("tags", ()) and printed(old) != printed(new):
                print(f"{path.name}:\n{''.join(old['source'])}\nshown:\n{printed(old)}\nprinted:\n{printed(new)}")
                sys.exit(1)


if __name__ == "__main__":
    main()
