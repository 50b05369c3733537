"""Schedules: three functions each, written like their algorithms in the thesis, and driven by one loop."""

from bnp_dask.schedules.engine.checkpoint import is_constant, state_from_saved, state_to_arrays, state_to_json
from bnp_dask.schedules.engine.drive import Schedule, Step
from bnp_dask.schedules.engine.state import State, Work
from bnp_dask.schedules.engine.verify import restored
from bnp_dask.schedules.full import FullBatch
from bnp_dask.schedules.memoized import Memoized
from bnp_dask.schedules.stochastic import Stochastic

__all__ = [
    "FullBatch",
    "Memoized",
    "Schedule",
    "State",
    "Step",
    "Stochastic",
    "Work",
    "is_constant",
    "restored",
    "state_from_saved",
    "state_to_arrays",
    "state_to_json",
]
