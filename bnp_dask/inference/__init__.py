"""Inference: schedules of three functions each, written like their algorithms in the thesis and driven by one loop.

    submit -> visit -> reduce -> fold -> decide -> commit

One loop submits groups of batches and takes them in order (:mod:`drive`).  Workers visit batches (:mod:`visit`) and
make local steps (:mod:`local_steps`); changes of summaries are added up in a fixed order (:mod:`reduction`), with the
last visit of each batch remembered (:mod:`batch_memo`), and folded into the total (:mod:`fold`, :mod:`state`).  A lap
decides its proposals (:mod:`lap`) and is written down (:mod:`checkpoint`).

The schedules are in :mod:`variational`, :mod:`streaming` and :mod:`sampling`; :mod:`shared_reads` lets several states
read each batch once.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
