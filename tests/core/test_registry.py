"""Functions and classes that files name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bnp_dask as bnp
from bnp_dask.core.registry import FUNCTIONS, REGISTRY, Functions
from bnp_dask.errors import StoreError


def cut(text):
    return text.split()


def test_a_function_is_found_by_its_module_and_name_once_it_was_registered(monkeypatch):
    monkeypatch.setattr(FUNCTIONS, "_functions", {})
    name = f"{__name__}:cut"
    with pytest.raises(StoreError, match="was not registered"):
        FUNCTIONS.find(name)
    assert bnp.register(cut) is cut
    assert FUNCTIONS.find(name) is cut
    assert list(FUNCTIONS._functions) == [name]


def test_classes_are_no_functions(monkeypatch):
    monkeypatch.setattr(FUNCTIONS, "_functions", {})
    monkeypatch.setattr(REGISTRY, "_classes", dict(REGISTRY._classes))
    assert bnp.register(bnp.Gaussian) is bnp.Gaussian
    assert not FUNCTIONS._functions


def test_a_function_may_have_another_name_in_files():
    functions = Functions()
    assert functions.add(cut, "my_words:cut") == "my_words:cut"
    assert functions.find("my_words:cut") is cut
    with pytest.raises(StoreError, match="function"):
        functions.add(lambda text: text)


def test_a_file_may_name_a_likelihood_that_nothing_has_imported():
    code = "from bnp_dask.core import REGISTRY; print(REGISTRY.find('GammaRates').__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "bnp_dask.observation.poisson\n"
