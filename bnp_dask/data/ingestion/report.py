"""Reports of ingestion."""

from __future__ import annotations

from dataclasses import dataclass

from bnp_dask.data.text.ingest import TextReport


@dataclass(frozen=True)
class IngestReport:
    """Facts about the data that an ingest read and wrote.

    Parameters
    ----------
    source, out
        Names of source and store.
    format
        Format of the source.
    kind
        ``"rows"`` or ``"counts"``.
    n_atoms, n_features, n_batches
        Sizes: atoms, columns or words, batches.
    nbytes
        Bytes of all batches once loaded (float64).
    stored_bytes
        Bytes on disk.
    dtype
        Dtype of the stored values.
    n_entries, n_tokens, n_empty
        Counts only: entries, sum of counts, documents without words.
    notes
        Notes for the reader of the report.
    text
        Raw text only: facts about it.
    n_groups
        Rows only: number of groups, each block of a group that was cut counted; None for ungrouped rows.
    n_cuts
        Number of cuts inside groups.
    sizing
        Number of workers for which batches were cut, and whether each gets four; empty if their size was given.
    """

    source: str
    out: str
    format: str
    kind: str
    n_atoms: int
    n_features: int
    n_batches: int
    nbytes: int
    stored_bytes: int
    dtype: str
    n_entries: int = 0
    n_tokens: float = 0.0
    n_empty: int = 0
    notes: tuple[str, ...] = ()
    text: TextReport | None = None
    n_groups: int | None = None
    n_cuts: int = 0
    sizing: str = ""

    def __str__(self) -> str:
        what = "documents" if self.kind == "counts" else "atoms"
        width = "words" if self.kind == "counts" else "features"
        lines = [
            f"{self.source} ({self.format}) -> {self.out}",
            f"  {self.n_atoms:,} {what}, {self.n_features:,} {width}, {self.n_batches:,} batches, "
            f"{self.nbytes / 2**20:,.1f} MB in memory, {self.stored_bytes / 2**20:,.1f} MB stored as {self.dtype}",
        ]
        if self.sizing:
            lines.append(f"  {self.sizing}")
        if self.kind == "counts":
            lines.append(f"  {self.n_entries:,} entries, {self.n_tokens:,.0f} tokens, {self.n_empty:,} empty documents")
        if self.n_groups is not None:
            lines.append(f"  {self.n_groups:,} groups")
            if self.n_cuts:
                whole = self.n_groups - self.n_cuts
                lines[-1] += (
                    f": {whole:,} in the source, cut in {self.n_cuts:,} places. As sequences, each block starts anew, "
                    f"and {self.n_cuts:,} of {max(self.n_atoms - whole, 0):,} transitions are not counted"
                )
        if self.text is not None:
            lines += self.text.lines()
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])
