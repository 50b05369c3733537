"""Dependence between atoms: independent rows, groups (documents), sequences.

A batch and a posterior -> tiles -> responsibilities of one kind of model -> a summary, and statistics for restricted
steps of births, merges and deletes from the same read (:mod:`visit`).

Names are imported at their first use.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
