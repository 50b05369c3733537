"""The words of the columns of counts, in a form that is small in memory and on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bnp_dask.core.registry import register
from bnp_dask.errors import DataError


@register
@dataclass(frozen=True, eq=False)
class Words:
    """The vocabulary that a posterior was trained with.

    Parameters
    ----------
    utf8
        All words in the order of the columns, joined by newlines, as UTF-8 bytes: uint8.
    analysis
        Settings that cut a text into words (``Analysis.to_json()``); None when the counts came from elsewhere.
    """

    utf8: np.ndarray
    analysis: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, words: Sequence[str], analysis: Mapping[str, Any] | None = None) -> Words:
        """From a list of words; DataError for a word with a line break, or a repeated word."""
        listed = list(words)
        wrong = next((w for w in listed if "\n" in w), None)
        if wrong is not None:
            raise DataError(f"the word {wrong!r} has a line break; a vocabulary needs words without")
        if len(set(listed)) != len(listed):
            twice = next(w for i, w in enumerate(listed) if w in listed[:i])
            raise DataError(f"the vocabulary has {twice!r} twice; each column needs a word of its own")
        return cls(np.frombuffer("\n".join(listed).encode(), np.uint8), analysis)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Word of each column, V of them."""
        return tuple(np.asarray(self.utf8, np.uint8).tobytes().decode().split("\n"))

    @cached_property
    def digest(self) -> str:
        """Hash that identifies this vocabulary; a store with these words has the same hash."""
        return hashlib.blake2b(np.asarray(self.utf8, np.uint8).tobytes(), digest_size=16).hexdigest()

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        first = ", ".join(self.words[:3])
        return f"Words({len(self)} words: {first}{', ...' if len(self) > 3 else ''})"
