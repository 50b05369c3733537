"""Every setting of every class with values that nobody means there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation.levy import GeneralizedGamma
from bnp_dask.execute import SerialExecutor
from tests.faults.absurd.kinds import COUNTS, IN_STRATA, KINDS, ROWS, finite, fit, posterior_of
from tests.faults.absurd.outcomes import ANY, REFUSE, Case

VALUES: list[Any] = [
    0, -1, 1, 2, 3, 0.0, -0.5, 0.5, 1.5, 1e-310, 1e-200, 1e-30, 1e12, 1e30, 1e300, 2**31, 2**53, 10**18, 10**400,
    -(10**400), float("nan"), float("inf"), -float("inf"), True, False, np.bool_(True), None, "", "3", "nonsense", b"3",
    1j, [], [1.0], [1, 2, 3], (), {}, {"a": 1}, set(), np.float32(0.5), np.int8(3), np.float64(1e300), np.array(2.0),
    np.array([1.0, np.nan, 2.0]), np.array([1.0, 2.0, 3.0]), np.eye(3), -np.eye(3), np.ones((2, 2)), np.zeros(3),
    np.full(3, 1e300), np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), np.array([True, False, True]),
    np.array(["a", "b", "c"]), object(), int, lambda: 1, [[1.0], [2.0, 3.0]], range(3), Path("x"),
]  # fmt: skip


def one_pass(schedule: Any, allocation: Any) -> float:
    """The log predictive density of rows, in clusters far apart, that a schedule of streams saw."""
    model = bnp.Model(allocation, bnp.DiagGaussian())
    result = bnp.train(model, 10 * np.round(ROWS) + ROWS, schedule=schedule, batch_size=12, client=SerialExecutor(0))
    return finite(result.history[-1]["elbo"])


HOLDERS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "DPMixture": (bnp.DPMixture, lambda a: fit(KINDS["Gaussian"], ROWS, model=bnp.Model(a, bnp.DiagGaussian()))),
    "FiniteMixture": (bnp.FiniteMixture, lambda a: fit(KINDS["Gaussian"], ROWS, model=bnp.Model(a, bnp.Gaussian()))),
    "LDA": (bnp.LDA, lambda a: fit(KINDS["LDA"], sparse.csr_array(COUNTS), model=bnp.Model(a, bnp.Multinomial()))),
    "HDPTopics": (
        bnp.HDPTopics, lambda a: fit(KINDS["LDA"], sparse.csr_array(COUNTS), model=bnp.Model(a, bnp.Multinomial()))
    ),
    "DocumentStep": (
        bnp.DocumentStep,
        lambda s: fit(
            KINDS["LDA"], sparse.csr_array(COUNTS), model=bnp.Model(bnp.HDPTopics(step=s), bnp.Multinomial())
        ),
    ),
    "PitmanYorMixture": (
        bnp.PitmanYorMixture, lambda a: fit(KINDS["Gaussian"], ROWS, model=bnp.Model(a, bnp.DiagGaussian()))
    ),
    "NGGPMixture": (bnp.NGGPMixture, lambda a: one_pass(bnp.Filter(), a)),
    "NRMMixture": (bnp.NRMMixture, lambda a: one_pass(bnp.Filter(), a)),
    "GeneralizedGamma": (GeneralizedGamma, lambda i: one_pass(bnp.Filter(), bnp.NRMMixture(i))),
    "Filter": (bnp.Filter, lambda s: one_pass(s, bnp.DPMixture())),
    "ExpectationPropagation": (bnp.ExpectationPropagation, lambda s: one_pass(s, bnp.DPMixture())),
    "TruncationFreeSVI": (bnp.TruncationFreeSVI, lambda s: one_pass(s, bnp.DPMixture())),
    "StrataMixture": (
        bnp.StrataMixture,
        lambda a: fit(KINDS["StrataMixture"], IN_STRATA, model=replace(KINDS["StrataMixture"].model(), allocation=a)),
    ),
    "GaussianResponse": (
        bnp.GaussianResponse,
        lambda r: fit(
            KINDS["LDA"], sparse.csr_array(COUNTS), model=bnp.Model(bnp.LDA(response=r), bnp.Multinomial()),
            responses=COUNTS[:, 0],
        ),
    ),
    "FromSample": (
        bnp.FromSample,
        lambda i: fit(
            KINDS["DiagGaussian"], ROWS, init=i, schedule=bnp.Memoized(laps=2), batch_size=6
        ),
    ),
    "VirtualTopics": (bnp.VirtualTopics, lambda v: finite(v.reader(0)().x.sum())),
    "VirtualMixture": (bnp.VirtualMixture, lambda v: finite(v.reader(0)().x.sum())),
    "FiniteHMM": (bnp.FiniteHMM, lambda a: fit(KINDS["HDPHMM"], ROWS, model=bnp.Model(a, bnp.DiagGaussian()))),
    "HDPHMM": (bnp.HDPHMM, lambda a: fit(KINDS["HDPHMM"], ROWS, model=bnp.Model(a, bnp.DiagGaussian()))),
    "FiniteHMT": (bnp.FiniteHMT, lambda a: fit(KINDS["FiniteHMT"], ROWS, model=bnp.Model(a, bnp.DiagGaussian()))),
    **{
        name: (getattr(bnp, name), lambda o, n=name: fit(KINDS[n], KINDS[n].x, model=bnp.Model(bnp.DPMixture(), o)))
        for name in (
            "Gaussian", "DiagGaussian", "FixedVarianceGaussian", "ZeroMeanGaussian", "Bernoulli", "Poisson",
            "Multinomial", "AutoRegressiveGaussian", "Product",
        )
    },
    **{
        name: (getattr(bnp, name), lambda s: fit(KINDS["DiagGaussian"], ROWS, schedule=s, batch_size=12))
        for name in ("Memoized", "FullBatch", "Stochastic")
    },
    **{
        name: (getattr(bnp, name), lambda i: fit(KINDS["DiagGaussian"], ROWS, init=i))
        for name in ("BregmanKMeans", "KMeansParallel", "RandomExamples", "Responsibilities", "FromPosterior")
    },
    "ContiguousBlocks": (bnp.ContiguousBlocks, lambda i: fit(KINDS["HDPHMM"], ROWS, init=i)),
    **{
        name: (getattr(bnp, name), lambda i: fit(KINDS["HDPTopics"], sparse.csr_array(COUNTS), init=i))
        for name in ("AnchorWords", "SampledTopics")
    },
    **{
        name: (
            getattr(bnp, name),
            lambda m: fit(KINDS["HDPHMM"], ROWS, moves=[m], schedule=bnp.Memoized(laps=3, window=2)),
        )
        for name in ("Birth", "Merge", "Delete")
    },
    "DocumentBirth": (
        bnp.DocumentBirth,
        lambda m: fit(KINDS["HDPTopics"], sparse.csr_array(COUNTS), moves=[m], schedule=bnp.Memoized(laps=3, window=2)),
    ),
    "Completion": (
        bnp.Completion, lambda c: finite(bnp.score(posterior_of("HDPTopics"), sparse.csr_array(COUNTS), completion=c))
    ),
    "Model": (bnp.Model, lambda m: fit(KINDS["DiagGaussian"], ROWS, model=m)),
    "Patches": (bnp.Patches, repr),
    "Text": (bnp.Text, lambda t: bnp.ingest([("a", "some common words"), ("b", "some words")], "t.zarr", text=t,
                                            overwrite=True).n_atoms),
}  # fmt: skip

NEEDED = {
    "n_clusters": 2, "n_rows": 50, "n_columns": 2, "allocation": bnp.DPMixture(), "observation": bnp.DiagGaussian(),
    "resp": np.arange(len(ROWS)) % 2, "groups": {"0:3": bnp.Gaussian()},
}  # fmt: skip
"""Settings without a default."""


def must_refuse(kind: str, value: Any, default: Any) -> bool:
    """Whether a value cannot be meant where the annotation says so."""
    number = "float" in kind or "int" in kind
    if isinstance(value, (bool, np.bool_)):
        return "bool" not in kind
    if value is None:
        return "None" not in kind and default is not None
    if isinstance(value, (str, bytes)):
        return "str" not in kind and "Literal" not in kind and "Mapping" not in kind and "Any" not in kind
    if number and isinstance(value, float) and not np.isfinite(value):
        return True
    return (number and isinstance(value, (complex, dict, set, type))) or (number and type(value) is object)


def setting_cases() -> Iterator[Case]:
    """Every setting of every class with every value."""
    for name, (cls, use) in HOLDERS.items():
        assert is_dataclass(cls)
        needed = {f.name: NEEDED[f.name] for f in fields(cls) if f.default is MISSING and f.name in NEEDED}
        for field in fields(cls):
            if not field.init:
                continue
            for value in VALUES:
                wanted = REFUSE if must_refuse(str(field.type), value, field.default) else ANY
                if name in ("Responsibilities", "FromPosterior", "Model", "Product"):
                    wanted = ANY

                def run(c: Any = cls, u: Any = use, n: str = field.name, v: Any = value, w: Any = needed) -> Any:
                    return u(c(**{**w, n: v}))

                yield Case(f"{name}({field.name}={brief(value)})", run, wanted, names=(field.name, name))


def told(value: Any) -> tuple[str, ...]:
    """A path or the name of a column, as messages about a missing one tell it."""
    return (str(value),) if isinstance(value, (str, Path)) and str(value) else ()


def brief(value: Any) -> str:
    return " ".join(repr(value).split())[:40] if not isinstance(value, int) or abs(value) < 10**30 else "10**400"
