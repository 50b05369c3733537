"""What a library is asked.  An adapter answers some of it; ``FORMAT.md`` says what each case gives and expects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from conformance.cases import Case

Answer = Mapping[str, Any]


class NotOffered(Exception):
    """The library has nothing that answers; the text says what it has instead."""


class Adapter:
    """Base of adapters.  Override the questions that the library answers; the others are not offered.

    A method of the first group takes a case and returns its quantities by name; quantities may be left out.  Methods of
    the second are the verbs of fault scripts; ``data`` is ``"points"`` or ``"counts"``, whatever they take.
    """

    library = ""
    """Distribution whose version is reported."""

    claims = False
    """Whether every deviation is an error: for a library that promises to pass all that it answers."""

    data = "points"
    on_purpose: ClassVar[Mapping[str, str]] = {}
    """Reasons for deviations that the library makes by design: by ``"kind.quantity"`` or ``"kind"``."""

    absent: ClassVar[Mapping[str, str]] = {}
    """What the library has in place of a kind that it does not offer."""

    def answer(self, case: Case) -> Answer:
        """Quantities of a case by its kind."""
        method = getattr(self, case.kind, None)
        if method is None:
            raise NotOffered(self.absent.get(case.kind, ""))
        found: Answer = method(case)
        return found

    # -- verbs of fault scripts, overridden together -------------------------------------------------------------------
    def fit(self, data: np.ndarray, seed: int) -> Any:
        """Model of some data: points ``(n, D)`` or counts ``(D, V)``."""
        raise NotOffered

    def update(self, model: Any, data: np.ndarray) -> Any:
        """The model with more data; may be the same object."""
        raise NotOffered

    def outcome(self, model: Any, data: np.ndarray) -> np.ndarray:
        """Numbers that depend on all that was learned, for example shares of the data's atoms."""
        raise NotOffered

    def save(self, model: Any, path: Path) -> None:
        """Write to a path that may hold an older model."""
        raise NotOffered

    def load(self, path: Path) -> Any:
        """Read what :meth:`save` wrote."""
        raise NotOffered
