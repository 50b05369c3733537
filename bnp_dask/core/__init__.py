"""Common ground: batches, summaries that add up, totals, the survey of the data.

A batch (:mod:`batch`) -> one :class:`~bnp_dask.core.summary.Summary` of named fields, which tell how they grow, shrink
and follow edits of clusters -> a :class:`~bnp_dask.core.summary.RunningTotal` without rounding.  One pass over the data
makes the :class:`~bnp_dask.core.survey.Survey`: sizes, moments, quantiles.  Nothing here knows a model, Dask or a
storage format.

Other chapters import names from here, ``from bnp_dask.core import Batch, Summary``; each is loaded at its first use, so
that the command line starts without compiled code.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
