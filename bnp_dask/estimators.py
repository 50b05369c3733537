"""Estimators as scikit-learn has them, over :func:`bnp_dask.train`."""

from __future__ import annotations

import inspect
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from importlib import import_module
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from scipy import sparse

from bnp_dask._names import OBSERVATIONS
from bnp_dask.allocation import HDPHMM, LDA, CategoricalResponse, DPMixture, FiniteHMM, GaussianResponse, HDPTopics
from bnp_dask.analysis import (
    ResponsePrediction,
    by_size,
    decoded,
    for_batches,
    independent_share,
    label_of,
    needs_of_likelihood,
    predict_response,
    score_samples,
    transitions,
    word_score,
    words_in,
)
from bnp_dask.analysis.predict import predict
from bnp_dask.analysis.sample import sample
from bnp_dask.analysis.score import score
from bnp_dask.core import NO_ROLES, Columns, frozen
from bnp_dask.data import (
    PLAIN_READING,
    Documents,
    Needs,
    Source,
    Text,
    as_declared,
    as_source,
    as_table,
    check_column,
    classes_of,
    frame_batch,
    frame_columns,
    in_memory,
    in_values,
    is_dask,
    is_dask_array,
    is_frame,
    is_list_of_frames,
    plain_form,
    require_no_groups,
    responses_of,
    sequences_of,
    with_nan,
    with_responses,
)
from bnp_dask.data.sources.columns import choose
from bnp_dask.data.sources.frames import joined
from bnp_dask.errors import BnpDaskError, DataError, SettingError, answering, nearest, no_parameter, warn
from bnp_dask.inference import FullBatch, Memoized, Schedule
from bnp_dask.initialize import ContiguousBlocks, FromSample, Initialization, SampledTopics
from bnp_dask.inputs import (
    EXACT,
    as_frame,
    flag,
    is_finite,
    is_stream,
    number_from,
    plain,
    require_exact,
    require_sound,
    seed_of,
    shown,
    unlabelled,
    whole_number,
    whole_or_none,
)
from bnp_dask.model import Model, Posterior, not_here
from bnp_dask.moves import Birth, Delete, Merge, Move
from bnp_dask.observation import (
    AutoRegressiveGaussian,
    Bernoulli,
    Categorical,
    DiagGaussian,
    Gaussian,
    LearningObservation,
    Multinomial,
    Observation,
    Poisson,
    Product,
    chosen_columns,
    estimates_of,
    is_about_missing,
    lags_of,
    level_keys,
    marginalises,
    positive,
    takes_missing,
    with_previous,
)
from bnp_dask.observation import unlabelled as without_labels
from bnp_dask.store import RunStore
from bnp_dask.structure import LearnPrior, response_of
from bnp_dask.training import (
    CHANGING,
    OPENING,
    ConvergenceWarning,
    History,
    Shadow,
    TrainResult,
    begun_in_memory,
    default_init,
    default_moves,
    grown_in_memory,
    grown_on_disk,
    logger,
    responses_as,
    run_of,
)
from bnp_dask.training.train import train

try:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
    from sklearn.utils import Tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted
except ImportError as error:
    raise ImportError('estimators need scikit-learn: pip install "bnp-dask[sklearn]"') from error

if TYPE_CHECKING:
    from distributed import Client


# -- Base of the scikit-learn estimators: checks of arguments, one run of ``train`` from an estimator's settings, and
# scikit-learn's own warning.
#
# Also ``partial_fit`` of all estimators (the first call begins a run, later calls add data to it), settings of an
# estimator's parts, such as ``observation__kappa``, for ``get_params``, ``set_params`` and searches, and the criteria
# of Akaike and of Schwarz, as scikit-learn and hmmlearn give them.


CHOSEN = "_columns"
"""Attribute of an estimator with the feature columns of a DataFrame."""

RUN = "_run"
"""Attribute of an estimator with the state of the run of ``partial_fit``."""


def likelihoods(without: Sequence[str]) -> dict[str, type[Observation]]:
    """Public likelihoods by their names in lower case with underscores, except the names in ``without``."""
    names = [name for name in OBSERVATIONS if name not in without]
    found = {name: getattr(import_module(OBSERVATIONS[name]), name) for name in names}
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): cls for name, cls in found.items()}


def form_of(X: Any, needs: Needs, text: Text | None = None) -> Any:
    """Data of an estimator in the form that it computes with: documents, a DataFrame, an array, a sparse matrix, or a
    list of sequences, with NaN where entries are missing; as :func:`bnp_dask.train` reads them."""
    X = plain_form(in_memory(X), needs, text)
    if isinstance(X, Documents):
        return X
    X = as_frame(as_table(unlabelled(X, True)[0] if needs.in_order else X))
    return with_nan(X) if needs.may_miss else X


