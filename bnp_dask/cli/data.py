"""``bnp-dask ingest``, ``predict``, ``impute`` and ``score``: commands that read data."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import (
    add_bad_cells,
    add_client_options,
    add_cutting,
    add_format,
    add_rows,
    client_spec,
    is_quiet,
    log_lines,
    look_here,
    open_client,
    positive_int,
    posterior_of,
    rows_of,
    say_record,
    show_bar,
)
from bnp_dask.errors import SettingError
from bnp_dask.inputs import say

if TYPE_CHECKING:
    from distributed import Client

    from bnp_dask.data import Patches, Text


# -- options for raw text ------------------------------------------------------------------------------------------
OPTIONS = {
    "text_column": "column",
    "id_column": "id_column",
    "glob": "glob",
    "encoding": "encoding",
    "strict_encoding": "strict",
    "on_bad": "on_bad",
    "duplicate_ids": "on_duplicate",
    "keep_empty": "keep_empty",
    "lowercase": "lowercase",
    "strip_accents": "strip_accents",
    "token_pattern": "token_pattern",
    "ngrams": "ngrams",
    "stop_words": "stop_words",
    "min_df": "min_df",
    "max_df": "max_df",
    "max_features": "max_features",
    "rank": "rank",
    "analyzer": "analyzer",
    "keep_text": "keep_text",
}
"""Options, and the settings of :class:`bnp_dask.Text` that they give."""


def add_text_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, without defaults here: the defaults of ``Text`` apply."""
    files = parser.add_argument_group(
        "raw text",
        "a folder or archive of text files, JSON lines, a CSV or Parquet file with a column of text, or one document "
        "per line (--format lines) becomes counts of words; --format text says that SOURCE is raw text, with any "
        "names of files, and so does any of these options",
    )
    files.add_argument("--text-column", metavar="NAME", help="column or key of the text; default: text")
    files.add_argument("--id-column", metavar="NAME", help="column or key of the ids; default: id, else numbers")
    files.add_argument("--glob", metavar="PATTERN", help="files of a folder or archive to read, such as '*.txt'")
    files.add_argument("--encoding", metavar="NAME", help="default: utf-8")
    files.add_argument(
        "--strict-encoding", action="store_true", default=None, help="stop at bytes that cannot be decoded"
    )
    files.add_argument("--on-bad", choices=("error", "skip"), help="files and records that cannot be read (error)")
    files.add_argument("--duplicate-ids", choices=("error", "keep"), help="ids that were there before (error)")
    files.add_argument(
        "--keep-empty", action="store_true", default=None, help="keep documents without words as empty rows"
    )
    files.add_argument(
        "--keep-text", type=positive_int, metavar="N", help="keep N characters of each text for pages about topics"
    )
    words = parser.add_argument_group("words of raw text", "as scikit-learn's CountVectorizer takes them")
    words.add_argument("--stop-words", metavar="english|none|FILE", help="words to leave out; default: english")
    words.add_argument("--min-df", type=_frequency, metavar="N|SHARE", help="least documents with a word (2)")
    words.add_argument("--max-df", type=_frequency, metavar="N|SHARE", help="most documents with a word (1.0: all)")
    words.add_argument("--max-features", type=positive_int, metavar="N", help="most words to keep; default: no limit")
    words.add_argument("--rank", choices=("tokens", "documents"), help="count that ranks words to keep (tokens)")
    words.add_argument("--ngrams", type=_range, metavar="A,B", help="runs of A to B words; default: 1,1")
    words.add_argument(
        "--token-pattern", metavar="REGEX", help="pattern of a word; default: two or more letters or digits"
    )
    words.add_argument(
        "--analyzer",
        metavar="MODULE:FUNCTION",
        help="function that cuts a text into words (installed, or in the current directory), in place of the others "
        "but --stop-words",
    )
    words.add_argument("--lowercase", action=argparse.BooleanOptionalAction, default=None, help="(the default)")
    words.add_argument("--strip-accents", choices=("ascii", "unicode"), help="take accents from letters")


