"""Inference: schedules of three functions each, written like their algorithms in the thesis and driven by one loop.

    submit -> visit -> reduce -> fold -> decide -> commit

One loop submits groups of batches and takes them in order (:mod:`drive`).  Workers visit batches (:mod:`visit`) and
make local steps (:mod:`local_steps`); changes of summaries are added up in a fixed order (:mod:`reduction`), with the
last visit of each batch remembered (:mod:`batch_memo`), and folded into the total (:mod:`fold`, :mod:`state`).  A lap
decides its proposals (:mod:`lap`) and is written down (:mod:`checkpoint`).

The schedules are in :mod:`variational`, :mod:`streaming` and :mod:`sampling`; :mod:`shared_reads` lets several states
read each batch once.
"""

from bnp_dask.inference.checkpoint import SavedState, is_constant, state_from_saved, state_to_arrays, state_to_json
from bnp_dask.inference.drive import Schedule, Step
from bnp_dask.inference.state import State, Work
from bnp_dask.inference.variational.full import FullBatch
from bnp_dask.inference.variational.memoized import Memoized
from bnp_dask.inference.variational.stochastic import Stochastic
from bnp_dask.inference.verify import restored

__all__ = [
    "FullBatch",
    "Memoized",
    "SavedState",
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
