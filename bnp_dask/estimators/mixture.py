"""The scikit-learn estimator :class:`DirichletProcessMixture` on top of ``train``, ``predict`` and ``score``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import sparse

from bnp_dask.allocation import DPMixture
from bnp_dask.analysis.base import needs_of_likelihood
from bnp_dask.analysis.labels import label_of
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.sample import sample
from bnp_dask.analysis.score import score, score_samples
from bnp_dask.data import Documents, Needs, is_dask
from bnp_dask.errors import SettingError
from bnp_dask.estimators.fitting import (
    aic_of,
    bic_of,
    chosen_for,
    counted,
    features_of,
    form_of,
    frame_with_levels,
    free_parameters,
    freeze_learned,
    in_known_order,
    is_first,
    like_rows,
    likelihoods,
    moments_of,
    of_chosen,
    places_of,
    require_entries,
    run_estimator,
    seed_of_estimator,
    set_nested,
    sound_input,
    source_of,
    split_nested,
    take_in,
    validated,
    warn_unless_converged,
    with_labels,
    with_nested,
)
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization
from bnp_dask.inputs import whole_or_none
from bnp_dask.model import Model
from bnp_dask.moves import Delete, Merge, Move
from bnp_dask.observation import Multinomial, Observation, marginalises
from bnp_dask.structure import LearnPrior
from bnp_dask.training.alternatives import Shadow
from bnp_dask.training.defaults import CHANGING, default_init
from bnp_dask.training.results import TrainResult

try:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
    from sklearn.utils import Tags
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted
except ImportError as error:
    raise ImportError('DirichletProcessMixture needs scikit-learn: pip install "bnp-dask[sklearn]"') from error

if TYPE_CHECKING:
    from distributed import Client

OBSERVATIONS = likelihoods(without=("AutoRegressiveGaussian", "Product"))
"""Likelihoods by the names that ``observation`` takes; each with its prior set from the data."""

HALF = 0.5
"""Least expected rows of a cluster that counts after ``partial_fit``."""

SPARSE = (Multinomial,)
"""Observation models of sparse counts."""


class DirichletProcessMixture(TransformerMixin, ClusterMixin, BaseEstimator):
    """Dirichlet process mixture for data in memory, as a scikit-learn estimator.

    For data on disk or on a cluster, and for all settings, use :func:`bnp_dask.train`; this class calls it.

    Parameters
    ----------
    observation
        Likelihood of a cluster: ``"gaussian"`` (full covariance), ``"zero_mean_gaussian"``, ``"diag_gaussian"``,
        ``"fixed_variance_gaussian"``, ``"bernoulli"``, ``"categorical"``, ``"multinomial"``, ``"poisson"``,
        ``"von_mises_fisher"`` (rows of length one), or an observation model with the prior you choose, such as
        ``bnp_dask.Gaussian(nu=10)``.  ``"auto"`` chooses by the data of the first fit: ``bnp_dask.Product.of(X)`` for a
        table, whose columns may be of several kinds and lack entries; for an array ``Gaussian``, which integrates over
        missing entries if there are some; ``Multinomial`` for sparse counts and texts.  ``observation_`` shows it.
    n_clusters
        None: the number of clusters is learned.  A number: the initial and largest number of clusters; superfluous ones
        are merged and deleted.
    gamma
        Concentration of the Dirichlet process, > 0: larger expects more clusters.
    max_laps
        Largest number of passes over the data.
    tol
        Stop when a lap changes the objective by less, in nats per unit of weight; default as :class:`bnp_dask.Memoized`
        does.
    init
        Initialisation; default ``BregmanKMeans(n_clusters)``; if their number is learned as in
        :func:`bnp_dask.train`: of 25 clusters, of one for two rows where these are fewer than 50, and
        ``UnitedKMeans()`` from 40,000 dense rows on.
    n_init
        Number of starts; the one with the highest objective after ten laps continues.
    shadow
        A second state beside the run's state, which replaces it when its exact objective is higher, such as
        :class:`bnp_dask.Shadow`; None for none.  :meth:`partial_fit` has one in its first call only.
    schedule
        Default ``Memoized(laps=max_laps, tolerance=tol)``; a given schedule's own settings override these two.
    moves
        Proposals that change the number of clusters; default ``[Birth(), Merge(), Delete()]``, without births for a
        given ``n_clusters``.  ``()`` for none.
    batch_size
        Atoms per batch; default about 32 MB.
    random_state
        Seed, RandomState or None.
    client
        A ``distributed.Client`` to compute on; None for the current one, or this process.
    reproducible
        Compute the same bits on every x86-64 processor with AVX2 and FMA; see :class:`bnp_dask.Model`.
    learn_prior
        Whether the likelihood's prior is fitted to the clusters: ``"auto"``, ``"never"``, ``"diagonal"`` or
        ``"full"``, as for :class:`bnp_dask.Model`.
    store
        Run directory.  ``fit`` begins a run there, which :meth:`partial_fit` continues, also in another process;
        None keeps all in memory.

    Attributes
    ----------
    labels_
        Cluster of each training atom, ``(n,)``: 0 to ``n_clusters_ - 1``, the heaviest cluster first.
    n_clusters_
        Clusters that have at least one training atom.
    weights_
        Expected share of each cluster, ``(K,)``; clusters without training atoms come last.
    means_
        Expected atom of each cluster, ``(K, D)``: mean, rate, probability; in the order of ``weights_``.  Only for
        likelihoods that have one.
    covariances_
        Expected covariance within each cluster, ``(K, D, D)``, or variance of each feature, ``(K, D)``.  Only for
        Gaussians.
    ids_
        Id of each cluster, ``(K,)``, in the order of ``weights_``; it lasts through all calls of :meth:`partial_fit`.
    posterior_, history_
        Results of ``train``; ``order_ (K,)`` are the positions of this class's clusters in the posterior.
    draws_
        Draws of the partition, :class:`bnp_dask.Draws`.  Only after ``fit`` with ``schedule=Gibbs(...)``, whose labels
        and clusters are its point estimate.
    lower_bound_
        The objective (ELBO) after the last lap, nats, for all atoms together; for filters and samplers the number that
        their history has in its place.
    lower_bounds_
        The same after each lap.
    n_iter_
        Laps.
    converged_
        Whether the objective and the counts stopped changing.
    n_features_in_
        Features seen in fit.
    observation_
        Likelihood as it was chosen, before its prior was set; ``print`` shows it as code.
    vocabulary_
        Words of documents; only after ``fit`` of texts or other documents, which ``"multinomial"`` takes.

    Examples
    --------
    >>> from bnp_dask import DirichletProcessMixture
    >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]]
    >>> DirichletProcessMixture(random_state=0).fit(X).n_clusters_
    2
    """

    def __init__(
        self,
        observation: str | Observation = "gaussian",
        *,
        n_clusters: int | None = None,
        gamma: float = 1.0,
        max_laps: int = 100,
        tol: float | None = None,
        init: Initialization | None = None,
        n_init: int = 1,
        shadow: Shadow | None = None,
        schedule: Schedule | None = None,
        moves: Sequence[Move] | None = None,
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        client: Client | None = None,
        reproducible: bool = False,
        learn_prior: LearnPrior = "auto",
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        self.observation = observation
        self.n_clusters = n_clusters
        self.gamma = gamma
        self.max_laps = max_laps
        self.tol = tol
        self.init = init
        self.n_init = n_init
        self.shadow = shadow
        self.schedule = schedule
        self.moves = moves
        self.batch_size = batch_size
        self.random_state = random_state
        self.client = client
        self.reproducible = reproducible
        self.learn_prior = learn_prior
        self.store = store

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, labels: Any = None, links: Any = None) -> Self:
        """Learn the clusters of ``X (n, D)``; ``sample_weight (n,)`` are weights of the rows.

        ``labels (n,)`` are known labels of some rows, as for :func:`bnp_dask.train`: -1 or None where unknown.  They
        have a name of their own because ``y`` is ignored, as in all clusterings of scikit-learn.  Then
        :meth:`predict_label` answers with labels.  ``links (n,)`` are groups of rows that share one cluster, -1 or None
        for rows in none.

        ``X`` is data as :func:`bnp_dask.as_source` takes them, which are held in memory: arrays, tables, paths.
        """
        X = self._checked(X, reset=True)
        result = self._trained(X, self._weights(X, sample_weight), labels=labels, links=links)
        self._keep(predict(result.posterior, X, links=links, batch_size=self.batch_size, client=self.client))
        self.__dict__.pop("draws_", None)
        if result.draws is not None:
            self.draws_ = result.draws
        warn_unless_converged(self, result)
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from more rows: the first call fits, later ones take in ``X`` as :func:`bnp_dask.update` does.

        Later rows are visited once, and may open new clusters; existing clusters keep their ids (``ids_``) and their
        places in ``weights_`` and ``labels_``.  Rows count as often as they are given.  Older rows are not visited
        again, so clusters are no longer merged or deleted.  After :meth:`fit` it continues from there; prior settings
        stay as in the first call.  ``labels_`` and ``lower_bounds_`` belong to this call, and ``n_clusters_`` counts
        clusters with half an expected row or more.
        """
        first = "posterior_" not in vars(self)
        X = self._checked(X, reset=first, least=2 if is_first(self) else 1)
        weights = self._weights(X, sample_weight)
        source = source_of(self, self._observation(), X, weights, self.batch_size)
        known = np.zeros(0, np.int64) if first else self.ids_
        take_in(self, source, partial(self._trained, X, weights))
        labels = predict(self.posterior_, X, batch_size=self.batch_size, client=self.client)
        self._keep(labels, known)
        return self

    def _weights(self, X: Any, sample_weight: Any) -> Any:
        """Weights of the rows ``(n,)``; None if all count once."""
        if sample_weight is None:
            return None
        given = sound_input(sample_weight, "sample_weight")
        return _check_sample_weight(given, X, ensure_non_negative=True)

    def _trained(
        self,
        X: Any,
        weights: Any,
        store: str | os.PathLike[str] | None = None,
        labels: Any = None,
        links: Any = None,
    ) -> TrainResult:
        model = Model(
            DPMixture(self.gamma),
            self._observation(),
            reproducible=self.reproducible,
            learn_prior=self.learn_prior,
        )
        wanted = whole_or_none("n_clusters", self.n_clusters, "a number of clusters")
        if wanted is not None and isinstance(self.schedule, CHANGING):
            raise SettingError(
                f"n_clusters={wanted}: {type(self.schedule).__name__}() opens and closes clusters itself; "
                "leave n_clusters out"
            )
        n_counting = X.shape[0] if weights is None else int(np.count_nonzero(weights))
        # train chooses by all rows; where some count nothing, the start is one for the others
        is_usual = wanted is None and n_counting == X.shape[0]
        start = None if is_usual else default_init(model, sparse.issparse(X), n_counting, wanted)
        usual = None if wanted is None else (Merge(), Delete())
        return run_estimator(self, model, X, start, usual, weights, self.batch_size, store, labels=labels, links=links)

    def fit_predict(
        self, X: Any, y: Any = None, sample_weight: Any = None, labels: Any = None, links: Any = None
    ) -> np.ndarray:
        """Learn the clusters of ``X`` and return the cluster of each row, ``(n,)``."""
        return self.fit(X, y, sample_weight, labels, links).labels_

    def predict_label(self, X: Any, links: Any = None) -> np.ndarray:
        """Label of the most probable cluster of each row, ``(n,)``, after ``fit(X, labels=known)``.

        Clusters without a labelled row have the label of the clusters that they are most like, see
        :func:`bnp_dask.label_of`; containers and links as in :meth:`predict`.
        """
        check_is_fitted(self)
        own, place, X = label_of(self.posterior_, nearest=True), partial(places_of, self.posterior_), with_labels(X)
        return like_rows(self._compute(partial(predict, links=links), X), X, lambda labels: own[place(labels)])

    def predict(self, X: Any, links: Any = None) -> np.ndarray:
        """Most probable cluster of each row, ``(n,)``; a Series with its index for a pandas DataFrame.

        A lazy Dask array for a Dask array or DataFrame.  ``links`` as in :meth:`fit`: rows of a group are predicted
        together.
        """
        check_is_fitted(self)
        rank, place, X = self._rank, partial(places_of, self.posterior_), with_labels(X)
        return like_rows(self._compute(partial(predict, links=links), X), X, lambda labels: rank[place(labels)])

    def predict_proba(self, X: Any, links: Any = None) -> np.ndarray:
        """Probability of each cluster for each row, ``(n, K)``; containers and links as in :meth:`predict`."""
        check_is_fitted(self)
        order, X = self.order_, with_labels(X)
        found = self._compute(partial(predict, soft=True, links=links), X)
        return like_rows(found, X, lambda resp: resp[:, order])

    def sample(self, n_samples: int = 1) -> tuple[Any, np.ndarray]:
        """Draw rows ``(n, D)`` and their clusters ``(n,)``; ``random_state`` is the seed."""
        check_is_fitted(self)
        drawn = sample(self.posterior_, n_samples, seed_of_estimator(self.random_state))
        return drawn.x, self._rank[places_of(self.posterior_, drawn.labels)]

    def aic(self, X: Any) -> float:
        """Akaike's criterion of rows, nats: lower is better.

        For comparison with scikit-learn's mixtures; the score of held-out rows is more informative.
        """
        value = float(np.sum(self._compute(score_samples, X)))
        return aic_of(self._n_free(), value)

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion of rows, nats: lower is better; see :meth:`aic`."""
        values = self._compute(score_samples, X)
        return bic_of(self._n_free(), float(np.sum(values)), len(values))

    def _n_free(self) -> int:
        """Number of free parameters of all clusters and their weights."""
        return free_parameters(self.posterior_, self.posterior_.n_clusters - 1)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log likelihood per row under the posterior predictive, nats."""
        return self._compute(score, X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log likelihood of each row under the posterior predictive, ``(n,)`` nats; a Series for a pandas DataFrame."""
        X = with_labels(X)
        return like_rows(self._compute(score_samples, X), X, lambda values: values)

    def _compute(self, task: Callable[..., Any], X: Any) -> Any:
        """Result of predict, score or score_samples on rows, computed with this estimator's client."""
        check_is_fitted(self)
        if is_dask(X) and task not in (score, score_samples):
            return task(self.posterior_, X)
        X = self._checked(X, reset=False)
        return task(self.posterior_, X, batch_size=self.batch_size, client=self.client)

    def _keep(self, labels: np.ndarray, known: np.ndarray | None = None) -> None:
        """Set the learned attributes; ``labels`` of the rows by id, ``known`` ids in their order before partial_fit."""
        posterior, history = self.posterior_, self.history_
        # the last row of each lap
        ends = [row for row, after in zip(history, [*history[1:], None]) if after is None or after["lap"] != row["lap"]]
        self.lower_bounds_ = [float(row["elbo"]) for row in ends]
        self.lower_bound_ = self.lower_bounds_[-1]
        places = places_of(posterior, labels)
        alive = np.bincount(places, minlength=posterior.n_clusters) > 0
        if known is not None and len(known):
            alive = posterior.summary["N"] >= HALF
        # clusters with atoms first, so that labels are 0, 1, ... without gaps; among them the heaviest first
        self.order_ = np.lexsort((-posterior.weights, ~alive))
        if known is not None:
            self.order_ = in_known_order(posterior, self.order_, known)
        self._rank = np.argsort(self.order_)
        self.ids_ = posterior.ids[self.order_]
        self.weights_ = posterior.weights[self.order_]
        self.n_clusters_ = int(alive.sum())
        for name, values in moments_of(posterior).items():
            setattr(self, name, values[self.order_])
        self.labels_ = self._rank[places]
        freeze_learned(self)

    def transform(self, X: Any) -> np.ndarray:
        """Probability of each cluster for each row, ``(n, K)``: as :meth:`predict_proba`, in a plain array.

        ``set_output(transform="pandas")`` gives a DataFrame, with columns ``cluster0``, ``cluster1``, ...
        """
        check_is_fitted(self)
        return self._compute(partial(predict, soft=True), X)[:, self.order_]

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`, ``(K,)``."""
        check_is_fitted(self)
        return np.array([f"cluster{k}" for k in range(self.posterior_.n_clusters)], object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with ``deep`` also the settings of parts, such as ``observation__kappa``."""
        own = super().get_params(deep)
        return with_nested(own) if deep else own

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also the settings of parts: ``set_params(observation__kappa=0.1)``."""
        plain, nested = split_nested(params)
        super().set_params(**plain)
        set_nested(self, nested, self._named)
        return self

    def _named(self) -> Observation:
        if self.observation not in OBSERVATIONS:
            names = ", ".join([*OBSERVATIONS, "auto"])
            raise SettingError(f"observation={self.observation!r}: needs one of {names}, or a model")
        return OBSERVATIONS[self.observation]()

    def _observation(self) -> Observation:
        """The likelihood; for ``"auto"`` the one chosen by fit."""
        if not isinstance(self.observation, str):
            return self.observation
        return vars(self)["observation_"] if self.observation == "auto" else self._named()

    def _checked(self, X: Any, reset: bool, least: int | None = None) -> Any:
        """Rows that are finite float64 of the right width, or sparse counts if the likelihood takes them.

        NaN passes if the likelihood takes missing entries.
        """
        is_auto = isinstance(self.observation, str) and self.observation == "auto"
        if reset and is_auto:
            X = form_of(X, Needs("the likelihood of a mixture", may_miss=True, counts_words=True))
            self.observation_ = chosen_for(X)
        elif reset:
            self.observation_ = self._observation()
        observation = self._observation()
        n_words = None if reset else vars(self).get("n_features_in_")
        X = form_of(X, needs_of_likelihood(observation, n_words=n_words))
        if isinstance(X, Documents):
            X = counted(self, X, None, reset)
        rows = sound_input(of_chosen(X, observation), "X")
        if frame_with_levels(self, observation, X, reset):
            return X
        X = features_of(self, rows, reset)
        require_entries(X, observation)
        takes_sparse = "csr" if isinstance(observation, SPARSE) else False
        X = validated(
            self,
            X,
            (2 if reset else 1) if least is None else least,
            reset=reset,
            accept_sparse=takes_sparse,
            ensure_all_finite="allow-nan" if marginalises(observation) else True,
        )
        return sparse.csr_array(X) if sparse.issparse(X) or takes_sparse else X

    def _takes_sparse(self) -> bool:
        named = OBSERVATIONS.get(self.observation) if isinstance(self.observation, str) else type(self.observation)
        return named in SPARSE or self.observation == "auto"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse()
        tags.input_tags.allow_nan = marginalises(self.observation) or self.observation == "auto"
        tags.input_tags.positive_only = self._takes_sparse() and self.observation != "auto"
        return tags
