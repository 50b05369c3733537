"""Columns that are constant or follow from others: directions in which the data do not vary, or hardly.

Along such a direction every cluster's density is degenerate.  The atoms add nothing to its scale matrix there, and the
evidence of n atoms grows like ``n / 2 log n``: one cluster of 2 n atoms beats two of n by ``n log 2`` nats, however far
these are apart in other columns.  Two remedies, by how much the data vary along the direction:

- *Not at all* (:data:`NULL`).  Every atom is given the variance R that the prior expects there, in the same way as
  variance of rounding (:mod:`bnp_dask.observation.priors`): R is added to the square of every atom, and
  ``tr(E[Lam] R) / 2`` is subtracted from its log likelihood.  Then the direction costs each atom the same in all
  clusters, up to the logarithm of their sizes.  The prior is unchanged.  Random atoms have no part there
  (:func:`without_null`).
- *Hardly* (:data:`NEAR`).  A prior that expects as much variance there as elsewhere hides clusters there until they
  hold about ``0.1 / lambda`` atoms, lambda being the variance there in units of the columns.  Default scale
  matrices follow the data's own variance along such directions (:func:`scale_along`), so that a copy of a column with
  noise of any size is as good as that noise by itself.

A further cluster still costs about as much for such a column as for a column of noise: its mean, its variance and its
covariances are inferred, at half the logarithm of the cluster's atoms for each number.  Nats that two clusters of 60
rows in two columns (mean zero: 150, autoregressive: 200) gain less beside a third column, in the mean of five of noise:

======================  =====  ========  =======  =====
likelihood              noise  constant  doubled  a sum
======================  =====  ========  =======  =====
Gaussian                 10.2       9.2     10.7   10.3
ZeroMeanGaussian          9.9      11.8      8.3    8.2
DiagGaussian              5.9       4.7    -96.8   -110
FixedVarianceGaussian    -2.1       2.9     -483   -505
AutoRegressiveGaussian   26.7      24.1     18.1   18.1
======================  =====  ========  =======  =====

Likelihoods that take columns as independent count a copy as evidence of its own, and say so
(:func:`tell_of_columns`).

Directions are eigenvectors of the covariance in units of each column's bulk, so that neither units nor single rows far
away change them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np

from bnp_dask.core import Bulk, Survey
from bnp_dask.errors import warn
from bnp_dask.kernels import matmul
from bnp_dask.observation.priors import constant_columns, rounding_variance, usual_variance

logger = logging.getLogger("bnp_dask.observation")

NULL = 1e-10
"""Variance along a direction, in units of the columns, up to which the data count as not varying: as of values in
single precision, whose factors double precision still holds."""

EXACT = 1e-13
"""Residual variance of a step given the preceding steps up to which it counts as not varying: rounding of an exact
rule.  A series that drifts far has a small residual beside its own variance, and yet has states."""

FAR_ROUNDING = 1e-13
"""Share of the largest second moment that rounding may leave in others: some hundred units in the last place of double
precision, also for values in single precision (6e-8 of a value, squared, times some).  In the tables named at
:data:`NEAR` it comes to 1e-13 to 1e-11 of a column's variance, far below the least variance of any direction."""

NEAR = 1e-3
"""Variance along a direction, in units of the columns, below which default scale matrices begin to follow it.  They do
altogether below its square.  A copy of a column with a deviation of noise of 3 % lies there.  Set by the meaning of a
column and such copies, not on data.  Least variances of tables, in units of the columns:

=======================  =======  =======
table                    least    next
=======================  =======  =======
breast cancer (569, 30)  0.00013  0.00075
crabs (200, 5)           0.0017   0.011
diabetes (442, 10)       0.0086   0.078
iris (150, 4)            0.021    0.15
digits (1797, 64)        0.054    0.066
faithful (272, 2)        0.099    1.9
wine (178, 13)           0.10     0.17
geyser (299, 2)          0.36     1.6
=======================  =======  =======

so only breast cancer (radius, perimeter and area) is changed.  Held-out nats a row and adjusted Rand
index by default, means of two parts, with other values in its place:

=============  ============  ============  ============  ============
table          1e-5          1e-3          1e-2          0.1
=============  ============  ============  ============  ============
breast cancer  41.1   0.59   42.9   0.34   42.8   0.29   43.0   0.31
diabetes       21.6          21.6          22.4          22.3
crabs          -6.33  0.81   -6.33  0.81   -6.31  0.80   -6.30  0.80
=============  ============  ============  ============  ============

Scores rise with it, and breast cancer is split into more clusters (4 with 1e-5, 11 or 12 with 1e-3) than its two
diagnoses."""

PIVOT = 1e3
"""Multiples of the least variance of a direction up to which a column counts as following from earlier columns: a
column has part in several directions.  For messages alone."""

