"""Results on data: labels, scores, point estimates, topics of documents, states of sequences."""

from bnp_dask._names import lazily

__getattr__, __dir__, __all__ = lazily(__name__, __file__)
