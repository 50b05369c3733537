"""``bnp-dask demo`` and ``bnp-dask reproduce``: demonstrations and figures of the papers, without data of a user."""

from __future__ import annotations

import argparse
import json

from bnp_dask.cli.console import positive_int, table
from bnp_dask.errors import SettingError
from bnp_dask.inputs import local_path, say


def add_demo(commands: argparse._SubParsersAction) -> None:
    """Add the command of this file."""
    parser = commands.add_parser(
        "demo",
        help="train on real data that is there already, and show the result",
        description="patches: 8x8 pieces of two photographs, a Dirichlet process mixture of zero-mean Gaussians, on "
        "a Dask cluster of two processes; about two minutes.  digits: handwritten digits; half a minute.  topics: "
        "docstrings of the standard library and the installed packages, an HDP topic model; about two minutes.",
    )
    parser.add_argument(
        "name", nargs="?", choices=("patches", "digits", "topics"), default="patches", help="default: patches"
    )
    parser.add_argument("--patches", type=positive_int, default=None, metavar="N", help="patches to cut")
    parser.add_argument("--limit", type=positive_int, default=None, metavar="N", help="docstrings to read at most")
    parser.add_argument("--laps", type=positive_int, default=None, metavar="N", help="passes over the data at most")
    parser.add_argument("--workers", type=positive_int, default=2, metavar="N", help="processes to start (2)")
    parser.add_argument("--dir", default="bnp-dask-demo", metavar="DIR", help="where everything goes (bnp-dask-demo)")
    parser.set_defaults(run=demo_command)


def demo_command(args: argparse.Namespace) -> None:
    """Run a demonstration."""
    from bnp_dask.cli.demo import run_demo

    run_demo(
        args.name,
        args.dir,
        patches=args.patches,
        limit=args.limit,
        laps=args.laps,
        workers=args.workers,
        quiet=args.quiet,
    )


OUT = "bnp-dask-reproduce"
"""Where results go."""


def add_reproduce(commands: argparse._SubParsersAction) -> None:
    """Add the command of this file."""
    parser = commands.add_parser(
        "reproduce",
        help="make figures and tables of the papers anew, and compare them",
        description="Run experiments of the papers that this package is built from. Each leaves FIGURE.png and "
        "FIGURE.json: data, seed, the paper's value, the value found, whether it is within the tolerance, CPU.",
    )
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help="such as 000-4.6, or 004 for a whole paper; none: all"
    )
    parser.add_argument("--list", action="store_true", help="list figures, their data and last results; run nothing")
    parser.add_argument("--quick", action="store_true", help="the small version of each: minutes for all")
    parser.add_argument("--data", metavar="FOLDER", help="folder of real data sets; without it stand-ins are drawn")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all random numbers (0)")
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"folder of results ({OUT})")
    parser.add_argument("--page", metavar="FILE.md", help="write a page of all results in the folder at the end")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how results are printed")
    parser.set_defaults(run=reproduce_command)


def reproduce_command(args: argparse.Namespace) -> None:
    """List or run experiments."""
    from bnp_dask.cli.demo import needs_extras
    from bnp_dask.reproduce import Task, chosen, listing, run
    from bnp_dask.reproduce.base import write_page

    folder = None if args.data is None else local_path(args.data)
    if folder is not None and not folder.is_dir():
        raise SettingError(f"--data {args.data}: there is no such folder; leave it out for synthetic stand-ins")
    experiments = chosen(args.figures)
    if args.list:
        names = {experiment.name for experiment in experiments}
        rows = [row for row in listing(folder, args.out) if row[0] in names]
        heads = ("figure", "what it shows", "data", "last result")
        as_json = json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=1)
        say(as_json if args.format == "json" else table(heads, rows))
        return
    for experiment in experiments:
        say(f"{experiment.name}: {experiment.shows} ...", args.quiet)
        with needs_extras(f"the figure {experiment.name}"):
            result = run(experiment, Task(quick=args.quick, folder=folder, seed=args.seed), args.out)
        if args.format == "json":
            say(json.dumps(result.to_json()))
            continue
        say(f"{result.name}: {result.line}; {result.data}")
        compared = [
            (
                check.what,
                check.printed,
                f"{check.found:.4g}",
                check.tolerance,
                "holds" if check.holds else "DOES NOT HOLD",
            )
            for check in result.checks
        ]
        say(table(("what", "printed", "here", "tolerance", ""), compared))
    say(f"results and pictures: {args.out}", args.quiet)
    if args.page is not None:
        say(f"page: {write_page(args.page, args.out)}", args.quiet)
