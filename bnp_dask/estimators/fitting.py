"""Base of the scikit-learn estimators: checks of arguments, one run of ``train`` from an estimator's settings, and
scikit-learn's own warning.

Also ``partial_fit`` of all estimators (the first call begins a run, later calls add data to it), settings of an
estimator's parts, such as ``observation__kappa``, for ``get_params``, ``set_params`` and searches, and the criteria of
Akaike and of Schwarz, as scikit-learn and hmmlearn give them.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from textwrap import shorten
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask._names import OBSERVATIONS
from bnp_dask.core import NO_ROLES, Columns
from bnp_dask.core.frozen import frozen
from bnp_dask.data import Documents, Needs, Source, Text, as_source, is_frame, plain_form
from bnp_dask.data.sources.columns import PLAIN_READING, as_table, choose, frame_columns, in_values
from bnp_dask.data.sources.dask_collections import as_declared, is_dask_array
from bnp_dask.data.sources.frames import check_column, frame_batch
from bnp_dask.data.sources.held import in_memory
from bnp_dask.data.sources.open import with_nan
from bnp_dask.errors import BnpDaskError, DataError, SettingError, nearest, warn
from bnp_dask.inference import Memoized
from bnp_dask.initialize import Initialization
from bnp_dask.inputs import (
    as_frame,
    is_finite,
    number_from,
    plain,
    require_exact,
    require_sound,
    seed_of,
    shown,
    unlabelled,
    whole_number,
)
from bnp_dask.inputs.arrays import EXACT
from bnp_dask.model import Model, Posterior
from bnp_dask.moves import Move
from bnp_dask.observation import (
    AutoRegressiveGaussian,
    Categorical,
    Gaussian,
    Multinomial,
    Observation,
    Product,
    chosen_columns,
    estimates_of,
    is_about_missing,
    level_keys,
    marginalises,
    takes_missing,
)
from bnp_dask.observation import unlabelled as without_labels
from bnp_dask.store import RunStore
from bnp_dask.training.defaults import OPENING, default_moves
from bnp_dask.training.growing.in_memory import begun_in_memory, grown_in_memory, grown_on_disk, run_of
from bnp_dask.training.results import History, TrainResult
from bnp_dask.training.train import ConvergenceWarning, train

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
        return Product.of(X)
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
        elif kind == "values" and X.shape[0] < least:
            kind = "size"  # fewer rows are no way out
        raised = DataTypeError if isinstance(error, TypeError) else DataError
        width = "D" if settings["reset"] else vars(estimator).get("n_features_in_", "D")
        raise raised(
            f"X is {found}; needs {least} or more rows of finite numbers, (n, {width}): {CALLS[kind]}. "
            f"In short: {shorten(str(error), 300, placeholder=' ...')}"
        ) from error


def _kind_of(X: Any) -> tuple[str, str]:
    """Kind of data that failed a check, and what they are in words."""
    if sparse.issparse(X):
        return "sparse", f"a sparse matrix ({X.format}) of shape {X.shape}"
    if is_frame(X):
        return "values", f"a DataFrame of shape {X.shape}"
    if not isinstance(X, (np.ndarray, list, tuple)):
        is_column = callable(getattr(X, "to_frame", None))
        is_by_name = isinstance(X, Mapping) and all(np.ndim(x) == 1 for x in X.values())
        of_names = "columns" if is_by_name else "by name"
        return "column" if is_column else of_names if isinstance(X, Mapping) else "objects", shown(X)
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


def set_nested(estimator: Any, nested: Mapping[str, dict[str, Any]], named: Callable[[], Any]) -> None:
    """Set settings of parts, which are replaced; ``named`` is the likelihood of an estimator that has its name.

    SettingError for a parameter without settings, or a setting that the part does not have.
    """
    for name, settings in nested.items():
        value = vars(estimator).get(name)
        part = named() if name == "observation" and isinstance(value, str) else value
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
