"""Whether this thread computes in an order that is the same on every processor, or as libraries do.

:mod:`bnp_dask.kernels.numeric.arithmetic` asks; a task computes as its submitting thread did, on any machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


class _Order(threading.local):
    """Whether this thread is inside a block of fixed order."""

    fixed = False


@cache
def _order() -> _Order:
    return _Order()


@contextmanager
def fixed_order(fixed: bool) -> Iterator[None]:
    """Compute in this thread in an order that does not depend on the processor; with False as libraries do."""
    order = _order()
    before, order.fixed = order.fixed, fixed
    try:
        yield
    finally:
        order.fixed = before


def is_fixed() -> bool:
    """Whether this thread is inside a block of fixed order."""
    return _order().fixed
