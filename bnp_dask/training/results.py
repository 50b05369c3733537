"""Results of a run: a posterior that can be saved and loaded, and the history of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnp_dask._names import method
from bnp_dask.analysis.base import require_posterior
from bnp_dask.core.columns import Columns, Words
from bnp_dask.core.frozen import frozen
from bnp_dask.errors import SettingError, StoreError
from bnp_dask.inference.sampling import Draws
from bnp_dask.inputs.paths import DRAWS_NAME, POSTERIOR_NAME
from bnp_dask.inputs.settings import hold, path_text
from bnp_dask.model import Posterior
from bnp_dask.observation.interface.describing import each, estimates_of
from bnp_dask.observation.labelled import unlabelled
from bnp_dask.store import Key, may_hold_runs, place_of, run_folder
from bnp_dask.structure.nouns import count_of
from bnp_dask.training.archive import copy_archive, read_archive, write_archive
from bnp_dask.training.history import History

if TYPE_CHECKING:
    import xarray


# -- saving and loading ---------------------------------------------------------------------------------------
def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior, with its model and statistics, as Zarr v3 arrays in one zip file, and JSON.

    ``zarr.json`` names the zip and describes its content.  Versions up to 0.2.0 wrote a folder of arrays, which
    :func:`load` reads; they refuse this format, and say so.

    Parameters
    ----------
    posterior
        The posterior.
    path
        Directory to make, or a URL that fsspec knows (``"s3://bucket/model.zarr"``).  A model saved there before is
        replaced: a kill at any moment leaves the old one or the new one.

    Raises
    ------
    StoreError
        Something else is at ``path``, or it cannot be written.
    """
    posterior = require_posterior(posterior)
    write_archive("posterior", posterior, path)


def save_again(posterior: Posterior, saved: Path | Key, path: Path | Key) -> None:
    """Write a posterior that is saved at ``saved`` already; on a disk its arrays only get a second name."""
    if isinstance(saved, Path) and isinstance(path, Path):
        copy_archive("posterior", saved, path)
    else:
        save(posterior, path)


def save_draws(draws: Draws, path: str | os.PathLike[str]) -> None:
    """Write the draws of a sampler as :func:`save` writes a posterior; :func:`load_draws` reads them."""
    write_archive("draws", draws, path)


