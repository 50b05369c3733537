"""Checks of user input: settings, arrays, sparse matrices, paths, YAML, lines of text.

A value as given -> one function for its kind -> the value in the form that the rest of the package uses, or an error
that names the value found and the value needed.

Names are imported at their first use.
"""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
