"""Clusters, topics or states as tables and pictures show them: their share and a short description.

A table is text for a terminal, and cells for a notebook or a page.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis import ClusterPrice
from bnp_dask.core import Batch, Table, in_order, pandas_for
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import plain, shown
from bnp_dask.model import Posterior
from bnp_dask.observation import describe_cluster, estimates_of, unlabelled
from bnp_dask.structure import CLUSTER, Noun, count_of, in_use, noun_of, unused_line

if TYPE_CHECKING:
    import pandas as pd


MEANS = ("mean", "probability", "rate")
"""Names of the expected value of an atom in likelihoods."""


@dataclass(frozen=True)
class ClusterRow:
    """One cluster in a table: id, expected share, atoms (None when unknown), description, and price if known.

    Prices are from :func:`bnp_dask.prices`.
    """

    id: int
    weight: float
    count: float | None
    text: str
    price: ClusterPrice | None = None


def cluster_rows(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    limit: int | None = None,
    prices: Sequence[ClusterPrice] | None = None,
) -> list[ClusterRow]:
    """Clusters by falling weight, the first ``limit`` of them; ``names`` of features or words, ``(D,)``.

    Topics without tokens are left out.

    SettingError if ``prices`` do not belong to the posterior's clusters.
    """
    known = {price.id: price for price in prices or ()}
    if known and sorted(known) != sorted(posterior.ids.tolist()):
        both = len(set(known) & set(posterior.ids.tolist()))
        raise SettingError(
            f"prices= are of {noun_of(posterior.model).count(len(known))}, of which {both} are among the "
            f"{posterior.n_clusters} of the posterior; use bnp_dask.prices(posterior, data)"
        )
    weights = posterior.weights
    order = np.argsort(-weights, kind="stable")
    order = order[in_use(posterior)[order]][:limit]
    counts = None if posterior.summary is None else posterior.summary["N"]
    observation, params = posterior.model.observation, posterior.observation
    return [
        ClusterRow(
            int(posterior.ids[k]),
            float(weights[k]),
            None if counts is None else float(counts[k]),
            describe_cluster(observation, params, int(k), names),
            known.get(int(posterior.ids[k])),
        )
        for k in order
    ]


def means(observation: Any, params: Any) -> np.ndarray | None:
    """Expected value of an atom of each cluster, ``(K, D)``; None if the likelihood has no informative one."""
    found = estimates_of(observation, params, None)
    return next((found[name].values for name in MEANS if name in found), None)


def variances(observation: Any, params: Any) -> np.ndarray | None:
    """Expected variance of each feature within each cluster, ``(K, D)``; None for likelihoods without."""
    found = estimates_of(observation, params, None)
    if "variance" in found:
        return found["variance"].values
    return np.einsum("kii->ki", found["covariance"].values) if "covariance" in found else None


def covariances(observation: Any, params: Any) -> np.ndarray | None:
    """Expected covariance of each cluster, ``(K, D, D)``; None for likelihoods whose features are independent."""
    found = estimates_of(observation, params, None)
    return found["covariance"].values if "covariance" in found else None


def covariance(observation: Any, params: Any, k: int) -> np.ndarray | None:
    """Expected covariance of cluster at position ``k``, ``(D, D)``; None for likelihoods without one."""
    whole = covariances(observation, params)
    if whole is not None:
        return whole[k]
    spread = variances(observation, params)
    return None if spread is None else np.diag(spread[k])


def check_names(posterior: Posterior, names: Sequence[str] | None) -> Sequence[str] | None:
    """The names, or the posterior's own; DataError unless there is one for each feature or word."""
    if names is None:
        return posterior.feature_names
    names = in_order(names)
    if isinstance(names, str) or not isinstance(names, Sized) or plain(names, "vocabulary").ndim != 1:
        raise SettingError(f"vocabulary={shown(names)}: needs a list of names of words or features")
    names = [str(name) for name in names]
    try:
        posterior.model.observation.check(Batch(np.empty((0, len(names))), name="these names"))
    except DataError as error:
        raise DataError(f"{len(names)} names of words or features do not fit the model: {error}") from None
    return names


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
