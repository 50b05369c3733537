"""Lines for the user, on standard output and standard error, whatever these are and whatever is in the lines."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Literal

from bnp_dask.errors import StoreError, redacted

LONGEST = 1000
"""Characters of an error or a warning; what is longer loses its middle."""

SHOWN = 80
"""Characters of a value in a message."""


def one_line(text: object) -> str:
    """A message in one line: white space folded, what a terminal would obey written as ``\\x1b``, and not too long."""
    return shortened(_plain(redacted(" ".join(str(text).split()))), LONGEST)


def shortened(text: str, limit: int) -> str:
    """The text, without its middle where it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    keep = max(limit - 5, 0) // 2
    return f"{text[:keep]} ... {text[len(text) - keep :]}"


def _plain(text: str) -> str:
    """The text with what a terminal obeys, and halves of characters, in the way that Python writes them."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def say(text: str, quiet: bool = False) -> None:
    """A result for the user, on standard output.

    Raises
    ------
    StoreError
        It cannot be written there, as the disk is full.
    """
    if not quiet:
        _write(text, "stdout")


def tell(text: str) -> None:
    """Write what a user should know to standard error; nobody is told when that cannot be written."""
    _write(text, "stderr")


def _write(text: str, name: Literal["stdout", "stderr"]) -> None:
    """Lines above a progress bar, if there is one.

    A reader that has gone, such as ``head``, wants no more; what a command is doing goes on to its end without it.
    """
    from tqdm.auto import tqdm

    stream = getattr(sys, name)
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    lines = "\n".join(map(_plain, redacted(text).split("\n")))
    try:
        tqdm.write(lines.encode(encoding, "backslashreplace").decode(encoding), file=stream)
        stream.flush()
    except BrokenPipeError:
        setattr(sys, name, None)
    except OSError as error:
        setattr(sys, name, None)  # nor may the interpreter try again at its end
        if name == "stdout":
            raise StoreError(f"cannot write to standard output: {error.strerror or error}") from error


def open_standard_files() -> None:
    """Standard input, output and error that were closed lead nowhere, instead of into the next file that is opened."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
