"""Bayesian nonparametric clustering of data that no single machine holds.

A model is an allocation times an observation model; :func:`train` learns its posterior, here or on a Dask cluster::

    import bnp_dask as bnp

    model = bnp.Model(bnp.DPMixture(gamma=10.0), bnp.ZeroMeanGaussian())
    result = bnp.train(model, "patches.zarr", callbacks=[bnp.Progress()])
    bnp.save(result.posterior, "posterior.zarr")
    labels = bnp.predict(result.posterior, "patches.zarr")

Names are imported at their first use, so ``import bnp_dask`` costs next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from bnp_dask._names import PUBLIC as _PUBLIC


class _Package(ModuleType):
    """This package as a module that can be pickled with functions that refer to it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # workers import it themselves
        return importlib.import_module, (self.__name__,)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    message = f"module 'bnp_dask' has no attribute {name!r}"
    if not name.startswith("_"):
        from bnp_dask.errors import near

        meant = near(name, _PUBLIC)
        message += f"; did you mean {meant!r}?" if meant else "; see dir(bnp_dask)"
    raise AttributeError(message, name=name)


def __dir__() -> list[str]:
    return sorted(_PUBLIC)


# a star import must not need scikit-learn
__all__ = sorted(set(_PUBLIC) - {"DirichletProcessMixture", "SequenceModel", "TopicModel"})

sys.modules[__name__].__class__ = _Package
