"""The clusters, topics or states of a posterior as a table: text for a terminal, cells for a notebook or a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from bnp_dask.analysis.prices import ClusterPrice
from bnp_dask.core.table import Table, pandas_for
from bnp_dask.model import Posterior
from bnp_dask.observation.labelled import unlabelled
from bnp_dask.reports.describe import ClusterRow, cluster_rows
from bnp_dask.structure.nouns import CLUSTER, Noun, count_of, in_use, noun_of, unused_line

if TYPE_CHECKING:
    import pandas as pd

PARAMETERS = "parameters (of many numbers: least .. median .. largest)"
"""Last column of a table of clusters."""

PRICE = ("without it", "united", "with")
"""Columns of prices: nats lost without a cluster, nats lost if united with its nearest cluster, and that cluster."""


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
    noun
        Noun of the clusters: clusters, topics or states.
    """

    title: str
    rows: tuple[ClusterRow, ...]
    facts: tuple[tuple[str, str], ...] = field(default=())
    rest: str = ""
    noun: Noun = CLUSTER

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
        return ClusterTable(
            title_of(posterior),
            rows,
            facts=tuple((facts or {}).items()),
            rest=rest_of(posterior, len(rows)),
            noun=noun_of(posterior.model),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def,override]
        return self.rows[index]

    def __iter__(self) -> Iterator[ClusterRow]:
        return iter(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row per cluster, its id as index."""
        pandas = pandas_for("to_pandas")
        names = {"id": self.noun.one, "count": self.noun.atoms, "text": "parameters"}
        frame = pandas.DataFrame([asdict(row) for row in self.rows], columns=["id", "weight", "count", "text"])
        frame = frame.rename(columns=names).set_index(self.noun.one)
        found = [row.price for row in self.rows if row.price is not None]
        if found:
            frame.insert(2, "without", [price.without for price in found])
            frame.insert(3, "united", [price.united for price in found])
            frame.insert(4, "nearest", pandas.array([price.nearest for price in found], dtype="Int64"))
        return frame

    @property
    def table(self) -> Table:
        """The table with its notes, for pages."""
        priced = any(row.price is not None for row in self.rows)
        largest = max((row.weight for row in self.rows), default=1.0) or 1.0
        head = (self.noun.one, "weight", self.noun.atoms, *(PRICE if priced else ()), PARAMETERS)
        rows = [
            (
                str(row.id),
                f"{row.weight:.4f}",
                "?" if row.count is None else f"{row.count:,.1f}",
                *(price_of(row) if priced else ()),
                row.text,
            )
            for row in self.rows
        ]
        told = (
            f"without it, united: nats of the objective that are lost without a {self.noun.one}, or by uniting it "
            "with another"
        )
        return Table(
            head,
            rows,
            left=(len(head) - 1,),
            bars=[row.weight / largest for row in self.rows],
            notes=[*([told] if priced else []), *([self.rest] if self.rest else [])],
        )

    def __str__(self) -> str:
        facts = [f"{name}: {value}" for name, value in self.facts]
        return "\n".join([self.title, *facts, "", self.table.text()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        facts = [f"{name}: {value}" for name, value in self.facts]
        return replace(self.table, caption=self.title, notes=[*facts, *self.table.notes])._repr_html_()


def title_of(posterior: Posterior) -> str:
    """Kind of a posterior, its clusters and atoms."""
    model = posterior.model
    kind = "" if model.estimate == "posterior" else ", point estimates"
    atoms = f", {posterior.summary['N'].sum():,.6g} {noun_of(model).atoms}" if posterior.summary is not None else ""
    likelihood = type(unlabelled(model.observation)).__name__
    return f"{type(model.allocation).__name__} of {likelihood}{kind}: {count_of(posterior)}{atoms}"


def rest_of(posterior: Posterior, shown: int) -> str:
    """Number of clusters left out if ``shown`` are shown, and of topics without tokens; empty for none."""
    used = posterior.weights[in_use(posterior)]
    told = []
    if shown < len(used):
        share = 1.0 - np.sort(posterior.weights)[::-1][:shown].sum()
        lighter = f"{len(used) - shown} lighter {noun_of(posterior.model).many}"
        told.append(f"... and {lighter} with {share:.2%} of the weight")
    return "; ".join([*told, *([unused_line(posterior)] if unused_line(posterior) else [])])


def price_of(row: ClusterRow) -> tuple[str, str, str]:
    """Price of a cluster, in words: nats lost without it, nats lost if united, and the cluster it is united with."""
    if row.price is None or row.price.nearest is None:
        return "?", "?", "?"
    return f"{row.price.without:,.1f}", f"{row.price.united:,.1f}", str(row.price.nearest)
