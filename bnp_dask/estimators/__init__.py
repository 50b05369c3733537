"""Estimators as scikit-learn has them, over :func:`bnp_dask.train`."""
