"""One figure or table of a paper as one experiment: its data, the quantities compared, and the paper's values.

A page shows every figure's picture and the paper's numbers, made from the files of a folder.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnp_dask._version import __version__
from bnp_dask.errors import DataError, SettingError, StoreError, near
from bnp_dask.inputs import local_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAPERS = {
    "000": "M. C. Hughes, Reliable and scalable variational inference for nonparametric mixtures, topics, and "
    "sequences (thesis, Brown University, 2016)",
    "001": "C. Wang and D. Blei, Truncation-free stochastic variational inference for Bayesian nonparametric models "
    "(2012)",
    "002": "M. C. Hughes and E. Sudderth, Memoized online variational inference for Dirichlet process mixtures, "
    "supplement (2013)",
    "003": "X. Nguyen, Clustering, mixture models and Bayesian nonparametrics (lecture notes)",
    "004": "A. Tank, N. Foti and E. Fox, Streaming variational inference for Bayesian nonparametric mixture models "
    "(2015)",
}
"""Numbers of the papers, as figures are named by them, and their titles."""

NO_FIGURES = {"003": "lecture notes without experiments: their samplers and bounds are in the tests of the package"}
"""Papers of which nothing is reproduced, and why."""

UNREADABLE = "no reader"
"""Need of an experiment whose real data no reader here opens: it always draws a stand-in."""

DOTS = 65
"""Dots per inch of pictures: below 100 kB each."""


@dataclass(frozen=True)
class Check:
    """One comparison of a figure.

    Parameters
    ----------
    what
        Name of the measured quantity.
    printed
        Value in the text of the paper: a number, or a statement in few words.
    found
        The number measured here.
    low, high
        Tolerance: the check holds if ``low <= found <= high``.  None for no bound.
    """

    what: str
    printed: str
    found: float
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number lies within the tolerance; a number that is not finite never does."""
        below = self.low is None or self.found >= self.low
        return bool(abs(self.found) < float("inf") and below and (self.high is None or self.found <= self.high))

    @property
    def tolerance(self) -> str:
        """The tolerance in words."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"at least {self.low:g}"
        return "none" if self.high is None else f"at most {self.high:g}"


@dataclass(frozen=True)
class Outcome:
    """Result of an experiment.

    Parameters
    ----------
    data
        The data, in one sentence.
    checks
        Comparisons with the paper.
    picture
        The figure.
    differences
        How the experiment differs from the paper's, in words.
    """

    data: str
    checks: list[Check]
    picture: Figure
    differences: str


@dataclass(frozen=True)
class Task:
    """How an experiment is run.

    Parameters
    ----------
    quick
        Whether to run its small version.
    folder
        Folder of real data sets, one subfolder each; None for synthetic stand-ins.
    seed
        Seed of all random numbers.
    cache
        Folder in which counts of raw texts are kept; None for none.
    """

    quick: bool = True
    folder: Path | None = None
    seed: int = 0
    cache: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """A number that depends on the version."""
        return quick if self.quick else full

    def path(self, name: str) -> Path | None:
        """The subfolder of a data set, if there is one."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_dir() else None


@dataclass(frozen=True)
class Experiment:
    """A figure or table, and the function that makes it anew.

    Parameters
    ----------
    name
        Paper and figure, such as ``"000-4.6"``.
    shows
        Its subject.
    source
        Where the printed values are from.
    function
        From the task to the outcome.
    needs
        Subfolder of the real data; None if the paper's data are drawn at random; :data:`UNREADABLE` if there is none.
    """

    name: str
    shows: str
    source: str
    function: Callable[[Task], Outcome] = field(repr=False)
    needs: str | None = None

    def data_state(self, folder: Path | None) -> str:
        """Whether its data are drawn as in the paper, present, or a stand-in."""
        if self.needs is None:
            return "drawn as in the paper"
        if self.needs == UNREADABLE:
            return "stand-in (the paper's data are not at hand)"
        return "present" if Task(folder=folder).path(self.needs) is not None else f"stand-in ({self.needs} not given)"


EXPERIMENTS: dict[str, Experiment] = {}
"""All experiments by name; the modules of this package add theirs when they are imported."""


def figure(
    name: str, shows: str, source: str, needs: str | None = None
) -> Callable[[Callable[[Task], Outcome]], Callable[[Task], Outcome]]:
    """Enter a function into the list of experiments."""

    def enter(function: Callable[[Task], Outcome]) -> Callable[[Task], Outcome]:
        if name in EXPERIMENTS:
            raise SettingError(f"there is an experiment {name!r} already; needs another name")
        EXPERIMENTS[name] = Experiment(name=name, shows=shows, source=source, function=function, needs=needs)
        return function

    return enter


