"""Options that say which rows of the data belong together, and in which order: sequences, images, documents."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnp_dask.console import positive_int

if TYPE_CHECKING:
    from bnp_dask.jobfile import DataSpec

SETTINGS = ("columns", "groups", "order", "gaps", "step", "cut")
"""What these options are called where data are opened."""


def add_cutting(parser: argparse._ActionsContainer) -> None:
    """Options that say where sequences may be cut."""
    parser.add_argument(
        "--gaps", choices=("refuse", "cut", "ignore"), help="what a gap in the order column does; default: refuse"
    )
    parser.add_argument("--step", type=float, metavar="X", help="distance of rows in the order column; default: median")
    parser.add_argument(
        "--cut", type=positive_int, metavar="N", help="cut longer groups (sequences) into blocks of at most N rows"
    )


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Options of commands that read data which were not ingested with groups."""
    group = parser.add_argument_group(
        "rows that belong together",
        "for files that do not say it; of a run directory, what its job file says holds for other tables too",
    )
    group.add_argument("--columns", metavar="A,B,...", help="columns of a table to take")
    group.add_argument("--group-column", metavar="COLUMN|FILE", help="column of ids, or a .npy file of offsets")
    group.add_argument("--order-column", metavar="COLUMN", help="rises within each group")
    add_cutting(group)


def rows_of(args: argparse.Namespace, trained: str) -> Any:
    """What to read: the path as it was given, or a source when anything is known about its rows.

    ``trained`` is the posterior or run directory: what the job file of a run says about the columns of tables holds
    for other tables too, unless options say otherwise.
    """
    from bnp_dask.data import as_source

    settings = {name: value for name, value in _said(args).items() if value is not None}
    if not settings and _is_table(args.data):
        settings = _of_job(trained)
    if not settings:
        return args.data
    return as_source(args.data, batch_size=getattr(args, "batch_size", None), **settings)


def job_data(rundir: str) -> DataSpec | None:
    """The data that a run was trained on, as its job file describes them; None without one."""
    from bnp_dask.errors import BnpDaskError
    from bnp_dask.jobfile import COPY_NAME, read_job

    copy = Path(rundir) / COPY_NAME
    if not copy.is_file():
        return None
    try:
        return read_job(copy).data
    except BnpDaskError:  # of another version, or its files are gone: the run can be read without it
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
    }


def _is_table(path: str) -> bool:
    """Whether a path is that of a table with named columns."""
    from bnp_dask.data.files import Location
    from bnp_dask.data.formats import detect
    from bnp_dask.errors import BnpDaskError

    try:
        location = Location.of(path)
        location.require()
        return detect(location) in ("parquet", "csv", "tsv")
    except BnpDaskError:  # told where it is opened
        return False


def _of_job(rundir: str) -> dict[str, Any]:
    """What the job file of a run says about the columns of its data, if groups are among it."""
    spec = job_data(rundir)
    if spec is None or spec.groups is None or spec.groups.endswith(".npy"):
        return {}
    return {name: getattr(spec, name) for name in SETTINGS if getattr(spec, name) is not None}
