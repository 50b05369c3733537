"""Expected values of missing entries."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.levels import with_levels
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import WINDOW
from bnp_dask.data.base import Reader, batch_reader
from bnp_dask.data.output import Layout, Outputs, write
from bnp_dask.data.sources.frames import is_frame
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor, in_order, one_blas_thread
from bnp_dask.execute.reach import open_executor
from bnp_dask.inputs.protocols import as_a
from bnp_dask.kernels.numeric.fixed_order import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.observation.missing.entries import MarginalObservation

if TYPE_CHECKING:
    from distributed import Client


def impute(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> Any:
    """Data with the expected value of each missing entry, given the observed entries.

    Parameters
    ----------
    posterior
        Trained clusters of a likelihood that takes missing entries, such as ``Gaussian(missing="marginalise")``.
    data
        As for :func:`bnp_dask.predict`: NaN, masked entries and missing values of tables are missing.
    out
        Path or URL ending with ``.zarr``, ``.parquet`` or ``.csv``: rows are written there batch by batch, as the array
        or column of lists ``x``, or (CSV) as a column for each feature, so that data may have any size.
    batch_size, client
        As for :func:`bnp_dask.predict`.

    Returns
    -------
    numpy.ndarray or pandas.DataFrame or None
        ``(n, D)`` float64 in the order of the data; a DataFrame with its index and the model's columns for a DataFrame,
        and for other data with levels that are texts.
        The value is ``sum_k r_nk E[x_M | x_O, cluster k]``: the cluster's mean, rate or probability where features are
        independent, the conditional mean of a Gaussian of full covariance; of a column of levels the most probable one
        (``out`` gets its place among ``posterior.columns.levels``).  In hidden Markov models ``r_nk`` is given
        the whole sequence, in topic models of dense atoms the whole group.  None when ``out`` is given.

    Raises
    ------
    SettingError
        The likelihood refuses missing entries.
    DataError
        Features that differ from training, or values that the likelihood cannot produce.
    """
    posterior = require_posterior(posterior)
    model = posterior.model
    if not model.marginalises:
        raise SettingError(
            f"{type(model.observation).__name__} of this posterior refuses missing entries, so it has none to impute; "
            'train with missing="marginalise"'
        )
    source = open_for(posterior, data, batch_size)
    with one_blas_thread(), fixed_order(model.reproducible), open_executor(client) as runner:
        readers = [batch_reader(source, i) for i in range(source.n_batches)]
        if out is not None:
            facts = {"source": source.name}
            names = () if posterior.columns is None else tuple(posterior.columns.features)
            layouts = (Layout("x", "<f8", source.n_features, names),)
            write(out, layouts, _imputed, posterior.light(), readers, runner, WINDOW, facts)
            return None
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"impute-batch{i}", impute_batch, (shared, reader)) for i, reader in enumerate(readers))
        found = np.concatenate(list(in_order(runner, tasks, WINDOW)))
    return with_levels(posterior, found, data.index if is_frame(data) else None)


def _imputed(posterior: Posterior, reader: Reader) -> Outputs:
    """Task: the atoms of a batch with missing entries filled in, as a named column."""
    return {"x": impute_batch(posterior, reader)}


def impute_batch(posterior: Posterior, reader: Reader) -> np.ndarray:
    """Task: the atoms of a batch with missing entries filled in, ``(n, D)``."""
    model, batch = posterior.model, replace(reader(), weights=None)
    observation = as_a(model.observation, MarginalObservation)
    parts = [observation.impute(posterior.observation, *known) for known in model.structure.resp(posterior, batch)]
    return np.concatenate([np.zeros((0, batch.n_features)), *parts])
