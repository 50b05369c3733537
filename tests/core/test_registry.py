"""Functions and classes that files name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import bnp_dask as bnp
from bnp_dask.core import registry
from bnp_dask.core.registry import (
    ENTRY_POINTS,
    FUNCTIONS,
    REGISTRY,
    Functions,
    Registry,
    file_name,
    imported,
)
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


def announced(monkeypatch, tmp_path, module, dist):
    entry = SimpleNamespace(module=module, dist=dist)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == ENTRY_POINTS else [])
    monkeypatch.syspath_prepend(tmp_path)


def test_a_package_that_announces_itself_is_imported_for_its_own_names_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(FUNCTIONS, "_functions", {})
    (tmp_path / "announced_words.py").write_text(
        "import bnp_dask\n\n\ndef cut(text):\n    return text.split()\n\n\nbnp_dask.register(cut)\n"
    )
    announced(monkeypatch, tmp_path, "announced_words", None)
    with pytest.raises(StoreError, match="was not registered"):
        FUNCTIONS.find("others.words:cut")
    assert "announced_words" not in sys.modules
    assert FUNCTIONS.find("announced_words:cut")("a b") == ["a", "b"]
    sys.modules.pop("announced_words")
    announced(monkeypatch, tmp_path, "announced_gone", None)
    with pytest.raises(StoreError, match="'announced_gone.Model' needs the module announced_gone, which cannot be imp"):
        REGISTRY.find("announced_gone.Model")


@pytest.mark.parametrize(
    ("place", "path", "installed"),
    [("here", "", False), ("here", "here", True), ("here", "elsewhere", False), ("elsewhere", "", True)],
)
def test_a_package_in_the_working_directory_is_installed_only_if_the_path_lists_it(
    monkeypatch, tmp_path, place, path, installed
):
    """The directory may be a stranger's, as a run that was unpacked there."""
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path / path)]) if path else "")
    dist = SimpleNamespace(locate_file=lambda name: tmp_path / place / name)
    assert registry._is_installed(SimpleNamespace(dist=dist)) == installed
    assert registry._is_installed(SimpleNamespace(dist=None))


def test_a_name_that_a_user_gives_is_imported_and_must_be_of_a_function():
    assert imported("os.path:join") is os.path.join and imported("pathlib:Path.home") == Path.home
    for name, words in (
        ("os.path", "names no function; needs module:function"),
        (":join", "names no function"),
        ("os.path:", "names no function"),
        ("no_such_module:cut", "no_such_module.*; needs a module that is installed, or that PYTHONPATH lists"),
        ("os.path:cut", "has no attribute 'cut'"),
        ("pathlib:Path", "'pathlib:Path' is a class; needs a function"),
        ("os:sep", "'os:sep' is str, which cannot be called; needs a function"),
    ):
        with pytest.raises(StoreError, match=words):
            imported(name)


def test_functions_without_a_name_of_their_own_are_refused():
    def inner(): ...

    for function, words in ((lambda: 0, "is a lambda"), (inner, "is no function at the top of a module")):
        with pytest.raises(StoreError, match=f"{words}, which no file can name"):
            Functions().add(function)
    assert Functions().add(inner, "words:inner") == "words:inner"
    assert Functions().add(cut) == f"{__name__}:cut"


def test_what_is_no_name_of_a_class_is_refused_and_names_are_hinted_at():
    own = Registry()
    for name, words in (
        (3, "class 3 is not one that may be read from a file: needs a name"),
        ("Gauss", "known are . A file of a newer version"),
        ("words.Model", "import words first, which registers it .*--import words"),
        ("__main__.Model", "it was defined in a script or notebook; define Model with @register"),
    ):
        with pytest.raises(StoreError, match=words):
            own.find(name)
    with pytest.raises(StoreError, match="known are .*DPMixture.*Gaussian"):
        REGISTRY.find("NoSuchClass")
    assert bnp.DPMixture in REGISTRY and bnp.DPMixture not in own
    assert file_name(bnp.DPMixture) == "DPMixture" and file_name(Path) == "pathlib.Path"
