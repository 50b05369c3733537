"""Model, which joins an allocation and an observation model, and posterior, its beliefs given a summary."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnp_dask._names import method
from bnp_dask.allocation import (
    Allocation,
    PointAllocation,
    PreparedAllocation,
    SizedAllocation,
    SmallRunAllocation,
    require_allocation,
)
from bnp_dask.core import (
    OPTIONAL,
    UNITS,
    Batch,
    Columns,
    Counting,
    Field,
    GroupStates,
    Summary,
    Survey,
    TopicList,
    Words,
    check_weights,
    register,
    require_finite_arrays,
    require_finite_params,
    require_finite_terms,
    thawed,
)
from bnp_dask.errors import DataError, SettingError, answering
from bnp_dask.inputs import as_a, flag, is_a, one_of, require, require_sound
from bnp_dask.kernels import RaggedResp, Resp, SmallRun, SparseResp, cluster_sums, fixed_order
from bnp_dask.observation import (
    LOG_BASE,
    EvidenceObservation,
    Labelled,
    LeanObservation,
    NamingObservation,
    Observation,
    QuadraticObservation,
    SmallRunObservation,
    completed,
    lags_of,
    marginalises,
    unlabelled,
)
from bnp_dask.structure import (
    LearnConcentrations,
    LearnPrior,
    LocalStep,
    Structure,
    Trial,
    Visit,
    count_of,
    counting_units,
    learner_of,
    learns_by_default,
    noun_of,
    prior_terms,
    require_learning,
    require_linkable,
    units_in,
    worthwhile,
)

if TYPE_CHECKING:
    import xarray

ITEMS = 4
"""Items of a list that are written out."""


def brief(value: Any) -> str:
    """A value as one line of code: settings that are not the defaults, and arrays by their shapes.

    Examples
    --------
    >>> brief([1.0, np.zeros((3, 2)), "auto"])
    "[1.0, array (3, 2), 'auto']"
    """
    if is_dataclass(value) and not isinstance(value, type):
        changed = [f for f in fields(value) if f.init and not _is_default(getattr(value, f.name), f.default)]
        settings = ", ".join(f"{f.name}={brief(getattr(value, f.name))}" for f in changed)
        return f"{type(value).__name__}({settings})"
    if isinstance(value, (np.ndarray, np.generic)):
        is_number = np.size(value) == 1 and value.dtype.kind in "iuf"
        return f"{value.item():.6g}" if is_number else f"array {np.shape(value)}"
    if isinstance(value, (list, tuple)):
        more = [f"... {len(value) - ITEMS} more"] if len(value) > ITEMS else []
        inside = ", ".join([*map(brief, value[:ITEMS]), *more])
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if len(value) == 1 else f"({inside})"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _is_default(value: Any, default: Any) -> bool:
    if default is MISSING or isinstance(value, np.ndarray):
        return False
    return value is default or (type(value) is type(default) and bool(value == default))


def _of_another(posterior: Posterior, found: str) -> SettingError:
    return SettingError(f"{posterior!r} is of another model: {found}; use posterior.model")


def require_pairs(pairs: np.ndarray, n_clusters: int | None = None) -> None:
    """DataError unless ``pairs`` are integers ``(M, 2)``, and positions of ``n_clusters`` clusters if that is given."""
    known = isinstance(pairs, np.ndarray) and pairs.dtype.kind in "iu"
    if not known or pairs.ndim != 2 or pairs.shape[1] != 2:
        found = f"{pairs.dtype} of shape {pairs.shape}" if isinstance(pairs, np.ndarray) else type(pairs).__name__
        raise DataError(f"pairs of clusters are {found}; needs an array of integers, (M, 2)")
    if n_clusters is not None and len(pairs) and (pairs.min() < 0 or pairs.max() >= n_clusters):
        raise DataError(
            f"places reach from {pairs.min()} to {pairs.max()}; needs positions of {n_clusters} clusters, from 0 to "
            f"{n_clusters - 1}. posterior.positions(ids) gives those of ids"
        )


def require_ids(ids: np.ndarray) -> None:
    """DataError unless ``ids`` are different integers, ``(K,)``."""
    found = np.asarray(ids)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu") or len(set(found.tolist())) < len(found):
        raise DataError(f"ids are {brief(ids)}; needs different integers, (K,)")


def require_resp(resp: Resp, shape: tuple[int, int]) -> None:
    """DataError unless responsibilities have this shape ``(n, K)``, name clusters below K, and are finite and >= 0.

    Compiled loops follow positions and offsets without a look.
    """
    if np.shape(resp) != shape:
        raise DataError(
            f"resp has shape {np.shape(resp)}; needs {shape}: a row for each row of the batch, and a column for each id"
        )
    if isinstance(resp, np.ndarray):
        values = [("resp", resp)]
    elif isinstance(resp, (SparseResp, RaggedResp)):
        values = [("value", resp.value)]
        _require_listed(resp)
        if isinstance(resp, RaggedResp) and resp.tail is not None:
            values.append(("tail", resp.tail))
            if np.shape(resp.tail) != shape:
                raise DataError(f"resp: tail has shape {np.shape(resp.tail)}; needs {shape}")
    else:
        raise DataError(f"resp is a {type(resp).__name__}; needs a float array (n, K), a SparseResp or a RaggedResp")
    for name, value in values:
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            found = getattr(value, "dtype", type(value).__name__)
            raise DataError(f"resp: {name} is {found}; needs float64: np.asarray(..., np.float64)")
        if value.size and not (value.min() >= 0.0 and value.max() < np.inf):
            raise DataError(f"resp: {name} is from {value.min()} to {value.max()}; needs finite numbers >= 0")


def _require_listed(resp: SparseResp | RaggedResp) -> None:
    """DataError unless the positions of the clusters are below K, and there is a value for each."""
    index, n = resp.index, resp.shape[0]
    if not isinstance(index, np.ndarray) or index.dtype.kind not in "iu":
        raise DataError(f"resp: index is {getattr(index, 'dtype', type(index).__name__)}; needs int64")
    dims = 2 if isinstance(resp, SparseResp) else 1
    if index.ndim != dims or np.shape(resp.value) != index.shape:
        raise DataError(
            f"resp: index has shape {index.shape}, value {np.shape(resp.value)}; needs two of {dims} axes that agree"
        )
    if index.size and (index.min() < 0 or index.max() >= resp.n_clusters):
        raise DataError(
            f"resp: index is from {index.min()} to {index.max()}; needs positions of {resp.n_clusters} clusters, from 0"
        )
    if isinstance(resp, RaggedResp):
        offsets = resp.offsets
        sound = isinstance(offsets, np.ndarray) and offsets.dtype.kind in "iu" and offsets.shape == (n + 1,)
        if not sound or offsets[0] != 0 or offsets[-1] != len(index) or (offsets[1:] < offsets[:-1]).any():
            raise DataError(f"resp: offsets need {n + 1} integers from 0 to {len(index)} that never fall")


COUNT = Field(("cluster",))
"""Field of the counts N."""

NO_PAIRS = np.zeros((0, 2), np.int64)

ELSEWHERE = {
    "bnp_dask.predict(posterior, data)": "predict labels labels_ decode viterbi",
    "bnp_dask.predict(posterior, data, soft=True)": "predict_proba transform responsibilities get_document_topics",
    "bnp_dask.score(posterior, data)": "score score_samples log_prob logpdf perplexity",
    "bnp_dask.sample(posterior, n)": "sample rvs generate simulate",
    "bnp_dask.train(model, data)": "fit fit_predict fit_transform train",
    "bnp_dask.update(run directory, data)": "update partial_fit",
    "bnp_dask.plot, or bnp_dask.report(run directory, page)": "plot report",
    "posterior.n_clusters": "n_clusters_ n_components n_components_ n_topics n_topics_ n_states n_states_ K k",
    "posterior.weights": "weights_ shares mixing_weights",
    "posterior.ids": "ids_ cluster_ids",
    "posterior.feature_names": "feature_names_in_ get_feature_names_out",
    "posterior.topics(n)": "print_topics show_topics get_topics top_words",
    "posterior.to_xarray()": (
        "means means_ cluster_centers_ centers covariances covariances_ components_ parameters params transmat_ "
        "startprob_ to_pandas to_dataframe to_dict"
    ),
}
"""Calls, by the names under which other programs' fitted models have what they give."""


