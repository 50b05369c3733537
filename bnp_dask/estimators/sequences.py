"""The scikit-learn estimator of hidden Markov models: :class:`SequenceModel` over ``train``, ``predict``, ``score``."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bnp_dask.allocation import HDPHMM, FiniteHMM
from bnp_dask.analysis.base import for_batches, needs_of_likelihood
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.sample import sample
from bnp_dask.analysis.score import score, score_samples
from bnp_dask.analysis.sequences import decoded, independent_share, transitions
from bnp_dask.data import as_source, is_frame
from bnp_dask.data.sources.columns import require_no_groups
from bnp_dask.data.sources.forms import sequences_of
from bnp_dask.data.sources.frames import is_list_of_frames, joined
from bnp_dask.errors import DataError, SettingError, warn
from bnp_dask.estimators.fitting import (
    aic_of,
    bic_of,
    columns_for,
    features_of,
    form_of,
    frame_with_levels,
    free_parameters,
    freeze_learned,
    in_known_order,
    is_first,
    moments_of,
    places_of,
    require_entries,
    run_estimator,
    seed_of_estimator,
    set_nested,
    sound_input,
    split_nested,
    take_in,
    validated,
    warn_unless_converged,
    with_nested,
)
from bnp_dask.inference import FullBatch, Memoized, Schedule
from bnp_dask.initialize import ContiguousBlocks, FromSample, Initialization
from bnp_dask.inputs import flag, is_stream, plain, whole_or_none
from bnp_dask.model import Model
from bnp_dask.moves import Birth, Move
from bnp_dask.observation import (
    AutoRegressiveGaussian,
    Bernoulli,
    Categorical,
    DiagGaussian,
    Gaussian,
    LearningObservation,
    Observation,
    Poisson,
    lags_of,
    level_keys,
    marginalises,
    with_previous,
)
from bnp_dask.structure import LearnPrior
from bnp_dask.training.alternatives import Shadow
from bnp_dask.training.callbacks import logger
from bnp_dask.training.defaults import default_init, default_moves
from bnp_dask.training.results import TrainResult
from bnp_dask.training.train import train

if TYPE_CHECKING:
    from distributed import Client

    from bnp_dask.data import Source

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError('SequenceModel needs scikit-learn: pip install "bnp-dask[sklearn]"') from error


OBSERVATIONS = {
    "autoregressive": AutoRegressiveGaussian,
    "bernoulli": Bernoulli,
    "categorical": Categorical,
    "diag_gaussian": DiagGaussian,
    "gaussian": Gaussian,
    "poisson": Poisson,
}
"""Likelihoods by the names that ``observation`` takes; each with its prior set from the data."""

PILOT_STATES, PILOT_LAPS = 30, 15
"""States and laps of the run from which the weight of steps is found.  With ten states residuals of drawn chains of
eight last as long as the states that share one; with thirty their share is 1."""

STARTS, STARTS_NUMBERS = 3, 500_000
"""Starts of a fit to steps that count for less than one, and most numbers in its rows: such runs end far apart (by 70
nats on motion capture, where a run took 12 seconds of processor time for 19,000 numbers)."""


class SequenceModel(BaseEstimator):
    """Segments of sequences in memory, as a scikit-learn estimator; it learns how many kinds of them there are.

    For data on disk or on a cluster, and for all settings, use :func:`bnp_dask.train`; this class calls it.

    Parameters
    ----------
    observation
        Likelihood of a state: ``"gaussian"`` (full covariance), ``"diag_gaussian"``, ``"bernoulli"``,
        ``"categorical"``, ``"poisson"``, ``"autoregressive"`` (each row follows from the row before), or an observation
        model with the prior you choose, such as ``AutoRegressiveGaussian(lags=2)``.
        Rows are given as they were recorded, also for autoregressive models.
    n_states
        None: a sticky HDP-HMM, which learns the number of states by births, merges and deletes.  A number: a finite
        hidden Markov model with that number of states.
    kappa
        Prior number of self-transitions of each state, >= 0: larger makes states last.
    alpha, gamma
        Concentrations of a state's successors, and of the HDP's top level, > 0.
    max_laps
        Largest number of passes over the data.
    tol
        Stop when a lap changes the objective by less, in nats per row; default as :class:`bnp_dask.Memoized` does.
    init
        Initialisation; default ``BregmanKMeans(n_states)`` for a fixed number of states, ``ContiguousBlocks(10)`` if
        it is learned; autoregressive models always start from ``ContiguousBlocks``.
    n_init
        Number of starts; the one with the highest objective after ten laps continues.  None: three in :meth:`fit`
        where each step counts for less than one (see ``weigh_steps``) and the rows are few, one elsewhere.
    shadow
        A second state beside the run's state, which replaces it when its exact objective is higher, such as
        :class:`bnp_dask.Shadow`; None for none.  :meth:`partial_fit` has one in its first call only.
    schedule
        Default ``Memoized(laps=max_laps, tolerance=tol)``; a given schedule's own settings override these two.
    moves
        Default ``[Birth(), Merge(), Delete()]`` when the number of states is learned, none otherwise.
    batch_size
        Rows per batch; default about 32 MB.  A sequence is never cut.
    random_state
        Seed, RandomState or None.
    client
        A ``distributed.Client`` to compute on; None for the current one, or this process.
    reproducible
        Compute the same bits on every x86-64 processor with AVX2 and FMA; see :class:`bnp_dask.Model`.
    weigh_steps
        False: every step is independent evidence of its state, as the model says.  True: steps count by the share of
        them that is (:func:`bnp_dask.independent_share`, found with 30 states without moves), and the prior of the
        likelihood is learned where it was left open.  In recordings whose neighbouring rows are nearly the same, such
        as motion, states are otherwise moments of a movement.  ``bound_`` is then the objective of weighted steps.
        None: True where the number of states is learned from Gaussian rows in memory, by an exact objective, and their
        share is below 1; False elsewhere.  Fewer states may predict single steps less well: held-out dances of bees
        score 0.6 nats a step lower.  True is for :meth:`fit` only; :meth:`partial_fit` goes on with its weight.
    store
        Run directory.  ``fit`` begins a run there, which :meth:`partial_fit` continues, also in another process;
        None keeps all in memory.

    Attributes
    ----------
    labels_
        State of each training row on the most likely path, ``(n,)``: 0 to ``n_states_ - 1``, the heaviest first.
    n_states_
        States K.
    weights_
        Long-run share of each state, ``(K,)``.
    means_, covariances_
        Expected row of each state ``(K, D)``, and covariance within it ``(K, D, D)``, or variances ``(K, D)``; if the
        likelihood has them.
    transmat_, startprob_
        Expected transition ``(K, K)`` and start probabilities ``(K,)``; rows sum to one, or to a little less: the rest
        is for states not met yet.
    step_weight_
        Weight of each step: 1, or the share of the steps that is independent, see ``weigh_steps``.
    ids_
        Id of each state, ``(K,)``, in the order of ``weights_``; it lasts through all calls of :meth:`partial_fit`.
    posterior_, history_
        Results of ``train``; ``order_ (K,)`` are the positions of this class's states in the posterior.
    bound_
        The objective (ELBO), nats, for all rows together.
    n_iter_
        Laps.
    converged_
        Whether the objective and the counts stopped changing.
    n_features_in_
        Columns.

    Examples
    --------
    >>> import numpy as np
    >>> from bnp_dask import SequenceModel
    >>> walk = np.repeat([[0.0], [5.0], [0.0]], 40, axis=0) + np.random.default_rng(0).normal(size=(120, 1))
    >>> model = SequenceModel(n_states=2, random_state=0).fit([walk, walk[:50]])
    >>> len(model.predict(walk)), [len(states) for states in model.predict([walk, walk[:50]])]
    (120, [120, 50])
    """

    def __init__(
        self,
        observation: str | Observation = "gaussian",
        *,
        n_states: int | None = None,
        kappa: float = 20.0,
        alpha: float = 1.0,
        gamma: float = 5.0,
        max_laps: int = 50,
        tol: float | None = None,
        init: Initialization | None = None,
        n_init: int | None = None,
        shadow: Shadow | None = None,
        schedule: Schedule | None = None,
        moves: Sequence[Move] | None = None,
        batch_size: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        client: Client | None = None,
        reproducible: bool = False,
        weigh_steps: bool | None = None,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        self.observation = observation
        self.n_states = n_states
        self.kappa = kappa
        self.alpha = alpha
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
        self.weigh_steps = weigh_steps
        self.store = store

    def fit(self, X: Any, y: Any = None, lengths: Any = None, labels: Any = None) -> Self:
        """Learn the states of sequences.

        ``X`` is one sequence ``(n, D)``; or sequences one below the other, ``lengths (G,)`` rows each; or sequences of
        one length ``(G, T, D)``; or a list of matrices ``(n_g, D)``; or a folder or pattern of such files.
        ``labels (n,)`` are known labels of some steps, in the order of all rows, as for :func:`bnp_dask.train`: -1 or
        None where unknown; :func:`bnp_dask.label_of` says the label of each state of ``posterior_``.
        """
        rows, offsets = self._rows(X, lengths, reset=True)
        self.step_weight_ = self._step_weight(rows, offsets)
        source = self._source(rows, offsets, self.step_weight_)
        result = self._trained(source, labels=labels, n_init=self._starts(rows))
        self._keep(rows, offsets)
        warn_unless_converged(self, result)
        return self

    def partial_fit(self, X: Any, y: Any = None, lengths: Any = None) -> Self:
        """Learn from more sequences, given as in :meth:`fit`: the first call fits, later ones take in ``X``.

        They do so as :func:`bnp_dask.update` does: later sequences are visited once, and may open new states; existing
        states keep their ids (``ids_``) and their places in ``weights_`` and ``labels_``.  Sequences count as often
        as they are given, and none continues from one call to the next.  Older ones are not visited again, so states
        are no longer merged or deleted.  After :meth:`fit` it continues from there; prior settings stay as in the
        first call.  ``labels_`` belong to this call.
        """
        if self._weighs():
            raise SettingError("weigh_steps=True: the weight of steps is found from all sequences at once; use fit")
        first = "posterior_" not in vars(self)
        known = np.zeros(0, np.int64) if first else self.ids_
        rows, offsets = self._rows(X, lengths, reset=first, least=2 if is_first(self) else 1)
        self.step_weight_ = 1.0 if first else self.step_weight_
        source = self._source(rows, offsets, self.step_weight_)
        take_in(self, source, partial(self._trained, source))
        self._keep(rows, offsets, known)
        return self

    def _trained(
        self, source: Source, store: str | os.PathLike[str] | None = None, labels: Any = None, n_init: int = 1
    ) -> TrainResult:
        model, given = self._model(), self._given()
        start = default_init(model, False, int(source.n_atoms or 1), given)
        moves = self._moves(model)
        return run_estimator(self, model, source, start, store=store, labels=labels, moves=moves, n_init=n_init)

    def _moves(self, model: Model) -> tuple[Move, ...] | None:
        """Moves by default, None as in ``train``: births count steps, not weight, where steps count for less."""
        if self.step_weight_ == 1.0:
            return None
        usual = default_moves(model, Memoized() if self.schedule is None else self.schedule, False)
        return tuple(
            replace(move, min_atoms=self.step_weight_ * move.min_atoms) if isinstance(move, Birth) else move
            for move in usual
        )

    def _given(self) -> int | None:
        return whole_or_none("n_states", self.n_states, "a number of states")

    def _model(self) -> Model:
        allocation: Any = FiniteHMM(kappa=self.kappa)
        if self._given() is None:
            allocation = HDPHMM(self.gamma, self.alpha, kappa=self.kappa)
        observation = self._observation()
        is_open = isinstance(observation, LearningObservation) and observation.learns_by_default
        is_weighed = self._weighs() or self.step_weight_ < 1.0
        learn: LearnPrior = "diagonal" if is_weighed and is_open else "auto"
        return Model(allocation, observation, reproducible=self.reproducible, learn_prior=learn)

    def _starts(self, rows: np.ndarray) -> int:
        """Number of starts of a fit by default."""
        is_exact = self.schedule is None or isinstance(self.schedule, (FullBatch, Memoized))
        is_one = self.store is not None or isinstance(self.init, FromSample)
        is_varied = self.step_weight_ < 1.0 and self._given() is None and is_exact and not is_one
        return STARTS if is_varied and rows.size <= STARTS_NUMBERS else 1

    def _weighs(self) -> bool | None:
        """The setting ``weigh_steps``."""
        return None if self.weigh_steps is None else flag("weigh_steps", self.weigh_steps)

    def _step_weight(self, rows: np.ndarray, offsets: np.ndarray) -> float:
        """Weight of each step in a fit."""
        self.step_weight_ = 1.0
        asked = self._weighs()
        observation = self._observation()
        is_gaussian = isinstance(observation, (DiagGaussian, Gaussian)) and not marginalises(observation)
        # weights that are no whole numbers, and a learned prior, need an exact objective
        is_exact = self.schedule is None or isinstance(self.schedule, (FullBatch, Memoized))
        is_open = self._given() is None and is_gaussian and is_exact and self.store is None
        if not (asked or (asked is None and is_open)):
            return 1.0
        share = self._share(rows, offsets)
        if asked is None and share < 1.0:
            logger.warning(
                "neighbouring steps repeat one another: each counts as %.2g of an independent one. To count all in "
                "full: weigh_steps=False",
                share,
            )
        return share

    def _share(self, rows: np.ndarray, offsets: np.ndarray) -> float:
        """Share of the steps that is independent evidence, from a run with many states."""
        source = self._source(rows, offsets)
        init = ContiguousBlocks(min(PILOT_STATES, len(rows)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fit that follows says them, and the pilot is not to converge
            pilot = train(
                replace(self._model(), learn_prior="auto"),
                source,
                init=init,
                schedule=Memoized(laps=PILOT_LAPS),
                moves=(),
                client=self.client,
                rng=seed_of_estimator(self.random_state),
            )
        return independent_share(pilot.posterior, source, client=self.client)

    def _keep(self, rows: np.ndarray, offsets: np.ndarray, known: np.ndarray | None = None) -> None:
        """Set the learned attributes; states with ``known`` ids come first, in that order."""
        posterior = self.posterior_
        self.bound_ = float(self.history_[-1]["elbo"])
        self.order_ = np.argsort(-posterior.weights, kind="stable")
        if known is not None:
            self.order_ = in_known_order(posterior, self.order_, known)
        self.ids_ = posterior.ids[self.order_]
        self.n_states_ = posterior.n_clusters
        self.weights_ = posterior.weights[self.order_]
        found = transitions(posterior).sorted(self.order_)
        self.transmat_, self.startprob_ = found.matrix, found.start
        for name, values in moments_of(posterior).items():
            setattr(self, name, values[self.order_])
        self.labels_ = self._states(rows, offsets)
        freeze_learned(self)

    def fit_predict(self, X: Any, y: Any = None, lengths: Any = None) -> np.ndarray:
        """Learn the states of sequences, given as in :meth:`fit`, and return the state of each row, ``(n,)``."""
        return self.fit(X, y, lengths).labels_

    def predict(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """State of each row on the most likely path through its sequence, ``(n,)``; ``X`` as in :meth:`fit`.

        A list of sequences gives a list of vectors, one for each.

        In autoregressive models the first row of a sequence has no row before it and gets the state of the second;
        with ``lags=L`` the first L rows get the state of the next.
        """
        check_is_fitted(self)
        rows, offsets = self._rows(X, lengths, reset=False)
        return as_given(self._states(rows, offsets), X, offsets)

    def predict_proba(self, X: Any, lengths: Any = None) -> np.ndarray | list[np.ndarray]:
        """Probability of each state at each row, given the whole sequence, ``(n, K)``; as :meth:`predict`."""
        check_is_fitted(self)
        rows, offsets = self._rows(X, lengths, reset=False)
        start = self.startprob_ / self.startprob_.sum()
        found = self._of_rows(rows, offsets, lambda s: predict(self.posterior_, s, soft=True)[:, self.order_], start)
        return as_given(found, X, offsets)

    def decode(self, X: Any, lengths: Any = None) -> tuple[float, np.ndarray | list[np.ndarray]]:
        """Log probability of the most likely paths, nats, and their states, as :meth:`predict` gives them.

        As in hmmlearn, it is the joint log probability of states and data, of all sequences together: the sum of
        log start, log transition and log density along each path, with the expected probabilities ``startprob_`` and
        ``transmat_``, and each state's parameters integrated over.  So it is at most the log density of the sequences,
        ``score`` times rows, which adds up all paths.  In autoregressive models the first row of each is given.
        """
        check_is_fitted(self)
        rows, offsets = self._rows(X, lengths, reset=False)
        total = 0.0

        def states(source: Source) -> np.ndarray:
            nonlocal total
            found = for_batches(self.posterior_, source, self.client, decoded, "decode")
            total = math.fsum(value for _, values in found for value in values)
            return np.concatenate([labels for labels, _ in found])

        labels = self._states(rows, offsets, states)
        return total, as_given(labels, X, offsets)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw one sequence: rows ``(n, D)`` and their states ``(n,)``; ``random_state`` is the seed.

        Autoregressive sequences begin after a row of zeros.  See :func:`bnp_dask.sample`.
        """
        check_is_fitted(self)
        drawn = sample(self.posterior_, n_samples, seed_of_estimator(self.random_state))
        return np.asarray(drawn.x), np.argsort(self.order_)[places_of(self.posterior_, drawn.labels)]

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion of sequences, given as in :meth:`fit`, nats: lower is better.

        For comparison with hmmlearn's models; the score of held-out sequences is more informative.
        """
        return aic_of(free_parameters(self.posterior_, self.n_states_**2 - 1), self._log_density(X, lengths)[0])

    def bic(self, X: Any, lengths: Any = None) -> float:
        """The Bayesian information criterion of sequences, nats: lower is better; see :meth:`aic`."""
        return bic_of(free_parameters(self.posterior_, self.n_states_**2 - 1), *self._log_density(X, lengths))

    def _log_density(self, X: Any, lengths: Any) -> tuple[float, int]:
        """Log density of all rows that have one, nats, and their number."""
        check_is_fitted(self)
        source = self._source(*self._rows(X, lengths, reset=False))
        values = score_samples(self.posterior_, source, client=self.client)
        return float(np.nansum(values)), int(np.sum(~np.isnan(values)))

    def score(self, X: Any, y: Any = None, lengths: Any = None) -> float:
        """Log density of the sequences per row, nats; in autoregressive models per row with a row before it."""
        check_is_fitted(self)
        source = self._source(*self._rows(X, lengths, reset=False))
        return score(self.posterior_, source, client=self.client)

    def _states(
        self, rows: np.ndarray, offsets: np.ndarray, ids: Callable[[Source], np.ndarray] | None = None
    ) -> np.ndarray:
        """State of each row, ``(n,)``; ``ids`` gives the states of a source, by default the most likely ones."""
        rank = np.argsort(self.order_)
        first = int(np.argmax(self.startprob_))
        ids = ids or (lambda source: predict(self.posterior_, source, client=self.client))

        def states(source: Source) -> np.ndarray:
            return rank[places_of(self.posterior_, ids(source))]

        return self._of_rows(rows, offsets, states, np.int64(first))

    def _of_rows(self, rows: np.ndarray, offsets: np.ndarray, what: Any, alone: Any) -> np.ndarray:
        """``what`` of each row; if only rows with a row before them are steps, the first row has the second's value.

        ``alone`` is for rows that are then a sequence by themselves.
        """
        lagged = self._is_lagged()
        if lagged and len(rows) == len(offsets) - 1:  # every sequence is a single row
            return np.repeat(np.asarray(alone)[None], len(rows), axis=0)
        found = what(self._source(rows, offsets))
        if not lagged:
            return found
        lengths = np.diff(offsets)
        out = np.empty((len(rows), *found.shape[1:]), found.dtype)
        later = np.ones(len(rows), np.bool_)
        later[offsets[:-1][lengths > 0]] = False
        out[later] = found
        first = offsets[:-1][lengths > 1]
        out[first] = out[first + 1]
        out[offsets[:-1][lengths == 1]] = alone
        return out

    def _is_lagged(self) -> bool:
        """Whether rows with the row before are made here: a model with ``lags`` makes them from plain data itself."""
        named = OBSERVATIONS.get(self.observation) if isinstance(self.observation, str) else type(self.observation)
        return named is AutoRegressiveGaussian and lags_of(self.observation) == 0

    def _source(self, rows: np.ndarray, offsets: np.ndarray, weight: float = 1.0) -> Source:
        observation = self._observation()
        names = columns_for(self, observation, rows)
        if self._is_lagged():
            names = None if names is None else names.with_previous()
            rows, offsets = with_previous(rows, offsets)
            if len(rows) == 0:
                raise DataError(
                    "X has no sequence of two rows; in an autoregressive model each row follows from the row before"
                )
        levels = list(level_keys(observation)) if is_frame(rows) else None
        weights = None if weight == 1.0 else np.full(len(rows), weight)
        return as_source(
            rows, groups=offsets, batch_size=self.batch_size, columns=names, levels=levels, weights=weights
        )

    def _rows(self, X: Any, lengths: Any, reset: bool, least: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Rows of all sequences, and their offsets, ``(G + 1,)``."""
        may_miss = marginalises(self.observation)
        observation = self._observation()
        X = form_of(X, needs_of_likelihood(observation, in_order=True))
        if lengths is None and is_frame(X):
            require_no_groups(X, "X")
        X, lengths = one_below_the_other(X, lengths)
        given = X = sound_input(X, "X")
        finite = "allow-nan" if may_miss else True
        least = (2 if reset else 1) if least is None else least
        if frame_with_levels(self, observation, X, reset):
            rows = X
        else:
            X = features_of(self, X, reset, lengths)
            require_entries(X, observation)
            rows = validated(self, X, least, reset=reset, ensure_all_finite=finite)
        counts = np.array([len(rows)]) if lengths is None else plain(lengths, "lengths")
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any() or counts.sum() != len(rows):
            raise DataError(f"lengths={lengths!r}: needs whole numbers that sum to the {len(rows)} rows of X")
        offsets = np.concatenate([[0], np.cumsum(counts)])
        warn_of_times(given, offsets)
        return rows, offsets

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with ``deep`` also the settings of parts, such as ``observation__kappa``."""
        own = super().get_params(deep)
        return with_nested(own) if deep else own

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also the settings of parts: ``set_params(observation__kappa=0.1)``."""
        plain, nested = split_nested(params)
        super().set_params(**plain)
        set_nested(self, nested, self._observation)
        return self

    def _observation(self) -> Observation:
        if not isinstance(self.observation, str):
            return self.observation
        if self.observation not in OBSERVATIONS:
            raise SettingError(f"observation={self.observation!r}: needs one of {', '.join(OBSERVATIONS)}, or a model")
        return OBSERVATIONS[self.observation]()