MOST_TOLD = 128
"""Most columns for which likelihoods that treat columns as independent request joint moments, to warn of columns that
follow from others: with more, the product of the data with themselves would cost more than laps."""

ENOUGH = 2.0
"""Rows for each column from which small eigenvalues describe the data: with fewer rows some are small by chance."""


@dataclass(frozen=True, eq=False)
class Dependence:
    """Dependence of the columns of some data on one another.

    Parameters
    ----------
    unit
        Square root of the variance of each column's bulk, ``(D,)`` in units of the data.
    square
        Covariance of the columns in these units, ``(D, D)``; diagonal if only single columns are known.
    values, vectors
        Variances along principal directions, ascending ``(D,)``, and the directions ``(D, D)``, in these units.
    null
        Orthonormal directions in which the data do not vary, ``(D, k)``, in these units.
    constant, following
        Constant columns, and columns that follow from earlier columns, as named in messages; "" for none.
    """

    unit: np.ndarray
    square: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    null: np.ndarray
    constant: str
    following: str

    def scale_along(self, scale: np.ndarray) -> np.ndarray:
        """Diagonal scale matrix ``(D, D)`` in proportion to the columns' variances, reduced along directions in which
        the data hardly vary; unchanged if there are none."""
        share = np.minimum(1.0, np.maximum(self.values, (self.values / NEAR) ** 2))
        if (share == 1.0).all():
            return scale
        along = matmul(self.vectors * share, self.vectors.T)
        root = np.sqrt(scale.diagonal())
        found: np.ndarray = 0.5 * (along + along.T) * np.outer(root, root)
        return found

    def null_setting(self, expected: np.ndarray) -> np.ndarray:
        """Setting ``null`` for a prior whose E[covariance] is ``expected (D, D)``: ``(2, k, D)``.

        First the combinations a of columns that do not vary, scaled so that ``a' E[covariance] b`` is one or zero.
        Second ``E[covariance] a``, of which :func:`null_covariance` makes R.
        """
        combinations = (self.null / self.unit[:, None]).T
        along = matmul(combinations, expected)
        values, vectors = np.linalg.eigh(matmul(along, combinations.T))
        root = matmul(vectors / np.sqrt(values), vectors.T)
        return np.stack([matmul(root, combinations), matmul(root, along)])

    def tell(self) -> None:
        """Tell of columns without information about clusters, by name: warn of constant ones, log dependent ones.

        Shares, and patches without their mean, follow from one another by nature: that is no mistake of their user.
        """
        nothing = "they carry no information, and get the same spread everywhere"
        if self.constant:
            warn(f"column(s) {self.constant} are constant: {nothing}; consider dropping them")
        if self.following:
            logger.warning("column(s) %s follow from others: %s", self.following, nothing)


def dependence_of(
    survey: Survey, bulk: Bulk, rounding: np.ndarray | None = None, about_zero: bool = False
) -> Dependence:
    """Principal directions of rows, and directions in which they do not vary.

    Parameters
    ----------
    survey
        Survey of the columns.  They are treated one by one if it lacks their joint moments, or if these include rows so
        far away that rounding hides the others.
    bulk
        Bulk of the same columns; with ``about_zero`` its variances are mean squares.
    rounding
        Variance of rounding of each column, ``(D,)``; None for continuous columns.
    about_zero
        Whether moments are taken about zero, for likelihoods of mean zero.
    """
    unit, constant, d = np.sqrt(usual_variance(bulk)), constant_columns(bulk), survey.n_features
    square, joint = np.eye(d), survey.joint
    if joint.covers(d) and joint.count > d + 1:
        mean = joint.mean / unit
        known = joint.covariance / np.outer(unit, unit) + (np.outer(mean, mean) if about_zero else 0.0)
        if _rounding(known) <= NEAR**2:
            square = known
    square[constant] = square[:, constant] = 0.0
    if rounding is not None:
        square += np.diag(np.where(constant, 0.0, rounding / unit**2))
    values, vectors = np.linalg.eigh(square)
    least = _least(square, NULL)
    null = vectors[:, values <= least]
    # the setting null covers directions that do not vary, and with few rows small variances are chance
    seen = np.full(d, joint.count >= ENOUGH * d) & (values > least)
    return Dependence(
        unit=unit,
        square=square,
        values=np.where(seen, values, 1.0),
        vectors=vectors,
        null=null,
        # every column of one row is constant
        constant=survey.called(np.flatnonzero(constant)) if constant.any() and survey.total_weight > 1 else "",
        following=_following(survey, square, constant, PIVOT * least) if null.shape[1] > constant.sum() else "",
    )