def not_here(thing: Any, name: str, prefix: str = "", calls: Mapping[str, str] = ELSEWHERE) -> Any:
    """What ``__getattr__`` of a result answers: AttributeError with the call that gives what ``name`` asks for.

    ``prefix`` stands before ``posterior`` in the call.  A property's own AttributeError is raised as it was.
    """
    call = next((call for call, names in calls.items() if name in names.split()), None)
    if call is None or hasattr(type(thing), name):
        return object.__getattribute__(thing, name)
    call = re.sub(r"\bposterior\b", f"{prefix}posterior", call)
    raise AttributeError(f"{type(thing).__name__} has no {name!r}; use {call}", name=name, obj=thing)


@register
@dataclass(frozen=True, eq=False)
class Posterior:
    """Beliefs about the clusters.

    Parameters
    ----------
    model
        The model, with all priors set.
    ids
        Cluster ids, ``(K,)``; they never change while a cluster lives.
    allocation, observation
        Parameters of the two model parts.
    summary
        Statistics from which these parameters were computed, or None for a copy that is sent to workers.
    words
        Vocabulary of the training counts, if the store has one.
    columns
        Columns of the training table, if they have names.
    predictive
        Parameters of the likelihood for scores of new data, in place of ``observation``: the result of
        :func:`bnp_dask.collapsed_topics`, which training computes at its end for topics of words.  None if absent.
    """

    model: Model
    ids: np.ndarray
    allocation: Any
    observation: Any
    summary: Summary | None = None
    words: Words | None = None
    columns: Columns | None = field(default=None, metadata=OPTIONAL)
    predictive: Any | None = field(default=None, metadata=OPTIONAL)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of features or words, in order; None if training data had none, or only numbers."""
        if self.words is not None:
            return self.words.words
        return None if self.columns is None else self.columns.shown

    @property
    def n_clusters(self) -> int:
        """Number of clusters K."""
        return len(self.ids)

    @property
    def weights(self) -> np.ndarray:
        """Expected share of each cluster, ``(K,)``."""
        with fixed_order(self.model.reproducible):
            return self.model.allocation.weights(self.allocation)

    @answering
    def positions(self, ids: np.ndarray | Sequence[int]) -> np.ndarray:
        """Positions of cluster ids, in the shape of ``ids``; SettingError for one that is not there."""
        place, asked = {int(c): k for k, c in enumerate(self.ids)}, np.ravel(ids)
        unknown = [c for c in asked.tolist() if isinstance(c, (float, bool)) or c not in place]
        if unknown:
            raise SettingError(f"no cluster has the id {unknown[0]!r}; ids are {brief(self.ids.tolist())}")
        return np.array([place[c] for c in asked.tolist()], np.int64).reshape(np.shape(ids))

    def light(self) -> Posterior:
        """Posterior without its summary and names: half the bytes to send, in arrays that kernels are compiled for."""
        return thawed(replace(self, summary=None, words=None, columns=None, predictive=None))

    def for_scores(self) -> Posterior:
        """Posterior with the parameters for scores of new data in place of the maximizers of the objective."""
        return self if self.predictive is None else replace(self, observation=self.predictive, predictive=None)

    def for_visits(self, n_atoms: int) -> Posterior:
        """Posterior reduced to the parts that local steps on batches of at most ``n_atoms`` atoms use."""
        return replace(self.light(), observation=self.model.lean(self.observation, n_atoms))

    # the rest is for interactive use, implemented in modules that build on this one
    @answering
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as Zarr and JSON; see :func:`bnp_dask.save`.  :func:`bnp_dask.load` reads it."""
        method("save")(self, path)

    def to_xarray(self) -> xarray.Dataset:
        """Weights, counts and parameters as labelled arrays; see :func:`bnp_dask.training.results.to_xarray`."""
        found: xarray.Dataset = method("to_xarray")(self)
        return found

    @answering
    def topics(self, n: int = 10, words: Iterable[str] | Mapping[Any, Any] | None = None) -> TopicList:
        """Topics, largest first, with the ``n`` most characteristic words of each; prints as a table.

        ``words`` names the columns of counts that had no names: a sequence such as ``get_feature_names_out()`` of
        ``CountVectorizer``, its ``vocabulary_``, this object itself, or gensim's ``Dictionary``.
        See :func:`bnp_dask.analysis.topics.topic_list`, which has more settings.
        """
        found: TopicList = method("topic_list")(self, n, words=words)
        return found

    if not TYPE_CHECKING:  # a checker knows that there are no other attributes

        def __getattr__(self, name: str) -> Any:
            return not_here(self, name)

    def __repr__(self) -> str:
        labels = ", with labels" if isinstance(self.model.observation, Labelled) else ""
        kind = type(unlabelled(self.model.observation)).__name__
        parts = f"{type(self.model.allocation).__name__} of {kind}{labels}"
        atoms = "" if self.summary is None else f", {self.summary['N'].sum():.6g} {noun_of(self.model).atoms}"
        return f"Posterior({parts}, {count_of(self)}{atoms})"

    def _repr_html_(self) -> str:
        return str(method("posterior_html")(self))


