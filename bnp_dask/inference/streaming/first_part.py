"""The first part of a stream: its survey, and how well a filter predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import Survey
from bnp_dask.core.totals import RunningTotal
from bnp_dask.data.base import Reader, naming_batch
from bnp_dask.inference.bad_batches import survey_checked
from bnp_dask.inference.streaming.site import site_of, threshold, with_site
from bnp_dask.model import Model


@dataclass(frozen=True)
class Piece:
    """The first ``n_atoms`` atoms of a batch."""

    reader: Reader
    n_atoms: int

    def read(self) -> Batch:
        """The atoms in memory."""
        batch = self.reader()
        return batch if batch.n_atoms <= self.n_atoms else batch.rows(0, self.n_atoms)


def survey_piece(model: Model, piece: Piece) -> Survey:
    """The task: survey of a piece, after every check that the model makes."""
    return survey_checked(model, piece.read())


@dataclass(frozen=True)
class Predicted:
    """Prediction of the first atoms of a stream: log density, nats, and how many clusters a filter opened."""

    log_predictive: float
    n_clusters: int


def predict_pieces(model: Model, epsilon: float | None, pieces: Sequence[Piece]) -> Predicted:
    """The task: filter pieces of a stream one after the other (:class:`~bnp_dask.Filter` without unions)."""
    total, next_id, logs = RunningTotal(model.empty_summary(np.zeros(0, np.int64))), 0, 0.0
    least = threshold(model, epsilon)
    for piece in pieces:
        batch = piece.read()
        with naming_batch(batch.name):
            site = site_of(model, total.value(), batch, least)
        total, next_id = with_site(total, site, next_id)
        logs += site.log_predictive
    return Predicted(logs, total.high.n_clusters)