# -- order of time -------------------------------------------------------------------------------------------------
def warn_of_times(X: Any, offsets: np.ndarray) -> None:
    """Warn if a DataFrame has times and none of them rises along each sequence: its steps are not in order of time."""
    if not is_frame(X):
        return
    falls = {}
    for name, times in [("the index", X.index), *((f"column {label!r}", column) for label, column in X.items())]:
        if getattr(times.dtype, "kind", "") == "M":
            stamps = np.asarray(times, "M8[ns]")
            rows = 1 + np.flatnonzero(stamps[1:] < stamps[:-1])
            falls[name] = rows[~np.isin(rows, offsets)]
    if falls and all(map(len, falls.values())):
        name, rows = next(iter(falls.items()))
        warn(
            f"X: {name} falls at row {rows[0]}, but steps are read in the order of the rows; sort each sequence by "
            "time first, as X.sort_values and X.sort_index do"
        )


# -- lists of sequences --------------------------------------------------------------------------------------------
def one_below_the_other(X: Any, lengths: Any) -> tuple[Any, Any]:
    """Rows of an array ``(G, T, D)`` or a list of matrices ``(n_g, D)`` and their lengths; other values unchanged.

    Raises
    ------
    DataError
        Lengths together with a list, or matrices with unequal columns.
    """
    arrays = isinstance(X, (list, tuple)) and len(X) and all(isinstance(x, np.ndarray) and x.ndim == 2 for x in X)
    cube = isinstance(X, np.ndarray) and X.ndim == 3
    if lengths is not None and (arrays or cube or is_list_of_frames(X)):
        raise DataError("X is a list of sequences, which have their lengths; leave lengths out")
    if is_list_of_frames(X):
        return joined(X), [len(x) for x in X]
    if cube:
        sound_input(X.reshape(len(X), -1), "X")
        rows, offsets = sequences_of(X)
        return rows, np.diff(offsets)
    if not arrays:
        return X, lengths
    for g, x in enumerate(X):
        sound_input(x, f"sequence {g}")
    widths = {x.shape[1] for x in X}
    if len(widths) > 1:
        raise DataError(f"sequences have {' and '.join(map(str, sorted(widths)))} columns; all need the same")
    return np.concatenate(X), [len(x) for x in X]


def as_given(values: np.ndarray, X: Any, offsets: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Values of all rows, as a list if ``X`` is a list of sequences, in two axes if it is an array ``(G, T, D)``."""
    if isinstance(X, np.ndarray) and X.ndim == 3:
        return values.reshape(*X.shape[:2], *values.shape[1:])
    listed = isinstance(X, (list, tuple)) and len(X) == len(offsets) - 1
    whole = listed and all(is_stream(x) or np.ndim(x) == 2 for x in X)
    return np.split(values, offsets[1:-1]) if whole else values
