"""The whole benchmark suite in one command: figures as JSON lines, a table and a plot.

``python -m benchmarks.suite FOLDER [parts]``: writes ``FOLDER/lines.jsonl``, ``FOLDER/table.md`` and
``FOLDER/growth.png``.  Without ``parts`` all of them run, about 25 minutes on two idle cores; ``--redraw`` makes the
table and the plot from the lines that are there.  Peers are measured in the same run where they can be imported:
scikit-learn, hmmlearn and dynamax (``PEERS`` may name a folder that has them).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Line = dict[str, Any]

PARTS: dict[str, tuple[str, ...]] = {
    "mixtures": ("benchmarks.run", "kernel", "sklearn", "global_step"),
    "screening": ("benchmarks.bench_screening",),
    "job": ("benchmarks.run", "job"),
    "topics": ("benchmarks.topics.document_step",),
    "chains": ("benchmarks.chains.bench_forward_backward",),
    "moves": ("benchmarks.moves.bench_moves", "--atoms", "1000000", "--cases", "all", "--models", "full"),
    "overhead": ("benchmarks.run", "coordinator"),
    "coordinator": ("benchmarks.coordinator.measure",),
    "simulator": ("benchmarks.coordinator.check",),
    "growth": ("benchmarks.growth",),
}


@dataclass(frozen=True)
class Row:
    """A row of the table: of the lines that ``match``, what ``value`` says of each, in their order."""

    what: str
    unit: str
    match: Callable[[Line], bool]
    value: Callable[[Line], str]


def named(start: str) -> Callable[[Line], bool]:
    """Lines whose name starts so."""
    return lambda line: str(line.get("name", line.get("bench", ""))).startswith(start)


def number(key: str = "value", of: str | None = None) -> Callable[[Line], str]:
    """A figure, to three digits, with what it belongs to."""

    def text(line: Line) -> str:
        value = f"{float(line[key]):.3g}"
        return value if of is None else f"{value} ({of}={line[of]})"

    return text


ROWS = (
    Row("Gaussian mixtures, a lap against an iteration of scikit-learn's, CPU", "times faster",
        named("speed over sklearn"), lambda line: f"{line['value']:.3g} ({line['name'].split(', ')[1]})"),
    Row("Gaussian mixtures, local step against the dense dgemm roofline", "times",
        named("mixed over roofline"), lambda line: f"{line['value']:.3g} ({line['name'].split(', ', 1)[1]})"),
    Row("from a file to a converged mixture, 100,000 x 16, K=1 to 32", "s", named("job from K=1"), number()),
    Row("scikit-learn's mixture of 64, 20 iterations of it", "s", named("sklearn, 64 clusters"), number()),
    Row("topics, document step against scikit-learn's, equally near to the end, CPU", "times faster",
        named("document step, as near to the end"), number("ratio", "K")),
    Row("hidden Markov models, hmmlearn's scaling code against forward-backward, CPU", "times slower",
        named("hmmlearn scaling"), number("times_ours", "K")),
    Row("a lap with all moves over one without, K=50", "times", named("lap with all"), number("median")),
    Row("share of a lap that two workers spend in local steps", "of 1", lambda line: "workers busy" in
        str(line.get("name", "")), lambda line: f"{line['value']:.3g} ({line['name'].split(', ')[1]})"),
    Row("summaries that the coordinator takes, K=200, D=64", "per second", named("summaries per second"),
        number("coordinator", "window")),
    Row("simulated lap over a real one", "of 1", named("a lap, seconds"), number("simulated / real", "workers")),
    Row("speed of two workers over one", "times", named("strong scaling"), number()),
    Row("half the data on one worker over all on two", "times", named("weak scaling"), number()),
    Row("growth of a worker's peak memory after its first lap", "MB", named("worker's peak memory"), number()),
)  # fmt: skip

CURVES = (
    ("grows with N", "N", "atoms"),
    ("grows with D", "D", "features"),
    ("grows with K", "K", "clusters"),
    ("grows with V", "V", "words"),
    ("grows with states", "K", "states of a hidden Markov model"),
)


def run_part(name: str, out: Path) -> None:
    """One part as a process of its own; its lines are appended, whatever becomes of it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    print(f"-- {name}: load {os.getloadavg()[0]:.1f}", flush=True)
    command = [sys.executable, "-W", "ignore", "-m", *PARTS[name]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process, out.open("a") as f:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            if text.startswith("{"):
                f.write(json.dumps({"part": name, **json.loads(text)}) + "\n")
    if process.returncode:
        print(f"{name} ended with code {process.returncode}", file=sys.stderr)


def read(path: Path) -> list[Line]:
    """The lines."""
    return [json.loads(text) for text in path.read_text().splitlines()]


def table(lines: list[Line]) -> str:
    """The headline figures as Markdown; what was not measured is left out."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    out = [f"{datetime.now(UTC):%Y-%m-%d}; {machine}", "", "| | figure | unit |", "| --- | --- | --- |"]
    for row in ROWS:
        found = [row.value(line) for line in lines if row.match(line)]
        if found:
            out.append(f"| {row.what} | {', '.join(found)} | {row.unit} |")
    return "\n".join(out) + "\n"


def plot(lines: list[Line], path: Path) -> None:
    """How time grows, one panel for each size, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(CURVES), figsize=(3.4 * len(CURVES), 3.2), layout="constrained")
    for axis, (start, key, label) in zip(axes, CURVES, strict=True):
        names = dict.fromkeys(line["name"] for line in lines if named(start)(line))
        for name in names:
            points = [(line[key], line["value"]) for line in lines if line.get("name") == name]
            axis.loglog(*zip(*points, strict=True), marker="o", label=name.partition(", ")[2] or None)
        units = [line["unit"] for line in lines if line.get("name") in names]
        axis.set(xlabel=label, ylabel=units[0] if units else "")
        axis.grid(alpha=0.3, which="both")
        if any("," in name for name in names):
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Run, gather, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    parser.add_argument("--redraw", action="store_true", help="run nothing")
    args = parser.parse_args()
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    lines = args.folder / "lines.jsonl"
    if not args.redraw:
        chosen = args.parts or list(PARTS)
        kept = [line for line in (read(lines) if lines.exists() else []) if line["part"] not in chosen]
        lines.write_text("".join(json.dumps(line) + "\n" for line in kept))
        for name in chosen:
            run_part(name, lines)
    text = table(read(lines))
    (args.folder / "table.md").write_text(text)
    plot(read(lines), args.folder / "growth.png")
    print(text)


if __name__ == "__main__":
    main()
