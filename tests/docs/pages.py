"""Pages of documentation, executed: their blocks run in order in an empty folder, and what they show is compared.

``python -m tests.docs.pages PAGE...`` runs pages and says where they are wrong; ``--write`` puts the output there that
the blocks print, and the pictures that the page shows; ``--times`` tells the seconds of each block in a second run.

A page is Markdown.  In fences of ``python`` names live on from block to block; lines of ``bash`` are ``bnp-dask``
commands; a fence of ``text`` that follows either is what it printed (``...`` stands for anything, and ``?`` is a place
for ``--write``).  Comments right above a fence say more: ``<!-- file: run.yaml -->`` writes it to a file,
``<!-- needs: hmmlearn -->`` runs it where that package is, ``<!-- not run: needs Slurm -->`` says why it is not run,
``<!-- varies: by version -->`` says why output is shown and not compared, ``<!-- side: gensim -->`` whose code it is
where several do one task (``benchmarks/coming_from.py`` measures them).  ``<!-- data: folder/file ... -->`` names real
files, which are linked into the page's folder and never copied; a page is not run where one of them is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bnp_dask.cli import main as command

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SHARED = ROOT / ".." / "shared" / "data"
"""Real data, where there are any."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = r"<!-- (file|needs|not run|varies|side|data): ([^>]+) -->\n"
_NOTES = re.compile(rf"(?:{_NOTE})+$")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([\w./-]+\.png)\)")
_PLACE = "?\n"
_SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fence of a page: its language, text, first line, place in the page, and what the comment above it says."""

    language: str
    text: str
    line: int
    span: tuple[int, int]
    notes: dict[str, str]

    @property
    def skipped(self) -> bool:
        """Whether it is not to be run here."""
        return "not run" in self.notes or find_spec(self.notes.get("needs", "sys")) is None


@dataclass
class Outcome:
    """What a block printed, and how long it took (wall seconds and CPU seconds, of children too)."""

    block: Block
    printed: str
    wall: float = 0.0
    cpu: float = 0.0
    shown: Block | None = None


@dataclass
class Page:
    """A page and what came of running it."""

    path: Path
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its path in the tree."""
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        """The Markdown."""
        return self.path.read_text(encoding="utf-8")

    @property
    def pictures(self) -> list[str]:
        """Pictures in the page's folder that it shows."""
        return [name for name in _PICTURE.findall(self.text) if "/" not in name]

    @property
    def data(self) -> list[Path]:
        """Real files that it reads."""
        return [SHARED / name for block in blocks(self.text) for name in block.notes.get("data", "").split()]

    @property
    def missing(self) -> str:
        """Names of those that are not here."""
        return ", ".join(f"{path.parent.name}/{path.name}" for path in self.data if not path.exists())


def all_pages() -> list[Page]:
    """The README and every page of the documentation that has something to run.

    Those on extending hold whole files of ``tests/extend``, which are run there.
    """
    paths = [ROOT / "README.md", *(p for p in sorted(DOCS.rglob("*.md")) if p.parent != DOCS / "extend")]
    return [page for page in map(Page, paths) if any(b.language in ("python", "bash") for b in blocks(page.text))]


def blocks(text: str) -> list[Block]:
    """The fences of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        above = _NOTES.search(text[: match.start()])
        notes = dict(re.findall(_NOTE, above[0])) if above else {}
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, match.span(2), notes))
    return found


def run(page: Page, scope: dict[str, Any] | None = None) -> Iterator[Outcome]:
    """Run the blocks of a page in the current folder.

    Raises
    ------
    AssertionError
        A command failed, or a block of ``bash`` is something else than commands of this package.
    """
    scope = {"__name__": "__page__"} if scope is None else scope
    found = blocks(page.text)
    for path in page.data:
        Path(path.name).symlink_to(path.resolve())
    for place, block in enumerate(found):
        if block.skipped:
            continue
        if "file" in block.notes:
            Path(block.notes["file"]).write_text(block.text, encoding="utf-8")
        elif block.language in ("python", "bash"):
            follows = found[place + 1] if place + 1 < len(found) else None
            outcome = _timed(page, block, scope)
            outcome.shown = follows if follows is not None and follows.language == "text" else None
            page.outcomes.append(outcome)
            yield outcome


def _timed(page: Page, block: Block, scope: dict[str, Any]) -> Outcome:
    wall, cpu = time.perf_counter(), _cpu()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(page.path), "exec", dont_inherit=True), scope)
        else:
            for line in block.text.replace("\\\n", " ").splitlines():
                _command(page, line)
    return Outcome(block, out.getvalue(), time.perf_counter() - wall, _cpu() - cpu)


def _command(page: Page, line: str) -> None:
    words = shlex.split(line, comments=True)
    if words:
        assert words[0] == "bnp-dask", f"{page.name}: {line!r} is no command of this package; say why it is not run"
        assert command(words[1:]) == 0, f"{page.name}: {line!r} failed"


def _cpu() -> float:
    """Seconds of CPU of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def difference(outcome: Outcome) -> str:
    """How what a block printed differs from what the page shows; empty where it does not, or nothing is shown."""
    shown = outcome.shown
    if shown is None or ("varies" in shown.notes and shown.text != _PLACE):
        return ""
    if doctest.OutputChecker().check_output(shown.text, outcome.printed, _SAME):
        return ""
    return f"shown:\n{outcome.shown.text}\nprinted:\n{outcome.printed}"


# -- as a command ---------------------------------------------------------------------------------------------
def _written(page: Page) -> str:
    """The page with the output that its blocks printed, where it differs."""
    text = page.text
    for outcome in reversed(page.outcomes):
        if outcome.shown is not None and difference(outcome):
            start, end = outcome.shown.span
            lines = [line.rstrip() for line in outcome.printed.strip("\n").splitlines()]
            text = text[:start] + "\n".join(lines) + "\n" + text[end:]
    return text


@contextlib.contextmanager
def _noted(page: Page) -> Iterator[None]:
    """Write the page at the end, also where a block failed."""
    try:
        yield
    finally:
        page.path.write_text(_written(page), encoding="utf-8")


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run pages of documentation.")
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put output and pictures into the page")
    parser.add_argument("--times", action="store_true", help="seconds of each block in a second run")
    args = parser.parse_args()
    for page in [Page(path.resolve()) for path in args.pages] or all_pages():
        if page.missing:
            print(f"{page.name}: not run, {page.missing} is not here")
            continue
        for _ in range(2 if args.times else 1):
            page.outcomes.clear()
            with _empty_folder() as folder, _noted(page) if args.write else contextlib.nullcontext():
                for outcome in run(page):
                    if not args.write and difference(outcome):
                        print(f"{page.name}:{outcome.block.line}\n{difference(outcome)}", file=sys.stderr)
                for name in page.pictures if args.write else []:
                    shutil.copy(folder / name, page.path.parent / name)
        print(f"{page.name}: {sum(o.wall for o in page.outcomes):.1f} s, CPU {sum(o.cpu for o in page.outcomes):.1f} s")
        for outcome in page.outcomes if args.times else []:
            print(f"  line {outcome.block.line:4}: {outcome.wall:6.2f} s, CPU {outcome.cpu:6.2f} s")


if __name__ == "__main__":
    main()
