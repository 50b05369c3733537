"""Raw text that can be read several times: files, tables, or documents in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bnp_dask.core.location import Location
from bnp_dask.data.text import files as corpus_files
from bnp_dask.data.text import tables as corpus_tables
from bnp_dask.data.text.options import Document, Documents, Tally, Text, without_surrogates
from bnp_dask.errors import DataError
from bnp_dask.inputs.settings import shown


@dataclass(frozen=True, eq=False)
class Corpus:
    """Raw text that can be read several times.

    Parameters
    ----------
    name, format
        Name for messages, and format.
    origin
        A file or folder, or a function that returns an iterator.
    text
        How the text becomes counts.
    columns
        Metadata to keep; None for all.
    """

    name: str
    format: str
    origin: Location | Documents
    text: Text
    columns: Sequence[str] | None = None

    def read(self, tally: Tally) -> Iterator[Document]:
        """All documents; problems are counted in ``tally``."""
        for document in self._parsed(tally):
            tally.n_documents += 1
            if not (document.id.isascii() and document.place.isascii()):
                # names of files may hold bytes that are not characters
                id, place = without_surrogates(document.id), without_surrogates(document.place)
                document = document._replace(id=id, place=place)
            yield document.keeping(self.text.keep_text)

    def _parsed(self, tally: Tally) -> Iterator[Document]:
        if not isinstance(self.origin, Location):
            return _given(self.origin, self.name, self.columns, tally)
        if self.format in ("text-folder", "text-archive", "lines"):
            if self.columns is not None:
                raise DataError(f"{self.name}: format {self.format} has no columns; leave columns out")
            plain = {
                "text-folder": corpus_files.folder,
                "text-archive": corpus_files.archive,
                "lines": corpus_files.lines,
            }
            return plain[self.format](self.origin, self.text, tally)
        if self.format == "jsonl":
            return corpus_tables.jsonl(self.origin, self.text, self.columns, tally)
        if self.format == "parquet-text":
            return corpus_tables.parquet(self.origin, self.text, self.columns, tally)
        sep = "\t" if self.format == "tsv-text" else ","
        return corpus_tables.csv(self.origin, self.text, self.columns, tally, sep)


def documents_of(given: Any) -> tuple[Documents, str]:
    """A function that returns documents, and its name, from such a function or from a sequence."""
    if callable(given) and not isinstance(given, type):
        return given, getattr(given, "__name__", type(given).__name__)
    if isinstance(given, (list, tuple)):
        return lambda: given, f"{type(given).__name__} of documents"
    raise DataError(
        f"the source is {type(given).__name__}; needs a path or URL, a function that makes an iterator over "
        "(id, text), or a list of them (an iterator itself can be read only once)"
    )


def _given(make: Documents, name: str, columns: Sequence[str] | None, tally: Tally) -> Iterator[Document]:
    """Documents from Python code."""
    made = make()
    if not isinstance(made, Iterable):
        raise DataError(f"{name} made {shown(made)}; needs an iterator over (id, text), or (id, text, metadata)")
    for number, item in enumerate(made):
        if isinstance(item, Document):
            yield item
            continue
        fits = isinstance(item, (tuple, list)) and 2 <= len(item) <= 3 and isinstance(item[1], str)
        if not fits or (len(item) == 3 and not isinstance(item[2], Mapping)):
            raise DataError(
                f"{name}: document {number} is {shown(item)}; needs (id, text), or (id, text, metadata as a mapping)"
            )
        metadata = item[2] if len(item) == 3 else {}
        wanted = metadata if columns is None else {c: metadata.get(c) for c in columns}
        place = f"{name} document {number}"
        yield Document(str(item[0]), tally.clean(item[1], place), place, wanted)