def with_labels(X: Any) -> Any:
    """A DataFrame of labelled arrays (AnnData, xarray), whose results get their labels; anything else unchanged."""
    return X if unlabelled(X)[0] is X else as_frame(X)


def chosen_for(X: Any) -> Observation:
    """The likelihood that ``observation="auto"`` chooses for data, from their kind and their missing entries."""
    if isinstance(X, Documents) or sparse.issparse(X):
        return Multinomial()
    if is_frame(X):
        found = Product.of(X)
        alone = found.parts[0]
        # of one part it is the same model, but a part has no compiled steps and takes three times the CPU time
        return alone if len(found.parts) == 1 and found.others is None and type(alone) is Gaussian else found
    x = np.asarray(X)
    return Gaussian(missing="marginalise" if x.dtype.kind == "f" and bool(np.isnan(x).any()) else None)


def of_chosen(X: Any, observation: Observation) -> Any:
    """A DataFrame with only the columns that a likelihood chooses; anything else unchanged."""
    chosen = chosen_columns(observation) if is_frame(X) else None
    labels = {str(label): label for label in X.columns} if chosen is not None else {}
    return X[[labels[name] for name in chosen]] if chosen and all(name in labels for name in chosen) else X


def counted(estimator: Any, documents: Documents, text: Text | None, reset: bool) -> sparse.csr_array:
    """Counts of documents in the words of ``vocabulary_``; with ``reset`` these are chosen anew.

    SettingError for a run directory, whose words are in an ingested store.
    """
    if estimator.store is not None:
        raise SettingError(f"store={shown(estimator.store)}: texts of a run are ingested first; see bnp_dask.ingest")
    if reset:
        estimator.vocabulary_ = documents.vocabulary(text or Text())
        return documents.counts(estimator.vocabulary_)[0]
    known = vars(estimator).get("vocabulary_")
    if known is None:
        raise DataError("the model was fitted to counts without words, and knows none; give counts, as in fit")
    # the function that cuts texts is permitted in this process because the caller's own settings name it
    return documents.known_counts(known if text is None else replace(known, analysis=text.analysis))


def require_entries(X: Any, observation: Observation) -> None:
    """DataError if an entry is missing, with the settings that accept it; nothing is checked for sparse matrices."""
    if sparse.issparse(X) or marginalises(observation) or is_dask_array(X):
        return
    if not is_frame(X) and (not isinstance(X, np.ndarray) or X.dtype.kind != "f" or X.ndim != 2):
        return
    gaps = X.isna().to_numpy() if is_frame(X) else np.isnan(X)
    if not gaps.any():
        return
    row, column = np.argwhere(gaps)[0].tolist()
    kind = type(observation).__name__
    advice = f'observation={kind}(missing="marginalise") integrates over them, ' if takes_missing(observation) else ""
    raise DataError(
        f"X contains NaN: row {row}, column {repr(X.columns[column]) if is_frame(X) else column} "
        f'({int(gaps.sum())} such entries). {advice}observation="auto" or Product.of(X) choose it for each column of a '
        "table; or leave such rows out"
    )


def sound_input(value: Any, name: str) -> Any:
    """The value, computed if it is a Dask array; DataError for values that pass scikit-learn's own checks, but would be
    changed or crash there.

    There, masked entries are taken for numbers, whole numbers of 64 bits are rounded, and indices of a sparse matrix
    are used without a check.
    """
    if is_dask_array(value):
        value = as_declared(value).compute()
    if sparse.issparse(value):
        require_sound(value, name)
        return value
    if is_frame(value):
        if value.columns.has_duplicates:
            raise DataError(f"{name} has several columns {value.columns[value.columns.duplicated()][0]!r}; rename them")
        for position in range(value.shape[1]):
            check_column(value.iloc[:, position], name, value.columns[position])
    if isinstance(value, (list, tuple, np.ndarray)):
        array = plain(value, name)
        require_exact(array, name)
        for entry in array.ravel() if array.dtype == object else ():
            if isinstance(entry, int) and abs(entry) > EXACT and (not is_finite(entry) or int(float(entry)) != entry):
                raise DataError(
                    f"{name} holds {shown(entry)}, which float64 would round; needs whole numbers up to 2**53"
                )
    return value


class DataTypeError(DataError, TypeError):
    """Data of a type for which scikit-learn's checks raise a TypeError, which their callers may catch."""


