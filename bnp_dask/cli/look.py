"""``bnp-dask ls``, ``inspect``, ``tree``, ``certainty``, ``compare`` and ``report``: commands that show results."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import (
    add_client_options,
    add_format,
    add_rows,
    client_spec,
    is_quiet,
    job_data,
    log_lines,
    open_client,
    positive_int,
    posterior_of,
    rows_of,
    say_records,
    shown_value,
    table,
)
from bnp_dask.cli.growing import aside_lines
from bnp_dask.errors import BnpDaskError, DataError, SettingError
from bnp_dask.inputs import number_from, say

if TYPE_CHECKING:
    from bnp_dask.reports.describe import ClusterTable

LEVELS = 20
"""Levels of a tree that are listed, the coarsest."""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this file."""
    listed = commands.add_parser(
        "ls",
        help="list the runs of a folder",
        description="List runs in a folder, three levels deep: their model, state, laps, clusters and versions.",
    )
    listed.add_argument("folder", metavar="FOLDER", nargs="?", default=".", help="folder or URL (the current one)")
    add_format(listed)
    listed.set_defaults(run=ls_command)

    inspect = commands.add_parser(
        "inspect",
        help="print the clusters of a posterior or a run",
        description="Print the clusters, ranked by weight, with their parameters.",
    )
    inspect.add_argument("what", metavar="POSTERIOR|RUNDIR", help="a saved posterior, or a run directory")
    inspect.add_argument("--limit", type=positive_int, metavar="N", help="clusters to list at most")
    _add_vocabulary(inspect)
    inspect.add_argument(
        "--prices",
        metavar="DATA",
        help="path or URL of the data that it was trained on: also print the nats that would be lost without each "
        "cluster, and with each cluster united with its nearest; two passes or more over the data",
    )
    add_format(inspect)
    add_client_options(inspect)
    inspect.set_defaults(run=inspect_command)

    tree = commands.add_parser(
        "tree",
        help="unite the clusters of a posterior one after the other",
        description="Print which clusters would be one next, and the nats of the objective lost; needs no data.",
    )
    tree.add_argument("what", metavar="POSTERIOR|RUNDIR", help="a saved posterior, or a run directory")
    tree.add_argument(
        "--limit", type=positive_int, default=LEVELS, metavar="N", help=f"levels to list (default {LEVELS})"
    )
    tree.add_argument("--at", type=positive_int, metavar="K", help="number of clusters of the posterior to save")
    tree.add_argument("--loss", type=_nats, metavar="NATS", help="or: as few clusters as lose at most this")
    tree.add_argument("--out", metavar="CUT.ZARR", help="where to save the posterior of --at or --loss")
    tree.add_argument("--picture", metavar="TREE.PNG", help="draw the tree")
    tree.set_defaults(run=tree_command)

    certainty = commands.add_parser(
        "certainty",
        help="tell how sure the number of clusters is",
        description="Print the numbers of clusters that explain the data about as well, and whether other starts and "
        "resampled data agree.",
    )
    certainty.add_argument("what", metavar="POSTERIOR|RUNDIR", help="a saved posterior, or a run directory")
    certainty.add_argument("data", metavar="DATA", nargs="?", help="path or URL of the data that it was trained on")
    certainty.add_argument("--starts", type=positive_int, default=0, metavar="N", help="other runs from other starts")
    certainty.add_argument("--resamples", type=positive_int, default=0, metavar="N", help="runs on resampled data")
    certainty.add_argument("--json", action="store_true", help="all numbers as JSON")
    add_client_options(certainty)
    certainty.set_defaults(run=certainty_command)

    compare = commands.add_parser(
        "compare",
        help="print several runs side by side",
        description="Print objective, clusters and held-out score of several runs or posteriors, side by side.",
    )
    compare.add_argument(
        "what",
        metavar="POSTERIOR|RUNDIR",
        nargs="+",
        help="saved posteriors, run directories, or versions of a run, such as RUNDIR@0",
    )
    compare.add_argument("--heldout", metavar="DATA", help="path or URL of data that no run was trained on")
    add_format(compare)
    add_client_options(compare)
    compare.set_defaults(run=compare_command)

    report = commands.add_parser(
        "report",
        help="write a page about a run",
        description="Write an HTML page: settings, clusters, and the objective over the run; of a topic model a page "
        "to browse topics, words and documents.",
    )
    report.add_argument("rundir", metavar="RUNDIR", help="run directory, or a saved posterior")
    report.add_argument("out", metavar="OUT.HTML", help="page to write: a file, or a URL of an object store")
    _add_vocabulary(report)
    report.add_argument(
        "--data",
        metavar="DATA",
        help="documents, sequences or atoms to show; default: the run's training data",
    )
    report.add_argument(
        "--reference",
        metavar="FILE",
        help="known labels of all steps, in the order of the data: a .npy file, or a Parquet file with the columns "
        "sequence and state; the page tells how far the states of each sequence are from them",
    )
    report.add_argument(
        "--images",
        metavar="ROWSxCOLUMNS",
        type=_image_shape,
        help="show clusters as images, such as 8x8, or no: default is to show them where features are clearly pixels",
    )
    add_rows(report)
    add_client_options(report)
    report.set_defaults(run=report_command)


