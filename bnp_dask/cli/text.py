"""Options of ``bnp-dask ingest`` for raw text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bnp_dask.cli.console import positive_int
from bnp_dask.cli.guests import look_here

if TYPE_CHECKING:
    from bnp_dask.data import Text

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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, without defaults here: the defaults of ``Text`` apply."""
    files = parser.add_argument_group(
        "raw text",
        "a folder or archive of text files, JSON lines, a CSV or Parquet file with a column of text, or one document "
        "per line (--format lines) becomes counts of words; --format text says that SOURCE is raw text, whatever its "
        "files are called, and so does any of these options",
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
    words.add_argument("--rank", choices=("tokens", "documents"), help="what the words kept have the most of (tokens)")
    words.add_argument("--ngrams", type=_range, metavar="A,B", help="runs of A to B words; default: 1,1")
    words.add_argument(
        "--token-pattern", metavar="REGEX", help="what is a word; default: two or more letters or digits"
    )
    words.add_argument(
        "--analyzer",
        metavar="MODULE:FUNCTION",
        help="function that cuts a text into words (installed, or in the current directory), in place of the others "
        "but --stop-words",
    )
    words.add_argument("--lowercase", action=argparse.BooleanOptionalAction, default=None, help="(the default)")
    words.add_argument("--strip-accents", choices=("ascii", "unicode"), help="take accents from letters")


def settings(args: argparse.Namespace) -> Text | None:
    """Settings of raw text from the options; None if none was given."""
    given: dict[str, Any] = {
        setting: getattr(args, option) for option, setting in OPTIONS.items() if getattr(args, option) is not None
    }
    if not given and args.format is None:
        return None
    from bnp_dask.data import Text
    from bnp_dask.data.text.options import TEXT_FORMATS

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
