"""The clusters of a posterior as a table: text for a terminal, HTML for a notebook or a page."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.analysis.prices import ClusterPrice
from bnp_dask.errors import SettingError
from bnp_dask.model import Posterior
from bnp_dask.reports.describe import ClusterRow, cluster_rows

if TYPE_CHECKING:
    import pandas as pd

RANGES = "of many numbers: least .. median .. largest"

HEAD = ("cluster", "weight", "atoms", f"parameters ({RANGES})")

PRICE = ("without it", "united", "with")
"""Columns of prices: nats lost without a cluster, nats lost if united with its nearest cluster, and that cluster."""

PRICED = "without it, united: nats of the objective that are lost without a cluster, or where it is one with another"
"""Note under a table with prices."""

STYLE = """
table { border-collapse: collapse; margin: 0.6em 0; font-size: 14px; }
th { font-weight: 600; color: #4a5568; text-align: right; padding: 3px 12px 3px 0; vertical-align: top; }
td { text-align: right; padding: 3px 12px 3px 0; font-variant-numeric: tabular-nums; vertical-align: top; }
.clusters tbody tr { border-top: 1px solid #e2e8f0; }
.facts th, .text { text-align: left; }
.cell { width: 110px; }
.bar { background: #2b6cb0; height: 10px; margin-top: 5px; min-width: 1px; }
.note { color: #718096; }
"""
"""Looks of all tables; pages add their own."""

_NOTEBOOK_STYLE = "".join(f".bnp {line}\n" for line in STYLE.strip().splitlines()).replace(", .text", ", .bnp .text")


@dataclass(frozen=True)
class ClusterTable(Sequence[ClusterRow]):
    """Clusters, heaviest first; a sequence that prints as a table, and that notebooks show as one.

    Parameters
    ----------
    title
        Kind of the model, clusters and atoms.
    rows
        Listed clusters: ``id``, ``weight`` (expected share of atoms), ``count`` (atoms; None when unknown) and
        ``text`` (parameters in a few words).
    facts
        More about the posterior, such as its columns.
    rest
        Number of clusters not listed, and their share; empty if all are listed.
    """

    title: str
    rows: tuple[ClusterRow, ...]
    facts: tuple[tuple[str, str], ...] = field(default=())
    rest: str = ""

    @staticmethod
    def of(
        posterior: Posterior,
        names: Sequence[str] | None,
        limit: int | None,
        facts: dict[str, str] | None = None,
        prices: Sequence[ClusterPrice] | None = None,
    ) -> ClusterTable:
        """The ``limit`` heaviest clusters; ``names`` of features or words, ``(D,)``."""
        rows = tuple(cluster_rows(posterior, names, limit, prices))
        return ClusterTable(title_of(posterior), rows, tuple((facts or {}).items()), rest_of(posterior, len(rows)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return self.rows[index]

    def __iter__(self) -> Iterator[ClusterRow]:
        return iter(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row per cluster, its id as index."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SettingError("to_pandas needs pandas: pip install 'bnp-dask[dataframe]'") from error
        names = {"id": "cluster", "count": "atoms", "text": "parameters"}
        frame = pd.DataFrame([asdict(row) for row in self.rows], columns=["id", "weight", "count", "text"])
        frame = frame.rename(columns=names).set_index("cluster")
        found = [row.price for row in self.rows if row.price is not None]
        if found:
            frame.insert(2, "without", [price.without for price in found])
            frame.insert(3, "united", [price.united for price in found])
            frame.insert(4, "nearest", pd.array([price.nearest for price in found], dtype="Int64"))
        return frame

    def __str__(self) -> str:
        priced = any(row.price is not None for row in self.rows)
        head = (*HEAD[:3], *(PRICE if priced else ()), HEAD[3])
        cells = [
            (str(r.id), f"{r.weight:.4f}", count_of(r), *(price_of(r) if priced else ()), r.text) for r in self.rows
        ]
        widths = [max(len(row[i]) for row in (head, *cells)) for i in range(len(head) - 1)]
        lines = [""]
        for row in (head, *cells):
            aligned = [cell.rjust(w) for cell, w in zip(row[:-1], widths, strict=True)]
            lines.append("  ".join([*aligned, row[-1]]))
        lines.insert(2, "  ".join("-" * w for w in (*widths, len(HEAD[3]))))
        facts = [f"{name}: {value}" for name, value in self.facts]
        notes = [*([PRICED] if priced else []), *([self.rest] if self.rest else [])]
        return "\n".join([self.title, *facts, *lines, *notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tail = f"<p>{html.escape(self.rest)}</p>" if self.rest else ""
        facts = "".join(f"<p>{html.escape(name)}: {html.escape(value)}</p>" for name, value in self.facts)
        table = clusters_html(self.rows, self.title)
        return f"<style>{_NOTEBOOK_STYLE}</style><div class='bnp'>{table}{facts}{tail}</div>"


def clusters_html(rows: Sequence[ClusterRow], caption: str = "") -> str:
    """Table of clusters; screen readers get the headers of columns and rows, and skip the bars."""
    largest = max((row.weight for row in rows), default=1.0) or 1.0
    told = f"<caption class='text'><b>{html.escape(caption)}</b></caption>" if caption else ""
    names = [f"<th scope='col'>{name}</th>" for name in HEAD[:3]]
    names.insert(2, "<td aria-hidden='true'></td>")
    priced = any(row.price is not None for row in rows)
    names += [f"<th scope='col'>{name}</th>" for name in (PRICE if priced else ())]
    lines = [f"<table class='clusters'>{told}<thead><tr>{''.join(names)}"]
    lines.append(f"<th scope='col' class='text'>{HEAD[3]}</th></tr></thead><tbody>")
    for row in rows:
        bar = f"<div class='bar' style='width:{100 * row.weight / largest:.1f}px'></div>"
        lines.append(
            f"<tr><th scope='row'>{row.id}</th><td>{row.weight:.4f}</td><td class='cell' aria-hidden='true'>{bar}</td>"
            f"<td>{count_of(row)}</td>{''.join(f'<td>{cell}</td>' for cell in (price_of(row) if priced else ()))}"
            f"<td class='text'>{html.escape(row.text)}</td></tr>"
        )
    note = f"<p class='note'>{PRICED}</p>" if priced else ""
    return "\n".join([*lines, "</tbody></table>", note])


def title_of(posterior: Posterior) -> str:
    """Kind of a posterior, its clusters and atoms."""
    model = posterior.model
    kind = "" if model.estimate == "posterior" else ", point estimates"
    atoms = "" if posterior.summary is None else f", {posterior.summary['N'].sum():,.6g} atoms"
    clusters = f"{posterior.n_clusters} cluster{'s' if posterior.n_clusters != 1 else ''}"
    return f"{type(model.allocation).__name__} of {type(model.observation).__name__}{kind}: {clusters}{atoms}"


def rest_of(posterior: Posterior, shown: int) -> str:
    """Number of clusters left out if ``shown`` are shown; empty for none."""
    if shown >= posterior.n_clusters:
        return ""
    share = 1.0 - np.sort(posterior.weights)[::-1][:shown].sum()
    return f"... and {posterior.n_clusters - shown} lighter clusters with {share:.2%} of the weight"


def count_of(row: ClusterRow) -> str:
    """Atoms of a cluster, in words."""
    return "?" if row.count is None else f"{row.count:,.1f}"


def price_of(row: ClusterRow) -> tuple[str, str, str]:
    """Price of a cluster, in words: nats lost without it, nats lost if united, and the cluster it is united with."""
    if row.price is None or row.price.nearest is None:
        return "?", "?", "?"
    return f"{row.price.without:,.1f}", f"{row.price.united:,.1f}", str(row.price.nearest)
