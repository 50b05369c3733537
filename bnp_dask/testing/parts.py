"""Parts of the shipped suites."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

import numpy as np
from numpy.testing import assert_allclose

from bnp_dask.core import Batch, Summary, Survey
from bnp_dask.kernels.mixture.resp import Resp, SparseResp

NO_PAIRS = np.zeros((0, 2), np.int64)


def survey_of(batch: Batch) -> Survey:
    """Survey of one batch held in memory (counts are made dense: for tests only)."""
    x = batch.x if isinstance(batch.x, np.ndarray) else batch.x.toarray()
    weights = np.ones(len(x)) if batch.weights is None else batch.weights
    mean = np.average(x, axis=0, weights=weights)
    return Survey(
        n_atoms=batch.n_atoms,
        total_weight=batch.total_weight,
        mean=mean,
        variance=np.average((x - mean) ** 2, axis=0, weights=weights),
        minimum=x.min(axis=0),
        maximum=x.max(axis=0),
        is_sparse=batch.is_sparse,
        nbytes=batch.nbytes,
        batch_atoms=(batch.n_atoms,),
        batch_bytes=(batch.nbytes,),
        checksums=(0,),
    )


def random_resp(rng: np.random.Generator, n_atoms: int, n_clusters: int) -> np.ndarray:
    """Uneven responsibilities, ``(n, K)``."""
    return rng.dirichlet(np.full(n_clusters, 0.3), size=n_atoms)


def sparse_resp(resp: np.ndarray, top: int) -> SparseResp:
    """The ``top`` largest entries of each row, normalised, as the kernels hold them."""
    index = np.sort(np.argsort(-resp, axis=1)[:, :top], axis=1)
    value = np.take_along_axis(resp, index, axis=1)
    return SparseResp(index, value / value.sum(axis=1, keepdims=True), resp.shape[1])


def assert_stationary_maximum(objective: Any, best: Summary, other: Summary) -> None:
    """``objective(summary)`` falls on the way from ``best`` to ``other``, at first with the square of the step."""
    top = objective(best)
    drop = {step: top - objective(best.scale(1 - step) + other.scale(step)) for step in (0.02, 0.01)}
    slack = 1e-10 * max(1.0, abs(top))
    assert min(drop.values()) >= -slack
    if drop[0.01] > 1e3 * slack:
        assert 3.0 < drop[0.02] / drop[0.01] < 5.0, "the gradient is not zero: this is not the optimum"


def to_dense(resp: Resp) -> np.ndarray:
    return resp if isinstance(resp, np.ndarray) else resp.to_dense()


def assert_close(a: Summary, b: Summary) -> None:
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        scale = np.max(np.abs(b[name]), initial=1.0)
        assert_allclose(value, b[name], rtol=1e-10, atol=1e-11 * scale, err_msg=name)


def leaves(part: Any, path: str = ""):
    """Paths and values of all settings in nested dataclasses and tuples."""
    if isinstance(part, tuple):
        for i, item in enumerate(part):
            yield from leaves(item, f"{path}[{i}]")
    elif is_dataclass(part):
        for field in dataclass_fields(part):
            yield from leaves(getattr(part, field.name), f"{path}.{field.name}")
    else:
        yield path, part