CALLS: Mapping[str, str] = {
    "1-d": "pass X.reshape(-1, 1) if it is one feature, X.reshape(1, -1) if it is one row",
    "sparse": 'pass X.toarray(); sparse counts of words go to TopicModel(), or observation="multinomial"',
    "complex": "pass np.column_stack([X.real, X.imag])",
    "dates": "pass numbers, such as (X - X.min()) / np.timedelta64(1, 'D')",
    "objects": "pass numbers; a table with columns of texts goes in as a pandas.DataFrame; texts as a list of str",
    "columns": "pass pandas.DataFrame(X)",
    "by name": "pass one of them; list(X.values()) are sequences for SequenceModel()",
    "column": "pass X.to_frame() if it is one feature; one row is a table of one row, table.iloc[[0]]",
    "values": "pass X[np.isfinite(X).all(axis=1)], or mark what is missing by NaN and choose a likelihood for it",
    "names": "pass X[model.feature_names_in_]",
    "features": "pass all features of fit, in their order there, and no others",
    "negative": "leave out what is below zero; counts of words are whole numbers from zero",
    "size": "pass all rows, each with its features, as one array (n, D)",
}
"""What to call for data that no estimator takes, by their kind."""


PRINTED = re.compile(r":?\n(array=)?\[.*?\](?=\.?\n(?! *\[)|\.?$)", re.DOTALL)
"""Arrays that scikit-learn prints in its errors."""


def validated(estimator: Any, X: Any, least: int, **settings: Any) -> Any:
    """Data after scikit-learn's own checks, with at least so many rows.

    Raises
    ------
    DataError
        They do not pass: what was found, what is needed, and what to call; then scikit-learn's own words, which its
        conformance tests look for.  For their TypeError it is one, too.
    """
    from sklearn.utils.validation import validate_data

    try:
        if isinstance(X, np.ndarray) and X.dtype.kind in "Mm":
            raise ValueError("dates would count as numbers of nanoseconds or days")
        return validate_data(estimator, X, dtype=np.float64, ensure_min_samples=least, **settings)
    except BnpDaskError:
        raise
    except (TypeError, ValueError) as error:
        kind, found = _kind_of(X)
        if "feature names should match" in str(error):
            kind, found = "names", f"{found} with other columns than in fit, or in another order"
        elif "is expecting" in str(error):
            kind, found = "features", f"{found}, which is not the width of fit"
        elif "Negative values" in str(error):
            kind, found = "negative", f"{found} with negative values"
        elif kind == "values" and len(X) < least:
            kind = "size"  # fewer rows are no way out
        raised = DataTypeError if isinstance(error, TypeError) else DataError
        width = "D" if settings["reset"] else vars(estimator).get("n_features_in_", "D")
        raise raised(
            f"X is {found}; needs {least} or more rows of finite numbers, (n, {width}): {CALLS[kind]}. "
            f"In short: {shorten(PRINTED.sub('', str(error)), 300, placeholder=' ...')}"
        ) from error


def _kind_of(X: Any) -> tuple[str, str]:
    """Kind of data that failed a check, and its description in words."""
    if sparse.issparse(X):
        return "sparse", f"a sparse matrix ({X.format}) of shape {X.shape}"
    if is_frame(X):
        return "values", f"a DataFrame of shape {X.shape}"
    if not isinstance(X, (np.ndarray, list, tuple)):
        is_column = callable(getattr(X, "to_frame", None))
        is_by_name = isinstance(X, Mapping) and all(np.ndim(x) == 1 for x in X.values())
        of_names = "columns" if is_by_name else "by name"
        found = f"a {type(X).__name__} of {len(X)} entries" if is_column and np.ndim(X) == 1 else shown(X)
        return "column" if is_column else of_names if isinstance(X, Mapping) else "objects", found
    try:
        array = np.asarray(X)
    except ValueError:
        return "objects", f"a list of {len(X)} rows of different lengths"
    kinds = {"c": "complex", "M": "dates", "m": "dates", "O": "objects", "S": "objects", "U": "objects"}
    kind = kinds.get(array.dtype.kind) or ("1-d" if array.ndim < 2 else "values")
    if kind == "values" and (array.ndim > 2 or not array.size or bool(np.isfinite(array).all())):
        kind = "size"
    return kind, f"an array of {array.dtype} of shape {array.shape}"


