"""Laps of a run as metrics of MLflow, and posteriors as models of MLflow."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from numbers import Real
from typing import Any

from bnp_dask._version import __version__
from bnp_dask.analysis import TopResponsibilities, require_posterior
from bnp_dask.analysis.predict import predict
from bnp_dask.errors import SettingError, answering
from bnp_dask.inputs import POSTERIOR_NAME
from bnp_dask.model import Posterior
from bnp_dask.training.callbacks import FAILED, RunInfo, logger
from bnp_dask.training.results import load, save

PLACES = ("step", "lap", "batch")
"""Entries of a row of the history that give its position, and measure nothing."""


@answering
@dataclass
class LogToMLflow:
    """A callback that logs every lap to MLflow (``pip install "bnp-dask[mlflow]"``).

    Numbers of the last row of the history of each lap become metrics under their names (``elbo``, ``n_clusters``,
    ``seconds``, ...), and ``elbo_per_atom`` beside them; their step is the lap.  Atoms and batches are parameters; the
    reason of the end is the tag ``bnp_dask.reason``.  A lap that MLflow does not take is reported in the log, and the
    run goes on.

    Parameters
    ----------
    run_name
        Name of the MLflow run that is begun, and ended with the training; None lets MLflow choose one.  If a run is
        active already (``with mlflow.start_run():``), it is used and stays open.
    params
        More parameters to log, such as ``{"gamma": 10.0}``.

    Examples
    --------
    ``bnp.train(model, data, callbacks=[bnp.LogToMLflow(params={"gamma": 10.0})])``
    """

    run_name: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    _mlflow: Any = field(default=None, init=False, repr=False)
    _is_own: bool = field(default=False, init=False, repr=False)

    def on_start(self, info: RunInfo) -> None:
        try:
            self._mlflow = import_module("mlflow")
        except ImportError as error:
            raise SettingError('LogToMLflow needs mlflow: pip install "bnp-dask[mlflow]"') from error
        self._is_own = self._mlflow.active_run() is None
        if self._is_own:
            self._mlflow.start_run(run_name=self.run_name)
        self._mlflow.log_params({"n_atoms": info.n_atoms, "n_batches": info.n_batches, **self.params})
        # parameters cannot change: a run that goes on may have more laps, and be somewhere else
        self._mlflow.set_tags({"bnp_dask.laps": info.laps, "bnp_dask.where": info.where})

    def on_batch(self, done: int) -> bool | None:
        """No-op: batches are too many to log."""
        return None

    def on_lap(self, row: Mapping[str, Any], posterior: Posterior) -> bool | None:
        found = {name: float(value) for name, value in row.items() if name not in PLACES and _is_number(value)}
        if "elbo" in found:
            found["elbo_per_atom"] = found["elbo"] / max(row["atoms"], 1.0)
        try:
            self._mlflow.log_metrics(found, step=row["lap"])
        except Exception as error:  # a server that is gone is no reason to end a run
            logger.warning("MLflow did not take lap %d: %s", row["lap"], error)
        return None

    def on_end(self, reason: str) -> None:
        if self._mlflow is None:
            return
        try:
            self._mlflow.set_tag("bnp_dask.reason", reason)
            if self._is_own:
                self._mlflow.end_run("FAILED" if reason == FAILED else "FINISHED")
        except Exception as error:
            logger.warning("MLflow did not take the end of the run: %s", error)


@answering
def log_model(posterior: Posterior, name: str = "model", *, registered_model_name: str | None = None) -> Any:
    """Log a posterior as a model of MLflow, in the active run or a new one (``pip install "bnp-dask[mlflow]"``).

    ``mlflow.pyfunc.load_model`` and ``mlflow models serve`` read it: its ``predict`` takes a table or an array, one row
    per atom, and returns as :func:`bnp_dask.predict` does; ``params={"soft": True}`` or ``{"top": 3}`` chooses.  The
    model holds the posterior as :func:`bnp_dask.save` writes it, and no pickle.

    Parameters
    ----------
    posterior
        Trained clusters.
    name
        Name of the model in the run.
    registered_model_name
        Name under which it is registered as a new version; None: it is not registered.

    Returns
    -------
    mlflow.models.model.ModelInfo
        Its ``model_uri`` is for ``mlflow.pyfunc.load_model``.

    Raises
    ------
    SettingError
        MLflow is not installed.
    """
    try:
        pyfunc = import_module("mlflow.pyfunc")
    except ImportError as error:
        raise SettingError(f'log_model needs mlflow: pip install "bnp-dask[mlflow]" ({error})') from error
    with tempfile.TemporaryDirectory(prefix="bnp-dask-mlflow-") as folder:
        place = os.path.join(folder, POSTERIOR_NAME)
        save(require_posterior(posterior), place)
        return pyfunc.log_model(
            name=name,
            loader_module=__name__,
            data_path=place,
            signature=_signature(),
            pip_requirements=[f"bnp-dask=={__version__}"],
            registered_model_name=registered_model_name,
        )


def _signature() -> Any:
    """Parameters that predictions take: MLflow passes on none that a model does not declare."""
    models, types = import_module("mlflow.models"), import_module("mlflow.types.schema")
    params = [types.ParamSpec("soft", "boolean", False), types.ParamSpec("top", "long", 0)]
    return models.ModelSignature(params=types.ParamSchema(params))


@dataclass(frozen=True)
class MLflowModel:
    """A posterior as MLflow's ``python_function`` calls it."""

    posterior: Posterior

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Clusters of rows, as :func:`bnp_dask.predict`.

        ``params`` has ``soft`` or ``top``, where 0 means none; SettingError for others.  The
        largest responsibilities are columns ``label_1``, ..., ``resp_1``, ... of a table.
        """
        given = dict(params or {})
        if unknown := sorted(set(given) - {"soft", "top"}):
            raise SettingError(f"params: there is no {unknown[0]!r}; there are soft and top")
        found = predict(self.posterior, model_input, soft=given.get("soft", False), top=given.get("top", 0) or None)
        if not isinstance(found, TopResponsibilities):
            return found
        width = range(1, found.label.shape[1] + 1)
        labels = {f"label_{i}": found.label[:, i - 1] for i in width}
        return import_module("pandas").DataFrame({**labels, **{f"resp_{i}": found.resp[:, i - 1] for i in width}})


def _load_pyfunc(path: str) -> MLflowModel:
    """A model that :func:`log_model` logged; MLflow calls this with the place of its data."""
    return MLflowModel(load(path))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