def dependence_of_steps(survey: Survey, bulk: Bulk) -> Dependence:
    """Dependence of steps that follow from preceding steps: parts that these determine exactly do not vary either.

    Parameters
    ----------
    survey
        Survey of rows ``[x_t, x_{t-1}, ..., x_{t-L}]``, ``((1 + L) D,)``.
    bulk
        Bulk of the steps x_t alone, ``(D,)``.
    """
    d, width, joint = len(bulk.mean), survey.n_features, survey.joint
    steps = survey.features(np.arange(d))
    alone = dependence_of(steps, bulk)
    if not joint.covers(width) or joint.count <= width + 1:
        return alone
    unit = np.tile(alone.unit, width // d)
    square, mean = joint.covariance / np.outer(unit, unit), joint.mean / unit
    if _rounding(square) > NEAR**2:
        return alone
    values, vectors = np.linalg.eigh(square[d:, d:])
    varies = values > _least(square, NULL)
    roots = vectors[:, varies] / np.sqrt(values[varies])
    rule = matmul(matmul(square[:d, d:], roots), roots.T)
    left = square[:d, :d] - matmul(rule, square[d:, :d])
    left = 0.5 * (left + left.T)
    values, null = np.linalg.eigh(left)
    null = null[:, values <= _least(square, EXACT)]
    # a rule may need a constant; the likelihood has one if a combination of the preceding steps is constant
    near = 1e-6 + 1e-12 * np.abs(mean).max()
    if not (np.abs(matmul(mean[d:], vectors[:, ~varies])) > near).any():
        missed = matmul(mean[:d] - matmul(rule, mean[d:]), null)
        if np.linalg.norm(missed) > near:
            null = matmul(null, np.linalg.svd(missed[None])[2][1:].T)
    both, sizes, _ = np.linalg.svd(np.concatenate([alone.null, null], axis=1), full_matrices=False)
    null = both[:, sizes > 0.5]
    constant = constant_columns(bulk)
    more = null.shape[1] > constant.sum()
    return replace(
        alone,
        null=null,
        following=_following(steps, left, constant, PIVOT * _least(square, NULL)) if more else "",
    )


def tell_of_columns(model: object, survey: Survey, bulk: Bulk) -> None:
    """Warn of constant columns, and of columns that nearly follow from others, for a likelihood that takes columns as
    independent: such columns count evidence twice, and clusters are split along them."""
    found = dependence_of(survey, bulk)
    replace(found, following="").tell()
    # a larger share may come from clusters far apart: their columns go together, and are independent within each
    names = _following(survey, found.square, found.square.diagonal() <= 0.0, NEAR**2)
    if names:
        warn(
            f"column(s) {names} follow from others, but {type(model).__name__} takes columns as independent of each "
            "other: it counts them as evidence of their own, and may split the data along them. Drop them, or "
            "use Gaussian"
        )


def few_columns(n_features: int) -> np.ndarray:
    """Columns whose joint moments are needed for :func:`tell_of_columns` alone, ``(U,)``: all or none."""
    return np.arange(n_features if n_features <= MOST_TOLD else 0)


def _rounding(square: np.ndarray) -> float:
    """Variance that rounding may leave in moments, or hide: in proportion to the moments of single rows far away."""
    return FAR_ROUNDING * float(square.diagonal().max(initial=0.0))


def _least(square: np.ndarray, share: float) -> float:
    """Variance up to which a direction counts as not varying."""
    return max(share, _rounding(square))


def _following(survey: Survey, square: np.ndarray, constant: np.ndarray, least: float) -> str:
    """Columns whose variance given earlier columns is at most ``least``, as named in messages; from pivots of
    ``square (D, D)``."""
    rest, follows = square.copy(), np.zeros(len(square), np.bool_)
    for j in np.flatnonzero(~constant):
        follows[j] = rest[j, j] <= least
        if not follows[j]:
            rest -= np.outer(rest[:, j], rest[j]) / rest[j, j]
    return survey.called(np.flatnonzero(follows)) if follows.any() else ""


# -- the setting null ---------------------------------------------------------------------------------------------
def unrecorded_covariance(grain: np.ndarray | float | None, null: np.ndarray | None) -> np.ndarray | None:
    """Unrecorded covariance of each atom, ``(D, D)``: rounding, and :func:`null_covariance`; None for none."""
    rounding, along = rounding_variance(grain), null_covariance(null)
    if rounding is None:
        return along
    return np.diag(rounding) if along is None else np.diag(rounding) + along


def null_covariance(null: np.ndarray | None) -> np.ndarray | None:
    """R, ``(D, D)``, of the setting ``null (2, k, D)``; None if the data vary in all directions."""
    return None if null is None or null.shape[1] == 0 else matmul(null[1].T, null[1])


def without_null(deviations: np.ndarray, null: np.ndarray | None) -> np.ndarray:
    """Deviations from a mean ``(n, D)`` without their part along directions in which the data do not vary."""
    if null is None or null.shape[1] == 0:
        return deviations
    found: np.ndarray = deviations - matmul(matmul(deviations, null[0].T), null[1])
    return found
