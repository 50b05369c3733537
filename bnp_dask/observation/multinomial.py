"""Multinomial over words with a Dirichlet prior (thesis 2.2): one document is one atom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import gammaln, psi

from bnp_dask.batch import Batch
from bnp_dask.errors import DataError
from bnp_dask.kernels.counts import rising, rising_sums, row_log_factorials, table_product
from bnp_dask.kernels.resp import Resp
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.counts import as_csr, atom_mass, check_counts, cluster_fastest, sums
from bnp_dask.observation.dense import known, positive, vector, width
from bnp_dask.summary import Field, Summary
from bnp_dask.survey import Survey

DEFAULT_LAM = 0.1
"""Prior pseudo-count per word, when the user gives none: clusters use few of the words."""


@dataclass(frozen=True, eq=False)
class DirichletWords:
    """q(phi) = Dirichlet(lam_k) and the log word probabilities in use; both ``(K, V)``."""

    lam: np.ndarray
    log_phi: np.ndarray


@dataclass(frozen=True, eq=False)
class Multinomial:
    """Counts of V words per document: x ~ Multinomial(sum x, phi), phi ~ Dirichlet(lam).

    Parameters
    ----------
    lam
        Prior pseudo-counts, > 0, a number or ``(V,)``.  Default 0.1 for every word.

    Notes
    -----
    Data are sparse counts (``scipy.sparse`` CSR), which are never made dense; dense rows of whole numbers are
    accepted too.  The number of words of a document is taken as given.  A document without words is refused:
    it would be assigned by the prior alone, and count as evidence for the weights.

    References
    ----------
    Thesis 2.2, base measure eq. 2.21.  Statistic ``x``: sum of r x, ``(K, V)``.
    """

    lam: np.ndarray | float | None = None

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"x": Field(("cluster", "word")), LOG_BASE: Field()})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"word": known("lam", self.lam).size}

    def with_prior(self, survey: Survey) -> Self:
        lam = DEFAULT_LAM if self.lam is None else self.lam
        return replace(self, lam=positive("lam", vector("lam", lam, survey.n_features)))

    def check(self, batch: Batch) -> None:
        check_counts(self, batch, width(self.lam))
        empty = np.flatnonzero(np.asarray(batch.x.sum(axis=1)) == 0)
        if len(empty):
            raise DataError(
                f"{batch.name}: {len(empty)} document(s) without any word, first at row {empty[0]}; they say nothing "
                "about clusters. Drop them before training or prediction: counts[counts.sum(axis=1) > 0]"
            )

    def summarize(self, batch: Batch, resp: Resp) -> dict[str, np.ndarray]:
        return {"x": sums(batch, resp), LOG_BASE: np.asarray(atom_mass(resp) @ self._log_base(batch))}

    def global_step(self, summary: Summary) -> DirichletWords:
        lam = known("lam", self.lam) + summary["x"]
        log_phi = psi(lam) - psi(lam.sum(axis=1, keepdims=True))
        return DirichletWords(lam, cluster_fastest(log_phi))

    def at_mode(self, params: DirichletWords) -> DirichletWords:
        log_phi = np.log(params.lam) - np.log(params.lam.sum(axis=1, keepdims=True))
        return replace(params, log_phi=cluster_fastest(log_phi))

    def expected_log_lik(self, params: DirichletWords, batch: Batch) -> np.ndarray:
        return table_product(as_csr(batch), params.log_phi)

    def score(self, params: DirichletWords, summary: Summary) -> np.ndarray:
        return np.einsum("kv,kv->k", params.log_phi, summary["x"])

    def kl(self, params: DirichletWords) -> np.ndarray:
        lam, prior = params.lam, known("lam", self.lam)
        total = lam.sum(axis=1)
        log_phi = psi(lam) - psi(total)[:, None]
        terms = gammaln(prior) - gammaln(lam) + (lam - prior) * log_phi
        return gammaln(total) - gammaln(prior.sum()) + terms.sum(axis=1)

    def log_prior(self, params: DirichletWords) -> np.ndarray:
        return params.log_phi @ known("lam", self.lam)

    def log_predictive(self, params: DirichletWords, batch: Batch) -> np.ndarray:
        """Dirichlet-multinomial."""
        counts = as_csr(batch)
        words = rising_sums(counts, params.lam)
        length = np.asarray(counts.sum(axis=1), np.float64)
        return words - rising(length, params.lam.sum(axis=1)) + self._log_base(batch)[:, None]

    def _log_base(self, batch: Batch) -> np.ndarray:
        """log h(x) = log(C! / prod x_v!), ``(n,)``."""
        counts = as_csr(batch)
        length = np.asarray(counts.sum(axis=1), np.float64)
        return gammaln(length + 1.0) - row_log_factorials(counts)
