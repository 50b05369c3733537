"""A user's function that cuts texts into words, and its name in stores and posteriors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bnp_dask.core.registry import FUNCTIONS, imported
from bnp_dask.errors import DataError, SettingError, StoreError
from bnp_dask.inputs.settings import shown

Analyzer = Callable[[str], list[str]]
"""Function that cuts a text into its words, in order, repeats included."""


def named_analyzer(given: Any) -> str:
    """Name ``module:function`` of a function that cuts texts, registered so that this process may call it.

    Parameters
    ----------
    given
        A function at the top of a module or notebook, or its name, whose module is imported.

    Raises
    ------
    SettingError
        The function does not exist, or has no name by which another process could find it.
    """
    try:
        if isinstance(given, str):
            return FUNCTIONS.add(imported(given), given)
        if isinstance(given, type) or not callable(given):
            raise StoreError(
                f"{shown(given)} is no function from a text to its words, nor the name of one, module:function"
            )
        name = FUNCTIONS.add(given)
        if imported(name) is not given:
            raise StoreError(f"{name} is another function, so that no file can name this one")
    except StoreError as error:
        raise SettingError(f"analyzer: {error}") from error
    return name


def analyzer_of(name: str, left_out: Iterable[str]) -> Analyzer:
    """The registered function of a name, without the words ``left_out`` and empty words.

    Raises
    ------
    StoreError
        The function is not registered in this process.
    """
    function, without = FUNCTIONS.find(name), frozenset(("", *left_out))

    def cut(text: str) -> list[str]:
        found = function(text)
        try:
            words = [word for word in found if word not in without]
        except TypeError as error:
            raise _wrong(name, found) from error
        if isinstance(found, str) or not all(isinstance(word, str) for word in words):
            raise _wrong(name, found)
        return words

    return cut


def _wrong(name: str, found: object) -> DataError:
    return DataError(f"the analyzer {name} made {shown(found)} of a text; needs a list of words")