RUN_COLUMNS = ("path", "model", "state", "laps", "n_clusters", "objective", "version", "created")
"""Facts of a run in a list of runs."""

COMPARED = ("run", "model", "n_clusters", "objective", "heldout", "laps", "seconds")
"""Facts of a run in a comparison."""


def ls_command(args: argparse.Namespace) -> None:
    """Print the runs of a folder."""
    from bnp_dask.training import runs

    found = [asdict(facts) for facts in runs(args.folder)]
    if args.format != "text":
        say_records(found, args.format, RUN_COLUMNS)
        return
    if not found:
        say(f"no runs in {args.folder}")
        return
    head = ("run", "model", "state", "laps", "clusters", "objective", "version", "created (UTC)")
    say(table(head, [[shown_value(facts[name]) for name in RUN_COLUMNS] for facts in found]))


def inspect_command(args: argparse.Namespace) -> None:
    """Print the clusters."""
    from bnp_dask.reports.run_page import LIMIT, inspect

    limit, found = LIMIT if args.limit is None else args.limit, None
    if args.prices is not None:
        from bnp_dask.analysis.prices import prices

        with open_client(client_spec(args), is_quiet(args)) as client:
            found = prices(posterior_of(args.what), args.prices, client=client)
    listed = inspect(args.what, _vocabulary(args), limit, prices=found)
    if args.format != "text":
        records, columns = _records(listed)
        say_records(records, args.format, columns)
        return
    say(str(listed))
    for line in aside_lines(args.what):
        say(line)


def _records(listed: ClusterTable) -> tuple[list[dict[str, Any]], list[str]]:
    """Clusters as records, with their prices if these are known, and the names of the columns."""
    names = ["cluster", "weight", "atoms", "parameters"]
    priced = ["without", "united", "nearest"] if any(row.price is not None for row in listed) else []
    records = []
    for row in listed:
        record = {"cluster": row.id, "weight": row.weight, "atoms": row.count, "parameters": row.text}
        records.append(record | {name: getattr(row.price, name) for name in priced})
    return records, names + priced


