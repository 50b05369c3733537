"""Loops of the document step, chosen while it is compiled: those of the compiler's order, or those of fixed order.

The scratch of the document step says which by the type of its field ``fixed``: None, or True.  So neither has a branch
at run time, and code of one order is compiled only where it is asked for.  Rules say by the type of ``top`` whether
tokens keep some of the topics only.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import overload

from bnp_dask.kernels.numeric import special
from bnp_dask.kernels.topics import document_pass, document_sums, fixed_pass


def _as_libraries_do(space):
    return isinstance(space[space.fields.index("fixed")], types.NoneType)


def exp_psi(space, mass, prior, width, out):
    """``exp(psi(mass + prior))``, see :func:`bnp_dask.kernels.numeric.special.exp_psi`."""
    raise NotImplementedError("compiled code only")


def sweep(space, lik, width, share):
    """One sweep over a document, see :func:`bnp_dask.kernels.topics.document_pass.sweep`."""
    raise NotImplementedError("compiled code only")


def row_totals(space, table, share):
    """Totals of a first sweep, see :func:`bnp_dask.kernels.topics.document_pass.row_totals`."""
    raise NotImplementedError("compiled code only")


def gather_all(space, table, rows, lik):
    """Likelihoods of a document, see :func:`bnp_dask.kernels.topics.document_pass.gather_all`."""
    raise NotImplementedError("compiled code only")


def assign(space, lik, width, share, log_share, count, linear):
    """Final responsibilities, see :func:`bnp_dask.kernels.topics.document_sums.assign`."""
    raise NotImplementedError("compiled code only")


def places_for(n, rules):
    """Places for the topics that ``n`` tokens keep, ``(n, L)``; None where they keep all."""
    raise NotImplementedError("compiled code only")


@overload(exp_psi, inline="always")
def _exp_psi(space, mass, prior, width, out):
    chosen = special.exp_psi if _as_libraries_do(space) else special.fixed_exp_psi
    return lambda space, mass, prior, width, out: chosen(mass, prior, width, out, space.bits, space.power)


@overload(sweep, inline="always")
def _sweep(space, lik, width, share):
    chosen = document_pass.sweep if _as_libraries_do(space) else fixed_pass.sweep

    def run(space, lik, width, share):
        chosen(lik, space.live, width, share, space.weight, space.total, space.ratio, space.grow)

    return run


@overload(row_totals, inline="always")
def _row_totals(space, table, share):
    chosen = document_pass.row_totals if _as_libraries_do(space) else fixed_pass.row_totals
    return lambda space, table, share: chosen(table, share)


@overload(gather_all, inline="always")
def _gather_all(space, table, rows, lik):
    chosen = document_pass.gather_all if _as_libraries_do(space) else fixed_pass.gather_all
    return lambda space, table, rows, lik: chosen(table, rows, lik, space.ratio, space.grow)


@overload(assign, inline="always")
def _assign(space, lik, width, share, log_share, count, linear):
    chosen = document_sums.assign if _as_libraries_do(space) else fixed_pass.assign

    def run(space, lik, width, share, log_share, count, linear):
        total, work, bits, logs = space.total, space.ratio, space.log_bits, space.logs
        chosen(lik, space.live, width, share, space.weight, log_share, total, work, bits, logs, count, linear)

    return run


@overload(places_for, inline="always")
def _places_for(n, rules):
    if isinstance(rules[rules.fields.index("top")], types.NoneType):
        return lambda n, rules: None
    return lambda n, rules: np.empty((n, rules.top), np.int32)
