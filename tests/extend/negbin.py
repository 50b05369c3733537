"""A likelihood: counts per feature that vary more than Poisson counts do."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaln, gammaln, psi

import bnp_dask as bnp
from bnp_dask.core.summary import Field
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.checks import atom_mass, check_counts, product, sums
from bnp_dask.observation.interface import by_feature, largest
from bnp_dask.observation.priors import known, positive, single, vector, width


@bnp.register
@dataclass(frozen=True, eq=False)
class BetaOdds:
    """q(p) = Beta(a, b), ``(K, D)``; the log likelihood is ``log_p . x + total``, with ``total (K,)``."""

    a: np.ndarray
    b: np.ndarray
    log_p: np.ndarray
    total: np.ndarray


@bnp.register
@dataclass(frozen=True, eq=False)
class NegativeBinomial:
    """x_d ~ NB(r, p_d) with known r, mean r p / (1 - p), and p_d ~ Beta(a, b).

    Parameters
    ----------
    r
        Dispersion, > 0: the smaller, the more counts vary about their mean.
    a, b
        Prior pseudo-counts, > 0, a number or ``(D,)``.  Default 1 each.
    """

    r: float = 1.0
    a: np.ndarray | float | None = None
    b: np.ndarray | float | None = None

    def __post_init__(self):
        single("r", self.r)

    @property
    def fields(self):
        return {"x": Field(("cluster", "feature")), LOG_BASE: Field()}

    @property
    def sizes(self):
        return {"feature": known("a", self.a).size}

    def with_prior(self, survey):
        a, b = (positive(name, 1.0 if v is None else v) for name, v in (("a", self.a), ("b", self.b)))
        return replace(self, a=vector("a", a, survey.n_features), b=vector("b", b, survey.n_features))

    def check(self, batch):
        check_counts(self, batch, width("a", self.a))

    def summarize(self, batch, resp):
        return {"x": sums(batch, resp), LOG_BASE: np.asarray(atom_mass(resp) @ self._log_base(batch))}

    def global_step(self, summary):
        a, b = self.a + summary["x"], self.b + self.r * summary["N"][:, None]
        return self._with_coefficients(a, b, psi(a) - psi(a + b), psi(b) - psi(a + b))

    def at_mode(self, params):
        # of the natural parameter log p: Beta(a, b) has its mode there at a / (a + b)
        p = params.a / (params.a + params.b)
        return self._with_coefficients(params.a, params.b, np.log(p), np.log1p(-p))

    def expected_log_lik(self, params, batch):
        return product(batch, params.log_p) + params.total

    def score(self, params, summary):
        return np.einsum("kd,kd->k", params.log_p, summary["x"]) + params.total * summary["N"]

    def kl(self, params):
        a, b = params.a, params.b
        slack = (a - self.a) * (psi(a) - psi(a + b)) + (b - self.b) * (psi(b) - psi(a + b))
        return np.sum(betaln(self.a, self.b) - betaln(a, b) + slack, axis=1)

    def log_prior(self, params):
        p = params.a / (params.a + params.b)
        return np.log(p) @ self.a + np.log1p(-p) @ self.b

    def log_predictive(self, params, batch):
        grown = betaln(params.a + _dense(batch)[:, None, :], params.b + self.r) - betaln(params.a, params.b)
        return grown.sum(axis=2) + self._log_base(batch)[:, None]

    # how people read it: optional
    def estimates(self, params, names):
        return {"rate": by_feature(self.r * params.a / params.b, names)}

    def describe(self, params, k, names):
        return "rates: " + largest(self.r * params.a[k] / params.b[k], names, "column")

    def _with_coefficients(self, a, b, log_p, log_not_p):
        return BetaOdds(a, b, log_p, self.r * log_not_p.sum(axis=1))

    def _log_base(self, batch):
        x = _dense(batch)
        return np.sum(gammaln(x + self.r) - gammaln(self.r) - gammaln(x + 1.0), axis=1)


def _dense(batch):
    return batch.x.toarray() if batch.is_sparse else batch.x
