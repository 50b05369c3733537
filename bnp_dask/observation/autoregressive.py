"""Autoregressive Gaussian with a matrix-Normal-Wishart prior: each step of a sequence follows from earlier steps.

A row of a batch is ``[x_t, x_{t-1}, ..., x_{t-L}]``, so it can be handled alone like every other atom: sampled, sorted
out, shared among workers.  With ``lags=L`` such rows are made of plain sequences when data are opened; without it,
data are rows ``[x_t, x_{t-1}]``, as :func:`with_previous` makes them.  The first L steps of a sequence have too few
predecessors: the other steps are conditioned on them, and they are no rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from bnp_dask.core import OPTIONAL, Batch, Bulk, Field, Summary, Survey, bulk_of, lagged_names, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import MOST_MASS, hold, real_setting, shown, whole_number
from bnp_dask.kernels import (
    Resp,
    is_fixed,
    lagged_rows,
    log,
    matmul,
    moment_sums,
    n_packed,
    pack,
    quadratic_coefficients,
    quadratic_log_lik,
    unpack,
    whitened_squares,
    with_lags,
)
from bnp_dask.kernels.gaussian import learned
from bnp_dask.observation import wishart
from bnp_dask.observation.base import LearnsPrior, ScaleShape
from bnp_dask.observation.dependence import NEAR, dependence_of_steps, null_covariance, without_null
from bnp_dask.observation.interface import (
    Axis,
    Estimate,
    Estimates,
    Names,
    compared_by_settings,
    each,
    student_draws,
    vector,
)
from bnp_dask.observation.priors import (
    LARGEST,
    LOG_2PI,
    PRIOR_SCALE,
    check_dense,
    constant_columns,
    default_variance,
    known,
    require_scale,
    require_spread,
    width,
)
from bnp_dask.observation.wishart import MatrixNormalWishart

HOW = (
    "rows are [x_t, x_(t-1)]; give plain sequences to AutoRegressiveGaussian(lags=1), or make such rows with "
    "bnp_dask.observation.with_previous(x, offsets)"
)

MOST_LAGS = 1000
"""Most lags: the statistics of a cluster grow with their square."""


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class AutoRegressiveGaussian(LearnsPrior):
    """Gaussian about a linear function of earlier steps: x_t ~ Normal(A p_t, Lam^-1), p_t = [x_{t-1}, ..., x_{t-L}].

    Lam ~ Wishart(nu, B^-1), A | Lam ~ MatrixNormal(M, row covariance Lam^-1, column precision V).

    Parameters
    ----------
    nu
        Degrees of freedom, > D - 1.  Default D + 2, and more if there are fewer than ten atoms for each feature
        (:func:`bnp_dask.observation.wishart.degrees_of_freedom`).
    B
        Scale matrix: a number, its diagonal ``(D,)``, or ``(D, D)`` symmetric positive definite; squared data
        units.  Default: diagonal, E[covariance] = B / (nu - D - 1) is a tenth of the variance of
        the data's bulk (see :func:`bnp_dask.core.survey.bulk_of`); less along directions in which the data hardly vary
        (:mod:`bnp_dask.observation.dependence`).
    M
        Prior mean of A: a number (times the identity, for x_{t-1}) or ``(D, L D)``.  Default 1: each step is expected
        to equal the one before.
    V
        Precision of A's columns, as ``B`` but L D wide; squared data units.  Default: diagonal, a tenth of that
        variance (of a constant column, of its square), so that entries of A are expected within about 1 of M if
        features have the same scale.
    null
        Combinations of columns of a step that are the same in all rows, or that preceding steps determine, and the
        prior's covariance along them, ``(2, k, D)``.  Default: found from the data, see
        :mod:`bnp_dask.observation.dependence`; ``np.zeros((2, 0, D))`` for none.
    lags
        Number L of earlier steps that predict each step, >= 1; data are then plain sequences ``(n, D)`` everywhere: in
        training, predict, score, job files, pages.  None: L = 1, and data are rows ``[x_t, x_{t-1}]`` already.

    Notes
    -----
    Rows of a batch are ``[x_t, p_t]``, (1 + L) D columns, so any allocation model of single atoms takes it.  In a batch
    with sequences, the preceding steps in each row must agree with the row before, which is checked.  The first L steps
    of each sequence are conditioned on: they are in no objective and no score, and ``predict`` gives them the state of
    the step after them.

    References
    ----------
    Thesis 6.6.3; Fox et al. 2011.  Statistic ``zz``: the sum of r z z', packed, with z = [x - M p, p].

    Examples
    --------
    >>> import numpy as np, bnp_dask as bnp
    >>> walk = np.cumsum(np.random.default_rng(0).normal(size=(60, 1)), axis=0)
    >>> model = bnp.Model(bnp.FiniteHMM(), bnp.AutoRegressiveGaussian(lags=2))
    >>> source = bnp.as_source(walk, groups=[0, 60])
    >>> result = bnp.train(model, source, init=bnp.ContiguousBlocks(2), schedule=bnp.FullBatch(laps=100))
    >>> bnp.predict(result.posterior, source).shape
    (60,)
    """

    nu: float | None = None
    B: np.ndarray | float | None = None
    M: np.ndarray | float | None = None
    V: np.ndarray | float | None = None
    lags: int | None = field(default=None, metadata=OPTIONAL)
    null: np.ndarray | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.lags is not None:
            hold(self, "lags", whole_number("lags", self.lags, 1, MOST_LAGS, "None, or a whole number of steps"))

    @property
    def _n_parts(self) -> int:
        """Number of steps in a row: the step itself and its lags."""
        return 1 + (self.lags or 1)

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"zz": Field(("cluster", "packed"))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"packed": n_packed(self._n_parts * len(known("B", self.B)))}

    def with_prior(self, survey: Survey) -> Self:
        if survey.n_features % self._n_parts:
            raise DataError(f"{survey.name}: {survey.n_features} columns, an odd number; {HOW}")
        d, lags = survey.n_features // self._n_parts, self._n_parts - 1
        require_spread(survey)
        nu = wishart.degrees_of_freedom(self.nu, d, survey.n_atoms)
        now = survey.features(np.arange(d))
        bulk = bulk_of(now)
        found, usual_steps = dependence_of_steps(survey, bulk), default_variance(bulk)
        if self.B is None:
            scale = found.scale_along(wishart.default_scale(usual_steps, nu))
        else:
            scale = _scale("B", self.B, d)
        null = found.null_setting(wishart.expected_scale(nu, scale)) if self.null is None else self.null
        usual = np.diag(np.tile(_size_of_steps(bulk), lags))
        precision = usual if self.V is None else _scale("V", self.V, lags * d)
        mean = _mean(1.0 if self.M is None else self.M, d, lags)
        most = np.maximum(np.abs(survey.minimum), np.abs(survey.maximum))
        residual = np.minimum(most[:d] + matmul(np.abs(mean), most[d:]), 2 * LARGEST)
        require_scale("B", scale.diagonal(), replace(now, minimum=-residual, maximum=residual), 0.0)
        before = survey.features(np.tile(np.arange(d), lags))
        require_scale("V", precision.diagonal(), replace(before, minimum=-most[d:], maximum=most[d:]), 0.0)
        found.tell()
        return replace(self, nu=nu, B=scale, M=mean, V=precision, null=null)

    def correlated(self, n_features: int, names: Sequence[str] | None) -> np.ndarray:
        return np.arange(n_features)

    def check(self, batch: Batch) -> None:
        features = width("B", self.B)
        check_dense(self, batch, None if features is None else self._n_parts * features, 0.0, self._reach())
        if batch.n_features % self._n_parts:
            raise DataError(f"{batch.name}: {batch.n_features} columns, an odd number; {HOW}")
        if batch.groups is None or batch.n_atoms < 2:
            return
        d = batch.n_features // self._n_parts
        follows = np.ones(batch.n_atoms, np.bool_)
        follows[0] = False
        follows[batch.groups[batch.groups < batch.n_atoms]] = False
        wrong = follows[1:] & (batch.x[1:, d:] != batch.x[:-1, :-d]).any(axis=1)
        if wrong.any():
            row = int(np.argmax(wrong)) + 1
            raise DataError(
                f"{batch.name}: the second half of row {row} is not the first half of the row before; {HOW}"
            )

    def _reach(self) -> np.ndarray | None:
        """Squared size, ``((1 + L) D,)``, from which a row's quadratic forms may be too large; None without a prior."""
        if self.B is None or self.V is None or self.M is None or np.ndim(self.M) != 2:
            return None
        scale, steps = np.diagonal(known("B", self.B)), known("M", self.M)
        with np.errstate(divide="ignore"):
            through = np.min(scale[:, None] / (len(steps) * steps) ** 2, axis=0)
        return np.concatenate([scale, np.minimum(np.diagonal(known("V", self.V)), through)])

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {"zz": moment_sums(self._residuals(batch.x), None, resp)[1]}

    def _residuals(self, x: np.ndarray) -> np.ndarray:
        """``[x - M_prior p, p]``, ``(n, (1 + L) D)``."""
        mean = known("M", self.M)
        d = len(mean)
        z = np.array(x)
        z[:, :d] -= matmul(x[:, d:], mean.T)
        return z

    def global_step(self, summary: Summary) -> MatrixNormalWishart:
        prior = known("B", self.B)
        d = len(prior)
        name = type(self).__name__
        sums = unpack(summary["zz"], self._n_parts * d)
        nu = float(known("nu", self.nu)) + summary["N"]
        precision = sums[:, d:, d:] + known("V", self.V)
        precision, root_v, log_det_v = wishart.factor(precision, summary.ids, name)
        inverse_v = matmul(root_v.transpose(0, 2, 1), root_v)
        # only the part explained by regression is a difference: sums about the prior's own prediction do not cancel
        whitened = matmul(sums[:, :d, d:], root_v.transpose(0, 2, 1))
        shift = matmul(whitened, root_v)
        scale = prior + sums[:, :d, :d] - matmul(whitened, whitened.transpose(0, 2, 1))
        unrecorded = null_covariance(self.null)
        if unrecorded is not None:
            scale += np.maximum(summary["N"], 0.0)[:, None, None] * unrecorded
        scale, root, log_det = wishart.factor(scale, summary.ids, name)
        lam = nu[:, None, None] * matmul(root.transpose(0, 2, 1), root)
        level = 0.5 * (wishart.expected_log_det(nu, log_det, d) - d * LOG_2PI) - self._unrecorded_loss(lam)
        # stochastic steps leave squares of almost empty clusters below zero by rounding
        squares = np.maximum(np.diagonal(sums, axis1=1, axis2=2), 0.0)
        typical = np.sqrt(squares / np.maximum(summary["N"], 1.0)[:, None])
        whiten = wishart.needs_whitening(_precision(lam, shift, d * inverse_v), typical)
        theta = _theta(lam, shift, d * inverse_v, level)
        mean = shift + known("M", self.M)
        return MatrixNormalWishart(nu, scale, mean, precision, shift, log_det, log_det_v, theta, whiten, -0.5 * d)

    def _unrecorded_loss(self, lam: np.ndarray) -> np.ndarray | float:
        """Loss of an atom's log likelihood by its unrecorded covariance, ``(K,)`` nats."""
        unrecorded = null_covariance(self.null)
        return 0.0 if unrecorded is None else 0.5 * np.einsum("kij,ij->k", lam, unrecorded)

    def at_mode(self, params: MatrixNormalWishart) -> MatrixNormalWishart:
        d = params.B.shape[1]
        lam, nothing = _expected(params), np.zeros_like(params.V)
        level = 0.5 * (d * log(params.nu) - params.log_det - d * LOG_2PI) - self._unrecorded_loss(lam)
        return replace(params, theta=_theta(lam, params.shift, nothing, level), spread=0.0)

    def at_draw(self, params: MatrixNormalWishart, rng: np.random.Generator) -> MatrixNormalWishart:
        d = params.B.shape[1]
        drawn = wishart.draw_precisions(params.B, params.nu, rng)
        columns = np.array([wishart.root(v) for v in params.V]).reshape(params.V.shape)
        noise = matmul(drawn.half.transpose(0, 2, 1), matmul(rng.standard_normal(params.shift.shape), columns))
        shift, nothing = params.shift + noise, np.zeros_like(params.V)
        level = -0.5 * (drawn.log_det + d * LOG_2PI) - self._unrecorded_loss(drawn.precision)
        held = np.maximum(params.nu - float(known("nu", self.nu)), 1.0)
        before = params.V / held[:, None, None]
        both = np.concatenate([np.diagonal(m, axis1=1, axis2=2) for m in (drawn.covariance, before)], axis=1)
        return replace(
            params,
            nu=np.ones_like(params.nu),
            B=drawn.covariance,
            M=shift + known("M", self.M),
            shift=shift,
            log_det=drawn.log_det,
            theta=_theta(drawn.precision, shift, nothing, level),
            whiten=params.whiten | wishart.needs_whitening(_precision(drawn.precision, shift, nothing), np.sqrt(both)),
            spread=0.0,
        )

    def expected_log_lik(self, params: MatrixNormalWishart, batch: Batch) -> np.ndarray:
        z = self._residuals(batch.x)
        if params.whiten.all():
            out = np.empty((batch.n_atoms, len(params.nu)))
        else:
            out = quadratic_log_lik(z, None, params.theta)
        for k in np.flatnonzero(params.whiten).tolist():
            squares, leverage = self._squares(params, z, k)
            out[:, k] = params.theta[k, 0] - 0.5 * params.nu[k] * squares + params.spread * leverage
        return out

    def _squares(self, params: MatrixNormalWishart, z: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """``(x - M_k p)' B_k^-1 (x - M_k p)`` and ``p' V_k^-1 p`` of each row, ``(n,)``."""
        d = params.B.shape[1]
        residual = z[:, :d] - matmul(z[:, d:], params.shift[k].T)
        squares = whitened_squares(residual, None, wishart.root(params.B[k]))
        return squares, whitened_squares(z[:, d:], None, wishart.root(params.V[k]))

    def score(self, params: MatrixNormalWishart, summary: Summary) -> np.ndarray:
        return params.theta[:, 0] * summary["N"] + np.einsum("kp,kp->k", params.theta[:, 1:], summary["zz"])

    def kl(self, params: MatrixNormalWishart) -> np.ndarray:
        prior, precision = known("B", self.B), known("V", self.V)
        d = len(prior)
        lam = _expected(params)
        nu = float(known("nu", self.nu))
        wishart_part = wishart.wishart_kl(params.nu, params.log_det, nu, prior, quadratic_coefficients(lam))
        inverse = np.array([matmul(r.T, r) for r in map(wishart.root, params.V)]).reshape(params.V.shape)
        log_ratio = params.log_det_v - self._prior_log_det(precision)
        spread = np.einsum("kij,ij->k", inverse, precision) - len(precision)
        return wishart_part + 0.5 * d * (log_ratio + spread) + self._pull(params, lam)

    def _prior_log_det(self, precision: np.ndarray) -> float:
        if is_fixed():
            return float(wishart.log_dets(precision[None], np.zeros(1, np.int64), type(self).__name__)[0])
        return float(np.linalg.slogdet(precision)[1])

    def log_prior(self, params: MatrixNormalWishart) -> np.ndarray:
        """``nu/2 log|Lam| - tr(B Lam)/2 - tr((A - M) V (A - M)' Lam)/2``: the density for which the point estimate of
        :meth:`at_mode` is the mode, that is, with respect to ``|Lam|^(-(2 D + 1)/2) dLam dA``."""
        prior = known("B", self.B)
        lam = _expected(params)
        log_det = len(prior) * log(params.nu) - params.log_det
        nu = float(known("nu", self.nu))
        return 0.5 * nu * log_det + matmul(quadratic_coefficients(lam), pack(prior)) - self._pull(params, lam)

    def _pull(self, params: MatrixNormalWishart, lam: np.ndarray) -> np.ndarray:
        """``tr((M_k - M) V (M_k - M)' E[Lam_k]) / 2`` with the prior's M and V, ``(K,)``."""
        shift, prior = params.shift, known("V", self.V)
        return 0.5 * np.einsum("kij,jl,kml,kmi->k", shift, prior, shift, lam, optimize=not is_fixed())

    @property
    def learns_by_default(self) -> bool:
        # M is not learned: a given M only says about which matrix the coefficients vary
        return all(setting is None for setting in (self.nu, self.B, self.V))

    def _learned(
        self, params: MatrixNormalWishart, used: np.ndarray, start: Self, shape: ScaleShape, calm: bool
    ) -> Self:
        # M stays, because the statistics of batches are about it
        nu, (d, wide) = float(known("nu", self.nu)), params.shift.shape[1:]
        lam = _expected(params)[used]
        quadratic = quadratic_coefficients(lam)
        found = wishart.precisions(quadratic, params.nu[used], params.log_det[used], d)
        spread = np.zeros((wide, wide))
        for shift, precision, root in zip(params.shift[used], lam, map(wishart.root, params.V[used]), strict=True):
            spread += d * matmul(root.T, root) + matmul(shift.T, matmul(precision, shift))
        is_full = shape == "full"
        first = wishart.expected_scale(float(known("nu", start.nu)), known("B", start.B))
        nu, scale = learned.wishart_settings(found, nu, first, is_full, calm)
        columns = learned.column_precision(found.n_clusters * d, spread, known("V", start.V), is_full)
        return replace(self, nu=nu, B=scale, V=columns)

    def log_hyperprior(self, start: Self) -> float:
        first = wishart.expected_scale(float(known("nu", start.nu)), known("B", start.B))
        own = learned.log_wishart_hyperprior(float(known("nu", self.nu)), known("B", self.B), first)
        return own + learned.log_scale_hyperprior(known("V", self.V), known("V", start.V))

    def draw_step(
        self, params: MatrixNormalWishart, place: int, before: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        # A p given Lam is Gaussian about M p with covariance (p' V^-1 p) Lam^-1
        stretch = np.array([1.0 + before @ np.linalg.solve(params.V[place], before)])
        own = params.B[place][None], params.nu[place : place + 1], stretch
        noise = student_draws(*own, np.zeros(1, np.int64), rng)
        return params.M[place] @ before + without_null(noise, self.null)[0]

    def estimates(self, params: MatrixNormalWishart, names: Names) -> Estimates:
        d = params.B.shape[1]
        # for plain sequences these are the names of a step
        rows = lagged_names(names, self._n_parts - 1) if names is not None and len(names) == d else names
        now, before = (None, None) if rows is None else (rows[:d], rows[d:])
        coefficients = Estimate((Axis("feature", now), Axis("lagged", before)), lambda: params.M)
        square = (Axis("feature", now), Axis("feature", now))
        noise = Estimate(square, lambda: wishart.expected_covariance(params.B, params.nu))
        return {"coefficients": coefficients, "noise": noise, "nu": each(params.nu)}

    def describe(self, params: MatrixNormalWishart, k: int, names: Names) -> str:
        noise = wishart.expected_variance(params.B[k : k + 1], params.nu[k : k + 1])[0]
        mean = params.M[k]
        # eigenvalues of the matrix that takes [x_{t-1}, ..., x_{t-L}] one step further
        size = np.abs(np.linalg.eigvals(np.vstack([mean, np.eye(mean.shape[1])[: -len(mean)]]))).max()
        text = vector(np.sqrt(noise), None if names is None else names[: len(noise)])
        rows = "row" if self._n_parts == 2 else f"{self._n_parts - 1} rows"
        return f"follows the {rows} before, eigenvalues up to {size:.3g}; sd of noise {text}"

    def log_predictive(self, params: MatrixNormalWishart, batch: Batch) -> np.ndarray:
        """Student t with nu - D + 1 degrees of freedom, wider if the preceding step is far out."""
        d = params.B.shape[1]
        z = self._residuals(batch.x)
        out = np.empty((batch.n_atoms, len(params.nu)))
        for k in range(len(params.nu)):
            squares, leverage = self._squares(params, z, k)
            stretch = 1.0 + leverage
            # the density of one width, for each row with its own
            base = wishart.student_log_density(squares / stretch, params.nu[k], params.log_det[k], 1.0, d)
            out[:, k] = base - 0.5 * d * log(stretch)
        return out


def _scale(name: str, value: np.ndarray | float, n_features: int) -> np.ndarray:
    try:
        return wishart.scale_matrix(value, n_features)
    except SettingError as error:
        raise SettingError(str(error) if name == "B" else f"{name} in place of B: {error}") from None


def _size_of_steps(bulk: Bulk) -> np.ndarray:
    """Default precision of the columns of A, ``(D,)``: the expected variance.

    A column that hardly varies beside its mean acts in the regression as a constant, whose size is the mean.  The
    default changes gradually from the one to the other as the deviation falls from a thousandth to a millionth of the
    mean.
    """
    usual, level = default_variance(bulk), PRIOR_SCALE * bulk.mean**2
    usual = np.where(constant_columns(bulk) & (level > 0), NEAR**4 * level, usual)
    ratio = level / usual
    return usual * np.maximum(1.0, np.minimum(ratio, (NEAR**2 * ratio) ** 2))


def _mean(value: np.ndarray | float, n_features: int, lags: int) -> np.ndarray:
    """The setting ``M``, a number or ``(D, L D)``, as a matrix."""
    array, width = real_setting("M", value), lags * n_features
    if array.shape not in ((), (n_features, width)) or np.abs(array).max(initial=0.0) > MOST_MASS:
        raise SettingError(
            f"M={shown(value)}: needs a number, or shape ({n_features}, {width}), of sizes up to {MOST_MASS:g}"
        )
    return array * np.eye(n_features, width) if array.ndim == 0 else np.ascontiguousarray(array)


def _expected(params: MatrixNormalWishart) -> np.ndarray:
    """E[Lam_k], ``(K, D, D)``."""
    roots = np.array([wishart.root(b) for b in params.B]).reshape(params.B.shape)
    return params.nu[:, None, None] * matmul(roots.transpose(0, 2, 1), roots)


def _precision(lam: np.ndarray, shift: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Matrix of the quadratic form in z, ``(K, (1 + L) D, (1 + L) D)``: ``(e - S p)' Lam (e - S p) + p' spread p``."""
    cross = matmul(-lam, shift)
    last = spread - matmul(shift.transpose(0, 2, 1), cross)
    upper = np.concatenate([lam, cross], axis=2)
    return np.concatenate([upper, np.concatenate([cross.transpose(0, 2, 1), last], axis=2)], axis=1)


def _theta(lam: np.ndarray, shift: np.ndarray, spread: np.ndarray, level: np.ndarray) -> np.ndarray:
    return np.concatenate([level[:, None], quadratic_coefficients(_precision(lam, shift, spread))], axis=1)


def with_previous(x: np.ndarray, offsets: np.ndarray, lags: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``[x_t, x_{t-1}, ..., x_{t-lags}]`` of sequences, for :class:`AutoRegressiveGaussian` without ``lags``.

    Parameters
    ----------
    x
        Rows of all sequences in order, ``(n, D)``.
    offsets
        Rows of each sequence, ``(G + 1,)``.
    lags
        Preceding steps of each.

    Returns
    -------
    rows, offsets
        ``(n', (1 + lags) D)`` and the offsets of the same sequences in them.  The first rows of each sequence are left
        out, because too few precede them; sequences of ``lags`` rows or fewer become empty.
    """
    x = np.asarray(x, np.float64)
    index, kept = lagged_rows(np.asarray(offsets, np.int64), lags)
    return with_lags(x, index, lags), kept
