"""Names of columns as tables show them."""

from __future__ import annotations

import pytest

from bnp_dask.core.columns import Columns


@pytest.mark.parametrize(
    ("names", "widths", "shown"),
    [
        (("a", "b"), (1, 1), ("a", "b")),
        (("0", "1"), (1, 1), None),
        (("1", "0"), (1, 1), ("1", "0")),
        (("x",), (1,), ("x",)),
        (("x",), (2,), None),
        (("x",), (9,), None),
        (("y",), (2,), ("y[0]", "y[1]")),
        (("x", "y"), (2, 1), ("x[0]", "x[1]", "y")),
    ],
)
def test_names_that_say_no_more_than_positions_are_not_shown(names, widths, shown):
    assert Columns(names, (), widths).shown == shown
