"""``bnp-dask update``, ``follow``, ``replace``, ``retire``, ``versions``, ``changes`` and ``rollback``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import (
    add_client_options,
    add_format,
    client_spec,
    log_lines,
    open_client,
    positive_int,
    say_records,
    shown_value,
    table,
)
from bnp_dask.cli.run import result_table
from bnp_dask.inputs import say, shown

if TYPE_CHECKING:
    from bnp_dask.training import Change, SetAside, UpdateResult

IN_WORDS = {"born": "from", "returned": "from", "split": "into", "merged": "into", "deleted": "into"}
"""Preposition before the other clusters of a change, by its kind."""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this file."""
    update = commands.add_parser(
        "update",
        help="let a run take in more data",
        description="Append data to a run, visit them, decide moves, and put a new version in force. Data that "
        "the run has already are passed over. An update that is stopped leaves the run as it was. Options left out are "
        "as in the section 'update' of the job file that the run was trained by.",
    )
    update.add_argument("rundir", metavar="RUNDIR", help="run directory of 'bnp-dask train'")
    update.add_argument("data", metavar="DATA", nargs="+", help="files, Zarr stores, URLs, or folders of files")
    _add_options(update)
    _add_ageing(update)
    update.set_defaults(run=update_command)

    follow = commands.add_parser(
        "follow",
        help="let a run take in files that appear in a folder, until it is stopped",
        description="Look into a folder again and again, and take in every file that the run does not have. Files that "
        "are not finished need a hidden name, or one that ends with .tmp or .part; with --on-bad set-aside they wait. "
        "Ctrl-C stops it.",
    )
    follow.add_argument("rundir", metavar="RUNDIR", help="run directory of 'bnp-dask train'")
    follow.add_argument("data", metavar="DATA", help="a folder, or a pattern such as 'inbox/*.parquet'")
    follow.add_argument("--every", type=_seconds, default=60.0, metavar="S", help="seconds between two looks (60)")
    _add_options(follow)
    _add_ageing(follow)
    follow.set_defaults(run=follow_command)

    _add_taking_out(commands)
    changes = commands.add_parser(
        "changes",
        help="print changes of the clusters of a run",
        description="Print clusters that were born, merged or deleted, or whose share of all atoms changed, by id.",
    )
    changes.add_argument("rundir", metavar="RUNDIR", help="run directory")
    changes.add_argument("--since", type=_version, metavar="N", help="version to compare with; default: the one before")
    add_format(changes)
    changes.set_defaults(run=changes_command)

    versions = commands.add_parser(
        "versions",
        help="list the versions of a run",
        description="List the versions of a run: their times, data and results.",
    )
    versions.add_argument("rundir", metavar="RUNDIR", help="run directory")
    add_format(versions)
    versions.set_defaults(run=versions_command)

    rollback = commands.add_parser(
        "rollback",
        help="go back to an earlier version of a run",
        description="Put an earlier version in force, with its state: later data are no longer of the run.",
    )
    rollback.add_argument("rundir", metavar="RUNDIR", help="run directory")
    rollback.add_argument("version", type=_version, metavar="N", help="number of the version; 0 is made by 'train'")
    rollback.set_defaults(run=rollback_command)


