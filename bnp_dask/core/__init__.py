"""Common ground: batches, summaries that add up, totals, the survey of the data.

A batch (:mod:`batch`) -> one :class:`~bnp_dask.core.summary.Summary` of named fields, which tell how they grow, shrink
and follow edits of clusters -> a :class:`~bnp_dask.core.summary.RunningTotal` without rounding.  One pass over the data
makes the :class:`~bnp_dask.core.survey.Survey`: sizes, moments, quantiles.  Nothing here knows a model, Dask or a
storage format.
"""
