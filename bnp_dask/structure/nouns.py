"""Nouns of a model for texts: clusters of atoms, topics of tokens, or states of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bnp_dask.structure.protocols import Beliefs, WholeModel

LEAST_TOKENS = 0.5
"""Expected tokens below which a topic has none: tables print them as 0."""


@dataclass(frozen=True)
class Noun:
    """Noun of the components of a model, and of its atoms.

    Parameters
    ----------
    one, many
        Singular and plural of the components.
    atoms
        Plural of the atoms.
    """

    one: str
    many: str
    atoms: str

    def count(self, n: int) -> str:
        """A number with its noun, such as "1 topic" or "12 topics"."""
        return f"{n} {self.one if n == 1 else self.many}"


CLUSTER = Noun("cluster", "clusters", "atoms")


def noun_of(model: WholeModel) -> Noun:
    """Noun of a model: clusters of mixtures, topics of groups, states of sequences and trees."""
    structure = model.structure
    if not structure.is_tied:
        return CLUSTER
    if structure.has_shares:
        return Noun("topic", "topics", "tokens" if structure.takes_words(model) else "atoms")
    return Noun("state", "states", f"{structure.atom}s")


def in_use(posterior: Beliefs) -> np.ndarray:
    """Whether each component is one, ``(K,)``: a topic without tokens is none; all others are.

    All are without the statistics, which say how many tokens a topic has.
    """
    structure = posterior.model.structure
    if posterior.summary is None or not structure.has_shares:
        return np.ones(posterior.n_clusters, np.bool_)
    used: np.ndarray = posterior.summary["N"] >= LEAST_TOKENS
    return used


def count_of(posterior: Beliefs) -> str:
    """Number of the components with their noun, such as "12 topics"."""
    return noun_of(posterior.model).count(int(in_use(posterior).sum()))


def unused_line(posterior: Beliefs) -> str:
    """Number of topics without tokens, a sentence without its full stop; empty if there is none."""
    noun, left = noun_of(posterior.model), int((~in_use(posterior)).sum())
    return f"{noun.count(left)} without {noun.atoms} left out" if left else ""