def _add_taking_out(commands: argparse._SubParsersAction) -> None:
    """Add the commands that remove data from a run."""
    replace = commands.add_parser(
        "replace",
        help="take in files that were corrected, in place of a run's data from there",
        description="Take in the data of some places anew, in place of the run's data from there: files that were "
        "corrected, sequences that grew. Unchanged data are passed over. A call that is stopped leaves the run as it "
        "was.",
    )
    replace.add_argument("rundir", metavar="RUNDIR", help="run directory")
    replace.add_argument("data", metavar="DATA", nargs="+", help="paths as they were given, or folders of them")
    _add_options(replace)
    replace.set_defaults(run=replace_command)

    retire = commands.add_parser(
        "retire",
        help="take data out of a run",
        description="Take data out of a run: their statistics leave all totals and the directory, and earlier versions "
        "go. Clusters stay as long as other data use them.",
    )
    retire.add_argument("rundir", metavar="RUNDIR", help="run directory")
    retire.add_argument("data", metavar="DATA", nargs="*", help="paths as they were given, or folders that hold them")
    retire.add_argument("--before", metavar="TIME", help="take out batches wholly before this, such as 2026-08-01")
    retire.set_defaults(run=retire_command)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Options of an update."""
    parser.add_argument(
        "--revisit",
        type=_amount,
        metavar="R",
        help="older batches to visit for each new one (1); 0: a pure stream, of whose batches nothing is kept but "
        "their sum",
    )
    parser.add_argument("--laps", type=_laps, metavar="N", help="laps over all data after that (0)")
    parser.add_argument("--time", metavar="COLUMN", help="column that says when rows are from; default: names of files")
    parser.add_argument(
        "--new-words", choices=("add", "drop"), help="words that the run does not know; default: words with names enter"
    )
    parser.add_argument("--versions", type=positive_int, metavar="N", help="versions that are kept whole (10)")
    add_client_options(parser)


def _add_ageing(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that add data."""
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="atoms per batch")
    parser.add_argument(
        "--half-life", metavar="AGE", help="age at which data weigh half: 30d, '100 batches', '1e6 atoms'"
    )
    parser.add_argument(
        "--dormant", type=_amount, metavar="N", help="lay clusters of a mixture away below so many (weighted) atoms"
    )
    parser.add_argument(
        "--on-bad",
        type=_on_bad,
        metavar="WHAT",
        help="'raise' (default) or 'set-aside': treatment of files that cannot be taken in; files set aside are "
        "printed by 'changes' and 'inspect', and tried again once they have changed",
    )
    parser.add_argument("--keep", metavar="AGE", help="take out data older than this: 90d, '300 batches'")


def follow_command(args: argparse.Namespace) -> None:
    """Add appearing data, until a signal."""
    from bnp_dask.training import follow

    with open_client(client_spec(args), args.quiet) as client, log_lines(args.quiet):
        more = {"every": args.every, **_ageing(args), **_options(args)}
        for found in follow(args.rundir, args.data, client=client, **more):
            say(_told(found, args.data))


def update_command(args: argparse.Namespace) -> None:
    """Add data, one argument after the other."""
    from bnp_dask.training import update

    _one_by_one(args, partial(update, **_ageing(args), **_options(args)))


def replace_command(args: argparse.Namespace) -> None:
    """Replace data, one argument after the other."""
    from bnp_dask.training import replace

    _one_by_one(args, partial(replace, **_options(args)))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Options of an update by the names that they have in Python."""
    return _given(args, ("revisit", "laps", "time", "new_words", "versions"))


def _ageing(args: argparse.Namespace) -> dict[str, Any]:
    """Settings of commands that add data."""
    return _given(args, ("batch_size", "dormant", "half_life", "keep", "on_bad"))


def _given(args: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Some settings from the command, or else from the job file of the run."""
    from bnp_dask.cli.jobfile import update_of_run

    spec = update_of_run(args.rundir)
    return {name: getattr(spec, name) if getattr(args, name) is None else getattr(args, name) for name in names}


def _one_by_one(args: argparse.Namespace, verb: Callable[..., UpdateResult]) -> None:
    found: list[UpdateResult] = []
    with open_client(client_spec(args), args.quiet) as client, log_lines(args.quiet):
        for data in args.data:
            found.append(verb(args.rundir, data, client=client))
            say(_told(found[-1], data))
    if any(result.new for result in found):
        say(result_table(found[-1].posterior))
        say(f"next: bnp-dask changes {args.rundir}")


def _told(result: UpdateResult, data: str) -> str:
    """An update in one line, and one more for each piece of data that it set aside."""
    left = [f"{len(result.unfinished)} not finished"] if result.unfinished else []
    left += [f"{len(result.set_aside)} set aside"] if result.set_aside else []
    return "\n".join([", ".join([_told_of_new(result, data), *left]), *map(aside_line, result.set_aside)])


def _told_of_new(result: UpdateResult, data: str) -> str:
    """Line about the data that an update added."""
    from bnp_dask.structure import count_of

    if not result.new:
        return f"{data}: nothing new, version {result.version} stays in force"
    known = f", {len(result.known)} known already" if result.known else ""
    fresh = "" if math.isnan(result.fresh) else f", {result.fresh:.5g} nats per atom before they were folded"
    sealed = ", in the totals for good (they cannot be retired)" if result.sealed else ""
    return (
        f"{data}: version {result.version}, {len(result.new)} new{known}, {result.new_batches} batches and "
        f"{result.revisited} older ones visited{sealed}{fresh}, {count_of(result.posterior)}"
    )


