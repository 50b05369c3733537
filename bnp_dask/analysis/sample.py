"""Random data drawn from a posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnp_dask.analysis.arguments import require_posterior
from bnp_dask.analysis.labels import without_labels
from bnp_dask.analysis.levels import with_levels
from bnp_dask.errors import SettingError
from bnp_dask.inputs.settings import seed_of, whole_number
from bnp_dask.model import Posterior


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