def features_of(estimator: Any, X: Any, reset: bool, lengths: Sequence[int] | None = None) -> Any:
    """A DataFrame with only its features, as numbers; other values unchanged.

    With ``reset`` they are chosen as everywhere (:func:`bnp_dask.as_source`), with a new sequence after each of the
    ``lengths``; else columns that were left out then are left out again.
    """
    if not is_frame(X):
        return X
    table = frame_columns(X, "X")
    known = vars(estimator).get(CHOSEN)
    if reset:
        counts = np.asarray([len(X)] if lengths is None else lengths)
        is_right = counts.ndim == 1 and counts.dtype.kind in "iu" and (counts >= 0).all() and counts.sum() == len(X)
        offsets = np.concatenate([[0], np.cumsum(counts)]) if is_right else None  # invalid ones are refused later
        known, _ = choose(table, None, NO_ROLES, "X", PLAIN_READING, in_values(lambda label: X[label], "X", offsets))
        vars(estimator)[CHOSEN] = known
    apart, widths = (set(), {}) if known is None else (set(known.others), dict(known.layout))
    held = [column for column in table if column.name not in apart]
    if len(held) == len(table) and all(column.is_plain for column in held):
        return X
    names = tuple(column.name for column in held)
    columns = Columns(names, tuple(c.kind for c in held), tuple(widths.get(name, 1) for name in names))
    x = frame_batch(X, columns, {column.name: column.label for column in held}, "X").x
    return type(X)(x, index=X.index, columns=list(columns.features))