def tree_command(args: argparse.Namespace) -> None:
    """Print the tree, and save a cut or a picture of it."""
    from bnp_dask.analysis.tree import tree

    if (args.out is None) != (args.at is None and args.loss is None) or (args.at is not None and args.loss is not None):
        raise SettingError("--out CUT.ZARR saves the posterior of --at K or of --loss NATS: give --out and one of them")
    if args.picture is not None and not args.picture.endswith(".png"):
        raise SettingError(f"--picture {args.picture}: needs a name that ends with .png")
    found = tree(posterior_of(args.what))
    say(f"{found!r}")
    say(f"{'clusters':>8s} {'nats lost':>12s} {'by this':>10s}  united")
    for union in found.unions[max(0, len(found.unions) - args.limit) :]:
        say(f"{union.n_clusters:8d} {union.loss:12,.6g} {union.price:10,.4g}  {union.keep} + {union.drop}")
    if args.out is not None:
        found.cut(args.at, loss=args.loss).save(args.out)
        say(f"wrote {args.out}", args.quiet)
    if args.picture is not None:
        from bnp_dask.reports.plots import save_tree

        save_tree(found, args.picture)
        say(f"wrote {args.picture}", args.quiet)


def certainty_command(args: argparse.Namespace) -> None:
    """Print how sure the number of clusters is."""
    from bnp_dask.reports.run_page import open_subject
    from bnp_dask.training.certainty import certainty

    posterior, result = open_subject(args.what)
    with open_client(client_spec(args), args.quiet) as client, log_lines(True):
        found = certainty(
            posterior if result is None else result,
            args.data,
            starts=args.starts,
            resamples=args.resamples,
            client=client,
        )
    say(found.to_json() if args.json else repr(found))


def compare_command(args: argparse.Namespace) -> None:
    """Print the runs."""
    from bnp_dask.reports.run_page import compare

    with open_client(client_spec(args), is_quiet(args)) as client, log_lines(args.quiet):
        found = compare(args.what, heldout=args.heldout, client=client)
    if args.format != "text":
        say_records([asdict(line) | {"run": path} for line, path in zip(found, args.what)], args.format, COMPARED)
        return
    say(str(found))


def report_command(args: argparse.Namespace) -> None:
    """Write the page."""
    from bnp_dask.reports.run_page import report

    with open_client(client_spec(args), args.quiet) as client, log_lines(args.quiet):
        found = {"data": _data(args), "reference": _reference(args), "images": args.images}
        report(args.rundir, args.out, _vocabulary(args), client=client, **found)
    say(f"wrote {args.out}", args.quiet)


def _nats(text: str) -> float:
    """Nats, a number >= 0."""
    try:
        return number_from("--loss", float(text), 0.0)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: needs nats, a number >= 0") from error


def _image_shape(text: str) -> tuple[int, int] | bool:
    """Rows and columns of images, or False for none."""
    if text == "no":
        return False
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r}: needs rows and columns, such as 8x8, or no")
    return int(sides[0]), int(sides[1])


def _data(args: argparse.Namespace) -> Any:
    """Data of a page: from the options, else rows in groups that the job file of a run names."""
    posterior = posterior_of(args.rundir)
    if args.data is not None:
        return rows_of(args, posterior, args.rundir)
    spec = job_data(args.rundir)
    if spec is None or (spec.groups is None and spec.cut is None) or not posterior.model.structure.is_ordered:
        return None
    try:
        return spec.open()
    except BnpDaskError:  # gone or changed: the page says so
        return None


def _reference(args: argparse.Namespace) -> Any:
    """Known labels of steps, if they are given."""
    if args.reference is None or not args.reference.endswith(".npy"):
        return args.reference
    import numpy as np

    try:
        return np.load(args.reference, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the labels {args.reference}: {error}") from error


def _add_vocabulary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vocabulary", metavar="FILE|STORE", help="names of words or features: one per line, or a store that has them"
    )


def _vocabulary(args: argparse.Namespace) -> list[str] | None:
    """Names of words or features, if they are given."""
    if args.vocabulary is None:
        return None
    from bnp_dask.core import Location
    from bnp_dask.data import read_vocabulary

    location = Location.of(args.vocabulary)
    location.require()
    if location.is_dir():
        words = read_vocabulary(args.vocabulary)
        if words is None:
            raise DataError(f"{location.name} has no vocabulary; give a text file with one word per line")
        return list(words)
    try:
        with location.open() as file:
            return file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read the vocabulary {location.name}: {error}") from error
