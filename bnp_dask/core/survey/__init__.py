"""One pass over the data: sizes, moments, ranges, quantiles, checksums.

Each batch -> its moments (:mod:`moments`) and points of its quantiles (:mod:`quantiles`) -> a survey of the batch ->
folded in order into one :class:`Survey` of the data, from which priors and starts are set.
"""

from bnp_dask.core.survey.survey import (
    LEAST_WEIGHT,
    MOST_WEIGHT,
    Survey,
    checksum,
    combine,
    extend,
    require_atoms,
    survey_batch,
    without,
)

__all__ = [
    "LEAST_WEIGHT",
    "MOST_WEIGHT",
    "Survey",
    "checksum",
    "combine",
    "extend",
    "require_atoms",
    "survey_batch",
    "without",
]
