"""Every kind of model with every kind of data, weights and groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from tests.faults.absurd.kinds import KINDS, OFFSETS, ROWS, fit, plain_data
from tests.faults.absurd.making import (
    Transform,
    arrow,
    as_is,
    broken,
    cut,
    frame,
    lazy,
    masked,
    put,
    readonly,
    stored,
    strided,
    unaligned,
)
from tests.faults.absurd.outcomes import ANY, REFUSE, SAME, Case

DENSE: dict[str, Transform] = {
    "nan": (REFUSE, lambda x: put(x, np.nan), None),
    "inf": (REFUSE, lambda x: put(x, -np.inf), None),
    "none": (REFUSE, lambda x: put(x, None, object), None),
    "1e200": (REFUSE, lambda x: put(x, 1e200), None),
    "1e160": (REFUSE, lambda x: put(x, -1e160), None),
    "times 1e-155": (REFUSE, lambda x: x * 1e-155, None),
    "times 1e-170": (REFUSE, lambda x: x * 1e-170, None),
    "times 1e160": (REFUSE, lambda x: x * 1e160, None),
    "denormal": (REFUSE, lambda x: x * 1e-310, None),
    "one column times 1e-200": (REFUSE, lambda x: x * np.array([1e-200, *[1.0] * (x.shape[1] - 1)]), None),
    "2**53 + 1": (REFUSE, lambda x: put(x * 0, 2**53 + 1, np.int64), None),
    "unsigned 2**64 - 1": (REFUSE, lambda x: put(x * 0, 2**64 - 1, np.uint64), None),
    "masked": (REFUSE, masked, None),
    "masked integers": (REFUSE, lambda x: masked(x.astype(int)), None),
    "complex": (REFUSE, lambda x: x.astype(complex), None),
    "objects": (REFUSE, lambda x: x.astype(object), None),
    "text": (REFUSE, lambda x: x.astype(str), None),
    "bytes": (REFUSE, lambda x: x.astype("S"), None),
    "dates": (REFUSE, lambda x: np.abs(x).astype(int).astype("M8[s]"), None),
    "spans": (REFUSE, lambda x: np.abs(x).astype(int).astype("m8[s]"), None),
    "records": (REFUSE, lambda x: np.array([(1.0, 2)] * len(x), [("a", float), ("b", int)]), None),
    "one axis": (REFUSE, lambda x: x[:, 0], None),
    "three axes": (REFUSE, lambda x: x[:, :, None], None),
    "no axes": (REFUSE, lambda x: np.array(3.0), None),
    "no rows": (REFUSE, lambda x: x[:0], None),
    "no columns": (REFUSE, lambda x: x[:, :0], None),
    "ragged": (REFUSE, lambda x: [[1.0], [2.0, 3.0]], None),
    "a generator": (REFUSE, lambda x: (row for row in x), None),
    "a dict": (REFUSE, lambda x: {"x": x}, None),
    "a set": (REFUSE, lambda x: {1.0, 2.0}, None),
    "a number": (REFUSE, lambda x: 5, None),
    "nothing": (REFUSE, lambda x: None, None),
    "no such file": (REFUSE, lambda x: "no/such/file.npy", None),
    "an empty name": (REFUSE, lambda x: "", None),
    "NUL in a name": (REFUSE, lambda x: "a\0.npy", None),
    "a long name": (REFUSE, lambda x: "a" * 5000, None),
    "a folder": (REFUSE, lambda x: ".", None),
    "an unknown protocol": (REFUSE, lambda x: "nonsense://bucket/x.zarr", None),
    "a model": (REFUSE, lambda x: bnp.DPMixture(), None),
    "a class": (REFUSE, lambda x: np.ndarray, None),
    "npy cut short": (REFUSE, lambda x: cut(stored(x, ".npy")), None),
    "npz cut short": (REFUSE, lambda x: cut(stored(x, ".npz")), None),
    "parquet cut short": (REFUSE, lambda x: cut(stored(x, ".parquet")), None),
    "zarr cut short": (REFUSE, lambda x: cut(stored(x, ".zarr")), None),
    "frame with nulls": (REFUSE, lambda x: frame(x, c1=[None, *x[1:, 1]]), None),
    "frame of text": (REFUSE, lambda x: frame(x).astype(str), None),
    "frame, two columns of a name": (REFUSE, lambda x: frame(x).rename(columns={"c0": "c1"}), None),
    "frame without rows": (REFUSE, lambda x: frame(x)[:0], None),
    "chunks shorter than they say": (REFUSE, lambda x: lazy(x[:33], 11, shape=(12, x.shape[1])), None),
    "chunks longer than they say": (REFUSE, lambda x: lazy(x, 12, shape=(11, x.shape[1])), None),
    "chunks of more columns than they say": (REFUSE, lambda x: lazy(x, 12, shape=(12, x.shape[1] - 1)), None),
    "chunks of text": (REFUSE, lambda x: lazy(x.astype(str), 12), None),
    "chunks of NaN": (REFUSE, lambda x: lazy(put(x, np.nan), 12), None),
    "masked chunks": (REFUSE, lambda x: lazy(masked(x), 12), None),
    "a dask array of one axis": (REFUSE, lambda x: lazy(x, 12)[:, 0], None),
    "float32": (SAME, lambda x: x.astype("f4"), lambda x: x.astype("f4")),
    "float16": (SAME, lambda x: x.astype("f2"), lambda x: x.astype("f2")),
    "big-endian": (SAME, lambda x: x.astype(">f8"), as_is),
    "long doubles": (SAME, lambda x: x.astype(np.longdouble), as_is),
    "whole numbers": (SAME, lambda x: np.round(x).astype("i2"), np.round),
    "by column": (SAME, np.asfortranarray, as_is),
    "strided": (SAME, strided, as_is),
    "backwards": (SAME, lambda x: x[::-1][::-1], as_is),
    "read-only": (SAME, readonly, as_is),
    "unaligned": (SAME, unaligned, as_is),
    "np.matrix": (SAME, lambda x: np.asmatrix(x), as_is),
    "mask of nothing": (SAME, lambda x: np.ma.masked_array(x), as_is),
    "lists": (SAME, lambda x: x.tolist(), as_is),
    "tuples": (SAME, lambda x: tuple(map(tuple, x.tolist())), as_is),
    "memory map": (SAME, lambda x: np.load(stored(x, ".npy"), mmap_mode="r"), as_is),
    "negative zeros": (SAME, lambda x: np.where(x == 0, -0.0, x), as_is),
    "frame": (SAME, frame, as_is),
    "nullable frame": (SAME, lambda x: frame(x).convert_dtypes(), as_is),
    "Arrow table": (SAME, arrow, as_is),
    "npy": (SAME, lambda x: stored(x, ".npy"), as_is),
    "npz": (SAME, lambda x: stored(x, ".npz"), as_is),
    "zarr": (SAME, lambda x: stored(x, ".zarr"), as_is),
    "parquet": (SAME, lambda x: stored(x, ".parquet"), as_is),
    "csv": (SAME, lambda x: stored(x, ".csv"), as_is),
    "a Path": (SAME, lambda x: Path(stored(x, ".npy")), as_is),
    "dask array": (SAME, lambda x: lazy(x, 36), as_is),
    "one row": (ANY, lambda x: x[:1], None),
    "two rows": (ANY, lambda x: x[:2], None),
    "one column": (ANY, lambda x: x[:, :1], None),
    "all rows equal": (ANY, lambda x: np.repeat(x[:1], len(x), axis=0), None),
    "a constant column": (ANY, lambda x: np.hstack([x[:, :-1], np.full((len(x), 1), 3.0)]), None),
    "a column twice": (ANY, lambda x: np.hstack([x[:, :-1], x[:, :1]]), None),
    "zeros": (ANY, lambda x: np.zeros_like(x), None),
    "negative": (ANY, lambda x: -x, None),
    "fractions": (ANY, lambda x: x / 3, None),
    "1e15": (ANY, lambda x: put(x, 1e15), None),
    "far offset": (ANY, lambda x: x + 1e15, None),
    "2**40": (ANY, lambda x: put(np.round(np.abs(x)), 2**40), None),
    "bool": (ANY, lambda x: x > 0, None),
}

SPARSE: dict[str, Transform] = {
    **{
        f"{kind}, {part}[{place}] = {value}": (
            REFUSE, lambda x, k=kind, p=part, i=place, v=value: broken(x, p, i, v, k), None
        )
        for kind in ("csr", "csc", "bsr")
        for part, place, value in (
            ("indptr", 3, 99_999), ("indptr", 2, -1), ("indptr", -1, 2**31 - 1), ("indptr", 0, 5),
            ("indices", 4, 10**6), ("indices", 4, -1),
        )
    },
    "stored nan": (REFUSE, lambda x: sparse.csr_array(put(x, np.nan)), None),
    "stored -1": (REFUSE, lambda x: sparse.csr_array(put(x, -1.0)), None),
    "stored 0.5": (REFUSE, lambda x: sparse.csr_array(put(x, 0.5)), None),
    "stored 1e16": (REFUSE, lambda x: sparse.csr_array(put(x, 1e16)), None),
    "stored 2**53 + 1": (REFUSE, lambda x: sparse.csr_array(put(x, 2**53 + 1, np.int64)), None),
    "complex counts": (REFUSE, lambda x: sparse.csr_array(x * 1j), None),
    "a vocabulary of 2**45": (
        REFUSE, lambda x: sparse.csr_array((np.ones(36), (range(36), range(2**44, 2**44 + 36))), (36, 2**45)), None
    ),
    **{
        kind: (SAME, lambda x, k=kind: sparse.coo_array(x).asformat(k), as_is)
        for kind in ("csr", "csc", "coo", "lil", "dok", "dia", "bsr")
    },
    "csr_matrix": (SAME, sparse.csr_matrix, as_is),
    "8-bit counts": (SAME, lambda x: sparse.csr_array(x.astype("i1")), as_is),
    "counts in two halves": (
        SAME, lambda x: sparse.csr_array(sparse.coo_array(
            (np.tile(x.ravel(), 2).astype("i1"), np.tile(np.indices(x.shape).reshape(2, -1), 2)), x.shape
        )), lambda x: 2 * x
    ),
    "explicit zeros": (
        SAME, lambda x: sparse.csr_array((x.ravel(), np.indices(x.shape).reshape(2, -1)), x.shape), as_is
    ),
}  # fmt: skip


def data_cases() -> Iterator[Case]:
    """Every kind of model with every kind of data, dense or sparse, through ``train``."""
    for name, kind in KINDS.items():
        table = {**DENSE, **SPARSE} if name in ("Multinomial", "Poisson", "LDA", "HDPTopics") else DENSE
        for what, (wanted, make, plain) in table.items():
            wanted = ANY if depends(name, what) else wanted
            if kind.is_sparse and what in DENSE:
                wanted = REFUSE if wanted == REFUSE else ANY
            compare = None
            if wanted == SAME and plain is not None:
                compare = lambda k=kind, p=plain: fit(k, plain_data(k, p(k.x)))  # noqa: E731
            yield Case(f"{name} <- {what}", lambda k=kind, m=make: fit(k, m(k.x)), wanted, compare)


def depends(name: str, what: str) -> bool:
    """Whether it depends on the likelihood what numbers mean."""
    whole = name in ("Bernoulli", "Poisson", "Multinomial", "LDA", "HDPTopics")
    if what in ("whole numbers", "float16", "float32") or (name == "AutoRegressiveGaussian" and what == "zeros"):
        return True
    return whole and what in ("times 1e-155", "times 1e-170", "denormal", "one column times 1e-200")


N = len(ROWS)
WEIGHTS: dict[str, tuple[str, Any]] = {
    "negative": (REFUSE, -np.ones(N)),
    "one negative": (REFUSE, np.r_[np.ones(N - 1), -1e-300]),
    "nan": (REFUSE, np.r_[np.ones(N - 1), np.nan]),
    "inf": (REFUSE, np.r_[np.ones(N - 1), np.inf]),
    "all zero": (REFUSE, np.zeros(N)),
    "too few": (REFUSE, np.ones(N - 1)),
    "too many": (REFUSE, np.ones(N + 1)),
    "none at all": (REFUSE, np.ones(0)),
    "two axes": (REFUSE, np.ones((N, 1))),
    "a number": (REFUSE, 2.0),
    "text": (REFUSE, ["1"] * N),
    "objects": (REFUSE, np.ones(N, object)),
    "complex": (REFUSE, np.ones(N) * 1j),
    "masked": (REFUSE, np.ma.masked_array(np.ones(N), np.arange(N) == 3)),
    "2**53 + 1": (REFUSE, np.r_[np.ones(N - 1, int), 2**53 + 1]),
    "1e300": (REFUSE, np.full(N, 1e300)),
    "1e-300": (REFUSE, np.full(N, 1e-300)),
    "a column that is none": (REFUSE, "w"),
    "a file that is none": (REFUSE, "w.npy"),
    "a dict": (REFUSE, {"w": 1}),
    "a list": (SAME, [2.0] * N),
    "integers": (SAME, np.full(N, 2, np.int8)),
    "float32": (SAME, np.full(N, 2, np.float32)),
    "bool": (ANY, np.arange(N) % 2 == 0),
    "tiny": (ANY, np.full(N, 1e-7)),
    "large": (ANY, np.full(N, 1e13)),
    "some zero": (ANY, np.repeat([0.0, 1.0, 3.0], N // 3)),
}

RATINGS = np.repeat([1.5, np.nan, -2.0], N // 3)

LABELS: dict[str, tuple[str, Any]] = {
    "all unknown": (REFUSE, np.full(N, -1)),
    "too few": (REFUSE, np.zeros(N - 1, int)),
    "too many": (REFUSE, np.zeros(N + 1, int)),
    "none at all": (REFUSE, np.zeros(0, int)),
    "two axes": (REFUSE, np.zeros((N, 1), int)),
    "a number": (REFUSE, 2),
    "a name": (REFUSE, "label"),
    "a file that is none": (REFUSE, "labels.npy"),
    "fractions": (REFUSE, np.full(N, 0.5)),
    "inf": (REFUSE, np.r_[np.zeros(N - 1), np.inf]),
    "1e300": (REFUSE, np.r_[np.zeros(N - 1), 1e300]),
    "2**64 - 1": (REFUSE, np.r_[np.zeros(N - 1, np.uint64), np.array([2**64 - 1], np.uint64)]),
    "10**400": (REFUSE, [0] * (N - 1) + [10**400]),
    "complex": (REFUSE, np.zeros(N) * 1j),
    "bytes": (REFUSE, np.array([b"a"] * N)),
    "dates": (REFUSE, np.zeros(N, "M8[s]")),
    "lists": (REFUSE, [[0]] * (N - 1) + [[0, 1]]),
    "texts and numbers": (REFUSE, ["a"] * (N - 1) + [1]),
    "a dict": (REFUSE, {"a": 1}),
    "a set": (REFUSE, {0, 1}),
    "masked": (SAME, np.ma.masked_array(np.repeat([0, 5, 1], N // 3), np.repeat([0, 1, 0], N // 3))),
    "floats": (SAME, np.repeat([0.0, np.nan, 1.0], N // 3)),
    "big-endian": (SAME, np.repeat([0, -1, 1], N // 3).astype(">i2")),
    "texts": (SAME, ["a"] * (N // 3) + [None] * (N // 3) + ["b"] * (N // 3)),
    "a tuple": (SAME, tuple([0] * (N // 3) + [-1] * (N // 3) + [1] * (N // 3))),
    "all one": (ANY, np.zeros(N, int)),
    "all different": (ANY, np.arange(N)),
    "one of each": (ANY, np.r_[0, 1, np.full(N - 2, -1)]),
    "bool": (ANY, np.arange(N) % 2 == 0),
    "apart": (ANY, np.repeat([0, -1, 2**62], N // 3)),
}

RESPONSES: dict[str, tuple[str, Any]] = {
    "all unknown": (REFUSE, np.full(N, np.nan)),
    "too few": (REFUSE, np.zeros(N - 1)),
    "too many": (REFUSE, np.zeros(N + 1)),
    "none at all": (REFUSE, np.zeros(0)),
    "two axes": (REFUSE, np.zeros((N, 1))),
    "a number": (REFUSE, 2.0),
    "a name": (REFUSE, "rating"),
    "a file that is none": (REFUSE, "y.npy"),
    "inf": (REFUSE, np.r_[np.zeros(N - 1), np.inf]),
    "1e200": (REFUSE, np.r_[np.zeros(N - 1), 1e200]),
    "10**400": (REFUSE, [0] * (N - 1) + [10**400]),
    "complex": (REFUSE, np.zeros(N) * 1j),
    "dates": (REFUSE, np.zeros(N, "M8[s]")),
    "lists": (REFUSE, [[0.0]] * (N - 1) + [[0.0, 1.0]]),
    "texts": (REFUSE, ["good"] * N),
    "a dict": (REFUSE, {"a": 1}),
    "a set": (REFUSE, {0, 1}),
    "masked": (SAME, np.ma.masked_array(RATINGS, np.isnan(RATINGS))),
    "objects": (SAME, [None if np.isnan(r) else r for r in RATINGS]),
    "big-endian": (SAME, RATINGS.astype(">f8")),
    "a tuple": (SAME, tuple(RATINGS.tolist())),
    "all one": (ANY, np.zeros(N)),
    "one known": (ANY, np.r_[3.0, np.full(N - 1, np.nan)]),
    "1e150": (ANY, 1e150 * RATINGS),
    "1e-150": (ANY, 1e-150 * RATINGS),
    "far from zero": (ANY, 1e9 + RATINGS),
    "denormal": (ANY, 1e-310 * RATINGS),
    "bool": (ANY, np.arange(N) % 2 == 0),
}

CLASSES: dict[str, tuple[str, Any]] = {
    "all of one class": (REFUSE, np.zeros(N, int)),
    "texts and numbers": (REFUSE, ["a"] * (N - 1) + [1]),
    "fractions": (REFUSE, np.full(N, 0.5)),
    "all different": (ANY, np.arange(N)),
    "one of each": (ANY, np.r_[0, 1, np.full(N - 2, -1)]),
    "apart": (ANY, np.repeat([0, -1, 2**62], N // 3)),
}

GROUPS: dict[str, tuple[str, Any]] = {
    "falling": (REFUSE, [0, 24, 12, 36]),
    "not from 0": (REFUSE, [1, 12, 36]),
    "not to the end": (REFUSE, [0, 12, 35]),
    "beyond the end": (REFUSE, [0, 12, 37]),
    "fractions": (REFUSE, [0, 12.5, 36]),
    "nan": (REFUSE, [0, np.nan, 36]),
    "text": (REFUSE, ["0", "36"]),
    "a name": (REFUSE, "sequence"),
    "a number": (REFUSE, 36),
    "one offset": (REFUSE, [0]),
    "none": (REFUSE, []),
    "two axes": (REFUSE, [[0, 36]]),
    "huge": (REFUSE, [0, 2**63 - 1, 36]),
    "unsigned": (REFUSE, np.array([0, 2**64 - 1, 36], np.uint64)),
    "masked": (REFUSE, np.ma.masked_array([0, 12, 36], [0, 1, 0])),
    "objects": (REFUSE, np.array([0, None, 36], object)),
    "complex": (REFUSE, np.array([0, 12j, 36])),
    "one sequence": (ANY, [0, 36]),
    "every row one": (ANY, list(range(37))),
    "floats": (SAME, OFFSETS.astype(float)),
    "a tuple": (SAME, tuple(OFFSETS.tolist())),
    "with empty ones": (ANY, [0, 0, 12, 12, 36, 36]),
}


def weight_cases() -> Iterator[Case]:
    for name in ("Gaussian", "Multinomial", "HDPTopics", "HDPHMM", "topics of rows"):
        kind = KINDS[name]
        for what, (wanted, value) in WEIGHTS.items():
            plain = (lambda k=kind: fit(k, plain_data(k), weights=np.full(N, 2.0))) if wanted == SAME else None
            yield Case(
                f"{name}, weights {what}", lambda k=kind, v=value: fit(k, plain_data(k), weights=v), wanted, plain
            )
    for name in ("FiniteHMM", "HDPHMM", "topics of rows"):
        kind = KINDS[name]
        for what, (wanted, value) in GROUPS.items():
            plain = (lambda k=kind: fit(k, plain_data(k))) if wanted == SAME else None
            yield Case(f"{name}, groups {what}", lambda k=kind, v=value: fit(k, plain_data(k), groups=v), wanted, plain)
    for name in ("Gaussian", "Multinomial", "HDPHMM", "FiniteHMT", "HDPTopics"):
        kind = KINDS[name]
        for what, (wanted, value) in LABELS.items():
            refused, compare = name == "HDPTopics", None
            if wanted == SAME and not refused:
                compare = lambda k=kind: fit(k, plain_data(k), labels=np.repeat([0, -1, 1], N // 3))  # noqa: E731
            yield Case(
                f"{name}, labels {what}",
                lambda k=kind, v=value: fit(k, plain_data(k), labels=v),
                REFUSE if refused else wanted,
                compare,
            )
    kind = KINDS["HDPTopics"]
    for what, (wanted, value) in RESPONSES.items():
        plain = (lambda: fit(kind, plain_data(kind), responses=RATINGS)) if wanted == SAME else None
        yield Case(
            f"HDPTopics, responses {what}", lambda v=value: fit(kind, plain_data(kind), responses=v), wanted, plain
        )
    model = bnp.Model(bnp.HDPTopics(response=bnp.CategoricalResponse()), bnp.Multinomial())
    for what, (wanted, value) in CLASSES.items():
        yield Case(
            f"HDPTopics, classes {what}", lambda v=value: fit(kind, plain_data(kind), model=model, responses=v), wanted
        )
