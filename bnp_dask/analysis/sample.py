"""Data that a posterior gives: random rows, and expected values of missing entries.

Positions of levels are turned into the levels themselves.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnp_dask.analysis.base import WINDOW, open_for, require_posterior
from bnp_dask.analysis.labels import without_labels
from bnp_dask.data import Layout, Outputs, Reader, batch_reader, is_frame
from bnp_dask.data.output import write
from bnp_dask.errors import SettingError, answering
from bnp_dask.execute import Executor, in_order, one_blas_thread, open_executor
from bnp_dask.inputs import Levels, as_a, is_text, seed_of, whole_number
from bnp_dask.kernels import fixed_order
from bnp_dask.model import Posterior
from bnp_dask.observation import MarginalObservation

if TYPE_CHECKING:
    from distributed import Client


class Sample(NamedTuple):
    """Drawn data.

    Parameters
    ----------
    x
        Atoms ``(n, D)`` float64; a DataFrame if columns have text levels; documents as sparse counts ``(n, V)``.
    labels
        Ids of the clusters that they were drawn from, ``(n,)`` int64; for documents of a topic model the topic with the
        largest share.
    """

    x: Any
    labels: np.ndarray


@answering
def sample(posterior: Posterior, n: int, rng: Any = 0, *, length: int | None = None) -> Sample:
    """Draw new data from the clusters of a posterior.

    Each atom is drawn from a cluster's posterior predictive, whose log density :func:`bnp_dask.score` gives, so it
    includes the uncertainty of the parameters.  Clusters without a seen atom are left out.

    Parameters
    ----------
    posterior
        Trained clusters.
    n
        Atoms; steps of one sequence in a hidden Markov model; documents, or groups, in a topic model.  Sequences of
        autoregressive models begin after rows of zeros; their rows are as they were recorded, ``(n, D)``.
    rng
        As in :func:`bnp_dask.train`.
    length
        Words of each document, or atoms of each group; required for these, and for mixtures of documents.

    Returns
    -------
    Sample
        ``x`` and ``labels``, as scikit-learn's ``sample`` gives them.  Groups of dense atoms: ``n * length`` rows.

    Raises
    ------
    SettingError
        The likelihood cannot draw, ``length`` is missing or not applicable, or the data do not fit memory.
    """
    posterior = without_labels(require_posterior(posterior))
    whole_number("n", n, 1, what="a whole number of atoms")
    generator = np.random.default_rng(seed_of(rng))
    try:
        x, place = posterior.model.structure.draw(posterior, n, length, generator)
        atoms = with_levels(posterior, x) if isinstance(x, np.ndarray) else x
    except MemoryError as error:
        said = f"n={n}" if length is None else f"n={n}, length={length}"
        raise SettingError(f"{said}: memory does not hold so many ({error}); draw fewer at a time") from None
    return Sample(atoms, posterior.ids[place])


@answering
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


def with_levels(posterior: Posterior, x: np.ndarray, index: Any = None) -> Any:
    """Atoms ``(n, D)`` with levels in place of their positions.

    Parameters
    ----------
    posterior
        Posterior with the levels; if it has none, and no ``index`` is given, the atoms are returned unchanged.
    x
        Atoms as batches hold them.
    index
        Index of the requested DataFrame, or None for an array if all levels are numbers.

    Returns
    -------
    numpy.ndarray or pandas.DataFrame
        An array if all levels are numbers; else a DataFrame with the model's columns, text columns as pandas
        categories.
    """
    known = None if posterior.columns is None else posterior.columns.levels
    levels = known or (None,) * x.shape[1]
    if index is None and not any(own is not None and is_text(own) for own in levels):
        numbers = [x[:, i] if own is None else _numbers(x[:, i], own) for i, own in enumerate(levels)]
        return x if known is None else np.column_stack(numbers)
    import pandas as pd

    if known is None:
        return pd.DataFrame(x, index=index, columns=posterior.feature_names)
    names = posterior.feature_names or range(x.shape[1])
    columns = [x[:, i] if own is None else _column(x[:, i], own) for i, own in enumerate(levels)]
    frame = pd.DataFrame(dict(enumerate(columns)), index=index)
    return frame.set_axis(list(names), axis="columns")


def _numbers(places: np.ndarray, levels: Levels) -> np.ndarray:
    return np.array(levels, np.float64)[places.astype(np.int64)]


def _column(places: np.ndarray, levels: Levels) -> Any:
    """Levels of a column: a category of texts, else numbers or truth values."""
    import pandas as pd

    if is_text(levels):
        return pd.Categorical.from_codes(places.astype(np.int64), categories=list(levels))
    return np.array(levels)[places.astype(np.int64)]
