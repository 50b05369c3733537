"""A job file with comments for some data, as ``bnp-dask init`` writes it."""

from __future__ import annotations

import os

import yaml

from bnp_dask.data import as_source
from bnp_dask.data.base import Source
from bnp_dask.inputs.paths import local_path


def first_job(data: str, groups: str | None, order: str | None, folder: str) -> str:
    """Text of a job file that trains as it is.

    Parameters
    ----------
    data
        Path or URL of the data, which are opened.
    groups, order
        Columns of a table of sequences: of their ids, and one that rises within each.
    folder
        Folder of the job file: paths in it are relative to this.

    Raises
    ------
    DataError, SettingError
        As :func:`bnp_dask.as_source`.
    """
    source = as_source(data, groups=groups, order=order)
    place = data if "://" in data else os.path.relpath(local_path(data).absolute(), folder)
    more = {"groups": groups, "order": order}
    settings = {"path": place, **{name: value for name, value in more.items() if value is not None}}
    return "\n".join(
        [
            "# A job of bnp-dask, which trains as it is; paths are relative to this file.",
            f"# {source.name}: {_size_of(source)}",
            "model:",
            *(f"  {line}" for line in _model(source, groups)),
            f"data: {_inline(settings)}",
            "# schedule: {type: Memoized, laps: 50}    # passes over the data at most; it stops when it has converged",
            "# init, moves: left out, the defaults of the model; moves: [] keeps the number of clusters of the start",
            "# client: {workers: 2}                     # processes to start; left out: this one, without Dask",
            "store: runs/first                          # results and checkpoints; 'bnp-dask resume' goes on",
            "rng: 0                                     # the same number gives the same bits",
            "",
        ]
    )


def _model(source: Source, groups: str | None) -> list[str]:
    """Lines of the model for a source."""
    if source.is_sparse:
        return [
            "allocation: HDPTopics                    # topics of documents; their number is learned",
            "observation: Multinomial                 # counts of words",
        ]
    if groups is not None:
        return [
            "allocation: HDPHMM                       # states of sequences; their number is learned",
            "observation: Gaussian                    # AutoRegressiveGaussian: states are ways to go on",
        ]
    return [
        "allocation: DPMixture                    # clusters of rows; their number is learned",
        "observation: Gaussian                    # DiagGaussian for many features",
    ]


def _size_of(source: Source) -> str:
    n = source.n_atoms
    return f"{'?' if n is None else format(n, ',')} rows, {source.n_features:,} features"


def _inline(settings: dict[str, str]) -> str:
    return yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10_000).strip()
