"""Helpers of these tests: read a source as a whole."""

import pickle

import numpy as np
from scipy import sparse

from bnp_dask.data.base import Source


def read_all(source):
    """All batches of a source, through pickled readers, after checks that hold for each."""
    assert isinstance(source, Source)
    batches = []
    for i in range(source.n_batches):
        batch = pickle.loads(pickle.dumps(source.reader(i)))()
        assert f"batch {i}" in batch.name and source.name in batch.name
        assert batch.n_features == source.n_features and batch.is_sparse == source.is_sparse
        assert batch.x.dtype == np.float64
        if batch.is_sparse:
            assert isinstance(batch.x, sparse.csr_array) and batch.x.has_canonical_format
        else:
            assert batch.x.flags.c_contiguous and batch.x.dtype.isnative
        batches.append(batch)
    if source.n_atoms is not None:
        assert source.n_atoms == sum(b.n_atoms for b in batches)
    return batches


def rows(source):
    """All rows, densely."""
    parts = [b.x.toarray() if b.is_sparse else b.x for b in read_all(source)]
    return np.concatenate(parts)


def weights(source):
    """All weights."""
    return np.concatenate([b.weights for b in read_all(source)])