def load(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior that :func:`save` wrote; needs no Dask and runs no code from the file.

    Raises
    ------
    StoreError
        There is no saved model at ``path``, it is of a newer format, or a part of it is missing or damaged; the
        error names the part.
    """
    return _posterior_at(path)


def _posterior_at(path: str | os.PathLike[str] | Key) -> Posterior:
    place, posterior = read_archive("posterior", path)
    if not isinstance(posterior, Posterior):
        raise StoreError(f"{place.name}: holds a {type(posterior).__name__}, not a posterior")
    return posterior


def load_draws(path: str | os.PathLike[str]) -> Draws:
    """Read the draws that a run with ``Gibbs()`` wrote to ``draws.zarr`` in its directory; runs no code from the file.

    Raises
    ------
    StoreError
        As for :func:`bnp_dask.load`; or the run did not use ``Gibbs()``.
    """
    if may_hold_runs(path_text("path", path)):
        folder = run_folder(path)
        if place_of(folder).exists(folder / DRAWS_NAME):
            path = folder / DRAWS_NAME
        elif place_of(folder).exists(folder / POSTERIOR_NAME):
            raise StoreError(f"{path}: this run kept no draws; train(..., schedule=Gibbs(...), store=...) keeps them")
    place, draws = read_archive("draws", path)
    if not isinstance(draws, Draws):
        raise StoreError(f"{place.name}: holds a {type(draws).__name__}, not draws")
    return draws


# -- looking --------------------------------------------------------------------------------------------------
def to_xarray(posterior: Posterior) -> xarray.Dataset:
    """Weights, counts and the likelihoods' estimates for each cluster, as labelled arrays.

    The likelihood names its expected values (``mean``, ``covariance``, ``rate``, ``probability``, ``coefficients``)
    and the settings of its posterior (``nu``, ``kappa``, ``a``, ``b``, ``lam``); hidden Markov models add
    ``transition`` and ``start``.  Parts of a ``Product`` are named after their columns, such as ``age.mean``.

    Coordinate ``cluster`` holds the cluster ids, and ``feature``, ``word`` or ``lagged`` the names of columns if these
    are known.  A second axis of the same kind, as in a covariance, is ``feature_2``.
    """
    try:
        import xarray
    except ImportError as error:
        raise SettingError("to_xarray needs xarray: pip install 'bnp-dask[xarray]'") from error
    model = posterior.model
    found = {"weight": each(posterior.weights)}
    if posterior.summary is not None:
        found["count"] = each(posterior.summary["N"])
    found |= model.structure.estimates(posterior)
    found |= estimates_of(model.observation, posterior.observation, posterior.feature_names)
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    coords: dict[str, Any] = {"cluster": posterior.ids}
    for name, value in found.items():
        dims = ["cluster"]
        for axis in value.axes:
            seen = sum(d == axis.name or d.startswith(f"{axis.name}_") for d in dims)
            dims.append(f"{axis.name}_{seen + 1}" if seen else axis.name)
            if axis.labels is not None:
                coords[dims[-1]] = list(axis.labels)
        variables[name] = (tuple(dims), value.values)
    settings = {
        "allocation": type(model.allocation).__name__,
        "observation": type(unlabelled(model.observation)).__name__,
        "estimate": model.estimate,
    }
    return xarray.Dataset(variables, coords=coords, attrs=settings)


# -- result ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class TrainResult:
    """Result of ``train``; all its values are read-only (``array.copy()`` of an array may be changed).

    Parameters
    ----------
    posterior
        The learned posterior.
    history
        One row per step.
    converged
        Whether the run stopped because nothing changed any more.
    reason
        Why it stopped, in words: ``"objective and counts stopped changing at lap 12"``.
    seconds
        Wall time of the run.
    skipped
        Reason for each batch that could not be used and was left out (``on_bad_batch="skip"``).
    warm_seconds
        Wall time of compiling or loading kernels before the first lap; not in the seconds of the history.
    alternatives
        Outcome of each alternative state of the run, in order for several starts (``n_init``): ``"kind"``, ``"seed"``,
        laps of the run before it (``"begun"``), its own laps (``"lap"``), objective (``"elbo"``, nats) and
        ``"n_clusters"`` at the last of them, and ``"reason"``: that it went on alone, or another was ahead, or why it
        had ended before; and ``"prior"``, for shadows with a prior of their own.  So they show how far K and the
        objective differ from start to start.  Empty if there was a single state.
    draws
        Draws of a run with ``Gibbs()``; None for other schedules, and if none was kept yet.
    """

    posterior: Posterior
    history: History = field(default_factory=History)
    converged: bool = False
    reason: str = ""
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    warm_seconds: float = 0.0
    alternatives: tuple[Mapping[str, Any], ...] = ()
    draws: Draws | None = None

    def __post_init__(self) -> None:
        for name in ("posterior", "alternatives", "draws"):
            hold(self, name, frozen(getattr(self, name)))

    @property
    def starts(self) -> tuple[Mapping[str, Any], ...]:
        """Alternatives that are starts: ``rng=result.starts[i]["seed"]`` makes one of them alone."""
        return tuple(one for one in self.alternatives if one["kind"] == "start")

    @property
    def certainty(self) -> Any:
        """:class:`bnp_dask.Certainty` of the number of clusters, by posterior and history alone: no pass over data.

        :func:`bnp_dask.certainty` also compares other starts, and runs on resampled data.
        """
        return method("certainty")(self)

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        reason = f" ({self.reason})" if self.reason not in ("", state) else ""
        left_out = f", {len(self.skipped)} batches skipped" if self.skipped else ""
        elbo = f", objective {self.history['elbo'][-1]:.6g} nats" if "elbo" in self.history else ""
        return (
            f"TrainResult: {state}{reason}, {count_of(self.posterior)}{elbo}, "
            f"{len(self.history)} steps in {self.seconds:.1f} s{left_out}\n  {self.posterior!r}"
        )

    def _repr_html_(self) -> str:
        # only a notebook calls this: plain sessions do not pay for building tables
        return str(method("result_html")(self))

    def to_datatree(self) -> xarray.DataTree:
        """The run as labelled arrays, in groups, as xarray and ArviZ keep them; ``to_netcdf`` and ``to_zarr`` write it.

        ``clusters`` is :meth:`Posterior.to_xarray`, ``history`` the numbers of each step; a run with ``Gibbs()`` has
        its draws as ``posterior``, with the dimensions that ArviZ requires.  Whether the run converged, why it stopped
        and how long it took are attributes.
        """
        try:
            import xarray
        except ImportError as error:
            raise SettingError("to_datatree needs xarray: pip install 'bnp-dask[xarray]'") from error
        groups = {"clusters": self.posterior.to_xarray(), "history": self.history.to_xarray()}
        if self.draws is not None:
            groups["posterior"] = self.draws.to_xarray()
        facts = {"converged": int(self.converged), "reason": self.reason, "seconds": self.seconds}
        return xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=facts), **groups})


def with_names(result: TrainResult, words: Words | None, columns: Columns | None) -> TrainResult:
    """The result with names of words and columns."""
    draws = None if result.draws is None else replace(result.draws, words=words, columns=columns)
    return replace(result, posterior=replace(result.posterior, words=words, columns=columns), draws=draws)


def save_result(result: TrainResult, folder: Path | Key) -> None:
    """Write the posterior, and draws if there are any, into a run directory."""
    save(result.posterior, folder / POSTERIOR_NAME)
    if result.draws is not None:
        save_draws(result.draws, folder / DRAWS_NAME)


def saved_posterior(store: str | os.PathLike[str] | None) -> Posterior | None:
    """The posterior of a run directory; None if there is none that can be read."""
    if store is None:
        return None
    try:
        return _posterior_at(run_folder(store) / POSTERIOR_NAME)
    except StoreError:
        return None


__all__ = [
    "History",
    "TrainResult",
    "load",
    "load_draws",
    "save",
    "save_draws",
    "save_result",
    "saved_posterior",
    "to_xarray",
    "with_names",
]
