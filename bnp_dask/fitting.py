"""What scikit-learn faces share: one run of ``train`` from an estimator's settings, and scikit-learn's own warning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from bnp_dask.columns import Columns
from bnp_dask.data import as_source
from bnp_dask.data.base import Source
from bnp_dask.initialize import Initialization
from bnp_dask.model import Model
from bnp_dask.moves import Move
from bnp_dask.results import TrainResult
from bnp_dask.schedules import Memoized
from bnp_dask.train import ConvergenceWarning, train


def run_estimator(
    estimator: Any,
    model: Model,
    data: Any,
    init: Initialization,
    moves: Sequence[Move] = (),
    weights: Any = None,
    batch_size: int | None = None,
) -> TrainResult:
    """Train with an estimator's settings; ``init`` and ``moves`` are what it does where it has none.

    The posterior keeps the names of features that scikit-learn saw.  Sets ``posterior_``, ``history_``, ``converged_``
    and ``n_iter_``.  It does not warn: see
    :func:`warn_unless_converged`, for when everything else was learned too.
    """
    from sklearn.utils import check_random_state

    with warnings.catch_warnings():
        # told later, as scikit-learn's own warning
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(
            model,
            _named(estimator, data, weights, batch_size),
            init=init if estimator.init is None else estimator.init,
            schedule=estimator.schedule or Memoized(laps=estimator.max_laps, tolerance=estimator.tol),
            moves=moves if estimator.moves is None else estimator.moves,
            client=estimator.client,
            rng=int(check_random_state(estimator.random_state).randint(2**31 - 1)),
        )
    estimator.posterior_, estimator.history_ = result.posterior, result.history
    estimator.converged_ = result.converged
    estimator.n_iter_ = int(result.history[-1]["lap"])
    return result


def _named(estimator: Any, data: Any, weights: Any, batch_size: int | None) -> Source:
    """A source of the data, with the names that scikit-learn found in a DataFrame; sources have theirs."""
    if isinstance(data, Source):
        return data
    return as_source(data, weights=weights, batch_size=batch_size, columns=columns_in(estimator))


def columns_in(estimator: Any) -> Columns | None:
    """Columns that an estimator was fitted on; None where these had no names."""
    names = vars(estimator).get("feature_names_in_")
    return None if names is None else Columns.of(names.tolist())


def warn_unless_converged(result: TrainResult) -> None:
    """Scikit-learn's warning to the caller of ``fit``."""
    from sklearn.exceptions import ConvergenceWarning as Warned

    if not result.converged:
        warnings.warn(f"{result.reason}: not converged; increase max_laps or tol", Warned, stacklevel=3)
