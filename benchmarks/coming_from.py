"""Tasks of the pages on coming from other libraries, by their code and by ours: CPU time, memory, and what was found.

``python -m benchmarks.coming_from [PAGE...] [--python PEERS/bin/python] [--write]``; pages of
``docs/coming_from`` by name, all if none.  A block of a page with a comment ``side: NAME`` is the program of one
library; blocks without one are the data, and run before it, unmeasured.  Each side runs twice in a process of its own
with one thread for linear algebra.  ``--write`` puts the table where the page says ``<!-- measured -->``; ``python -m
benchmarks peers`` does so for all pages on the day of its own page.  ``--python`` is an environment with the other
libraries and what this package needs.  Linux only: the kernel keeps the peaks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from bnp_dask import __version__
from tests.docs.pages import DOCS, ROOT, Block, blocks

FOLDER = DOCS / "coming_from"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
SECONDS = 1200
"""Time limit of one side."""

_HELD = re.compile(r"VmHWM:\s+(\d+)")
HOW = "[How](index.md#how-they-were-measured)\n"
PLACE = re.compile(rf"(<!-- measured -->\n).*?({re.escape(HOW)}|(?=^## ))", re.MULTILINE | re.DOTALL)
"""The table of a page and the line below it; what a person wrote of it stays."""

HEAD = "| | first, CPU s | again, CPU s | memory, MB | found |\n|---|---|---|---|---|\n"


def sides_of(page: str) -> list[str]:
    """Names of the programs of a page, in order."""
    return [block.notes["side"] for block in _python(page) if "side" in block.notes]


def _python(page: str) -> list[Block]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return [b for b in blocks(text) if b.language == "python" and "not run" not in b.notes]


# -- one side, in its own process -----------------------------------------------------------------------------
def run_side(page: str, side: str) -> dict[str, object]:
    """Run the data and one program of a page, that twice; its last line, CPU seconds of both, and the peak in MB."""
    scope: dict[str, object] = {"__name__": "__page__"}
    program: str | None = None
    for block in _python(page):
        if "side" not in block.notes:
            _printed(block.text, scope)
        elif block.notes["side"] == side:
            program = block.text
    if program is None:
        raise SystemExit(f"{page}: there is no side {side!r}; there are {sides_of(page)}")
    begun, cpu = _cpu(), []
    for _ in range(2):
        found = _printed(program, scope)
        cpu.append(_cpu() - begun)
        begun += cpu[-1]
    needs = next(b.notes.get("needs") for b in _python(page) if b.notes.get("side") == side)
    versions = {needs: metadata.version(needs)} if needs else {}
    return {"found": found.strip().splitlines()[-1], "cpu": cpu, "memory": _peak(), "versions": versions}


def _printed(code: str, scope: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "<page>", "exec"), scope)
    return out.getvalue()


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _cpu() -> float:
    """CPU seconds of this process and of all that it started."""
    ended = psutil.Process().cpu_times()
    living = (process.cpu_times() for process in _family())
    return sum(t.user + t.system for t in living) + ended.children_user + ended.children_system


def _peak() -> float:
    """Largest resident memory of this process and of those that it started and that live, added up, MB."""
    kilobytes = 0
    for process in _family():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # one that has ended and is not waited for has a status without memory
            kilobytes += sum(map(int, _HELD.findall(Path(f"/proc/{process.pid}/status").read_text())))
    return kilobytes / 1000


# -- all sides of a page --------------------------------------------------------------------------------------
def measure(page: str, python: str) -> str:
    """The table of a page, and the line that says with what it was measured."""
    rows, versions = "", {"bnp_dask": __version__}
    for side in sides_of(page):
        line = _in_process(page, side, python)
        print(json.dumps({"page": page, "side": side, **line}), flush=True)
        first, again = line["cpu"]
        rows += f"| {side} | {first:.1f} | {again:.1f} | {line['memory']:.0f} | {line['found']} |\n"
        versions |= line["versions"]
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    when = f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {libraries}"
    return f"{HEAD}{rows}\nMeasured in one run: {when}. {HOW}"


def _in_process(page: str, side: str, python: str) -> dict[str, object]:
    command = [python, "-m", "benchmarks.coming_from", page, "--side", side]
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    if done.returncode != 0:
        raise SystemExit(f"{page}, {side}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def write(page: str, table: str) -> None:
    """Put a table into its page."""
    path = FOLDER / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    new, found = PLACE.subn(lambda match: f"{match[1]}\n{table}" + ("" if match[2] else "\n"), text)
    if not found:
        raise SystemExit(f"{path.name} has no place for a table: a line <!-- measured -->, and a heading below it")
    path.write_text(new, encoding="utf-8")


def pages() -> list[str]:
    """Names of all pages."""
    return sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")


def write_all() -> None:
    """Measure all pages with this interpreter and write their tables; a page whose programs fail says so."""
    for page in pages():
        try:
            table = measure(page, sys.executable)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            last = str(error).strip().splitlines()[-1]
            table = f"Not measured on {datetime.now(UTC):%Y-%m-%d}: `{last}` {HOW}"
        write(page, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", choices=[*pages(), []], help="pages; all if none")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the other libraries")
    parser.add_argument("--write", action="store_true", help="put the tables into the pages")
    parser.add_argument("--side", help="run one side here and print what it took")
    args = parser.parse_args()
    for page in args.pages or pages():
        if args.side is not None:
            print(json.dumps(run_side(page, args.side)))
            continue
        table = measure(page, args.python)
        if args.write:
            write(page, table)


if __name__ == "__main__":
    main()
