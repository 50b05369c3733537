"""Edits: recorded verbs of a summary.

A stored summary is brought up to date by replaying the edits it has not seen (:func:`replay`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core.fields import interplay
from bnp_dask.core.summary import Summary
from bnp_dask.errors import SummaryError
from bnp_dask.kernels.numeric.compensated import product_rest


@dataclass(frozen=True)
class InsertEmpty:
    """Recorded :meth:`Summary.insert_empty`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.insert_empty(self.ids)


@dataclass(frozen=True)
class Take:
    """Recorded :meth:`Summary.take`."""

    ids: tuple[int, ...]

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.take(self.ids)


@dataclass(frozen=True)
class Merge:
    """Recorded :meth:`Summary.merge`."""

    keep: int
    drop: int

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.merge(self.keep, self.drop)


@dataclass(frozen=True)
class Unite:
    """Recorded :meth:`Summary.unite`: a merge of two clusters whose union was not tracked."""

    keep: int
    drop: int
    share: float | None

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.unite(self.keep, self.drop, self.share)


@dataclass(frozen=True)
class Exchange:
    """Recorded :meth:`Summary.exchange`; each summary has its own part, found by the name of the trial."""

    trial: str
    donors: tuple[int, ...]
    shifts: bool = False

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        if self.trial not in parts:
            raise SummaryError(f"trial {self.trial} was not accumulated beside this summary")
        return summary.exchange(self.donors, parts[self.trial], self.shifts)


@dataclass(frozen=True)
class Forget:
    """Recorded :meth:`Summary.without_pairs`: a lap ended, and the pairs tracked during it are void.

    With ``of``, only pairs of these clusters: one was split, and unions with it are no longer known.
    """

    of: tuple[int, ...] = ()

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.without_pairs_of(self.of) if self.of else summary.without_pairs()


@dataclass(frozen=True)
class Fade:
    """Recorded :meth:`Summary.scale`: time has passed, and all weights are multiplied by ``factor``.

    ``rest`` are the digits of the factor below those of a double, which running totals take into account.
    """

    factor: float
    rest: float = 0.0

    def then(self, other: Fade) -> Fade:
        """Both in one."""
        factor = self.factor * other.factor
        rest = float(product_rest(np.array(self.factor), other.factor))
        return Fade(factor, rest + self.factor * other.rest + self.rest * other.factor)

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.scale(self.factor)


@dataclass(frozen=True)
class Widen:
    """Recorded :meth:`Summary.widen`: the axis ``dim`` has length ``size`` from now on."""

    dim: str
    size: int

    def apply(self, summary: Summary, parts: Mapping[str, Summary]) -> Summary:
        return summary.widen(self.dim, self.size)


Edit = InsertEmpty | Take | Merge | Unite | Exchange | Forget | Fade | Widen


NO_PARTS: Mapping[str, Summary] = {}


def replay(summary: Summary, edits: Iterable[Edit], parts: Mapping[str, Summary] = NO_PARTS) -> Summary:
    """Apply recorded edits in order: brings a stored summary up to date.

    ``parts`` are the statistics of some clusters under each trial, by the name of the trial.
    """
    for edit in edits:
        summary, parts = edit.apply(summary, parts), follow(parts, edit)
    return summary


def follow(parts: Mapping[str, Summary], edit: Edit) -> Mapping[str, Summary]:
    """Statistics of trials after an edit, so that they can still be exchanged after other edits."""
    if isinstance(edit, Fade | Widen):
        return {name: edit.apply(part, NO_PARTS) for name, part in parts.items()}
    if not isinstance(edit, Merge | Exchange) or all(part.links is None for part in parts.values()):
        return parts
    ids = parts[edit.trial].ids if isinstance(edit, Exchange) else np.zeros(0, np.int64)
    return {name: _follow(part, edit, ids) for name, part in parts.items()}


def _follow(part: Summary, edit: Merge | Exchange, ids: np.ndarray) -> Summary:
    """Statistics of a trial after an edit of clusters outside it; ``ids`` are the clusters that the edit makes."""
    gone = (edit.keep, edit.drop) if isinstance(edit, Merge) else edit.donors
    if part.links is None or not np.isin(gone, part.links.rest).all():
        return part
    values = dict(part.values)
    for name, declared in part.fields.items():
        if declared.links is not None:
            between = part.links.between(declared.links, gone)
            values[name] = np.asarray(values[name] - interplay(len(gone), len(part.links.donors), between))
    if isinstance(edit, Merge):
        return replace(part, values=values, links=part.links.merge(edit.keep, edit.drop))
    return replace(part, values=values, links=part.links.exchange(gone, edit.trial, ids))
