"""The scikit-learn faces: their data, and every setting of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import bnp_dask as bnp
from tests.faults.absurd.arrays import DENSE, GROUPS, SPARSE, WEIGHTS, depends
from tests.faults.absurd.kinds import COUNTS, ROWS, finite
from tests.faults.absurd.outcomes import ANY, REFUSE, SAME, Case
from tests.faults.absurd.settings import VALUES, brief

LITTLE = {"max_laps": 2, "random_state": 0}


def estimator_cases() -> Iterator[Case]:
    """The scikit-learn faces: their data, and every setting of theirs with every value."""
    faces = {
        "mixture": (lambda **a: bnp.DirichletProcessMixture(**{"n_clusters": 2, **LITTLE, **a}), ROWS),
        "counts": (
            lambda **a: bnp.DirichletProcessMixture(**{"observation": "multinomial", "n_clusters": 2, **LITTLE, **a}),
            COUNTS,
        ),
        "topics": (lambda **a: bnp.TopicModel(**{"n_topics": 2, **LITTLE, **a}), COUNTS),
        "sequences": (lambda **a: bnp.SequenceModel(**{"n_states": 2, **LITTLE, **a}), ROWS),
    }
    for name, (make, x) in faces.items():
        fitted = make().fit(x)
        for what, (wanted, transform, plain) in {**DENSE, **SPARSE}.items():
            # scikit-learn itself takes text and objects that are numbers, and makes floats of dates
            lenient = what in (
                "objects",
                "text",
                "bytes",
                "frame of text",
                "dates",
                "spans",
                "whole numbers",
                "records",
            )
            takes_none = plain is None and wanted == SAME
            files = {"npy", "npz", "zarr", "parquet", "csv", "a Path", "Arrow table", "dask array", "nullable frame"}
            if (
                lenient
                or takes_none
                or what in SPARSE
                or what in files
                or depends("Poisson" if x is COUNTS else "", what)
            ):
                wanted = REFUSE if what.startswith(("csr,", "csc,", "bsr,")) else ANY
            compare = None
            if wanted == SAME and plain is not None:
                compare = lambda m=make, p=plain, d=x: float(m().fit(p(d)).history_[-1]["elbo"])  # noqa: E731

            def run(m: Any = make, t: Any = transform, d: Any = x) -> float:
                return finite(m().fit(t(d)).history_[-1]["elbo"])

            yield Case(f"{name}.fit <- {what}", run, wanted, compare)
            verb = "transform" if name == "topics" else "predict"
            wanted = REFUSE if wanted == REFUSE and not what.startswith(("times", "one column", "denormal")) else ANY

            def apply(f: Any = fitted, v: str = verb, t: Any = transform, d: Any = x) -> Any:
                return np.asarray(getattr(f, v)(t(d)))  # what is lazy is right or wrong once it is computed

            yield Case(f"{name}.{verb} <- {what}", apply, wanted)
        for setting in make().get_params():
            for value in VALUES:

                def set_and_fit(m: Any = make, s: str = setting, v: Any = value, d: Any = x) -> float:
                    return finite(m(**{s: v}).fit(d).history_[-1]["elbo"])

                yield Case(f"{name}({setting}={brief(value)}).fit", set_and_fit, names=(setting, "n_clusters", "lam"))
    for what, (wanted, value) in WEIGHTS.items():
        made = faces["mixture"][0]
        yield Case(
            f"mixture.fit, sample_weight {what}",
            lambda m=made, v=value: finite(m().fit(ROWS, sample_weight=v).history_[-1]["elbo"]),
            # scikit-learn takes one number for all rows, text and objects that are numbers
            ANY if what in ("a number", "text", "objects", "large", "tiny") else wanted,
        )
    for what, value in GROUPS.items():
        made = faces["sequences"][0]
        yield Case(
            f"sequences.fit, lengths {what}",
            lambda m=made, v=value[1]: finite(m().fit(ROWS, lengths=v).history_[-1]["elbo"]),
        )