def like_rows(values: Any, rows: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    """``function`` of the results for rows, in the container that matches the rows.

    A Series or DataFrame with their index for a pandas DataFrame, a lazy Dask array if the results are one.
    """
    if is_dask_array(values):
        return values.map_blocks(function, dtype=np.float64 if values.ndim == 2 else np.int64)
    found = function(values)
    if not is_frame(rows):
        return found
    import pandas as pd

    return pd.Series(found, index=rows.index) if found.ndim == 1 else pd.DataFrame(found, index=rows.index)


def moments_of(posterior: Posterior) -> dict[str, np.ndarray]:
    """``means_`` and ``covariances_``, named as in scikit-learn, clusters first, if the likelihood has them."""
    found = estimates_of(posterior.model.observation, posterior.observation, None)
    names = {"mean": "means_", "rate": "means_", "probability": "means_", "covariance": "covariances_"}
    return {names[n]: e.values for n, e in found.items() if n in names} | (
        {"covariances_": found["variance"].values} if "variance" in found else {}
    )


def places_of(posterior: Posterior, labels: np.ndarray) -> np.ndarray:
    """Positions in the posterior of cluster ids ``(n,)``."""
    order = np.argsort(posterior.ids)
    return order[np.searchsorted(posterior.ids, labels, sorter=order)]


def seed_of_estimator(random_state: Any) -> int:
    """A seed from scikit-learn's ``random_state``, or any other source of randomness that train takes."""
    if isinstance(random_state, (np.random.Generator, np.random.SeedSequence)):
        return seed_of(random_state, "random_state")
    from sklearn.utils import check_random_state

    if random_state is not None and not isinstance(random_state, np.random.RandomState):
        random_state = whole_number("random_state", random_state, 0, 2**32 - 1, "a seed")
    return int(check_random_state(random_state).randint(2**31 - 1))


def frame_with_levels(estimator: Any, observation: Observation, X: Any, reset: bool) -> bool:
    """Whether data are a DataFrame in which some columns may be texts; scikit-learn then only records its columns.

    Their values are checked as the data are opened.
    """
    if not (is_frame(X) and level_keys(observation)):
        return False
    from sklearn.utils.validation import validate_data

    validate_data(estimator, X, reset=reset, skip_check_array=True)
    return True


def run_estimator(
    estimator: Any,
    model: Model,
    data: Any,
    init: Initialization | None,
    moves: Sequence[Move] | None = None,
    weights: Any = None,
    batch_size: int | None = None,
    store: str | os.PathLike[str] | None = None,
    collapsed: int | None = None,
    labels: Any = None,
    responses: Any = None,
    links: Any = None,
    n_init: int = 1,
) -> TrainResult:
    """Train with an estimator's settings; ``init``, ``moves`` and ``n_init`` are its defaults, None as in ``train``;
    a schedule that opens clusters itself starts from none.

    The posterior keeps the names of features that scikit-learn saw.  Sets ``posterior_``, ``history_``, ``converged_``
    and ``n_iter_``.  It does not warn: see :func:`warn_unless_converged`, to be called once all else was learned.
    """
    vars(estimator).pop(RUN, None)
    laps = whole_number("max_laps", estimator.max_laps, 1, what="a whole number of laps")
    tolerance = None if estimator.tol is None else number_from("tol", estimator.tol, 0.0)
    usual = Memoized(laps=laps, tolerance=tolerance)
    begin = None if isinstance(estimator.schedule, OPENING) else init
    with warnings.catch_warnings():
        # reported later, as scikit-learn's own warning
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(
            model,
            source_of(estimator, model.observation, data, weights, batch_size),
            init=begin if estimator.init is None else estimator.init,
            schedule=usual if estimator.schedule is None else estimator.schedule,
            moves=moves if estimator.moves is None else estimator.moves,
            client=estimator.client,
            rng=seed_of_estimator(estimator.random_state),
            n_init=n_init if estimator.n_init is None else estimator.n_init,
            shadow=estimator.shadow,
            collapsed=collapsed,
            labels=labels,
            links=links,
            responses=responses,
            store=estimator.store if store is None else store,
        )
    estimator.converged_ = result.converged
    keep_run(estimator, result.posterior, result.history)
    return result


def keep_run(estimator: Any, posterior: Posterior, history: History) -> None:
    """Set ``posterior_``, ``history_`` and ``n_iter_``."""
    estimator.posterior_, estimator.history_ = posterior, history
    estimator.n_iter_ = int(history[-1]["lap"])


def freeze_learned(estimator: Any) -> None:
    """Make all learned attributes of an estimator read-only, like a result of ``train``."""
    for name, value in vars(estimator).items():
        if name.endswith("_") and name != "feature_names_in_":  # scikit-learn's own
            setattr(estimator, name, frozen(value))


def source_of(
    estimator: Any, observation: Observation, data: Any, weights: Any = None, batch_size: int | None = None
) -> Source:
    """A source of the data, with the names that scikit-learn found in a DataFrame; sources keep their own."""
    if isinstance(data, Source):
        return data
    levels = list(level_keys(observation)) if is_frame(data) else None
    columns = columns_for(estimator, observation, data)
    return as_source(data, weights=weights, batch_size=batch_size, columns=columns, levels=levels)


def columns_in(estimator: Any) -> Columns | None:
    """Columns that an estimator was fitted on; None if these had no names."""
    names = vars(estimator).get("feature_names_in_")
    return None if names is None else Columns.of(names.tolist())


def columns_for(estimator: Any, observation: Observation, data: Any) -> Columns | None:
    """Columns of data for a likelihood: the columns that it chooses of a table, else :func:`columns_in`."""
    chosen = chosen_columns(observation) if is_frame(data) else None
    return columns_in(estimator) if chosen is None else replace(Columns.of(chosen), chosen=True)


def warn_unless_converged(estimator: Any, result: TrainResult) -> None:
    """Issue scikit-learn's warning to the caller of ``fit`` if the run stopped before convergence.

    One pass of a filter, and the draws of a sampler, are complete.
    """
    from sklearn.exceptions import ConvergenceWarning as Warned

    if result.reason.startswith("limit"):
        more = "increase max_laps or tol" if estimator.schedule is None else "give the schedule more laps"
        warn(f"{result.reason}: not converged; {more}", Warned)


# -- partial_fit ---------------------------------------------------------------------------------------------------
def is_first(estimator: Any) -> bool:
    """Whether neither this estimator nor the run in its directory has learned anything."""
    own = estimator.store is not None and RunStore.has_begun(estimator.store)
    return not own and "posterior_" not in vars(estimator)


def take_in(estimator: Any, source: Source, begin: Callable[[str | None], TrainResult]) -> History:
    """Add data to an estimator's run, or begin it; return the history of this call.

    ``begin`` trains on these data, with a run directory or without.
    """
    schedule = Memoized() if estimator.schedule is None else estimator.schedule
    if not isinstance(schedule, Memoized):
        raise SettingError(f"schedule={shown(schedule)}: partial_fit needs Memoized(), which keeps exact statistics")
    if is_first(estimator):
        return _begun(estimator, begin).history
    if estimator.store is not None and RunStore.has_begun(estimator.store):
        found = grown_on_disk(os.fspath(estimator.store), source, estimator.client)
    else:
        run = vars(estimator).get(RUN)
        if run is None:
            known = estimator.posterior_
            usual = default_moves(known.model, schedule, source.is_sparse)
            moves = usual if estimator.moves is None else estimator.moves
            seed = seed_of_estimator(estimator.random_state)
            run = run_of(known, estimator.history_[-1], source, schedule, seed, moves)
        found, run = grown_in_memory(run, source, estimator.client)
        setattr(estimator, RUN, run)
    keep_run(estimator, found.posterior, found.history)
    return found.history


def _begun(estimator: Any, begin: Callable[[str | None], TrainResult]) -> TrainResult:
    """Train; after several starts only the posterior is kept, after one all state from which an update continues."""
    if estimator.store is not None or estimator.n_init not in (None, 1):
        return begin(estimator.store)
    result, run = begun_in_memory(begin)
    setattr(estimator, RUN, run)
    return result


def in_known_order(posterior: Posterior, order: np.ndarray, known: np.ndarray) -> np.ndarray:
    """An order of clusters ``(K,)`` in which clusters with ``known`` ids come first, in their earlier order."""
    place = {int(i): position for position, i in enumerate(known)}
    keys = [place.get(int(i), len(place) + position) for position, i in enumerate(posterior.ids[order])]
    return np.asarray(order)[np.argsort(keys)]


# -- settings of parts ---------------------------------------------------------------------------------------------
def with_nested(own: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator, and the settings of parameters that are parts of models: ``init__n_clusters``."""
    found = dict(own)
    for name, value in own.items():
        if is_dataclass(value) and not isinstance(value, type):
            found |= {f"{name}__{f.name}": getattr(value, f.name) for f in fields(value) if f.init}
    return found


def split_nested(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Parameters without, and with, two underscores in their names; the latter by parameter and setting."""
    plain = {name: value for name, value in params.items() if "__" not in name}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in params.items():
        if "__" in name:
            own, _, setting = name.partition("__")
            nested.setdefault(own, {})[setting] = value
    return plain, nested


def set_nested(estimator: Any, nested: Mapping[str, dict[str, Any]]) -> None:
    """Set settings of parts, which are replaced.

    SettingError for a parameter without settings, or a setting that the part does not have.
    """
    for name, settings in nested.items():
        value = vars(estimator).get(name)
        part = estimator._named() if name == "observation" and isinstance(value, str) else value
        if not is_dataclass(part) or isinstance(part, type):
            raise SettingError(f"{name}={shown(value)} has no settings; needs a part such as Gaussian() or Memoized()")
        known = [f.name for f in fields(part) if f.init]
        wrong = next((setting for setting in settings if setting not in known), None)
        if wrong is not None:
            raise SettingError(
                f"{name}__{wrong}: {type(part).__name__} has no setting {wrong!r}{nearest(wrong, known)}; it has "
                f"{', '.join(known)}"
            )
        setattr(estimator, name, replace(part, **settings))


# -- names of other programs ---------------------------------------------------------------------------------------
WORDS = {
    "gaussian": "normal gauss full multivariate_normal",
    "diag_gaussian": "diag diagonal spherical",
    "autoregressive": "ar var arhmm",
    "poisson": "counts count",
    "bernoulli": "binary bool",
}
"""Other programs' words for the likelihoods that have a name."""

SIZES = ("n_clusters", "n_topics", "n_states")
"""Names of the number of clusters: each estimator has one."""

LEARNED = {
    "{size}_": "n_components_ n_components n_clusters_ n_topics_ n_states_ K k",
    "predict(X)": "labels_ viterbi",
    "transform(X).argmax(axis=1)": "labels_ predict fit_predict topics_ doc_topics",
    "predict_proba(X)": "transform fit_transform responsibilities",
    "transform(X)": "predict_proba doc_topic_distr_ get_document_topics probabilities_",
    "components_": "exp_dirichlet_component_ topic_word_ get_topic_term_matrix",
    "means_": "cluster_centers_ centers_ centroids_ means rates_ lambdas_",
    "covariances_": "covars_ covars covariances",
    "np.linalg.inv(covariances_)": "precisions_ precisions_cholesky_",
    "ids_": "cluster_ids",
    "score_samples(X)": "log_prob logpdf decision_function",
    "score([x]) for each sequence": "score_samples",
    "np.exp(-score(X))": "perplexity perplexity_ bound",
    "score(X)": "log_perplexity evaluate",
    "partial_fit(X)": "update update_many learn_one",
    "bnp_dask.tree(posterior_).cut(n)": "reduce_topics merge_topics hierarchical_topics",
    "bnp_dask.top_words(posterior_)": "find_topics coherence",
    "history_ and converged_": "monitor_ history losses_",
    "lower_bound_": "bound_ elbo log_likelihood_ inertia_",
    "bound_": "lower_bound_ elbo_ score_",
    "n_iter_": "n_batch_iter_ n_laps_",
    "posterior_": "posterior model_ result_",
    "bnp_dask.save(posterior_, path)": "save dump to_zarr",
    "posterior_.topics(10)": "print_topics show_topics get_topics get_topic_info get_topic top_words topics",
    "posterior_.to_xarray()": "to_xarray to_dataframe parameters",
    "bnp_dask.report(posterior_, page)": "report visualize_topics plot",
    "bnp_dask.inspect(posterior_)": "inspect summary",
    "sample(n)": "rvs generate",
}
"""Calls and attributes, by the names under which other programs' estimators have what they give.  Of several calls for
a name, the first that an estimator has counts."""


class Estimator:
    """What scikit-learn's base does not say: parameters of parts, and what the names of other programs are here."""

    def __init_subclass__(cls, **named: Any) -> None:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, answering(method))
        super().__init_subclass__(**named)  # scikit-learn puts its own around ``transform``

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with ``deep`` also the settings of parts, such as ``observation__kappa``."""
        own = super().get_params(deep)  # type: ignore[misc]  # of scikit-learn's base
        return with_nested(own) if deep else own

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also the settings of parts: ``set_params(observation__kappa=0.1)``."""
        plain, nested = split_nested(params)
        of: Any = type(self)
        for name in plain:
            if name not in _parameters(of):
                raise SettingError(no_parameter(of.__name__, name, inspect.signature(of.__init__), of))
        super().set_params(**plain)  # type: ignore[misc]
        set_nested(self, nested)
        return self

    if not TYPE_CHECKING:  # a checker knows that there are no other attributes

        def __getattr__(self, name: str) -> Any:
            is_learned = name.endswith("_") and not name.startswith("_")
            if is_learned and "posterior_" not in vars(self):
                raise AttributeError(
                    f"{type(self).__name__} has no {name!r} yet: it is not fitted; call fit(X)", name=name, obj=self
                )
            size = _size_of(type(self))
            calls = {call.format(size=size): names for call, names in LEARNED.items()}
            return not_here(self, name, calls={call: names for call, names in calls.items() if _gives(self, call)})


def _size_of(cls: type) -> str:
    return next((name for name in SIZES if name in _parameters(cls)), "")


@cache
def _parameters(cls: Any) -> list[str]:
    """Names of an estimator's parameters."""
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def _gives(estimator: Any, call: str) -> bool:
    """Whether an estimator has what a call uses: the learned attributes, or the method that it begins with."""
    used = re.findall(r"\b[a-z]\w*_\b", call) or re.findall(r"\b(\w+)\((?=X|\[x|n\))", call)
    try:
        for name in used:
            object.__getattribute__(estimator, name)  # not what __getattr__ advises
    except AttributeError:
        return False
    return True


def likelihood_named(name: Any, known: Mapping[str, type[Observation]], *also: str) -> Observation:
    """A new likelihood by its name; SettingError for other names, with the one that another program's word means.

    ``also`` are other values of ``observation``, for the message.
    """
    if name in known:
        return known[name]()
    meant = next((own for own, words in WORDS.items() if name in words.split() and own in known), None)
    hint = nearest(name, known) if meant is None else f"; that is {meant!r} here"
    raise SettingError(f"observation={shown(name)}: needs one of {', '.join([*known, *also])}, or a model{hint}")


# -- criteria of Akaike and of Schwarz -----------------------------------------------------------------------------
def aic_of(free: int, value: float) -> float:
    """Akaike's criterion of a log probability, nats."""
    return 2.0 * free - 2.0 * value


def bic_of(free: int, value: float, count: int) -> float:
    """The Bayesian information criterion of the log probability of ``count`` observations, nats."""
    return free * math.log(count) - 2.0 * value


def free_parameters(posterior: Posterior, of_weights: int) -> int:
    """Number of free parameters of all clusters, plus the number ``of_weights`` or transitions."""
    observation = without_labels(posterior.model.observation)
    sizes = observation.sizes
    dims = [f.dims for name, f in observation.fields.items() if f.n_cluster_axes and not is_about_missing(name)]
    own = sum(int(np.prod([sizes[d] for d in axes if d != "cluster"])) for axes in dims)
    return posterior.n_clusters * (own - _not_free(observation)) + of_weights


def _not_free(observation: Observation) -> int:
    """Number of a cluster's parameters that follow from the others, or are not parameters.

    Shares of words or levels sum to one, and autoregressions do not model the spread of the rows before.
    """
    if isinstance(observation, Product):
        return sum(map(_not_free, observation.parts))
    if isinstance(observation, AutoRegressiveGaussian):
        rows = (math.isqrt(8 * observation.sizes["packed"] + 1) - 1) // 2
        before = rows - len(observation.B)  # type: ignore[arg-type]
        return before * (before + 1) // 2
    return (
        len(observation.levels or ()) if isinstance(observation, Categorical) else isinstance(observation, Multinomial)
    )


# -- The scikit-learn estimator :class:`DirichletProcessMixture` on top of ``train``, ``predict`` and ``score`` ---


MIXTURE_OBSERVATIONS = likelihoods(without=("AutoRegressiveGaussian", "Product"))
"""Likelihoods by the names that ``observation`` takes; each with its prior set from the data."""

HALF = 0.5
"""Least expected rows of a cluster that counts after ``partial_fit``."""

SPARSE = (Multinomial,)
"""Observation models of sparse counts."""


@answering
class DirichletProcessMixture(Estimator, TransformerMixin, ClusterMixin, BaseEstimator):
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
        Initialisation.  Default: ``BregmanKMeans(n_clusters)``.  If their number is learned, as in
        :func:`bnp_dask.train`: ``BregmanKMeans(25)``, or half as many clusters as there are rows if these are fewer
        than 50; ``UnitedKMeans()`` from 40,000 dense rows on.
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
        Whether the likelihood's prior is fitted to the clusters: ``"auto"``, ``"never"``, ``"diagonal"``,
        ``"full"`` or ``"random"``, as for :class:`bnp_dask.Model`.
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

        Raises
        ------
        DataError
            ``X`` cannot be read, or the likelihood cannot have produced it; a ValueError too, as scikit-learn expects.
        SettingError
            A parameter out of range, or parameters that contradict each other; a ValueError too.
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

        Raises
        ------
        NotFittedError
            :meth:`fit` was not called before.
        DataError
            Features that differ from training, or values that the likelihood cannot produce.
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

    def _named(self) -> Observation:
        return likelihood_named(self.observation, MIXTURE_OBSERVATIONS, "auto")

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
        named = (
            MIXTURE_OBSERVATIONS.get(self.observation) if isinstance(self.observation, str) else type(self.observation)
        )
        return named in SPARSE or self.observation == "auto"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self._takes_sparse()
        tags.input_tags.allow_nan = marginalises(self.observation) or self.observation == "auto"
        tags.input_tags.positive_only = self._takes_sparse() and self.observation != "auto"
        return tags


# -- The scikit-learn estimator of hidden Markov models: :class:`SequenceModel` over ``train``, ``predict``, ``score``


SEQUENCE_OBSERVATIONS = {
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


@answering
class SequenceModel(Estimator, BaseEstimator):
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

        Raises
        ------
        DataError
            ``X`` cannot be read, or the likelihood cannot have produced it; a ValueError too, as scikit-learn expects.
        SettingError
            A parameter out of range, or parameters that contradict each other; a ValueError too.
        """
        require_no_lengths(X, y, lengths)
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
        require_no_lengths(X, y, lengths)
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

        Raises
        ------
        NotFittedError
            :meth:`fit` was not called before.
        DataError
            Features that differ from training, or values that the likelihood cannot produce.
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
        require_no_lengths(X, y, lengths)
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
        named = (
            SEQUENCE_OBSERVATIONS.get(self.observation) if isinstance(self.observation, str) else type(self.observation)
        )
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

    def _observation(self) -> Observation:
        return self._named() if isinstance(self.observation, str) else self.observation

    def _named(self) -> Observation:
        return likelihood_named(self.observation, SEQUENCE_OBSERVATIONS)


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


def require_no_lengths(X: Any, y: Any, lengths: Any) -> None:
    """DataError if ``y``, which is ignored, holds the lengths of sequences: hmmlearn has them in its place."""
    if y is None or lengths is not None or not isinstance(y, (list, tuple, np.ndarray)):
        return
    counts = np.asarray(y) if all(isinstance(n, (int, np.integer)) for n in y) else np.zeros(0)
    n_rows = len(X) if getattr(X, "ndim", 0) == 2 else None
    if n_rows is not None and len(counts) not in (0, n_rows) and counts.sum() == n_rows:
        raise DataError(f"y={shown(y)}: lengths of sequences go by name, lengths={shown(y)}; y is ignored")


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


# -- The scikit-learn estimator of topic models: :class:`TopicModel` on top of ``train``, ``predict`` and ``score``


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


@answering
class TopicModel(Estimator, TransformerMixin, BaseEstimator):
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

        Raises
        ------
        DataError
            ``X`` cannot be read, or the likelihood cannot have produced it; a ValueError too, as scikit-learn expects.
        SettingError
            A parameter out of range, or parameters that contradict each other; a ValueError too.
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

        With ``return_std`` also the standard deviation, ``(n,)``, of numbers only.  Only with ``response=``; topics of
        documents are given by :meth:`transform`.  See :func:`bnp_dask.predict_response`.

        Raises
        ------
        NotFittedError
            :meth:`fit` was not called before.
        SettingError
            ``return_std`` for classes.
        DataError
            Words that differ from training.
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
