"""Responses of documents, predicted from their topics."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from bnp_dask.analysis.base import WINDOW, open_for, require_posterior, runner_for
from bnp_dask.core import Batch
from bnp_dask.data import Layout, Outputs, Reader, batch_reader
from bnp_dask.data.output import write
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.model import Posterior
from bnp_dask.structure import ResponseModel, as_documents, check_documents, find_topics, own_step, response_of

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True, eq=False)
class ResponsePrediction:
    """Predicted responses of documents.

    Parameters
    ----------
    mean
        Expected response, ``(n,)``, in its units; or the probability of each class, ``(n, C)``, whose rows sum to one.
    variance
        Variance of a response, ``(n,)``, in squared units: noise, and uncertainty of coefficients and of shares; or of
        the indicator of each class, ``(n, C)``.
    classes
        Names of the classes, ``(C,)``; None for numbers.
    """

    mean: np.ndarray
    variance: np.ndarray
    classes: np.ndarray | None = None

    @property
    def best(self) -> np.ndarray:
        """The expected number, or the name of the most probable class, ``(n,)``."""
        return self.mean if self.classes is None else self.classes[self.mean.argmax(axis=1)]


@overload
def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> ResponsePrediction: ...


@overload
def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str],
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> None: ...


def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> ResponsePrediction | None:
    """Responses of documents, from a topic model that was trained with ``responses=``.

    Parameters
    ----------
    posterior
        Topics, with coefficients of the response.
    data
        Documents, as for :func:`bnp_dask.predict`; their own responses, if any, are not looked at.
    out
        Path or URL ending with ``.zarr``, ``.parquet`` or ``.csv``: predictions are written there batch by batch, in
        the order of the documents.  Numbers have the columns ``mean`` and ``variance``.  Classes have ``class``, the
        most probable one (not in Zarr, whose attribute ``classes`` names them), and ``probability``, in CSV files
        ``probability_NAME`` for each class.
    batch_size, client
        As for :func:`bnp_dask.predict`.

    Returns
    -------
    ResponsePrediction or None
        Mean and variance for each document, or probabilities of classes.  Shares of topics are found from the words
        alone.  A document without a word of the vocabulary has the expected shares of any document.  None when ``out``
        is given.

    Raises
    ------
    SettingError
        A posterior without responses.
    DataError
        As for :func:`bnp_dask.predict`.
    StoreError
        ``out`` exists already.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, bnp_dask as bnp
    >>> x = scipy.sparse.csr_array(np.repeat([[4., 4, 0, 0], [0, 0, 4, 4]], 20, axis=0))
    >>> model = bnp.Model(bnp.LDA(), bnp.Multinomial())
    >>> run = bnp.train(model, x, init=bnp.SampledTopics(2), responses=np.repeat([1.0, 3.0], 20))
    >>> bnp.predict_response(run.posterior, x[[0, 39]]).mean.round(1)
    array([1., 3.])
    """
    posterior = require_posterior(posterior)
    response, params = regression_of(posterior)
    classes = None if response.classes is None else np.array(response.classes)
    source = open_for(posterior, data, batch_size)
    readers = [batch_reader(source, i) for i in range(source.n_batches)]
    with runner_for(posterior, client) as runner:
        if out is not None:
            facts = {"source": source.name} | ({} if classes is None else {"classes": classes.tolist()})
            layouts = _layouts(classes, os.fspath(out).endswith((".parquet", ".csv")))
            write(out, layouts, respond, posterior.light(), readers, runner, WINDOW, facts)
            return None
        shared = runner.share("posterior", posterior.light())
        tasks = ((f"responses-batch{i}", respond, (shared, reader)) for i, reader in enumerate(readers))
        parts = list(in_order(runner, tasks, WINDOW))
    mean, variance = response.predict(params, np.zeros((0, posterior.n_clusters)), np.zeros(0))
    return ResponsePrediction(
        np.concatenate([mean, *(part["mean" if classes is None else "probability"] for part in parts)]),
        np.concatenate([variance, *(part["variance"] for part in parts)]),
        classes,
    )


def respond(posterior: Posterior, reader: Reader) -> Outputs:
    """Task: predictions for the documents of a batch, as named columns."""
    response, params = regression_of(posterior)
    mean, variance = response.predict(params, *token_shares(posterior, reader()))
    if response.classes is None:
        return {"mean": mean, "variance": variance}
    best = pa.array(np.array(response.classes)[mean.argmax(axis=1)])
    return {"class": best, "probability": mean, "variance": variance}


def _layouts(classes: np.ndarray | None, takes_names: bool) -> list[Layout]:
    """Columns of a file of predictions."""
    if classes is None:
        return [Layout("mean", "<f8", None), Layout("variance", "<f8", None)]
    names = tuple(f"probability_{name}" for name in classes.tolist())
    best = [Layout("class", "<i8", None)] if takes_names else []
    return [*best, Layout("probability", "<f8", len(names), names)]


def regression_of(posterior: Posterior) -> tuple[ResponseModel, Any]:
    """Model of responses and its coefficients; SettingError if the posterior was trained without."""
    response = response_of(posterior.model.allocation)
    if response is None or posterior.allocation.response is None or posterior.allocation.response.known <= 0.0:
        raise SettingError("the posterior was trained without responses; pass train(..., responses=y)")
    return response, posterior.allocation.response


def token_shares(posterior: Posterior, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Expected shares of topics in the tokens of documents ``(G, K)``, and their tokens ``(G,)``."""
    model = posterior.model
    batch = as_documents(model, replace(batch, weights=None, responses=None))
    check_documents(model, batch)
    found = find_topics(posterior, batch, own_step(posterior))
    weights = posterior.weights / posterior.weights.sum()
    out = np.zeros((found.n_documents, posterior.n_clusters))
    owner = np.repeat(np.arange(found.n_documents), np.diff(found.offsets))
    out[owner, found.position] = found.count
    some = found.length > 0
    out[some] /= found.length[some, None]
    out[~some] = weights
    return out, found.length
