"""Pages: facts put into a template, and a file that may replace only another page.

Templates are Jinja's; these escape all text of data themselves.
"""

from __future__ import annotations

import base64
import io
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnp_dask._version import __version__
from bnp_dask.core import Location, Table
from bnp_dask.data.output import put
from bnp_dask.errors import DataError, StoreError, redacted
from bnp_dask.inputs import local_path

MARK = b"<footer>bnp-dask "
"""Footer of every page of this package."""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a page; a note is paler."""

    text: str
    is_note: bool = False

    kind = "paragraph"


@dataclass(frozen=True)
class Picture:
    """A figure of matplotlib, and its description."""

    figure: Any
    text: str

    kind = "picture"

    @property
    def png(self) -> str:
        """The figure as base64 of a PNG."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
        return base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Section:
    """A heading, and the parts of a page under it."""

    heading: str
    parts: Sequence[Table | Picture | Paragraph]


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A template of ``reports/templates`` with its facts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bnp_dask.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment.get_template(template).render({"version": __version__, **facts})


def tables_html(*tables: Table) -> str:
    """Tables as HTML for a notebook."""
    return render("notebook.html.j2", {"tables": tables})


NO_PAGES = (".pdf", ".md", ".png", ".svg", ".txt", ".json", ".csv", ".ipynb", ".docx")
"""Ends of names of files that a page is not written to: its text would be HTML all the same."""


def page_target(path: str | os.PathLike[str]) -> Path | Location:
    """Target of a page, a file with links resolved or an object of a store; checked before the page is made.

    Raises
    ------
    StoreError
        There is another file, the target is not writable, or its name says that it is no page.
    """
    if Path(os.fspath(path)).suffix.lower() in NO_PAGES:
        raise StoreError(f"{os.fspath(path)}: a page is HTML; name it page.html. A browser prints it as PDF")
    if "://" in os.fspath(path) and not os.fspath(path).startswith("file://"):
        return _far_target(Location.of(path))
    target = Path(os.path.realpath(local_path(path)))
    if target.is_dir():
        raise StoreError(f"{target} is a directory; needs the name of a file, such as {target.name or 'page'}.html")
    try:
        if target.exists() and not (target.is_file() and MARK in target.read_bytes()):
            raise StoreError(f"{target} exists and is not a page of bnp-dask; refusing to overwrite it")
    except OSError as error:
        raise StoreError(f"{target}: cannot write a report there: {error.strerror}") from error
    folder = target.parent
    if not folder.is_dir():
        raise StoreError(f"{target}: cannot write a report there: there is no directory {folder}")
    if not os.access(folder, os.W_OK):
        raise StoreError(f"{target}: cannot write a report there: no permission to write to {folder}")
    return target


def _far_target(place: Location) -> Location:
    """An object to write, which may replace only another page."""
    try:
        taken = place.exists() and MARK not in place.content()
    except (OSError, DataError) as error:
        raise StoreError(f"{place.name}: cannot write a report there: {error}") from error
    if taken:
        raise StoreError(f"{place.name} exists and is not a page of bnp-dask; refusing to overwrite it")
    return place


def write_page(target: Path | Location, page: str) -> None:
    """Write a page in one step; StoreError if that fails, which leaves an existing file unchanged."""
    if isinstance(target, Location):
        try:
            put(target, redacted(page).encode("utf-8", "replace"))
        except (OSError, DataError) as error:
            raise StoreError(f"{target.name}: cannot write a report there: {error}") from error
        return
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        try:
            # a document's id may hold characters that UTF-8 cannot encode
            partial.write_bytes(redacted(page).encode("utf-8", "replace"))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target}: cannot write a report there: {error.strerror or error}") from error
