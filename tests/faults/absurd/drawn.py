"""Bad inputs that hypothesis makes up: arrays of any type in any container, and any value for any setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import sparse

from tests.faults.absurd.kinds import KINDS, OFFSETS, ROWS, Kind, fit, plain_data
from tests.faults.absurd.making import frame, lazy, masked, readonly, stored, strided
from tests.faults.absurd.outcomes import ANY, Case
from tests.faults.absurd.settings import HOLDERS, NEEDED, brief

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = st.one_of(npst.floating_dtypes(), npst.integer_dtypes(), npst.unsigned_integer_dtypes(), npst.scalar_dtypes())
ARRAYS = npst.arrays(TYPES, st.one_of(npst.array_shapes(min_dims=2, max_dims=2, max_side=9), npst.array_shapes()))
NUMBERS = npst.arrays(
    np.float64, (36, 3), elements=st.one_of(st.floats(-100.0, 100.0), st.floats(allow_nan=False)), fill=st.just(1.0)
)
VECTORS = npst.arrays(TYPES, npst.array_shapes(max_dims=1, min_side=3, max_side=36))


def native(x: np.ndarray, least: int = 0) -> np.ndarray:
    """In the byte order that libraries take, and float64 where numbers are of so few bytes."""
    return x.astype(float if x.dtype.itemsize <= least else x.dtype.newbyteorder("="))


CONTAINERS: dict[str, Callable[[np.ndarray], Any]] = {
    "as it is": lambda x: x,
    "lists": lambda x: x.tolist(),
    "frame": frame,
    "csr": lambda x: sparse.csr_array(native(x, 2)),
    "dask": lambda x: lazy(x, len(x), dtype=x.dtype),
    "masked": masked,
    "strided": strided,
    "read-only": readonly,
    "npy": lambda x: stored(x, ".npy"),
    "parquet": lambda x: stored(native(x), ".parquet"),
}


@st.composite
def data_case(draw: Any) -> Case:
    """Some array in some container for some model; if it is taken, then as its numbers in float64 would be."""
    name, holder = draw(st.sampled_from(list(KINDS))), draw(st.sampled_from(list(CONTAINERS)))
    kind, x = KINDS[name], draw(st.one_of(ARRAYS, NUMBERS))
    if x.ndim != 2 or x.dtype.kind not in "iuf":
        holder = "as it is"
    more = {} if kind.groups is None else {"groups": [0, len(x)] if x.ndim else [0]}

    def plain() -> float:
        return fit(kind, plain_data(kind, np.array(x, np.float64)), **more)

    said = f"{name} <- {holder}: {x.dtype} {x.shape} {brief(x.tolist())}"
    return Case(said, lambda: fit(kind, CONTAINERS[holder](x), **more), ANY, plain)


@st.composite
def beside_case(draw: Any) -> Case:
    """Any value for the weights or groups of good data."""
    name, what = (
        draw(st.sampled_from(["Gaussian", "HDPHMM", "topics of rows"])),
        draw(st.sampled_from(["weights", "groups"])),
    )
    value = draw(st.one_of(VALUES, VECTORS))
    kind: Kind = KINDS[name]

    def run() -> float:
        given = {"groups": OFFSETS} if kind.groups is not None else {}
        return fit(kind, ROWS, **{**given, what: value})

    return Case(f"{name}, {what}={brief(value)}", run)


@st.composite
def setting_case(draw: Any) -> Case:
    """Any value for any setting."""
    name = draw(st.sampled_from(list(HOLDERS)))
    cls, use = HOLDERS[name]
    field = draw(st.sampled_from([f.name for f in fields(cls) if f.init]))
    value = draw(st.one_of(VALUES, ARRAYS))
    needed = {f.name: NEEDED[f.name] for f in fields(cls) if f.name in NEEDED and f.name != field}
    return Case(f"{name}({field}={brief(value)})", lambda: use(cls(**needed, **{field: value})), names=(field, name))


def draw(number: int, start: int, tell: Callable[[Case], None]) -> None:
    """Run so many cases, from a seed."""

    @seed(start)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(data_case(), beside_case(), setting_case()))
    def run(case: Case) -> None:
        tell(case)

    run()
