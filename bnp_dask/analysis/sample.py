"""Random data as a posterior expects them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.levels import with_levels
from bnp_dask.analysis.sequences.transitions import transitions
from bnp_dask.analysis.topics.documents import counts_words, prior_mass
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import seed_of, whole_number
from bnp_dask.model import Posterior
from bnp_dask.observation.interface.drawing import DrawingObservation, DrawingSteps, DrawingWords


class Sample(NamedTuple):
    """Data that were drawn.

    Parameters
    ----------
    x
        Atoms ``(n, D)`` float64; a DataFrame where columns have levels that are texts; documents as sparse counts
        ``(n, V)``.
    labels
        Ids of the clusters that they were drawn from, ``(n,)`` int64: of documents of a topic model the topic with the
        largest share.
    """

    x: Any
    labels: np.ndarray


def sample(posterior: Posterior, n: int, rng: Any = 0, *, length: int | None = None) -> Sample:
    """Draw new data from the clusters of a posterior.

    Each atom is drawn from a cluster's posterior predictive, the density that :func:`bnp_dask.score` takes the log of,
    so that uncertainty about its parameters is in it.  Clusters that no atom was seen of are left out.

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
        Words of each document, or atoms of each group; needed there, and for mixtures of documents.

    Returns
    -------
    Sample
        ``x`` and ``labels``, as scikit-learn's ``sample`` gives them.  Of groups of dense atoms, ``n * length`` rows.

    Raises
    ------
    SettingError
        The likelihood says not how to draw, or ``length`` is missing, or given where it says nothing; or memory does
        not hold so many.
    """
    model = require_posterior(posterior).model
    whole_number("n", n, 1, what="a whole number of atoms")
    generator = np.random.default_rng(seed_of(rng))
    words = isinstance(model.observation, DrawingWords)
    if (words or model.structure.has_shares) != (length is not None):
        need = "needs length=, the words of a document or atoms of a group" if length is None else "has no length"
        raise SettingError(f"length={length!r}: {type(model.allocation).__name__} of {_name(posterior)} {need}")
    if length is not None:
        whole_number("length", length, 1, what="a whole number of words or atoms")
    try:
        return _drawn(posterior, n, int(length or 0), generator)
    except MemoryError as error:
        said = f"n={n}" if length is None else f"n={n}, length={length}"
        raise SettingError(f"{said}: memory does not hold so many ({error}); draw fewer at a time") from None


def _drawn(posterior: Posterior, n: int, length: int, rng: np.random.Generator) -> Sample:
    """A sample of each kind of model."""
    model = posterior.model
    if model.structure.is_ordered:
        return _sequence(posterior, n, rng)
    if model.structure.has_shares:
        return _documents(posterior, n, length, rng)
    place = _choose(posterior.weights, n, rng)
    if isinstance(model.observation, DrawingWords):
        counts = model.observation.draw_words(posterior.observation, place, length, rng)
        return Sample(sparse.csr_array(counts), posterior.ids[place])
    return Sample(_atoms(posterior, place, rng), posterior.ids[place])


def _choose(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn in proportion to weights ``(K,)``, ``(n,)``."""
    return rng.choice(len(weights), n, p=weights / weights.sum())


def _name(posterior: Posterior) -> str:
    return type(posterior.model.observation).__name__


def _atoms(posterior: Posterior, place: np.ndarray, rng: np.random.Generator) -> Any:
    observation = posterior.model.observation
    if not isinstance(observation, DrawingObservation):
        raise SettingError(f"{_name(posterior)} says not how to draw atoms; it needs a method draw(params, place, rng)")
    return with_levels(posterior, observation.draw(posterior.observation, place, rng))


def _sequence(posterior: Posterior, n: int, rng: np.random.Generator) -> Sample:
    """One path of states, and a step from each."""
    found, observation = transitions(posterior), posterior.model.observation
    place = np.empty(n, np.int64)
    place[0] = _choose(found.start, 1, rng)[0]
    for t in range(1, n):
        place[t] = _choose(found.matrix[place[t - 1]], 1, rng)[0]
    if not isinstance(observation, DrawingSteps):
        return Sample(_atoms(posterior, place, rng), posterior.ids[place])
    before = max(posterior.model.lags, 1)
    rows = np.zeros((n + before, len(posterior.observation.B[0])))
    for t, k in enumerate(place.tolist()):
        rows[t + before] = observation.draw_step(posterior.observation, k, rows[t : t + before][::-1].ravel(), rng)
    return Sample(rows[before:], posterior.ids[place])


def _documents(posterior: Posterior, n: int, length: int, rng: np.random.Generator) -> Sample:
    """Documents, each with shares of topics of its own."""
    prior, _ = prior_mass(posterior)
    shares = rng.dirichlet(np.maximum(prior, 1e-300), n)
    shares = np.nan_to_num(shares, nan=1.0 / len(prior))  # masses so small that all draws were zero
    if not counts_words(posterior.model):
        place = np.concatenate([_choose(row, length, rng) for row in shares])
        return Sample(_atoms(posterior, place, rng), posterior.ids[place])
    lam = posterior.observation.lam
    phi = lam / lam.sum(axis=1, keepdims=True)
    words = shares @ phi
    counts = rng.multinomial(length, words / words.sum(axis=1, keepdims=True)).astype(np.float64)
    return Sample(sparse.csr_array(counts), posterior.ids[shares.argmax(axis=1)])
