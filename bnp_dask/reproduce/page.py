"""The page of results: every figure's picture and the paper's numbers, made from the files of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bnp_dask.errors import DataError
from bnp_dask.inputs.paths import local_path
from bnp_dask.reproduce.base import EXPERIMENTS, NO_FIGURES, PAPERS, Result, results_in

INTRODUCTION = """\
# The papers' figures, made anew

`bnp-dask reproduce` runs the experiments of the papers that this package is built from, and `--page` writes this page
from their results. The texts of the papers are the source of printed values: most figures have no numbers in them, so
that a statement of the text is compared, with a tolerance. A check that fails is shown as such. Real data are given by
`--data FOLDER`, one subfolder each; where neither they nor a package have the data of a paper, a synthetic stand-in
takes their place, and is called so. CPU seconds are of one process on a shared machine, compilation included.

```console
$ bnp-dask reproduce --list
$ bnp-dask reproduce 000-4.6 004 --data FOLDER
$ bnp-dask reproduce --quick
```
"""


def write_page(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write the page of all results that a folder holds, with links to their pictures.

    Raises
    ------
    DataError
        The folder holds no results.
    """
    results = results_in(out)
    if not results:
        raise DataError(f"{out} holds no results; run bnp-dask reproduce --out {out} first")
    page = local_path(path)
    pictures = os.path.relpath(local_path(out).absolute(), page.absolute().parent)
    page.write_text("\n".join(sections(results, pictures)) + "\n", encoding="utf-8")
    return page


def sections(results: dict[str, Result], pictures: str) -> Iterator[str]:
    """Lines of the page."""
    yield INTRODUCTION
    held, checks = sum(r.n_held for r in results.values()), sum(len(r.checks) for r in results.values())
    seconds = sum(r.cpu_seconds for r in results.values())
    modes = [sum(r.mode == mode for r in results.values()) for mode in ("full", "quick")]
    yield f"{len(results)} of {len(EXPERIMENTS)} figures were run: {modes[0]} in full, {modes[1]} in the quick version,"
    yield f"in {seconds:.0f} CPU seconds altogether; {held} of {checks} checks hold.\n"
    yield "| figure | what it shows | data | version | CPU seconds | checks that hold |"
    yield "|---|---|---|---|---|---|"
    for name, result in results.items():
        cells = (f"[{name}](#{anchor(result)})", result.shows, result.data_state, result.mode)
        yield f"| {' | '.join(cells)} | {result.cpu_seconds:.0f} | {result.n_held} of {len(result.checks)} |"
    for paper, title in PAPERS.items():
        own = [result for name, result in results.items() if name.startswith(f"{paper}-")]
        if own or paper in NO_FIGURES:
            yield f"\n## {paper}\n\n{title}." + (f" Nothing is run: {NO_FIGURES[paper]}." if not own else "")
        for result in own:
            yield from section(result, pictures)


def anchor(result: Result) -> str:
    """Anchor of a figure's heading."""
    return f"{result.name}".replace(".", "").lower()


def section(result: Result, pictures: str) -> Iterator[str]:
    """Lines of one figure."""
    yield f"\n### {result.name}\n"
    yield f"{result.shows} ({result.source}). Data: {result.data}; {result.data_state}."
    yield f"Seed {result.seed}, {result.mode} version, {result.cpu_seconds:.0f} s of CPU.\n"
    yield f"![{result.shows}]({pictures}/{result.name}.png)\n"
    yield "| what | printed | here | tolerance | |"
    yield "|---|---|---|---|---|"
    for check in result.checks:
        verdict = "holds" if check.holds else "**does not hold**"
        yield f"| {check.what} | {check.printed} | {check.found:.4g} | {check.tolerance} | {verdict} |"
    yield f"\nDifferences: {result.differences}"