def in_order() -> list[str]:
    """Names of all experiments, paper by paper."""
    return sorted(EXPERIMENTS, key=lambda name: name.split("-")[0])


def chosen(names: Iterable[str]) -> list[Experiment]:
    """Experiments by their names; a paper's number stands for all of its figures, no name for all there are.

    Raises
    ------
    SettingError
        There is no such figure; the nearest one is named.
    """
    wanted: dict[str, Experiment] = {}
    given = list(names)
    for name in given:
        found = [name] if name in EXPERIMENTS else [e for e in EXPERIMENTS if e.split("-")[0] == name]
        if not found and name in NO_FIGURES:
            raise SettingError(f"nothing of {name} is reproduced: {NO_FIGURES[name]}")
        if not found:
            meant = near(name, EXPERIMENTS)
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise SettingError(f"there is no figure {name!r}{hint} (bnp-dask reproduce --list names all)")
        wanted.update({each: EXPERIMENTS[each] for each in found})
    return list(wanted.values()) if given else [EXPERIMENTS[name] for name in in_order()]


# -- results ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Result:
    """An outcome as it is kept beside its picture, in ``NAME.json`` and ``NAME.png``."""

    name: str
    shows: str
    source: str
    data: str
    data_state: str
    differences: str
    version: str
    mode: str
    seed: int
    cpu_seconds: float
    wall_seconds: float
    checks: list[Check]

    @property
    def n_held(self) -> int:
        """Checks that hold."""
        return sum(check.holds for check in self.checks)

    @property
    def line(self) -> str:
        """The result in a few words."""
        return f"{self.n_held} of {len(self.checks)} hold, {self.mode}, {self.cpu_seconds:.0f} s of CPU"

    def to_json(self) -> dict[str, Any]:
        """Plain values; checks say whether they hold, and their tolerance in words."""
        more = [{"holds": check.holds, "tolerance": check.tolerance} for check in self.checks]
        checks = [{**asdict(check), **words} for check, words in zip(self.checks, more, strict=True)]
        return {**asdict(self), "checks": checks}

    @staticmethod
    def read(path: Path) -> Result:
        """The result in a file; DataError if it is none."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            names = ("what", "printed", "found", "low", "high")
            checks = [Check(**{name: check[name] for name in names}) for check in kept.pop("checks")]
            return Result(**kept, checks=checks)
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} holds no result of bnp-dask reproduce ({error}); remove it") from error


def results_in(out: str | os.PathLike[str]) -> dict[str, Result]:
    """Results that a folder holds, by name, paper by paper."""
    folder = local_path(out)
    return {name: Result.read(folder / f"{name}.json") for name in in_order() if (folder / f"{name}.json").is_file()}


def run(experiment: Experiment, task: Task, out: str | os.PathLike[str]) -> Result:
    """Run one experiment in this process and keep its result and picture in a folder."""
    from bnp_dask.execute import one_blas_thread
    from bnp_dask.training import ConvergenceWarning

    folder = local_path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{out}: {error.strerror}; choose another folder with --out") from error
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(), one_blas_thread():
        # laps are fixed by the experiment, as in the paper: that a run could go on is no news
        warnings.simplefilter("ignore", ConvergenceWarning)
        outcome = experiment.function(replace(task, cache=folder / "counts" if task.cache is None else task.cache))
    result = Result(
        name=experiment.name,
        shows=experiment.shows,
        source=experiment.source,
        data=outcome.data,
        data_state=experiment.data_state(task.folder),
        differences=outcome.differences,
        version=__version__,
        mode="quick" if task.quick else "full",
        seed=task.seed,
        cpu_seconds=round(time.process_time() - cpu, 1),
        wall_seconds=round(time.perf_counter() - wall, 1),
        checks=[replace(check, found=float(check.found)) for check in outcome.checks],
    )
    outcome.picture.savefig(folder / f"{experiment.name}.png", dpi=DOTS)
    (folder / f"{experiment.name}.json").write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    return result


def listing(folder: Path | None, out: str | os.PathLike[str]) -> Iterator[tuple[str, str, str, str]]:
    """Figure, subject, state of the data, and last result of each experiment."""
    kept = results_in(out) if local_path(out).is_dir() else {}
    for name in in_order():
        experiment = EXPERIMENTS[name]
        last = kept[name].line if name in kept else "not run"
        yield name, experiment.shows, experiment.data_state(folder), last


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
