"""Lines for the user, on any kind of standard output and standard error, with any content."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Literal

from bnp_dask.errors import StoreError, redacted

LONGEST = 1000
"""Most characters of an error or a warning; a longer text loses its middle."""

SHOWN = 80
"""Most characters of a value in a message."""


def one_line(text: object) -> str:
    """A message in one line: white space folded, control characters written as ``\\x1b``, and shortened if too long."""
    return shortened(_plain(redacted(" ".join(str(text).split()))), LONGEST)


def shortened(text: str, limit: int) -> str:
    """The text, without its middle if it is longer than ``limit``."""
    if len(text) <= limit:
        return text
    keep = max(limit - 5, 0) // 2
    return f"{text[:keep]} ... {text[len(text) - keep :]}"


def _plain(text: str) -> str:
    """The text with control characters and lone surrogates as Python escapes."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") else c for c in text)


def say(text: str, quiet: bool = False) -> None:
    """Write a result for the user to standard output.

    Raises
    ------
    StoreError
        Standard output cannot be written, as on a full disk.
    """
    if not quiet:
        _write(text, "stdout")


def tell(text: str) -> None:
    """Write a notice for the user to standard error; a failure to write is ignored."""
    _write(text, "stderr")


def _write(text: str, name: Literal["stdout", "stderr"]) -> None:
    """Write lines above a progress bar, if there is one.

    A closed reader, such as ``head``, receives no more lines; the command still runs to its end.
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
        setattr(sys, name, None)  # the interpreter must not try again at exit
        if name == "stdout":
            raise StoreError(f"cannot write to standard output: {error.strerror or error}") from error


def open_standard_files() -> None:
    """Redirect closed standard input, output and error to the null device, instead of the next file opened."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