def retire_command(args: argparse.Namespace) -> None:
    """Remove data."""
    from bnp_dask.structure import count_of, noun_of
    from bnp_dask.training import retire

    posterior = retire(args.rundir, args.data, before=args.before)
    assert posterior.summary is not None
    say(f"{posterior.summary['N'].sum():,.0f} {noun_of(posterior.model).atoms} are left, {count_of(posterior)}")


def changes_command(args: argparse.Namespace) -> None:
    """Print changes."""
    from bnp_dask.training import changes

    if args.format != "text":
        say_records([asdict(change) for change in changes(args.rundir, args.since)], args.format, CHANGED)
        return
    aside = aside_lines(args.rundir)
    try:
        say(changes_table(changes(args.rundir, args.since)))
    finally:  # also if no data could be added yet
        for line in aside:
            say(line)


CHANGED = ("kind", "cluster", "others", "before", "after", "share_before", "share_after")
"""Facts of a change."""

VERSIONED = (
    "number", "in_force", "is_kept", "before", "when", "n_clusters", "n_atoms", "n_batches", "objective", "data",
)  # fmt: skip
"""Facts of a version."""


def versions_command(args: argparse.Namespace) -> None:
    """Print versions."""
    from bnp_dask.training import versions

    found = versions(args.rundir)
    if args.format != "text":
        say_records([asdict(version) for version in found], args.format, VERSIONED)
        return
    rows = [
        [
            str(version.number),
            "in force" if version.in_force else "kept" if version.is_kept else "record only",
            *(shown_value(value) for value in (version.before, version.when, version.n_clusters, version.n_atoms)),
            shown_value(version.objective),
            _few(version.data),
        ]
        for version in found
    ]
    say(table(("version", "state", "from", "made (UTC)", "clusters", "atoms", "objective", "new data"), rows))
    say(f"a kept version is read as {args.rundir}@NUMBER, and put in force by: bnp-dask rollback {args.rundir} NUMBER")


def _few(places: Sequence[str]) -> str:
    """The first of some places."""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0]}{more}" if places else "-"


def changes_table(found: Sequence[Change]) -> str:
    """Changes in lines."""
    if not found:
        return "no cluster came or went, and the shares of all are as before"
    rows = []
    for change in found:
        others = f"{IN_WORDS[change.kind]} {', '.join(map(str, change.others))}" if change.others else ""
        atoms = f"{change.before:,.6g} -> {change.after:,.6g}"
        shares = f"{change.share_before:.1%} -> {change.share_after:.1%}"
        rows.append((change.kind, str(change.cluster), others, atoms, shares))
    return table(("change", "cluster", "", "atoms", "share of all"), rows)


def aside_lines(rundir: str) -> list[str]:
    """Data that a run set aside, a line each; none if ``rundir`` is not a run."""
    from bnp_dask.store import holds_run
    from bnp_dask.training import set_aside

    return [aside_line(piece) for piece in set_aside(rundir)] if holds_run(rundir) else []


def aside_line(piece: SetAside) -> str:
    """A piece of data that was set aside, in one line."""
    return f"set aside {piece.when}: {piece.name}: {piece.why}"


def rollback_command(args: argparse.Namespace) -> None:
    """Go back."""
    from bnp_dask.structure import count_of
    from bnp_dask.training import rollback

    posterior = rollback(args.rundir, args.version)
    say(f"version {args.version} is in force, {count_of(posterior)}")


def _on_bad(text: str) -> str:
    """Type of an argument: treatment of files that cannot be added."""
    from bnp_dask.training import ON_BAD

    if text.replace("-", " ") not in ON_BAD:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs raise or set-aside")
    return text.replace("-", " ")


def _amount(text: str) -> float:
    """Type of an argument: a number, at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs a number, at least 0")
    return value


def _seconds(text: str) -> float:
    """Type of an argument: a positive number."""
    if (value := _amount(text)) == 0:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs more than 0 seconds")
    return value


def _laps(text: str) -> int:
    """Type of an argument: a number of laps."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs a number of laps, such as 5")
    return int(text)


def _version(text: str) -> int:
    """Type of an argument: the number of a version."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"found {shown(text)}, needs the number of a version, such as 3")
    return int(text)
