"""Multinomial over words with a Dirichlet prior (thesis 2.2): an atom is a document, or in topic models a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from scipy.special import gammaln

from bnp_dask.core import OPTIONAL, Batch, Field, Summary, Survey, register
from bnp_dask.errors import SettingError
from bnp_dask.inputs import flag, hold, share_below_one
from bnp_dask.kernels import (
    AnyResp,
    WordResp,
    dirichlet_table,
    exp,
    log,
    log_gammas,
    log_shares,
    matmul,
    psi_gammaln,
    rising,
    rising_sums,
    table_product,
    table_scores,
)
from bnp_dask.observation import checks
from bnp_dask.observation.base import LOG_BASE
from bnp_dask.observation.interface import (
    Axis,
    Estimate,
    Estimates,
    Names,
    by_feature,
    compared_by_settings,
    largest,
    words_of,
)
from bnp_dask.observation.priors import known, positive, vector, width

DEFAULT_LAM, DEFAULT_COMMON = 0.15, 0.5
"""Default prior pseudo-count per word, and share of it that follows word frequencies, if neither is given.

Chosen by documents of KOS, Reuters and 20 Newsgroups that were kept apart, with topics from ``SampledTopics``.
"""

EVEN_LAM = 0.1
"""Default prior pseudo-count per word if only ``common`` is given: clusters use few of the words."""


@register
@dataclass(frozen=True, eq=False)
class DirichletWords:
    """q(phi) = Dirichlet(lam_k), the log word probabilities in use, both ``(K, V)``, and KL(q || p), ``(K,)``."""

    lam: np.ndarray
    log_phi: np.ndarray
    divergence: np.ndarray


@register
@compared_by_settings
@dataclass(frozen=True, eq=False)
class Multinomial:
    """Counts of V words per document: x ~ Multinomial(sum x, phi), phi ~ Dirichlet(lam).

    Parameters
    ----------
    lam
        Prior pseudo-counts, > 0, a number or ``(V,)``.  Default 0.15, on average over the words; 0.1 where ``common``
        is given.
    common
        Share of a number ``lam``, 0 to less than 1, that words get in proportion to how often they are in the data
        instead of evenly; ``lam`` is the mean over words then, so that the prior of word v is ``lam (1 - common +
        common V f_v)`` with its share f_v of all tokens.  Default 0.5 where ``lam`` is left out too; else 0, so that
        all words are alike beforehand.
    fractional
        Whether counts may be fractions, such as weighted or expected ones.  Gamma functions then stand for factorials,
        so that all formulas hold; a corpus times ten says ten times as much.  Default: refused.

    Notes
    -----
    With ``common`` a cluster without data on a frequent word still expects it now and then, as in any text, so one
    more cluster costs less.  On real corpora (KOS, Reuters, 20
    Newsgroups) the default raised the score of documents that were kept apart.  Topics that do not begin with
    :class:`~bnp_dask.initialize.SampledTopics` need more smoothing, such as ``Multinomial(0.4, common=0.6)``.  On
    synthetic documents with topics from an even prior ``common`` lowers the objective.  Word frequencies are used
    twice by it, as by any prior that is set from the data.

    Data are sparse counts (``scipy.sparse`` CSR), which are never made dense; mixtures accept dense rows of whole
    numbers too, and topic models need sparse counts.  The number of words of a document is taken as given.  A document
    without words is refused by mixtures: it would be assigned by the prior alone, and count as evidence for the
    weights.

    In a topic model each token is an atom and a document is a group of them; the sums are equal, but the
    base measure of a single token is one.

    References
    ----------
    Thesis 2.2, base measure eq. 2.21.  Statistic ``x``: sum of r x, ``(K, V)``.
    """

    lam: np.ndarray | float | None = None
    common: float | None = None
    fractional: bool | None = field(default=None, metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if self.fractional is not None:
            flag("fractional", self.fractional)
        if self.common is not None:
            hold(self, "common", share_below_one("common", self.common, "a share of the prior"))
        if self.common and width("lam", self.lam) is not None:
            raise SettingError(
                f"common={self.common!r} with a prior for each word: it says how a single number is shared out; "
                "give lam as a number, or leave common out"
            )

    @property
    def counts(self) -> frozenset[str]:
        return frozenset({"x"})

    @property
    def fields(self) -> Mapping[str, Field]:
        return MappingProxyType({"x": Field(("cluster", "word")), LOG_BASE: Field()})

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"word": known("lam", self.lam).size}

    def with_prior(self, survey: Survey) -> Self:
        is_open = self.lam is None and self.common is None
        lam = DEFAULT_LAM if is_open else EVEN_LAM if self.lam is None else self.lam
        common = DEFAULT_COMMON if is_open else self.common or 0.0
        each = vector("lam", positive("lam", lam), survey.n_features)
        positive("the sum of lam", each.sum())
        total = survey.mean.sum()
        if common and total > 0:
            each = each * (1.0 - common + common * survey.n_features / total * survey.mean)
        return replace(self, lam=each, common=0.0)  # it is in the numbers now

    def with_more_words(self, size: int) -> Self:
        """The model of ``size`` words; each new one has the smallest known prior count."""
        each = known("lam", self.lam)
        return replace(self, lam=np.concatenate([each, np.full(size - len(each), each.min())]))

    def check(self, batch: Batch) -> None:
        checks.check_counts(self, batch, width("lam", self.lam), bool(self.fractional))
        checks.check_documents(batch)

    def summarize(self, batch: Batch, resp: AnyResp) -> dict[str, np.ndarray]:
        if isinstance(resp, WordResp):
            return {"x": resp.by_cluster(batch.n_features), LOG_BASE: np.zeros(())}
        return {
            "x": checks.sums(batch, resp),
            LOG_BASE: np.asarray(matmul(checks.atom_mass(resp), checks.log_orders(checks.as_csr(batch)))),
        }

    def global_step(self, summary: Summary) -> DirichletWords:
        prior = known("lam", self.lam)
        extra = summary["x"].sum(axis=1)
        psi_total, gamma_total = psi_gammaln(prior.sum() + extra)
        lam, log_phi, drift = dirichlet_table(summary["x"], prior, psi_total)
        # the sum over words of (lam - prior) (psi(lam) - psi(total)), whose first part is in drift
        divergence = gamma_total - gammaln(prior.sum()) + drift - extra * psi_total
        return DirichletWords(lam, log_phi, divergence)

    def at_mode(self, params: DirichletWords) -> DirichletWords:
        log_phi = log(params.lam) - log(params.lam.sum(axis=1, keepdims=True))
        return replace(params, log_phi=checks.cluster_fastest(log_phi))

    def at_draw(self, params: DirichletWords, rng: np.random.Generator) -> DirichletWords:
        log_phi = log_shares(log_gammas(params.lam, rng))
        return replace(params, lam=exp(log_phi), log_phi=checks.cluster_fastest(log_phi))

    def lean(self, params: DirichletWords, screened: bool) -> DirichletWords:
        return replace(params, lam=np.empty((0, params.lam.shape[1])))

    def expected_log_lik(self, params: DirichletWords, batch: Batch) -> np.ndarray:
        return table_product(checks.as_csr(batch), params.log_phi)

    def token_log_lik(self, params: DirichletWords, words: np.ndarray) -> np.ndarray:
        """Log likelihood of one token of each word at the positions ``words``, ``(R, K)`` nats."""
        return np.ascontiguousarray(params.log_phi.T[words])

    def score(self, params: DirichletWords, summary: Summary) -> np.ndarray:
        return table_scores(params.log_phi, summary["x"])

    def kl(self, params: DirichletWords) -> np.ndarray:
        return params.divergence

    def log_prior(self, params: DirichletWords) -> np.ndarray:
        return matmul(params.log_phi, known("lam", self.lam))

    def log_predictive(self, params: DirichletWords, batch: Batch) -> np.ndarray:
        """Dirichlet-multinomial."""
        counts = checks.as_csr(batch)
        words = rising_sums(counts, params.lam)
        length = np.asarray(counts.sum(axis=1), np.float64)
        return words - rising(length, params.lam.sum(axis=1)) + checks.log_orders(counts)[:, None]

    def draw_words(
        self, params: DirichletWords, place: np.ndarray, length: int, rng: np.random.Generator
    ) -> np.ndarray:
        return words_of(params.lam, place, length, rng)

    def estimates(self, params: DirichletWords, names: Names) -> Estimates:
        share = Estimate((Axis("word", names),), lambda: params.lam / params.lam.sum(axis=1, keepdims=True))
        return {"probability": share, "lam": by_feature(params.lam, names, "word")}

    def describe(self, params: DirichletWords, k: int, names: Names) -> str:
        return largest(params.lam[k] / params.lam[k].sum(), names, "word")
