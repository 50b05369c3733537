"""The scikit-learn estimator of topic models: :class:`TopicModel` on top of ``train``, ``predict`` and ``score``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from scipy import sparse

from bnp_dask.allocation import LDA, CategoricalResponse, GaussianResponse, HDPTopics
from bnp_dask.analysis.base import needs_of_likelihood, words_in
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.sample import sample
from bnp_dask.analysis.score import score
from bnp_dask.analysis.topics.completion import ResponsePrediction, predict_response, word_score
from bnp_dask.analysis.topics.words import by_size
from bnp_dask.data import Documents, Text, classes_of, responses_of, with_responses
from bnp_dask.errors import DataError, SettingError
from bnp_dask.estimators.fitting import (
    aic_of,
    bic_of,
    counted,
    features_of,
    form_of,
    free_parameters,
    freeze_learned,
    in_known_order,
    is_first,
    places_of,
    run_estimator,
    seed_of_estimator,
    set_nested,
    sound_input,
    source_of,
    split_nested,
    take_in,
    validated,
    warn_unless_converged,
    with_nested,
)
from bnp_dask.inference import Schedule
from bnp_dask.initialize import Initialization, SampledTopics
from bnp_dask.inputs import shown, whole_or_none
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import Multinomial
from bnp_dask.observation.priors import positive
from bnp_dask.structure import response_of
from bnp_dask.training.alternatives import Shadow
from bnp_dask.training.growing.grown import responses_as
from bnp_dask.training.results import TrainResult

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils import Tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError('TopicModel needs scikit-learn: pip install "bnp-dask[sklearn]"') from error

if TYPE_CHECKING:
    from distributed import Client


def _classifies(estimator: TopicModel) -> bool:
    """Whether an estimator models classes, so that it can predict their probabilities."""
    return estimator.response == "categorical" or isinstance(estimator.response, CategoricalResponse)


def _responds(estimator: TopicModel) -> bool:
    """True for an estimator that models responses, so that it can predict them; else AttributeError, with the call."""
    if estimator.response is None:
        raise AttributeError(
            "TopicModel(response=None) has nothing to predict: transform(X) gives the shares of topics in each "
            "document, transform(X).argmax(axis=1) the topic of the largest share"
        )
    return True


class TopicModel(TransformerMixin, BaseEstimator):
    """Topics of word counts in memory, as a scikit-learn transformer; it learns how many there are.

    For data on disk or on a cluster, raw text, and for all settings, use :func:`bnp_dask.train`; this class calls it.

    Parameters
    ----------
    n_topics
        None: an HDP topic model, which learns the number of topics by births, merges and deletes.  A number: LDA with
        that number of topics.
    alpha
        Total prior mass of a document's weights, > 0: small values expect few topics per document.
    gamma
        Concentration of the HDP's top level, > 0.
    word_prior
        Prior count of a word in a topic, > 0, on average over the words.
    common
        Share of ``word_prior`` that words get in proportion to their frequency in the documents, 0 to less than 1;
        defaults of both as in :class:`bnp_dask.Multinomial`.
    max_laps
        Largest number of passes over the documents.
    tol
        Stop when a lap changes the objective by less, in nats per document; default as :class:`bnp_dask.Memoized` does.
    init
        Initialisation; default ``SampledTopics(n_topics)``, which sets their number from the data if it is learned.
    n_init
        Number of starts; the one with the highest objective after ten laps continues.
    shadow
        A second state beside the run's state, which replaces it when its exact objective is higher, such as
        :class:`bnp_dask.Shadow`; None for none.  :meth:`partial_fit` has one in its first call only.
    collapsed
        Passes over the documents after the last lap that find the words for :meth:`score`, with each document's own
        counts left out; None for four, or none with another schedule; see :func:`bnp_dask.train`.
        :meth:`partial_fit` finds them in its first call only.
    schedule
        Default ``Memoized(laps=max_laps, tolerance=tol)``; a given schedule's own settings override these two.
    moves
        Default ``DocumentBirth()``, ``Birth(...)``, ``Merge()`` and ``Delete()`` when the number of topics is learned,
        none otherwise.
    batch_size
        Documents per batch; default about 32 MB.
    random_state
        Seed, RandomState or None.
    client
        A ``distributed.Client`` to compute on; None for the current one, or this process.
    reproducible
        Compute the same bits on every x86-64 processor with AVX2 and FMA; see :class:`bnp_dask.Model`.
    store
        Run directory.  ``fit`` begins a run there, which :meth:`partial_fit` continues, also in another process;
        None keeps all in memory.
    response
        ``"gaussian"``, or :class:`bnp_dask.GaussianResponse` with a prior: ``fit(X, y)`` learns topics together with a
        regression of the numbers ``y`` on the shares of topics, and :meth:`predict` predicts them.
        ``"categorical"``, or :class:`bnp_dask.CategoricalResponse`: ``y`` are classes, texts or whole numbers, and
        :meth:`predict_proba` gives their probabilities.  None: ``y`` is ignored.
    text
        How raw texts become counts, such as ``Text(analyzer=my_words.cut)``; None for ``Text()``.  ``fit`` of texts
        chooses the vocabulary.  Documents that are counts need none.

    Attributes
    ----------
    ids_
        Id of each topic, ``(K,)``, in the order of ``components_``; it lasts through all calls of :meth:`partial_fit`.
    components_
        Expected counts of words plus prior, ``(K, V)``, the largest topic first; rows over their sums are the topics,
        which scikit-learn's mixtures would call means: there are no separate ``means_``.
    n_topics_
        Topics K.
    weights_
        Expected share of each topic in a document, ``(K,)``.
    posterior_, history_
        Results of ``train``; ``order_ (K,)`` are the positions of this class's topics in the posterior.
    bound_
        The objective (ELBO), nats, for all documents together.
    n_iter_
        Laps.
    converged_
        Whether the objective and the counts stopped changing.
    n_features_in_
        Words.
    classes_
        Names of the classes, ``(C,)``, in the order of :meth:`predict_proba`; of a classification only.
    vocabulary_
        Words of documents, and the settings that cut texts, a :class:`bnp_dask.Vocabulary`; not for matrices of counts.

    Examples
    --------
    >>> import numpy as np
    >>> from bnp_dask import TopicModel
    >>> X = np.repeat([[4, 4, 0, 0], [0, 0, 4, 4]], 20, axis=0)
    >>> TopicModel(n_topics=2, random_state=0).fit_transform(X).shape
    (40, 2)
    """

    def __init__(
        self,
        n_topics: int | None = None,
        *,
        alpha: float = 0.5,
        gamma: float = 10.0,
        word_prior: float | None = None,
        common: float | None = None,
        max_laps: int = 50,
        tol: float | None = None,
        init: Initialization | None = None,
        n_init: int = 1,
        shadow: Shadow | None = None,
        collapsed: int | None = None,
        schedule: Schedule | None = None,
        moves: Sequence[Move] | None = None,
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        client: Client | None = None,
        reproducible: bool = False,
        store: str | os.PathLike[str] | None = None,
        response: Literal["gaussian", "categorical"] | GaussianResponse | CategoricalResponse | None = None,
        text: Text | None = None,
    ) -> None:
        self.n_topics = n_topics
        self.alpha = alpha
        self.gamma = gamma
        self.word_prior = word_prior
        self.common = common
        self.max_laps = max_laps
        self.tol = tol
        self.init = init
        self.n_init = n_init
        self.shadow = shadow
        self.collapsed = collapsed
        self.schedule = schedule
        self.moves = moves
        self.batch_size = batch_size
        self.random_state = random_state
        self.client = client
        self.reproducible = reproducible
        self.store = store
        self.response = response
        self.text = text

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the topics of documents.

        ``X`` holds counts ``(n, V)`` of words, sparse or dense, which may be fractions; or texts: a list of str, a
        column of a table, or a table with a column of texts; lists of words; mappings from words to counts; documents
        as in gensim.  Later texts are read by the words of these; one line says how many tokens are unknown.

        ``y (n,)`` are the responses of the documents if ``response`` is set, NaN where none is known; of classes None,
        an empty text or -1.
        """
        result = self._trained(*_with_words(self._checked(X, reset=True), self._responses(y)))
        self._keep()
        warn_unless_converged(self, result)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more documents: the first call fits, later ones take in ``X`` as :func:`bnp_dask.update` does.

        Later documents are visited once; existing topics keep their ids (``ids_``) and their places in
        ``components_``.  Documents count as often as they are given; documents without words are skipped.  New topics
        need visits of all documents, so only the first call finds them, or :meth:`fit`, after which it continues.
        ``y`` is as in :meth:`fit`.
        """
        first = "posterior_" not in vars(self)
        X = self._checked(X, reset=first, least=2 if is_first(self) else 1)
        if not (is_first(self) or X.sum() > 0):
            return self
        X, y = _with_words(X, None if y is None and not is_first(self) else self._responses(y))
        known = np.zeros(0, np.int64) if first else self.ids_
        source = source_of(self, self._words(), X, batch_size=self.batch_size)
        if y is not None and not is_first(self):
            source = with_responses(source, responses_as(self.posterior_, y))
        take_in(self, source, partial(self._trained, X, y))
        self._keep(known)
        return self

    def _trained(self, X: Any, y: Any, store: str | os.PathLike[str] | None = None) -> TrainResult:
        given = whole_or_none("n_topics", self.n_topics, "a number of topics")
        allocation: Any = HDPTopics(self.gamma, self.alpha) if given is None else LDA(self.alpha)
        if self.response is not None:
            kinds = {"gaussian": GaussianResponse(), "categorical": CategoricalResponse()}
            chosen = kinds[self.response] if isinstance(self.response, str) else self.response
            allocation = replace(allocation, response=chosen)
        model = Model(allocation, self._words(), reproducible=self.reproducible)
        how: dict[str, Any] = {"batch_size": self.batch_size, "store": store, "collapsed": self.collapsed}
        return run_estimator(self, model, X, SampledTopics(given), responses=y, **how)

    def _responses(self, y: Any) -> np.ndarray | None:
        """Responses of the documents, numbers or names of classes; None if none are modelled."""
        if self.response is None:
            return None
        if self.response not in ("gaussian", "categorical") and not isinstance(
            self.response, GaussianResponse | CategoricalResponse
        ):
            raise SettingError(
                f'response={shown(self.response)}: needs "gaussian", "categorical", GaussianResponse(...), '
                "CategoricalResponse(...), or None"
            )
        if y is None:
            what = "class, None" if _classifies(self) else "number, NaN"
            raise DataError(f"y is None: a topic model with response= needs one {what} if unknown, for each document")
        if not _classifies(self):
            return responses_of(y)
        codes, names = classes_of(y)
        return np.array([None if np.isnan(code) else names[int(code)] for code in codes], object)

    def _words(self) -> Multinomial:
        if self.word_prior is not None:
            positive("word_prior", self.word_prior)
        return Multinomial(self.word_prior, self.common, fractional=True)

    def _keep(self, known: np.ndarray | None = None) -> None:
        """Set the learned attributes; topics with ``known`` ids come first, in that order."""
        posterior: Posterior = vars(self)["posterior_"]
        if "vocabulary_" in vars(self):
            posterior = replace(posterior, words=words_in(self.vocabulary_))
        self.posterior_ = posterior
        response = response_of(posterior.model.allocation)
        if response is not None and response.classes is not None:
            self.classes_ = np.array(response.classes)
        self.bound_ = float(self.history_[-1]["elbo"])
        self.order_ = by_size(posterior)
        if known is not None:
            self.order_ = in_known_order(posterior, self.order_, known)
        self.ids_ = posterior.ids[self.order_]
        self.n_topics_ = posterior.n_clusters
        self.weights_ = posterior.weights[self.order_]
        self.components_ = posterior.observation.lam[self.order_]
        freeze_learned(self)

    def transform(self, X: Any) -> np.ndarray:
        """Expected share of each topic in each document, ``(n, K)``; rows sum to one.

        The share of topics that were not met yet is left out; :func:`bnp_dask.predict` gives it.
        """
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        shares = predict(self.posterior_, X, soft=True, batch_size=self.batch_size, client=self.client)
        shares = shares[:, self.order_]
        return shares / shares.sum(axis=1, keepdims=True)

    @available_if(_responds)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected response of each document, or its most probable class, ``(n,)``.

        With ``return_std`` also the standard deviation, ``(n,)``, of numbers only.  Only with ``response=``.  See
        :func:`bnp_dask.predict_response`.
        """
        found = self._predicted(X)
        if not return_std:
            return found.best
        if found.classes is not None:
            raise SettingError("return_std=True: classes have no standard deviation; call predict_proba(X)")
        return found.mean, np.sqrt(found.variance)

    @available_if(_classifies)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class for each document, ``(n, C)``, in the order of ``classes_``; rows sum to one."""
        return self._predicted(X).mean

    def _predicted(self, X: Any) -> ResponsePrediction:
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return predict_response(self.posterior_, X, batch_size=self.batch_size, client=self.client)

    def score(self, X: Any, y: Any = None) -> float:
        """Document completion: mean log probability of held-out words, nats per token; see :func:`bnp_dask.score`."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        return score(self.posterior_, X, batch_size=self.batch_size, client=self.client)

    def aic(self, X: Any) -> float:
        """Akaike's criterion of documents, nats: lower is better.

        From the probability of whole documents, by importance sampling as in :func:`bnp_dask.word_score`; counts must
        be whole numbers.  The score of held-out documents is more informative.
        """
        value, _ = self._log_probability(X)
        return aic_of(self._n_free(), value)

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion of documents, nats: lower is better; see :meth:`aic`."""
        return bic_of(self._n_free(), *self._log_probability(X))

    def _n_free(self) -> int:
        """Number of free parameters of all topics, and of their weights if these are learned."""
        return free_parameters(self.posterior_, self.n_topics_ - 1 if self.n_topics is None else 0)

    def _log_probability(self, X: Any) -> tuple[float, int]:
        """Log probability of all documents, nats, and their number."""
        check_is_fitted(self)
        X = self._checked(X, reset=False)
        each = word_score(self.posterior_, X, batch_size=self.batch_size, client=self.client)
        return each * float(X.sum()), X.shape[0]

    def sample(self, n_samples: int = 1, length: int = 100) -> tuple[sparse.csr_array, np.ndarray]:
        """Draw documents of ``length`` words, counts ``(n, V)``, and the largest topic of each, ``(n,)``.

        ``random_state`` is the seed.  See :func:`bnp_dask.sample`.
        """
        check_is_fitted(self)
        drawn = sample(self.posterior_, n_samples, seed_of_estimator(self.random_state), length=length)
        return drawn.x, np.argsort(self.order_)[places_of(self.posterior_, drawn.labels)]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with ``deep`` also the settings of parts, such as ``text__min_df``."""
        own = super().get_params(deep)
        return with_nested(own) if deep else own

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also the settings of parts: ``set_params(text__min_df=5)``."""
        plain, nested = split_nested(params)
        super().set_params(**plain)
        set_nested(self, nested, self._words)
        return self

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`, ``(K,)``."""
        check_is_fitted(self)
        return np.array([f"topic{k}" for k in range(self.n_topics_)], object)

    def _checked(self, X: Any, reset: bool, least: int | None = None) -> sparse.csr_array:
        if not isinstance(self.text, Text | None):
            raise SettingError(f"text={shown(self.text)}: needs Text(...), or None")
        if isinstance(X, str) and self.text is not None:
            raise DataError(f"X={shown(X)}: needs a list of texts")
        n_words = None if reset else vars(self).get("n_features_in_")
        X = form_of(X, needs_of_likelihood(self._words(), n_words=n_words), self.text)
        if isinstance(X, Documents):
            X = counted(self, X, self.text, reset)
        elif self.text is not None:
            raise DataError(
                f"X is {type(X).__name__}; needs a list of texts, or a table with a column of texts; for counts leave "
                "text= out"
            )
        else:
            X = features_of(self, sound_input(X, "X"), reset)
            if reset:
                self.__dict__.pop("vocabulary_", None)
        X = validated(
            self,
            X,
            (2 if reset else 1) if least is None else least,
            reset=reset,
            accept_sparse="csr",
            ensure_non_negative=True,
        )
        return sparse.csr_array(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = self.text is not None
        tags.input_tags.positive_only = True
        return tags


def _with_words(X: sparse.csr_array, y: np.ndarray | None) -> tuple[sparse.csr_array, np.ndarray | None]:
    """Documents that have words, and their responses; SettingError if none has words."""
    if y is not None and len(y) != X.shape[0]:
        raise DataError(f"y has {len(y)} responses for {X.shape[0]} documents")
    some = np.flatnonzero(np.asarray(X.sum(axis=1)) > 0)
    found = sparse.csr_array(X[some])
    if found.shape[0] == 0:
        raise SettingError(f"X holds {X.shape[0]} documents without any word; topics need some")
    return found, None if y is None else y[some]
