"""Log probability of whole documents, by sampling without a closed form (Wang & Blei 2012, section S.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.matching import open_for
from bnp_dask.analysis.running import for_batches
from bnp_dask.analysis.topics.completion import document_keys
from bnp_dask.data.base import Reader
from bnp_dask.errors import DataError, SettingError
from bnp_dask.execute.base import Executor
from bnp_dask.inputs.settings import whole_number
from bnp_dask.kernels.numeric.arithmetic import exp, log, log_sum_exp, matmul
from bnp_dask.kernels.numeric.draws import log_gammas, log_shares
from bnp_dask.kernels.topics.whole_documents import sample_document
from bnp_dask.model import Posterior
from bnp_dask.observation.base import WideningObservation
from bnp_dask.observation.checks import as_csr
from bnp_dask.structure.answers.documents import as_documents, check_documents, counts_words, prior_mass
from bnp_dask.structure.verbs import MixtureAllocation

if TYPE_CHECKING:
    from distributed import Client


def word_score(
    posterior: Posterior,
    data: Any,
    *,
    samples: int = 20,
    burn_in: int = 20,
    seed: int = 0,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> float:
    """Log probability of whole documents in the order of their words, mean per word, nats; larger is better.

    Over all documents of a length, in all orders, these probabilities sum to one; the multinomial coefficient,
    which :func:`bnp_dask.score` of a mixture has, is the number of orders of one document.

    Weights and words of clusters, or topics, have their expected values, and the weight of unseen clusters is divided
    among these. With a mixture there is a closed form. With topics the shares of each document are integrated over
    by importance sampling: its tokens' topics are drawn by collapsed Gibbs sampling, shares from their Dirichlet
    distribution given each draw, and the probability of the document given these is weighted by their prior density
    over the density with which all draws together propose them. Few samples underestimate the result, but still rank
    models (Wallach et al. 2009).

    :func:`bnp_dask.score` instead holds out words of each document, and is less noisy.

    Parameters
    ----------
    posterior
        Mixture of :class:`~bnp_dask.observation.Multinomial`, or topics of words.
    data
        Held-out documents: counts, whole numbers.  Weights weigh the mean.
    samples
        Draws of each document's topics; mixtures need none.
    burn_in
        Sweeps before these.
    seed
        Seed; with the words of a document it determines its draws, so the score does not depend on the batches.
    batch_size, client
        As in :func:`bnp_dask.predict`.

    Raises
    ------
    SettingError
        Another kind of model.
    DataError
        As for :func:`bnp_dask.score`, or no word at all.

    References
    ----------
    Wang & Blei 2012, section S.3.
    """
    posterior = require_posterior(posterior)
    model = posterior.model
    topics, words = counts_words(model), isinstance(model.observation, WideningObservation)
    mixture = words and not topics and isinstance(model.allocation, MixtureAllocation)
    if not (mixture or topics):
        raise SettingError(
            f"word_score: {type(model.allocation).__name__} of {type(model.observation).__name__} has no documents of "
            "words; needs a mixture of Multinomial, HDPTopics or LDA"
        )
    settings = _Whole(
        whole_number("samples", samples, 1), whole_number("burn_in", burn_in), whole_number("seed", seed), mixture
    )
    source = open_for(posterior, data, batch_size, weights=True)
    parts = for_batches(posterior.for_scores(), source, client, settings, "word-score")
    n_words = math.fsum(n for _, n in parts)
    if n_words <= 0:
        raise DataError(f"{source.name}: the documents have no words that count; a mean needs one")
    return math.fsum(value for value, _ in parts) / n_words


@dataclass(frozen=True)
class _Whole:
    """Task: weighted sum of log probabilities of the documents of a batch, nats, and of their words."""

    samples: int
    burn_in: int
    seed: int
    is_mixture: bool

    def __call__(self, posterior: Posterior, reader: Reader) -> tuple[float, float]:
        batch = as_documents(posterior.model, reader())
        if self.is_mixture:
            posterior.model.observation.check(batch)
        else:
            check_documents(posterior.model, batch)
        x = as_csr(batch)
        times = np.ones(batch.n_atoms) if batch.weights is None else np.asarray(batch.weights, np.float64)
        value = _of_mixture(posterior, x) if self.is_mixture else self._of_topics(posterior, x)
        return math.fsum(value * times), math.fsum(np.asarray(x.sum(axis=1)).ravel() * times)

    def _of_topics(self, posterior: Posterior, x: sparse.csr_array) -> np.ndarray:
        """Log probability of each document, ``(D,)``."""
        prior, rest = prior_mass(posterior)
        prior = np.maximum(prior * (1.0 + rest / prior.sum()), np.finfo(float).tiny)
        table = np.ascontiguousarray(np.exp(_log_words(posterior)).T)
        out = np.zeros(x.shape[0])
        for d, key in enumerate(document_keys(x.indices, x.data, x.indptr, self.seed)):
            own = slice(x.indptr[d], x.indptr[d + 1])
            words, counts = x.indices[own], x.data[own].astype(np.int64)
            if counts.sum():
                rng = np.random.default_rng(np.random.SeedSequence(int(key)))
                out[d] = self._of_document(counts, np.ascontiguousarray(table[words]), prior, rng)
        return out

    def _of_document(self, counts: np.ndarray, table: np.ndarray, prior: np.ndarray, rng: np.random.Generator) -> float:
        """Log probability of a document with ``counts (R,)`` of words whose probabilities are ``table (R, K)``."""
        row = np.repeat(np.arange(len(counts)), counts)
        held = np.zeros((self.samples, len(prior)))
        sample_document(row, table, prior, rng.random((self.burn_in + self.samples, len(row))), held)
        theta = prior + held
        share = log_shares(log_gammas(theta, rng))
        words = matmul(log(matmul(exp(share), table.T)), counts.astype(np.float64))
        each = (gammaln(prior) - gammaln(theta)).sum(axis=1) + gammaln(prior.sum() + len(row)) - gammaln(prior.sum())
        proposal = log_sum_exp(matmul(share, held.T) + each)  # of all draws over the prior, as a sum
        return float(log_sum_exp((words - proposal)[None])[0])


def _log_words(posterior: Posterior) -> np.ndarray:
    """Log of expected probabilities of words, ``(K, V)``."""
    lam = posterior.observation.lam
    found: np.ndarray = log(lam) - log(lam.sum(axis=1, keepdims=True))
    return found


def _of_mixture(posterior: Posterior, x: sparse.csr_array) -> np.ndarray:
    """Log probability of each document, ``(D,)``."""
    weights = posterior.weights
    logs = x @ _log_words(posterior).T + log(np.maximum(weights / weights.sum(), np.finfo(float).tiny))
    found: np.ndarray = log_sum_exp(logs)
    return found
