"""Options for groups of rows of the data, and their order: sequences, images, documents."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import positive_int

if TYPE_CHECKING:
    from bnp_dask.cli.job_parts import DataSpec
    from bnp_dask.core.columns import Roles
    from bnp_dask.model import Posterior

NO_WEIGHTS = "none"
"""Value in place of a column of weights: every row counts once."""


def add_cutting(parser: argparse._ActionsContainer) -> None:
    """Add the options that cut sequences."""
    parser.add_argument(
        "--gaps", choices=("refuse", "cut", "ignore"), help="treatment of gaps in the order column; default: refuse"
    )
    parser.add_argument("--step", type=float, metavar="X", help="distance of rows in the order column; default: median")
    parser.add_argument(
        "--cut", type=positive_int, metavar="N", help="cut longer groups (sequences) into blocks of at most N rows"
    )


def add_bad_cells(parser: argparse._ActionsContainer) -> None:
    """Add the option for cells of tables that are not numbers."""
    parser.add_argument(
        "--on-bad-cell",
        choices=("raise", "missing"),
        help="cells that are no numbers in columns of numbers: an error (the default), or missing entries",
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that read data which were not ingested with groups."""
    group = parser.add_argument_group(
        "rows that belong together",
        "for files that do not say it; tables are read as the posterior was trained, by the names of its columns",
    )
    group.add_argument("--columns", metavar="A,B,...", help="columns of a table to take")
    add_bad_cells(group)
    group.add_argument("--group-column", metavar="COLUMN|FILE", help="column of ids, or a .npy file of offsets")
    group.add_argument("--order-column", metavar="COLUMN", help="rises within each group")
    add_cutting(group)


def rows_of(args: argparse.Namespace, posterior: Posterior, trained: str, weights: bool = False) -> Any:
    """Rows to read: the path as it was given, or a source if anything is known about its rows.

    Tables are read with the features, groups and order of training, and with its ``weights`` if these matter; other
    columns are ignored.  Each option overrides its own setting.  ``trained`` is the posterior or run directory:
    posteriors of earlier versions have no columns, but the job file of a run does.
    """
    from bnp_dask.analysis.matching import columns_for
    from bnp_dask.data import as_source

    said = {name: value for name, value in _said(args).items() if value is not None}
    known = columns_for(posterior, weights)
    if known is None:
        settings = {**_of_job(trained, weights), **said} if _is_table(args.data) else said
    elif "columns" in said:
        settings = {**_of_roles(known.roles), **said}
    else:
        settings = {"columns": replace(known, chosen=True), **said}
    if settings.get("weights") == NO_WEIGHTS:
        del settings["weights"]
        if known is not None and "columns" not in said:
            settings["columns"] = replace(known.using(weights=False, groups=True), chosen=True)
    if str(settings.get("groups", "")).endswith(".npy"):
        settings = {name: value for name, value in settings.items() if name not in ("order", "gaps", "step")}
    if not settings:
        return args.data
    return as_source(args.data, batch_size=getattr(args, "batch_size", None), **settings)


def job_data(rundir: str) -> DataSpec | None:
    """The data that a run was trained on, as its job file describes them; None without one."""
    from bnp_dask.cli.jobfile import DataSpec, job_of_run
    from bnp_dask.errors import BnpDaskError

    try:
        job = job_of_run(rundir)
        return job.data if job is not None and isinstance(job.data, DataSpec) else None
    except BnpDaskError:  # another version, or missing files: the run can be read without its job
        return None


def _said(args: argparse.Namespace) -> dict[str, Any]:
    columns = None if args.columns is None else [c.strip() for c in args.columns.split(",")]
    return {
        "columns": columns,
        "groups": args.group_column,
        "order": args.order_column,
        "gaps": args.gaps,
        "step": args.step,
        "cut": args.cut,
        "on_bad_cell": args.on_bad_cell,
        "weights": getattr(args, "weights", None),
    }


def _is_table(path: str) -> bool:
    """Whether a path holds a table with named columns."""
    from bnp_dask.core.location import Location
    from bnp_dask.data.ingestion.streams import detect
    from bnp_dask.errors import BnpDaskError

    try:
        location = Location.of(path)
        location.require()
        return detect(location) in ("parquet", "arrow", "csv", "tsv")
    except (BnpDaskError, ImportError):  # reported as the data are opened
        return False


def _of_job(rundir: str, weights: bool) -> dict[str, Any]:
    """Columns of the data by the job file of a run, if these are columns and not files."""
    spec = job_data(rundir)
    if spec is None:
        return {}
    of_rows = ("groups", "order", "gaps", "step", "cut")
    by_column = spec.groups is not None and not spec.groups.endswith(".npy")
    names = ["columns", "on_bad_cell", *(of_rows if by_column else ())]
    if weights and spec.weights is not None and not spec.weights.endswith(".npy"):
        names.append("weights")
    return {name: getattr(spec, name) for name in names if getattr(spec, name) is not None}


def _of_roles(roles: Roles) -> dict[str, Any]:
    """Columns that are not features, as arguments of :func:`bnp_dask.as_source`."""
    found: dict[str, Any] = {"weights": roles.weights, "groups": roles.groups, "order": roles.order}
    if roles.groups is not None:
        found["cut"] = roles.cutting.cut
    if roles.order is not None:
        found |= {"gaps": roles.cutting.gaps, "step": roles.cutting.step}
    return {name: value for name, value in found.items() if value is not None}
