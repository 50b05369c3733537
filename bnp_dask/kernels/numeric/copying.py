"""Copies between arrays inside of kernels, entry by entry.

An assignment of arrays (``target[:n] = source``) makes numba compile the text of its error message, with Python's
strings, in each process whose cache lacks the kernel: two to three CPU seconds.  A loop needs next to nothing.
"""

from __future__ import annotations

from bnp_dask.kernels.options import njit


@njit(nogil=True, cache=True)
def copy_into(target, source):
    """``target[: len(source)] = source`` for arrays of one axis; nothing is checked."""
    for i in range(len(source)):
        target[i] = source[i]
