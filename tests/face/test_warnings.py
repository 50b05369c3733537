"""Warnings name the line of the user's code that called the package, and come once for each call."""

from __future__ import annotations

import threading
import warnings
from inspect import currentframe

import numpy as np
import pandas as pd
import pytest

import bnp_dask as bnp
from bnp_dask.errors import warn

TABLE = pd.DataFrame(
    {
        "length": np.linspace(0.0, 1.0, 40) ** 2,
        "width": np.sin(np.arange(40.0)),
        "one": 1.0,
        "day": pd.date_range("2026-01-01", periods=40),
    }
)
"""A table with a column that is no feature and a column that says nothing."""

LAPS = bnp.Memoized(laps=1)


def here() -> int:
    """Line of the caller."""
    frame = currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


CALLS = {
    "as_source": lambda: (bnp.as_source(TABLE), here()),
    "train": lambda: (bnp.train(bnp.Model(bnp.DPMixture(), bnp.DiagGaussian()), TABLE, schedule=LAPS), here()),
    "Product.of": lambda: (bnp.Product.of(TABLE), here()),
    "mixture": lambda: (bnp.DirichletProcessMixture("diag_gaussian", max_laps=1, random_state=0).fit(TABLE), here()),
    "sequences": lambda: (bnp.SequenceModel("diag_gaussian", max_laps=1, random_state=0).fit(TABLE), here()),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_warning_of_a_call_is_at_the_line_of_the_caller_and_comes_once(name):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _, line = CALLS[name]()
    assert found
    assert {(one.filename, one.lineno) for one in found} == {(__file__, line)}
    texts = [str(one.message) for one in found]
    assert len(set(texts)) == len(texts)
    assert any("left out" in text for text in texts)


def test_a_pipeline_of_scikit_learn_is_not_the_user():
    from sklearn.pipeline import make_pipeline

    pipeline = make_pipeline("passthrough", bnp.DirichletProcessMixture("diag_gaussian", max_laps=1, random_state=0))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _, line = pipeline.fit(TABLE[["length", "width"]]), here()
    assert {(one.filename, one.lineno) for one in found} == {(__file__, line)}


def test_a_thread_that_no_user_called_warns_at_its_outermost_line():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("no call of a user",))
        thread.start()
        thread.join()
    (one,) = found
    assert one.filename == threading.__file__


def test_passwords_are_hidden():
    with pytest.warns(UserWarning, match=r"https://\*\*\*@host/x"):
        warn("https://me:word@host/x")
