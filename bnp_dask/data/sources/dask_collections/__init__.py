"""Dask collections as sources.

An array or a DataFrame -> the pickled graph of each block or partition (:mod:`graphs`) -> computed inside the task that
uses the batch (:mod:`arrays`, :mod:`frames`).  Nothing else under ``data`` but ``output_lazy.py`` imports dask.
"""
