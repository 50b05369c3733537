"""Responses of documents, predicted from their topics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import WINDOW, runner_for
from bnp_dask.core.batch import Batch
from bnp_dask.data.base import Reader, batch_reader
from bnp_dask.errors import SettingError
from bnp_dask.execute.base import Executor, in_order
from bnp_dask.model import Posterior
from bnp_dask.structure.answers.documents import as_documents, check_documents, find_topics, own_step
from bnp_dask.structure.verbs import ResponseModel, response_of

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


def predict_response(
    posterior: Posterior,
    data: Any,
    *,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> ResponsePrediction:
    """Responses of documents, from a topic model that was trained with ``responses=``.

    Parameters
    ----------
    posterior
        Topics, with coefficients of the response.
    data
        Documents, as for :func:`bnp_dask.predict`; their own responses, if any, are not looked at.
    batch_size, client
        As for :func:`bnp_dask.predict`.

    Returns
    -------
    ResponsePrediction
        Mean and variance for each document, or probabilities of classes.  Shares of topics are found from the words
        alone.  A document without a word of the vocabulary has the expected shares of any document.

    Raises
    ------
    SettingError
        A posterior without responses.
    DataError
        As for :func:`bnp_dask.predict`.

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
    source = open_for(posterior, data, batch_size)
    with runner_for(posterior, client) as runner:
        shared = runner.share("posterior", posterior.light())
        tasks = (
            (f"responses-batch{i}", shares_task, (shared, batch_reader(source, i))) for i in range(source.n_batches)
        )
        parts = [response.predict(params, *shares) for shares in in_order(runner, tasks, WINDOW)]
    none, _ = response.predict(params, np.zeros((0, posterior.n_clusters)), np.zeros(0))
    return ResponsePrediction(
        np.concatenate([none, *(mean for mean, _ in parts)]),
        np.concatenate([none, *(spread for _, spread in parts)]),
        None if response.classes is None else np.array(response.classes),
    )


def regression_of(posterior: Posterior) -> tuple[ResponseModel, Any]:
    """Model of responses and its coefficients; SettingError if the posterior was trained without."""
    response = response_of(posterior.model.allocation)
    if response is None or posterior.allocation.response is None or posterior.allocation.response.known <= 0.0:
        raise SettingError("the posterior was trained without responses; pass train(..., responses=y)")
    return response, posterior.allocation.response


def shares_task(posterior: Posterior, reader: Reader) -> tuple[np.ndarray, np.ndarray]:
    """Task: expected shares of topics in the tokens of documents ``(G, K)``, and their tokens ``(G,)``."""
    return token_shares(posterior, reader())


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