def text_settings(args: argparse.Namespace) -> Text | None:
    """Settings of raw text from the options; None if none was given."""
    given: dict[str, Any] = {
        setting: getattr(args, option) for option, setting in OPTIONS.items() if getattr(args, option) is not None
    }
    if not given and args.format is None:
        return None
    from bnp_dask.data import TEXT_FORMATS, Text

    if not given and args.format not in ("text", *TEXT_FORMATS):
        return None
    if "analyzer" in given:
        look_here()
    if given.get("stop_words") == "none":
        given["stop_words"] = None
    return Text(**given)


def _frequency(text: str) -> int | float:
    """A number of documents, or, with a decimal point, a share of them."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, needs a number of documents, such as 5, or a share of them, such as 0.5"
        ) from None


def _range(text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"found {text!r}, needs two whole numbers, such as 1,2")
    return int(parts[0]), int(parts[1])


# -- commands ------------------------------------------------------------------------------------------------------
def add(commands: argparse._SubParsersAction) -> None:
    """Add the commands of this file."""
    _add_ingest(commands)
    _add_predict(commands)
    _add_impute(commands)
    _add_score(commands)


def _add_ingest(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "ingest",
        help="turn files into a batched store",
        description="Turn a file or folder into a store of batches, the fastest form of data for training.",
    )
    parser.add_argument("source", metavar="SOURCE", help="file, folder or URL")
    parser.add_argument("out", metavar="OUT", help="store to make, such as data.zarr")
    parser.add_argument("--format", help="format of the source; default: found from its name and content")
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="atoms per batch")
    parser.add_argument(
        "--workers",
        type=positive_int,
        metavar="N",
        help="workers that the data are for: each gets at least four batches, where these have a megabyte (4)",
    )
    parser.add_argument(
        "--columns", metavar="A,B,...", help="columns of a table to take; of raw text: metadata to keep (all)"
    )
    add_bad_cells(parser)
    parser.add_argument("--weights", metavar="COLUMN|FILE", help="how often each atom counts: a column, or a .npy file")
    parser.add_argument("--group-column", metavar="COLUMN", help="ids that say which rows of a table belong together")
    parser.add_argument("--order-column", metavar="COLUMN", help="sorts the rows of each group")
    add_cutting(parser)
    parser.add_argument(
        "--vocabulary",
        metavar="FILE|STORE",
        help="words, one per line, of counts or to count in raw text; or a store whose words are used again",
    )
    parser.add_argument(
        "--project", metavar="N|STORE", help="project on N principal components, or as STORE was projected"
    )
    _add_images(parser)
    add_text_options(parser)
    parser.add_argument(
        "--dtype", help="how dense values are stored, such as float32; default: as in the source, patches as float32"
    )
    parser.add_argument(
        "--deduplicate",
        nargs="?",
        const="weights",
        choices=("weights", "once"),
        help="keep rows that occur several times once: with their total weight (weights, if no word follows), "
        "or counting once",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.set_defaults(run=ingest_command)


def _add_images(parser: argparse.ArgumentParser) -> None:
    """Add the options that cut images."""
    images = parser.add_argument_group("images", "an image, or a folder of images, becomes grey patches")
    images.add_argument("--patch", type=positive_int, metavar="PIXELS", help="side of a patch; default 8")
    images.add_argument("--number", type=positive_int, metavar="N", help="patches at random places; default: all")
    images.add_argument("--seed", type=int, metavar="N", help="of places and order; default 0")
    images.add_argument(
        "--remove-mean",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="take the mean of each patch from it (the default)",
    )
    images.add_argument(
        "--by-image",
        action="store_true",
        default=None,
        help="keep which patch is of which image: each image becomes a group, as HDPTopics takes them",
    )


def _add_predict(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "predict",
        help="assign atoms to the clusters of a posterior",
        description="Write the cluster of every atom, its responsibilities, or the response of every document, for "
        "data of any size.",
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="a saved posterior, or a run directory")
    parser.add_argument("data", metavar="DATA", help="path or URL")
    _add_out(parser, "labels")
    parser.add_argument("--soft", action="store_true", help="responsibilities instead of labels")
    parser.add_argument("--top", type=positive_int, metavar="L", help="only the L largest responsibilities")
    parser.add_argument(
        "--at",
        type=positive_int,
        metavar="K",
        help="labels of K clusters: the tree of the posterior, cut (bnp-dask tree)",
    )
    parser.add_argument(
        "--links", metavar="FILE.npy", help="the group of each row, -1 for none: groups have one cluster"
    )
    parser.add_argument(
        "--responses",
        action="store_true",
        help="responses of documents, or their classes, from topics that were trained with some",
    )
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="atoms per batch")
    add_rows(parser)
    add_client_options(parser)
    parser.set_defaults(run=predict_command)


def _add_out(parser: argparse.ArgumentParser, stem: str) -> None:
    """Add the place of the results, with or without the name of an option."""
    parser.add_argument("out", metavar="OUT", nargs="?", help=f"{stem}.csv, {stem}.parquet or {stem}.zarr")
    parser.add_argument("--out", dest="named_out", metavar="OUT", help="the same, by name")


def _out(args: argparse.Namespace) -> str:
    """The place of the results."""
    given = [place for place in (args.out, args.named_out) if place is not None]
    if len(given) != 1:
        found = "no OUT is given" if not given else f"two places are given, {given[0]} and {given[1]}"
        raise SettingError(f"{found}; needs one, such as {args.command}.csv")
    return str(given[0])


def _add_impute(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "impute",
        help="fill in entries that are missing",
        description="Write the data with the expected value of every entry that is missing, given the entries that are "
        "there; for likelihoods that were trained with missing: marginalise.",
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="a saved posterior, or a run directory")
    parser.add_argument("data", metavar="DATA", help="path or URL")
    _add_out(parser, "filled")
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="atoms per batch")
    add_rows(parser)
    add_client_options(parser)
    parser.set_defaults(run=impute_command)


def _add_score(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "score",
        help="mean log likelihood of held-out atoms",
        description="Print the mean log likelihood per atom under the posterior predictive, in nats; of a topic model "
        "document completion, per held-out token.",
    )
    parser.add_argument("posterior", metavar="POSTERIOR", help="a saved posterior, or a run directory")
    parser.add_argument("data", metavar="DATA", help="path or URL")
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="atoms per batch")
    parser.add_argument(
        "--weights",
        metavar="COLUMN|FILE|none",
        help="how often each atom counts; default: the column of weights that training had, if any",
    )
    add_rows(parser)
    completion = parser.add_argument_group("document completion (topic models)")
    completion.add_argument(
        "--split",
        choices=("types", "tokens"),
        help="hold out a fifth of the distinct words (default), or half the tokens",
    )
    completion.add_argument("--held-out", type=float, metavar="SHARE", help="another share of them, such as 0.1")
    completion.add_argument("--seed", type=int, metavar="N", help="of the split; default 0")
    add_format(parser, ("text", "json"))
    add_client_options(parser)
    parser.set_defaults(run=score_command)


def ingest_command(args: argparse.Namespace) -> None:
    """Make a store and print its contents."""
    from bnp_dask.data import WORKERS, ingest

    columns = None if args.columns is None else [c.strip() for c in args.columns.split(",")]
    project = int(args.project) if args.project is not None and args.project.isdecimal() else args.project
    with log_lines(args.quiet), _share_bar(show_bar(args.quiet)) as progress:
        report = ingest(
            args.source,
            args.out,
            format=args.format,
            batch_size=args.batch_size,
            columns=columns,
            weights=args.weights,
            vocabulary=args.vocabulary,
            project=project,
            patches=_patches(args),
            text=text_settings(args),
            dtype=args.dtype,
            progress=progress,
            overwrite=args.overwrite,
            group_column=args.group_column,
            order_column=args.order_column,
            gaps=args.gaps,
            step=args.step,
            cut=args.cut,
            workers=WORKERS if args.workers is None else args.workers,
            deduplicate=args.deduplicate,
            on_bad_cell=args.on_bad_cell,
        )
    say(str(report))


def _patches(args: argparse.Namespace) -> Patches | None:
    """Settings that cut images; None if no option was given."""
    from bnp_dask.data import Patches

    said = {
        "side": args.patch, "number": args.number, "seed": args.seed, "remove_mean": args.remove_mean,
        "by_image": args.by_image,
    }  # fmt: skip
    given = {name: value for name, value in said.items() if value is not None}
    return Patches(**given) if given else None


@contextlib.contextmanager
def _share_bar(wanted: bool) -> Iterator[Callable[[float, int], None] | None]:
    """A progress bar over the read share of the source, with the atoms so far beside it."""
    if not wanted:
        yield None
        return
    from tqdm.auto import tqdm

    with tqdm(total=100, unit="%", bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}") as bar:

        def progress(share: float, atoms: int) -> None:
            bar.n = 100 * share
            bar.set_postfix_str(f"{atoms:,} atoms")

        yield progress


def predict_command(args: argparse.Namespace) -> None:
    """Write labels, responsibilities or responses."""
    from bnp_dask.analysis import predict_response
    from bnp_dask.analysis.predict import predict

    out = _out(args)
    others = [name for name in ("soft", "top", "at", "links") if getattr(args, name)]
    if args.responses and others:
        raise SettingError(f"--responses and --{others[0]}: responses of documents are written alone; leave one out")
    posterior = posterior_of(args.posterior)
    # --top alone, or both options, give the L largest responsibilities
    soft = args.soft and args.top is None
    data = rows_of(args, posterior, args.posterior)
    size = args.batch_size if isinstance(data, str) else None
    with _client(args) as client:
        if args.responses:
            predict_response(posterior, data, out=out, batch_size=size, client=client)
            say(f"wrote {out}", args.quiet)
            return
        predict(
            posterior,
            data,
            out=out,
            soft=soft,
            top=args.top,
            at=args.at,
            links=args.links,
            batch_size=size,
            client=client,
        )
    say(f"wrote {out}", args.quiet)


def impute_command(args: argparse.Namespace) -> None:
    """Write the data with missing entries filled in."""
    from bnp_dask.analysis import impute

    out = _out(args)
    posterior = posterior_of(args.posterior)
    data = rows_of(args, posterior, args.posterior)
    size = args.batch_size if isinstance(data, str) else None
    with _client(args) as client:
        impute(posterior, data, out=out, batch_size=size, client=client)
    say(f"wrote {out}", args.quiet)


def score_command(args: argparse.Namespace) -> None:
    """Print the held-out log likelihood."""
    from bnp_dask.analysis import Completion, completion_score
    from bnp_dask.analysis.score import score

    posterior = posterior_of(args.posterior)
    said = {"split": args.split, "share": args.held_out, "seed": args.seed}
    given = {name: value for name, value in said.items() if value is not None}
    completion = Completion(**given) if given else None
    data = rows_of(args, posterior, args.posterior, weights=True)
    size = args.batch_size if isinstance(data, str) else None
    with _client(args, is_quiet(args)) as client:
        if not posterior.model.structure.has_shares:
            value = score(posterior, data, completion=completion, batch_size=size, client=client)
            atom = posterior.model.structure.atom
            if args.format == "json":
                say_record({"score": float(value), "unit": f"nats per {atom}"})
            else:
                say(f"{value:.10g} nats per {atom}")
            return
        found = completion_score(posterior, data, completion, batch_size=size, client=client)
    if args.format == "json":
        counts = {"tokens": found.n_tokens, "documents": found.n_documents, "skipped": found.n_skipped}
        say_record({"score": float(found.score), "unit": "nats per held-out token", **counts})
        return
    say(f"{found.score:.10g} nats per held-out token")
    say(f"{found.n_tokens:,.10g} tokens of {found.n_documents:,} documents ({found.n_skipped:,} skipped)", args.quiet)


@contextlib.contextmanager
def _client(args: argparse.Namespace, quiet: bool | None = None) -> Iterator[Client | None]:
    with open_client(client_spec(args), args.quiet if quiet is None else quiet) as client, log_lines(args.quiet):
        yield client
