"""``bnp-dask demo``."""

from __future__ import annotations

import argparse

from bnp_dask.cli.console import positive_int


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command of this file."""
    parser = commands.add_parser(
        "demo",
        help="train on real data that is there already, and show the result",
        description="patches: 8x8 pieces of two photographs, a Dirichlet process mixture of zero-mean Gaussians, on "
        "a Dask cluster of two processes; about two minutes.  digits: handwritten digits; half a minute.  topics: "
        "docstrings of the standard library and the installed packages, an HDP topic model; about two minutes.",
        allow_abbrev=False,
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
