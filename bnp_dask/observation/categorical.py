"""Independent columns of levels, each with a Dirichlet prior (thesis 2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy import sparse
from scipy.special import gammaln, psi

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.errors import DataError, SettingError
from bnp_dask.inputs import MOST_LEVELS, Key, Levels, shown
from bnp_dask.kernels import Resp, count_sums, exp, log, log_gammas, log_shares, matmul, table_product
from bnp_dask.observation.checks import check_width, cluster_fastest, where_first
from bnp_dask.observation.interface import SHOWN, Axis, Estimate, Estimates, Names, compared_by_settings
from bnp_dask.observation.missing import Marginalising, Missing, filled, holes
from bnp_dask.observation.priors import known, positive, vector, width

FEW = 3
"""Number of levels of a column in a description."""


@register
@dataclass(frozen=True, eq=False)
class LevelShares:
    """q(phi) = Dirichlet(lam_kd) for each column d, and the coefficients in use.

    ``lam, log_phi (K, S)``, where S counts the levels of all columns, in the order of columns; the log
    likelihood of an atom is the sum of ``log_phi`` over the levels that it has.
    """

    lam: np.ndarray
    log_phi: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Categorical(Marginalising):
    """Columns of levels, such as colours or answers: x_d ~ Categorical(phi_d), phi_d ~ Dirichlet(lam_d).

    Parameters
    ----------
    lam
        Prior pseudo-count of each level, > 0: a number, or one for each column, ``(D,)``.  Default: one over the number
        of levels of the column, so that the prior counts as one atom however many levels there are.
    missing
        ``"marginalise"``: a missing entry is integrated over.  Default: refused.
    levels
        Levels of each column; found in the data.

    Notes
    -----
    The default is Perks' prior, the overall objective prior of Berger, Bernardo and Sun; of two levels it is Jeffreys'
    prior, and so the default of :class:`Bernoulli`.  Half a count per level would let columns of many levels count as
    many atoms beforehand: clusters of few atoms then look alike.

    Columns of text, pandas categories, bools, Arrow dictionaries and numbers of few distinct values are taken as they
    are, see :func:`bnp_dask.train`; levels are sorted; levels of a pandas category keep its order.  In batches an entry
    is the position of its level, 0 to L - 1, or NaN if missing; custom sources must return these positions.

    Statistic ``x``: sum of r over the atoms with a level, ``(K, S)``.  Missing entries are in none of it.

    References
    ----------
    Perks (1947); Berger, Bernardo & Sun (2015), Overall objective priors, section 3.
    """

    lam: np.ndarray | float | None = None
    missing: Missing = field(default=None, metadata=OPTIONAL)
    levels: tuple[Levels, ...] | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels is not None:
            object.__setattr__(self, "levels", tuple(tuple(own) for own in self.levels))

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"x"})

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"x": Field(("cluster", "level"))})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"level": int(self._counts.sum())}

    @property
    def level_keys(self) -> tuple[Key, ...]:
        return (":",)

    def with_prior(self, survey: Survey) -> Self:
        levels = self._levels_in(survey)
        default = np.array([1.0 / len(own) for own in levels])
        lam = vector("lam", positive("lam", default if self.lam is None else self.lam), survey.n_features)
        return replace(self, lam=lam, levels=levels)

    def _levels_in(self, survey: Survey) -> tuple[Levels, ...]:
        """The levels of each column; for a source without names, positions up to the largest in the data."""
        found = tuple(own for own in survey.levels or () if own is not None)
        if survey.levels is not None and len(found) == len(survey.levels):
            if self.levels is not None and self.levels != found:
                raise SettingError(f"levels={shown(self.levels)}: the data have {shown(found)}; leave levels out")
            return found
        if self.levels is not None:
            if len(self.levels) != survey.n_features:
                raise SettingError(f"levels of {len(self.levels)} columns, but the data have {survey.n_features}")
            return self.levels
        return tuple(tuple(range(int(most) + 1)) for most in survey.maximum)

    def check(self, batch: Batch) -> None:
        if batch.is_sparse:
            raise DataError(
                f"{batch.name}: sparse counts, but Categorical needs dense rows; use Multinomial for counts"
            )
        check_width(self, batch, width("lam", self.lam) if self.levels is None else len(self.levels))
        x = np.asarray(batch.x)
        most = MOST_LEVELS if self.levels is None else self._counts
        with np.errstate(invalid="ignore"):
            wrong = ~((x >= 0) & (x < most) & (x == np.floor(x)))
        if self.marginalises:
            wrong &= ~np.isnan(x)
        if wrong.any():
            row, column, value = where_first(batch, wrong)
            missing = ', or Categorical(missing="marginalise") for missing entries' if np.isnan(value) else ""
            said = f"; the levels of this column are 0 to {self._counts[column] - 1}" if self.levels is not None else ""
            raise DataError(
                f"{batch.name}: row {row}, {batch.column(column)} is {value}; Categorical needs places of levels, "
                f"whole numbers from 0{said}. Data become such numbers where they are opened: pass a table or array "
                f"to train(...), or as_source(data, levels=[...]) in place of a source{missing}"
            )

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {"x": count_sums(resp, self._indicators(batch))}

    def global_step(self, summary: Summary) -> LevelShares:
        lam = self._prior + summary["x"]
        return LevelShares(lam, cluster_fastest(psi(lam) - self._each(psi(self._totals(lam)))))

    def at_mode(self, params: LevelShares) -> LevelShares:
        lam = params.lam
        return replace(params, log_phi=cluster_fastest(log(lam) - self._each(log(self._totals(lam)))))

    def at_draw(self, params: LevelShares, rng: np.random.Generator) -> LevelShares:
        drawn = self._by_column(log_gammas(params.lam, rng))
        log_phi = np.concatenate([log_shares(own) for own in drawn], axis=1)
        return LevelShares(exp(log_phi), cluster_fastest(log_phi))

    def lean(self, params: LevelShares, screened: bool) -> LevelShares:
        return replace(params, lam=np.empty((0, params.lam.shape[1])))

    def expected_log_lik(self, params: LevelShares, batch: Batch) -> np.ndarray:
        return table_product(self._indicators(batch), params.log_phi)

    def score(self, params: LevelShares, summary: Summary) -> np.ndarray:
        return np.einsum("ks,ks->k", params.log_phi, summary["x"])

    def kl(self, params: LevelShares) -> np.ndarray:
        prior, lam = self._prior, params.lam
        totals, before = self._totals(lam), self._totals(prior[None])
        drift = (lam - prior) * (psi(lam) - self._each(psi(totals))) - gammaln(lam) + gammaln(prior)
        return np.sum(drift, axis=1) + np.sum(gammaln(totals) - gammaln(before), axis=1)

    def log_prior(self, params: LevelShares) -> np.ndarray:
        return matmul(log(self._shares(params)), self._prior)

    def log_predictive(self, params: LevelShares, batch: Batch) -> np.ndarray:
        """Categorical with the posterior mean of phi."""
        return self.expected_log_lik(self.at_mode(params), batch)

    def draw(self, params: LevelShares, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        out = np.empty((len(place), len(self._counts)))
        for d, shares in enumerate(self._by_column(self._shares(params))):
            edges = np.cumsum(shares, axis=1)[place]
            chosen = np.sum(rng.random(len(place))[:, None] * edges[:, -1:] >= edges, axis=1)
            out[:, d] = np.minimum(chosen, shares.shape[1] - 1)
        return out

    def impute(self, params: LevelShares, batch: Batch, resp: np.ndarray) -> np.ndarray:
        """Most probable level, the first of equals, in place of missing entries."""
        gaps = holes(batch, self.missing)
        chance = matmul(resp, self._shares(params))
        best = [own.argmax(axis=1) for own in self._by_column(chance)]
        return filled(batch, gaps, np.column_stack(best).astype(np.float64))

    def estimates(self, params: LevelShares, names: Names) -> Estimates:
        labels = [f"{self._name(d, names)}={level}" for d, own in enumerate(self._known) for level in own]
        axes = (Axis("level", labels),)
        return {
            "probability": Estimate(axes, lambda: self._shares(params)),
            "lam": Estimate(axes, lambda: params.lam),
        }

    def describe(self, params: LevelShares, k: int, names: Names) -> str:
        texts = []
        for d, shares in enumerate(self._by_column(self._shares(params)[k][None])[:SHOWN]):
            order = np.argsort(-shares[0], kind="stable")[:FEW]
            texts.append(
                f"{self._name(d, names)}: " + ", ".join(f"{self._known[d][i]} {shares[0, i]:.2g}" for i in order)
            )
        left = len(self._counts) - len(texts)
        return "; ".join([*texts, f"and {left} more columns"] if left > 0 else texts)

    def _name(self, d: int, names: Names) -> str:
        return f"column {d}" if names is None else names[d]

    # -- levels of all columns side by side ---------------------------------------------------------------------------
    @property
    def _known(self) -> tuple[Levels, ...]:
        if self.levels is None:
            raise SettingError("Categorical does not know its levels yet; call with_prior(survey) first")
        return self.levels

    @property
    def _counts(self) -> np.ndarray:
        """Levels of each column, ``(D,)``."""
        return np.array([len(own) for own in self._known], np.int64)

    @property
    def _starts(self) -> np.ndarray:
        """Position of the first level of each column among all levels, ``(D,)``."""
        counts = self._counts
        return np.cumsum(counts) - counts

    @property
    def _prior(self) -> np.ndarray:
        """Prior pseudo-counts, ``(S,)``."""
        return np.repeat(known("lam", self.lam), self._counts)

    def _totals(self, table: np.ndarray) -> np.ndarray:
        """Sums over the levels of each column, ``(K, D)``."""
        return np.add.reduceat(table, self._starts, axis=1)

    def _each(self, by_column: np.ndarray) -> np.ndarray:
        """Numbers by column ``(K, D)``, repeated for all levels, ``(K, S)``."""
        return np.repeat(by_column, self._counts, axis=1)

    def _shares(self, params: LevelShares) -> np.ndarray:
        """E[phi], ``(K, S)``."""
        return params.lam / self._each(self._totals(params.lam))

    def _by_column(self, table: np.ndarray) -> Sequence[np.ndarray]:
        """Part ``(K, L)`` of a table ``(K, S)`` for each column."""
        return np.split(table, self._starts[1:], axis=1)

    def _indicators(self, batch: Batch) -> sparse.csr_array:
        """A one at each level that an atom has, ``(n, S)``."""
        assert isinstance(batch.x, np.ndarray)
        n, size = batch.n_atoms, self.sizes["level"]
        gaps = holes(batch, self.missing)
        place = filled(batch, gaps, 0.0).astype(np.int64) + self._starts
        if gaps is None:
            ends = np.arange(n + 1, dtype=np.int64) * batch.n_features
            index = place.ravel()
        else:
            ends = np.concatenate([[0], np.cumsum(np.sum(~gaps, axis=1, dtype=np.int64))])
            index = place[~gaps]
        return sparse.csr_array((np.ones(len(index)), index, ends), shape=(n, size))
