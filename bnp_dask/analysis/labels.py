"""Labels of clusters: known from labelled atoms, or taken from the clusters that they are most like."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bnp_dask.analysis.base import computing_as, require_posterior
from bnp_dask.core import UNITS, Summary
from bnp_dask.errors import SettingError, answering
from bnp_dask.inputs import flag
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import absorbed, data_gains, rough_allocation_gains
from bnp_dask.observation import HALF, KNOWN, Labelled

NONE = -1


@answering
def label_of(posterior: Posterior, nearest: bool = False) -> np.ndarray:
    """Label of each cluster of a posterior that was trained with ``labels=``.

    Parameters
    ----------
    posterior
        Clusters with their statistics.
    nearest
        False: clusters with less than half a labelled atom have no label.  True: they take the label of the clusters
        that they are most like.  They are united, one after the other, with a cluster of a label or with each other, in
        the order in which the objective loses least (the data term is exact; the entropy of the union is left out).
        Clusters of two labels are never united.

    Returns
    -------
    numpy.ndarray
        ``(K,)``, in the order of ``posterior.ids``: whole numbers, -1 for none; or texts, None for none.

    Raises
    ------
    SettingError
        The posterior was trained without labels, or has no statistics.

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> x = np.r_[np.random.default_rng(0).normal(0, 1, (50, 2)), np.random.default_rng(1).normal(9, 1, (50, 2))]
    >>> known = [None] * 100
    >>> known[0], known[99] = "left", "right"
    >>> found = bnp.train(bnp.Model(bnp.DPMixture(), bnp.Gaussian()), x, labels=known).posterior
    >>> sorted(bnp.label_of(found))
    ['left', 'right']
    """
    flag("nearest", nearest)
    posterior = require_posterior(posterior)
    model, summary = posterior.model, posterior.summary
    if not isinstance(model.observation, Labelled):
        raise SettingError("label_of: the posterior was trained without labels; pass train(..., labels=known)")
    if summary is None:
        raise SettingError(
            "label_of: the posterior has no statistics; pass result.posterior, or one from bnp_dask.load"
        )
    names = model.observation.names
    with computing_as(model):
        owner = _nearest(model, summary) if nearest else model.observation.owners(summary, HALF)
    if all(isinstance(name, int) for name in names):
        return np.where(owner >= 0, np.array(names)[owner], NONE)
    return np.array([names[i] if i >= 0 else None for i in owner.tolist()], object)


def without_labels(posterior: Posterior) -> Posterior:
    """The same clusters without their labels: the posterior that questions about atoms alone are asked of."""
    model = posterior.model
    if not isinstance(model.observation, Labelled):
        return posterior
    bare = replace(model, observation=model.observation.part, reference=None)
    return replace(posterior, model=bare, observation=posterior.observation.part)


def _nearest(model: Model, summary: Summary) -> np.ndarray:
    """Position of the label of each cluster, ``(K,)``: its own, or the label of the clusters that it is united with."""
    observation = model.observation
    assert isinstance(observation, Labelled)
    known = summary[KNOWN]
    summary = replace(summary, values={**summary.values, KNOWN: np.where(known >= HALF, known, 0.0)})
    # statistics between two clusters are left out: a union is judged by its data and its count
    fields = {name: f for name, f in summary.fields.items() if name in ("N", UNITS, *observation.fields)}
    value = replace(summary.without_pairs(), fields=fields, values={name: summary[name] for name in fields}, links=None)
    members = {int(i): [k] for k, i in enumerate(summary.ids)}
    gains = np.full((value.n_clusters, value.n_clusters), -np.inf)
    first, second = np.triu_indices(value.n_clusters, 1)
    _score(model, value, gains, first, second)
    while True:
        owner = observation.owners(value)
        free = owner < 0
        if not free.any() or free.all():
            break
        every = np.arange(value.n_clusters)
        score = gains + rough_allocation_gains(np.maximum(value.units, 0.0), every[:, None], every)
        score[~(free[:, None] | free)] = -np.inf
        a, b = (int(i) for i in np.unravel_index(score.argmax(), score.shape))
        a, b = min(a, b), max(a, b)
        members[int(value.ids[a])] += members.pop(int(value.ids[b]))
        value = absorbed(value, a, b)
        gains = np.delete(np.delete(gains, b, axis=0), b, axis=1)
        others = np.delete(np.arange(value.n_clusters), a)
        _score(model, value, gains, np.minimum(others, a), np.maximum(others, a))
    out = np.full(summary.n_clusters, NONE)
    for i, label in zip(value.ids.tolist(), observation.owners(value), strict=True):
        out[members[i]] = label
    return out


def _score(model: Model, value: Summary, gains: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Write the gains of uniting some pairs of positions into the symmetric ``gains (K, K)``."""
    pairs = np.stack([value.ids[first], value.ids[second]], axis=1)
    gains[first, second] = gains[second, first] = data_gains(model, value, pairs)
