"""Setting of shadows: other states that live beside a run for some laps and take its place if they are better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bnp_dask.core.columns import OPTIONAL
from bnp_dask.core.registry import register
from bnp_dask.errors import SettingError
from bnp_dask.initialize import Initialization
from bnp_dask.inputs.protocols import lacking, require
from bnp_dask.inputs.settings import hold, shown, whole_number
from bnp_dask.observation.base import Observation


@register
@dataclass(frozen=True)
class Shadow:
    """A second state beside the state of a run, in the same read of each batch, which may take its place.

    Many changes do not pay in one lap: new clusters have to settle, and old ones to be merged away.  So once clusters
    are calm a shadow begins.  It lives some laps with merges and deletes of its own, and takes the place of the run's
    state if its exact objective on all data is higher by then; else it is dropped, and the run is as it would have been
    without.  So the objective never falls.

    Unless ``init`` is given, it begins with all births made that the data rejected one by one since the last shadow.
    Each of its laps costs about as much as one of the run's without births: a lap with a shadow took 1.92 to 1.95
    times the processor time of one without (60 full Gaussians, 100,000 points).  On 6,000 points of 60 overlapping
    clusters in the plane it won 20, 0 and 0 nats with full covariances (three seeds) and 0, 0.2 and 0 with diagonal
    ones, in 1.0 to 2.1 times the time of the run: births beside neighbours now find the changes
    with which shadows won up to 25 nats before.

    With another ``prior``, a quarter and four times the scale of a Gaussian's default, fixed priors win 154 to 204 nats
    on wine, whose held-out score rises by 0.4 to 1.1 nats per row, and 2 to 17 on iris, crabs, faithful and galaxies,
    where the score moves either way (three seeds).  A third of the default pseudo-counts of words wins 10,900 of
    3.17 million nats on KOS and 0.002 nats per held-out token, in 2.4 times the time.  Nothing is won on
    the 60 clusters above, nor by learned priors (0.3 nats on crabs, less elsewhere): learning ends at the same point.

    Parameters
    ----------
    laps
        Laps of a shadow.
    tries
        Shadows in a row that may fail before there is no other; with ``prior`` as many as there are priors.
    init
        Starting point in place of rejected births, such as another start or more clusters: ``BregmanKMeans(40)``.
    prior
        Other priors, one for each shadow in turn: likelihoods of the run's class with other settings, such as
        ``[Multinomial(0.05), Multinomial(0.4, common=0.6)]``.  Open settings are set from the data, as the run's
        own is.  A shadow begins with the run's clusters, and with births that were rejected, unless ``init`` is given.
        If it takes the run's place, the run has its prior from there on.  If the run's prior is not learned, the
        objective then belongs to the prior in force: it is the highest over the priors (empirical Bayes), and never
        falls.  If it is learned (``Model(..., learn_prior=...)``), the objective is one for all of its settings, and a
        shadow is another start of learning.
    """

    laps: int = 12
    tries: int = 2
    init: Initialization | None = None
    prior: Sequence[Observation] | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        hold(self, "laps", whole_number("laps", self.laps, 1))
        hold(self, "tries", whole_number("tries", self.tries, 1))
        if self.init is not None:
            require("init", self.init, Initialization, "a start, such as BregmanKMeans(25)")
        if self.prior is not None:
            hold(self, "prior", _likelihoods(self.prior))


def _likelihoods(value: object) -> tuple[Observation, ...]:
    """One likelihood or more; SettingError for anything else."""
    found = tuple(value) if isinstance(value, Sequence) and not isinstance(value, (str, np.ndarray)) else (value,)
    for number, one in enumerate(found):
        lack = lacking(one, Observation)
        if lack is not None:
            raise SettingError(
                f"prior[{number}]={shown(one)}: {lack}; needs likelihoods with other settings of their prior, such as "
                "[Multinomial(0.05), Multinomial(0.4, common=0.6)]"
            )
    if not found:
        raise SettingError("prior=(): needs likelihoods, such as [Multinomial(0.05)], or None for the run's own prior")
    return found
