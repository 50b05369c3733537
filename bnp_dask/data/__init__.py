"""Sources of batches: files, arrays and collections, with facts about them.

A path or an object -> :func:`~bnp_dask.data.sources.open.as_source` -> a source -> readers -> batches.  Each kind of
storage is a module of ``sources`` that gives blocks of rows or counts; :class:`~bnp_dask.data.base.Stored` cuts, counts
and names them, and a :class:`~bnp_dask.data.view.View` reads them with weights, in groups, in another order, or without
some.

Names are imported at their first use, so that importing only a protocol (:mod:`bnp_dask.data.base`) loads no Dask, Zarr
or Arrow.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
