"""Examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.docs.pages import ROOT

WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "bnp_dask").rglob("*.py")
    if "    >>> " in path.read_text(encoding="utf-8")
)


def test_there_are_examples():
    assert "bnp_dask.estimators" in WITH_EXAMPLES


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_print_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0
