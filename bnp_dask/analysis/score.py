"""Log densities of new atoms under a posterior, and of the second halves of documents."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask.analysis.base import computing_as, for_batches, open_for, require_posterior
from bnp_dask.analysis.sequences import density_of_recorded
from bnp_dask.analysis.topics.completion import BatchScore, Completion, CompletionScore, combine_scores, complete_batch
from bnp_dask.core import Batch, check_weights
from bnp_dask.data import Reader, lagged
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.execute import Executor
from bnp_dask.model import Model, Posterior
from bnp_dask.structure import as_documents, prior_mass

if TYPE_CHECKING:
    from distributed import Client


@answering
def score(
    posterior: Posterior,
    data: Any,
    *,
    completion: Completion | None = None,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> float:
    """Mean log likelihood per atom under the posterior predictive, nats; larger is better.  Topic models: completion.

    The density of an atom is ``sum_k E[pi_k] p(x | cluster k)`` with each cluster's parameters integrated over
    their posterior.  A Dirichlet process keeps mass for clusters that no atom has come from yet; that share
    is given to the prior predictive, so that the density integrates to one.  The density of a document is the
    probability of its counts given its length: of all orders of its words together, with the multinomial coefficient.
    The density of an atom with missing entries is the density of its observed entries.

    For hidden Markov models it is the log density of whole sequences under expected transitions, per step, over all
    paths; states that were never seen have their share as clusters have, so that the densities of all sequences of one
    length integrate to one.  Autoregressive models with ``lags`` condition on the first steps of each sequence, which
    do not count.

    For topic models it is the document completion score, in nats per held-out token: the topics of each document are
    found from one part of its words, with E[phi_k] for the topics, and the other part is predicted by
    ``sum_k E[pi_dk] E[phi_k]``: probabilities that sum to one over all words, of one token after the other, without a
    multinomial coefficient.  The default follows thesis Ch. 7: 80% of the distinct words of each document to
    find its topics, 20% to be predicted.  See :func:`completion_score` for the counts behind it.  Topics of words are
    ``posterior.predictive`` if training stored these: see :func:`bnp_dask.collapsed_topics`.

    Parameters
    ----------
    posterior
        Trained clusters.
    data
        Held-out atoms; weights, if the source has them, weigh the mean: of a table the column that training had
        (``as_source(table)`` counts every row once).  Raw texts as in :func:`predict`.
    completion
        Words to hold out (topic models only): ``Completion("types")``, the default, or ``Completion("tokens")``
        for thesis (5.59), half of the tokens; with ``share=`` and ``seed=``.
    batch_size, client
        As in :func:`predict`.

    Returns
    -------
    float
        Nats per atom, per step of a sequence, or per held-out token of documents; weighted by the atoms'
        weights.

    Raises
    ------
    DataError
        Features that differ from training, values that its likelihood cannot produce, a total weight of zero, or
        documents none of which has two words.
    SettingError
        ``completion`` for a model without documents.
    NumericalError
        A log density that is not finite.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.repeat([[0.0], [9.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 1))
    >>> posterior = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x).posterior
    >>> print(f"{bnp.score(posterior, x + 0.1):.1f} nats per row")
    -1.9 nats per row
    """
    if require_posterior(posterior).model.structure.has_shares:
        return completion_score(posterior, data, completion, batch_size=batch_size, client=client).score
    if completion is not None:
        raise SettingError(
            f"completion={completion!r}: {type(posterior.model.allocation).__name__} has no documents to complete; "
            "leave it out"
        )
    source = open_for(posterior, data, batch_size, weights=True)
    parts = for_batches(posterior, source, client, score_batch, "score")
    weight = math.fsum(w for _, w in parts)
    if weight <= 0:
        raise DataError(f"{source.name}: the atoms' weights sum to {weight}; a mean needs a positive sum")
    return math.fsum(value for value, _ in parts) / weight


def score_samples(
    posterior: Posterior, data: Any, *, batch_size: int | None = None, client: Client | Executor | str | None = None
) -> np.ndarray:
    """Log likelihood of each atom under the posterior predictive, ``(n,)`` nats; see :func:`score`.

    Topic models: completion of each document ``(G,)``, nats per held-out token; NaN if it cannot be split.  Steps on
    which a sequence is conditioned have NaN.
    """
    posterior = require_posterior(posterior)
    source = open_for(posterior, data, batch_size)
    if posterior.model.structure.has_shares:
        found = for_batches(posterior.for_scores(), source, client, partial(_complete, Completion(), False), "score")
        with np.errstate(invalid="ignore"):
            return np.concatenate([part.value / part.tokens for part in found])
    return np.concatenate(for_batches(posterior, source, client, density_of, "score"))


@answering
def completion_score(
    posterior: Posterior,
    data: Any,
    completion: Completion | None = None,
    *,
    batch_size: int | None = None,
    client: Client | Executor | str | None = None,
) -> CompletionScore:
    """Document completion of held-out documents, with counts of tokens and documents; see :func:`score`.

    Documents that cannot be split are left out and counted.  The split of a document depends on its own words and the
    seed, so the score does not depend on how data are cut or ordered, except for rounding.

    Parameters
    ----------
    posterior
        Trained topics.
    data, batch_size, client
        As for :func:`bnp_dask.predict`.
    completion
        Words to hold out, as for :func:`score`; None: ``Completion("types")``.

    Returns
    -------
    CompletionScore
        Mean log probability per held-out token, nats, with the numbers of tokens, documents and documents left
        out.

    Raises
    ------
    SettingError
        The posterior is of no topic model.
    DataError
        As for :func:`score`.
    """
    posterior = require_posterior(posterior)
    prior_mass(posterior)
    chosen = Completion() if completion is None else completion
    if not isinstance(chosen, Completion):
        raise SettingError(f'completion={completion!r}: needs Completion("types"), Completion("tokens"), or None')
    source = open_for(posterior, data, batch_size)
    parts = for_batches(posterior.for_scores(), source, client, partial(_complete, chosen, True), "score")
    with computing_as(posterior.model):
        return combine_scores(parts, chosen, source.name)


def _complete(completion: Completion, counted: bool, posterior: Posterior, reader: Reader) -> BatchScore:
    """Task: completion of the documents of one batch with positive weight, or of all unless ``counted``."""
    batch = as_documents(posterior.model, reader())
    return complete_batch(posterior, _counted(posterior.model, batch) if counted else batch, completion)


def density_of(posterior: Posterior, reader: Reader) -> np.ndarray:
    """Task: log density of each atom of a batch, ``(n,)`` nats; NaN for steps on which the others are conditioned."""
    return density_of_recorded(posterior, reader(), log_density)


def score_batch(posterior: Posterior, reader: Reader) -> tuple[float, float]:
    """Task: weighted sum of the log densities of a batch, and the sum of weights."""
    return score_of(posterior, lagged(reader(), posterior.model.lags))


def score_of(posterior: Posterior, batch: Batch) -> tuple[float, float]:
    """Weighted sum of the log densities of rows as the likelihood takes them, and the sum of weights."""
    batch = _counted(posterior.model, batch)
    value = log_density(posterior, batch)
    return math.fsum(value if batch.weights is None else value * batch.weights), batch.total_weight


def _counted(model: Model, batch: Batch) -> Batch:
    """The atoms, or sequences, with positive weight: the others need no density."""
    if batch.weights is None or (batch.weights > 0).all():
        return batch
    check_weights(batch.weights, batch.n_atoms, batch.name)
    return model.structure.counted(batch)


def log_density(posterior: Posterior, batch: Batch) -> np.ndarray:
    """Log posterior predictive density of each atom of a batch in memory, ``(n,)`` nats."""
    posterior.model.observation.check(batch)
    return posterior.model.structure.log_density(posterior.model, posterior, batch)
