"""A job file with comments for some data, as ``bnp-dask init`` writes it."""

from __future__ import annotations

import os
import warnings

import yaml

from bnp_dask.data import as_source
from bnp_dask.data.base import Source, columns_of
from bnp_dask.errors import DataError, warn
from bnp_dask.inputs.paths import local_path
from bnp_dask.observation import Gaussian, Product
from bnp_dask.observation.base import Observation
from bnp_dask.observation.missing.entries import marginalises


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
    with warnings.catch_warnings(record=True) as left_out:
        warnings.simplefilter("always")
        source = as_source(data, groups=groups, order=order)
    product = _proposed(data, source) if groups is None and not source.is_sparse else None
    for each in left_out if product is None else ():
        warn(str(each.message), each.category)
    place = data if "://" in data else os.path.relpath(local_path(data).absolute(), folder)
    more = {"groups": groups, "order": order}
    settings = {"path": place, **{name: value for name, value in more.items() if value is not None}}
    return "\n".join(
        [
            "# A job of bnp-dask, which trains as it is; paths are relative to this file.",
            f"# {source.name}: {_size_of(source, product)}",
            "model:",
            *(f"  {line}" for line in _model(source, groups, product)),
            f"data: {_inline(settings)}",
            "# schedule: {type: Memoized, laps: 50}    # passes over the data at most; it stops when it has converged",
            "# init, moves: left out, the defaults of the model; moves: [] keeps the number of clusters of the start",
            "# client: {workers: 2}                     # processes to start; left out: this one, without Dask",
            "store: runs/first                          # results and checkpoints; 'bnp-dask resume' goes on",
            "rng: 0                                     # the same number gives the same bits",
            "",
        ]
    )


def _proposed(data: str, source: Source) -> Product | None:
    """Likelihoods of the columns of a table file, by :meth:`bnp_dask.Product.of`; None if one Gaussian does."""
    columns = columns_of(source)
    if columns is None:
        return None
    try:
        found = Product.of(data)
    except DataError:  # a folder of tables, or no column to learn from
        return None
    ((names, part), *others) = _groups(found)
    is_one = not others and isinstance(part, Gaussian) and not marginalises(part)
    return None if is_one and len(names.split(",")) == source.n_features else found


def _model(source: Source, groups: str | None, product: Product | None) -> list[str]:
    """Lines of the model for a source; ``product`` holds likelihoods by column."""
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
    if product is not None:
        return [
            "allocation: DPMixture                    # clusters of rows; their number is learned",
            "observation:                             # a likelihood for each kind of column",
            "  type: Product",
            "  groups:",
            *(f"    {_inline(names)}: {_inline(_settings(part))}" for names, part in _groups(product)),
            *(["  others: ignore                         # columns left out"] if product.others else []),
        ]
    return [
        "allocation: DPMixture                    # clusters of rows; their number is learned",
        "observation: Gaussian                    # DiagGaussian for many features",
    ]


def _groups(product: Product) -> list[tuple[str, Observation]]:
    """Names of the columns of each group, and its likelihood."""
    return [(key if isinstance(key, str) else ", ".join(key), part) for key, part in product.pairs]


def _settings(part: Observation) -> str | dict[str, str]:
    """A proposed likelihood as a job file has it."""
    name = type(part).__name__
    return {"type": name, "missing": "marginalise"} if marginalises(part) else name


def _size_of(source: Source, product: Product | None) -> str:
    n = source.n_atoms
    d = source.n_features if product is None else sum(len(names.split(",")) for names, _ in _groups(product))
    return f"{'?' if n is None else format(n, ',')} rows, {d:,} features"


def _inline(settings: str | dict[str, str]) -> str:
    text = yaml.safe_dump(settings, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()