@register
@dataclass(frozen=True)
class Model:
    """An allocation model times an observation model.

    Parameters
    ----------
    allocation
        Model by which atoms come from clusters: a mixture such as ``DPMixture()`` or ``FiniteMixture()``, a topic model
        (``HDPTopics()``, ``LDA()``), or a model of sequences (``HDPHMM()``, ``FiniteHMM()``).
    observation
        Likelihood of the atoms of a cluster: ``Gaussian``, ``Multinomial``, ...
    estimate
        ``"posterior"``: variational inference.  ``"map"``: point estimates, that is EM, and with
        ``FiniteMixture(top=1)`` the Bregman k-means of thesis Algorithm 2.1.
    precision
        ``"mixed"``: float32 selects the clusters that can hold any share of an atom, and float64 computes these; the
        objective agrees to about 1e-14 of itself with ``"double"``, which computes all clusters in float64.  If float32
        cannot tell clusters apart (strongly correlated columns), or nearly all matter, both are the same.
    reproducible
        Equal bits on all x86-64 processors with AVX2 and FMA, at up to 1.35 times the time; see :func:`bnp_dask.train`.
    learn_prior
        ``"diagonal"``, ``"full"``: settings of the prior are learned from the clusters, with a scale matrix of that
        shape, from their initial values; for ``Gaussian``, ``ZeroMeanGaussian``, ``DiagGaussian`` (settings by
        feature), ``SemiConjugateGaussian`` (``nu``, ``B``, ``m`` and ``V``), ``AutoRegressiveGaussian`` (``nu``, ``B``
        and ``V``), and also ``gamma`` of ``DPMixture`` and ``PitmanYorMixture``.  The objective
        gets the term ``prior``: see :mod:`bnp_dask.kernels.gaussian.learned`.  ``"never"``: they stay.
        ``"random"``: as ``"diagonal"``, but with fixed ``gamma``, and the scale matrix of ``Gaussian`` has a
        distribution where clusters share correlations; not with ``reproducible``.  ``"auto"``: as ``"random"`` (with
        ``reproducible`` as ``"diagonal"``, with fixed ``gamma``), for mixtures of a ``Gaussian`` without given ``nu``,
        ``B``, ``m`` and ``kappa``, or of an ``AutoRegressiveGaussian`` without given ``nu``, ``B`` and ``V``, if the
        schedule has an exact objective; else as ``"never"``.  Parts of a ``Product`` learn what they learn alone, with
        ``"auto"`` if each part that can learn would.
    reference
        Likelihood with the prior from which learning began, set by :meth:`with_prior`; None for a fixed prior.
    copies
        ``"count"``: every row is an observation, also if others are equal to the last digit.  ``"once"``, the default:
        equal rows of continuous values count once together if many are, in mixtures that are trained without weights,
        and so do equal documents of many words (:func:`bnp_dask.train` says so).
    learn_concentrations
        ``"always"``: concentrations of the allocation are learned from the clusters, from their initial values:
        ``gamma`` of ``DPMixture`` and ``PitmanYorMixture``, ``alpha`` of ``LDA``, ``gamma`` and ``alpha`` of
        ``HDPTopics``, ``gamma``, ``alpha``, ``alpha0`` and (if it is not zero) ``kappa`` of ``HDPHMM``.  The objective
        gets the term ``prior``: see :mod:`bnp_dask.allocation.concentrations`.  ``"never"``: they stay.  ``"auto"``:
        they are learned in mixtures whose ``learn_prior`` is given as ``"diagonal"`` or ``"full"``.
    linked
        Whether groups of atoms may draw their cluster as one, which statistics count then; see
        :mod:`bnp_dask.structure.linked`.  None: if ``train`` is given ``links``.  True: also if only data that come
        later (:func:`bnp_dask.update`) have some.
    """

    allocation: Allocation
    observation: Observation
    estimate: Literal["posterior", "map"] = "posterior"
    precision: Literal["mixed", "double"] = "mixed"
    reproducible: bool = False
    learn_prior: LearnPrior = "auto"
    reference: Observation | None = field(default=None, metadata=OPTIONAL)
    copies: Literal["once", "count"] | None = field(default=None, metadata=OPTIONAL)
    learn_concentrations: LearnConcentrations = field(default="auto", metadata=OPTIONAL)
    linked: bool | None = field(default=None, metadata=OPTIONAL)

    def __repr__(self) -> str:
        return brief(self)

    def _repr_html_(self) -> str:
        return str(method("model_html")(self))

    def __post_init__(self) -> None:
        one_of("estimate", self.estimate, ("posterior", "map"))
        require_allocation(self.allocation, self.estimate)
        require("observation", self.observation, Observation, "Gaussian()")
        one_of("precision", self.precision, ("mixed", "double"))
        if self.copies is not None:
            one_of("copies", self.copies, ("once", "count"))
        require_learning(self)
        self.structure.require_fitting(self)
        flag("reproducible", self.reproducible)
        if self.linked is not None and flag("linked", self.linked):
            require_linkable(self)

    @property
    def fields(self) -> Mapping[str, Field]:
        """All fields of this model's summaries."""
        return {"N": COUNT, **self.of_units, **self.allocation.fields, **self.observation.fields}

    @property
    def of_units(self) -> Mapping[str, Field]:
        """Field of the counts of units if atoms are linked, else empty; see :mod:`bnp_dask.structure.linked`."""
        return {UNITS: COUNT} if self.linked else {}

    @property
    def counts(self) -> frozenset[str]:
        """Names of the fields that are sums of nonnegative terms, as far as the parts declare them."""
        parts = [part for part in (self.allocation, self.observation) if is_a(part, Counting)]
        return frozenset({"N", *self.of_units}.union(*(part.counts for part in parts)))

    def with_columns(self, names: Sequence[str] | None) -> Model:
        """Model with every column that the likelihood names looked up among the ``names (D,)`` of the data.

        Raises
        ------
        SettingError
            A name is not there, or the data have none.
        """
        if not isinstance(self.observation, NamingObservation):
            return self
        return replace(self, observation=self.observation.with_columns(names))

    def with_allocation(self, allocation: Any) -> Model:
        """Model with another allocation, such as one for parts of one cluster."""
        return replace(self, allocation=allocation)

    def with_prior(self, survey: Survey, may_learn: bool = False) -> Model:
        """Model with every prior setting that was None computed from the data; learning begins there.

        ``may_learn`` says whether ``learn_prior="auto"`` may learn.
        """
        found = self.observation.with_prior(survey)
        learns = self.learn_prior not in ("auto", "never") or (may_learn and learns_by_default(self))
        own: Any = self.allocation
        if isinstance(own, PreparedAllocation):
            own = own.with_prior(survey, found)
        ready = replace(self, allocation=own, observation=found, reference=found if learns else None)
        learner = learner_of(ready)
        return ready if learner is None else replace(ready, allocation=as_a(learner.to_learn(), Allocation))

    @property
    def structure(self) -> Structure:
        """Dependence between atoms: all differences between mixtures, topic models and hidden Markov models."""
        return self.allocation.structure

    @property
    def keeps_states(self) -> bool:
        """Whether the next visit of a batch starts from the last states of its groups."""
        return self.structure.keeps_states(self)

    @property
    def screens(self) -> bool:
        """Whether local steps may look only at the clusters that matter to an atom."""
        return self.structure.screens(self)

    @property
    def marginalises(self) -> bool:
        """Whether NaN in dense rows is a missing entry, see :mod:`bnp_dask.observation.missing`."""
        return marginalises(self.observation)

    @property
    def lags(self) -> int:
        """Number of preceding steps that the likelihood takes from plain sequences for each step; 0 for most."""
        return lags_of(self.observation)

    def lean(self, params: Any, n_atoms: int) -> Any:
        """Parameters of the likelihood reduced to the needs of local steps on batches of at most ``n_atoms`` atoms."""
        if not is_a(self.observation, LeanObservation):
            return params
        screened = False
        if self.screens:
            screened = worthwhile(n_atoms, *as_a(self.observation, QuadraticObservation).forms(params).shift.shape)
        return self.observation.lean(params, screened)

    def weight_in(self, summary: Summary, is_sparse: bool) -> float:
        """Weight of the atoms of a summary, as a survey counts it: weight of documents if tokens are the atoms."""
        return self.structure.weight(summary, is_sparse)

    def mass(self, batch: Batch) -> float:
        """Sum of the counts N that a batch adds to all clusters: tokens, if these are the atoms."""
        return self.structure.mass(batch)

    def check(self, batch: Batch) -> None:
        """Let the likelihood check a batch, and the structure its groups or sequences.

        Raises
        ------
        DataError
            Values or columns that the likelihood cannot have produced; a sequence whose rows have different weights.
        """
        self.structure.check(self, batch)

    def _require_batch(self, batch: Batch) -> None:
        """Raise DataError for other columns than the model's, broken sparse rows, or weights that are not numbers >= 0:
        compiled loops do not look."""
        if not isinstance(batch.x, np.ndarray):
            require_sound(batch.x, batch.name)
        if batch.weights is not None:
            check_weights(batch.weights, batch.n_atoms, batch.name)
        width = batch.n_features, batch.is_sparse
        if width not in self._widths:
            self.observation.check(Batch(batch.x[:0], None, batch.name))
            self._widths.add(width)

    def _require_posterior(self, posterior: Posterior) -> None:
        """Raise SettingError for the posterior of another model: its parameters have other shapes."""
        own, other = self, posterior.model
        if other is own:
            return
        for part in ("allocation", "observation"):
            kinds = type(getattr(other, part)), type(getattr(own, part))
            if kinds[0] is not kinds[1]:
                raise _of_another(posterior, f"its {part} is {kinds[0].__name__}, the model's is {kinds[1].__name__}")
        sizes = dict(other.observation.sizes), dict(own.observation.sizes)
        if sizes[0] != sizes[1]:
            raise _of_another(posterior, f"its sizes are {sizes[0]}, the model's are {sizes[1]}")

    @cached_property
    def _widths(self) -> set[tuple[int, bool]]:
        """Numbers of columns, and whether sparse, that the likelihood was asked about: asking takes time."""
        return set()

    # -- the local side -------------------------------------------------------------------------------------
    def local_step(self, posterior: Posterior, batch: Batch, pairs: np.ndarray = NO_PAIRS) -> Summary:
        """Assign the atoms of a batch and summarize them; ``pairs (M, 2)`` are ids whose union is tracked."""
        return self.visit(posterior, batch, pairs).summary

    def visit(
        self,
        posterior: Posterior,
        batch: Batch,
        pairs: np.ndarray = NO_PAIRS,
        trials: Sequence[Trial] = (),
        sought: Sequence[int] = (),
        states: GroupStates | None = None,
        room: int = 0,
    ) -> Visit:
        """Local step on a batch that also carries out trials on its atoms (restricted local steps).

        For the ids ``sought`` it notes the rows that mostly belong to them.  ``states`` are the states of the batch's
        groups at their last visit; models without groups have none.  Assignments of independent atoms are returned too
        if they take fewer bytes than ``room``.
        """
        self._require_posterior(posterior)
        self._require_batch(batch)
        require_pairs(pairs)
        if len(sought):
            posterior.positions(sought)
        return self.structure.visit(self, posterior, batch, pairs, trials, sought, states, room)

    def gather(self, batch: Batch, found: Visit, cluster: int, limit: int, rng: np.random.Generator) -> Batch:
        """At most ``limit`` atoms of a batch that belong to a requested cluster, in their order."""
        return self.structure.collect(batch, found, cluster, limit, rng)

    def steps(
        self, posterior: Posterior, batch: Batch, places: np.ndarray = NO_PAIRS
    ) -> Iterator[tuple[Batch, LocalStep]]:
        """Local step tile by tile, in order; unions of the clusters at the positions ``places (M, 2)`` are tracked."""
        self._require_posterior(posterior)
        self._require_batch(batch)
        require_pairs(places, posterior.n_clusters)
        return self.structure.steps(self, posterior, batch, places)

    def assign(self, posterior: Posterior, batch: Batch, places: np.ndarray = NO_PAIRS) -> LocalStep:
        """Local step on atoms that fit one tile, as :meth:`steps` gives it."""
        self._require_posterior(posterior)
        self._require_batch(batch)
        require_pairs(places, posterior.n_clusters)
        return self.structure.assign(self, posterior, batch, places)

    def labels(self, posterior: Posterior, batch: Batch) -> Iterator[tuple[Batch, np.ndarray]]:
        """Positions of the most probable clusters of atoms, tile by tile in order; for a sequence, states of its most
        probable path."""
        self._require_posterior(posterior)
        self._require_batch(batch)
        return self.structure.labels(self, posterior, batch)

    def summarize(self, ids: np.ndarray, batch: Batch, resp: Resp) -> Summary:
        """Summary of atoms with given responsibilities (times weights); their entropy counts as zero.

        Parameters
        ----------
        ids
            Ids of the clusters, ``(K,)``.
        batch
            The atoms, ``(n, D)``.
        resp
            Responsibilities, ``(n, K)``: a float array, :class:`~bnp_dask.kernels.mixture.SparseResp` or
            :class:`~bnp_dask.kernels.mixture.RaggedResp`.

        Raises
        ------
        DataError
            Other shapes, positions of clusters that are not there, or values that are not finite and >= 0.
        """
        self._require_batch(batch)
        require_ids(ids)
        require_resp(resp, (batch.n_atoms, len(ids)))
        return self.structure.summarize(self, ids, batch, resp)

    def empty_summary(self, ids: np.ndarray, pairs: np.ndarray = NO_PAIRS) -> Summary:
        """Summary of no atoms."""
        require_pairs(pairs)
        own = self.allocation.sizes if is_a(self.allocation, SizedAllocation) else {}
        sizes, fields = {"cluster": len(ids), **own, **self.observation.sizes}, self.fields
        values = {name: np.zeros([sizes[dim] for dim in f.dims]) for name, f in fields.items()}
        tracked = [name for name, f in fields.items() if f.has_pairs]
        pair_values = {name: np.zeros((len(pairs), *values[name].shape[1:])) for name in tracked}
        return Summary(np.asarray(ids, np.int64), fields, values, pairs, pair_values)

    def summary_of(
        self, ids: np.ndarray, batch: Batch, step: LocalStep, params: Any, pairs: np.ndarray = NO_PAIRS
    ) -> Summary:
        """Summary of atoms from the result of a local step; ``params`` belong to the clusters ``ids``."""
        counts = {"N": cluster_sums(step.resp), **units_in(self, batch, step.resp)}
        values = {**counts, **step.values, **completed(self.observation, params, batch, step.resp)}
        arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
        return Summary(ids, self.fields, arrays, pairs, step.pair_values)

    # -- the global side ------------------------------------------------------------------------------------
    def global_step(self, summary: Summary) -> Posterior:
        """Optimal parameters given whole-data statistics; NumericalError if one of them is not finite."""
        require_finite_arrays(summary.values, "statistic", summary.ids)
        allocation, observation = self.allocation_step(summary), self.observation_step(summary)
        require_finite_params(allocation, "allocation", summary.ids)
        require_finite_params(observation, "observation", summary.ids)
        return Posterior(self, summary.ids, allocation, observation, summary)

    def observation_step(self, summary: Summary) -> Any:
        """Optimal parameters of the observation model."""
        params = self.observation.global_step(summary)
        return self.observation.at_mode(params) if self.estimate == "map" else params

    def allocation_step(self, summary: Summary) -> Any:
        """Optimal parameters of the allocation model."""
        params = self.allocation.global_step(counting_units(summary))
        return as_a(self.allocation, PointAllocation).at_mode(params) if self.estimate == "map" else params

    def elbo(self, posterior: Posterior, summary: Summary) -> dict[str, float]:
        """Terms of the whole-data objective, nats; exact for any parameters and any summary (slack included).

        Raises NumericalError if one is not finite, as do all methods below that return terms.  For ``estimate="map"``,
        terms of the log joint (thesis eq. 2.74), up to constants of the prior.
        """
        return self._terms(self.data_terms(posterior.observation, summary), posterior.allocation, summary)

    def data_terms(self, params: Any, summary: Summary) -> np.ndarray:
        """Each cluster's share of the data term, ``(K,)`` nats, without the base measure."""
        score = self.observation.score(params, summary)
        if self.estimate == "map":
            terms = score + self.observation.log_prior(params)
        else:
            terms = score - self.observation.kl(params)
        require_finite_arrays({"data": terms}, "the objective's term", summary.ids)
        return terms

    def best_data_terms(self, summary: Summary) -> np.ndarray:
        """Each cluster's share of the data term at the parameters that are optimal for the summary, ``(K,)`` nats."""
        if self.estimate == "posterior" and is_a(self.observation, EvidenceObservation):
            terms = self.observation.evidence(summary)
            require_finite_arrays({"data": terms}, "the objective's term", summary.ids)
            return terms
        return self.data_terms(self.observation_step(summary), summary)

    def best_objective(self, summary: Summary) -> float:
        """Whole-data objective at the parameters that are optimal for the summary, nats."""
        return self.objective_with(self.best_data_terms(summary), summary)

    def objective_with(self, best_data_terms: np.ndarray, summary: Summary) -> float:
        """:meth:`best_objective` if :meth:`best_data_terms` are known, ``(K,)``."""
        return sum(self._terms(best_data_terms, self.allocation_step(summary), summary).values())

    def allocation_terms(self, summary: Summary) -> dict[str, float]:
        """Entropy and allocation term at the parameters that are optimal for the summary."""
        return self._allocation_terms(self.allocation_step(summary), summary)

    def _terms(self, data_terms: np.ndarray, allocation: Any, summary: Summary) -> dict[str, float]:
        data = float(data_terms.sum() + summary.values.get(LOG_BASE, 0.0))
        require_finite_terms({"data": data})
        return {"data": data, **self._allocation_terms(allocation, summary), **self._prior_terms}

    @cached_property
    def in_double(self) -> Model:
        """This model in double precision: one object, whose compiled steps the small runs of a lap share."""
        return self if self.precision == "double" else replace(self, precision="double")

    @cached_property
    def small_run(self) -> SmallRun | None:
        """Compiled steps of small runs, whose sums are in no fixed order; None where the model has none."""
        if not is_a(self.allocation, SmallRunAllocation) or not is_a(self.observation, SmallRunObservation):
            return None
        gamma = as_a(self.allocation, SmallRunAllocation).small_run_gamma
        if gamma is None or self.estimate != "posterior" or self.linked:
            return None
        return as_a(self.observation, SmallRunObservation).small_run(gamma)

    @property
    def prior_term(self) -> float:
        """Log density of learned settings of the prior, nats; 0 for a fixed prior."""
        return sum(self._prior_terms.values())

    @cached_property
    def _prior_terms(self) -> dict[str, float]:
        """Log density of learned settings of the prior; a model with other settings is another model."""
        return prior_terms(self)

    def _allocation_terms(self, params: Any, summary: Summary) -> dict[str, float]:
        is_map = self.estimate == "map"
        of = as_a(self.allocation, PointAllocation).log_joint if is_map else self.allocation.elbo
        terms = of(params, counting_units(summary))
        require_finite_terms(terms)
        return terms
