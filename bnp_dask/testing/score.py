"""Tests that every score is a probability: over all possible observations it sums, or integrates, to one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from scipy.special import gammaln

from bnp_dask.analysis.score import log_density
from bnp_dask.analysis.topics.completion import complete_held, held_densities
from bnp_dask.core import Batch, survey_batch
from bnp_dask.model import Model, Posterior
from bnp_dask.testing.parts import random_resp

Space = tuple[np.ndarray, np.ndarray]
"""Values, and the log of the measure of each: zero for counts and levels, weights of a quadrature for numbers."""


def levels(n: int) -> Space:
    """Whole numbers from 0 to n - 1: levels, bits, or counts whose mass from n on is negligible."""
    return np.arange(float(n)), np.zeros(n)


def line(centre: float = 0.0, scale: float = 1.0, n: int = 161) -> Space:
    """All real numbers: a quadrature of ``n`` points for densities of about this ``centre`` and ``scale``.

    It is the trapezoidal rule after ``x = centre + scale sinh(pi / 2 sinh t)``, which ends doubly exponentially for
    densities with tails of any power (Takahasi & Mori 1974).  Densities must not be narrower than a fifth of the scale.
    """
    t = np.linspace(-3.8, 3.8, n)
    inner = 0.5 * np.pi * np.sinh(t)
    slope = scale * 0.5 * np.pi * np.cosh(t) * np.cosh(inner)
    return centre + scale * np.sinh(inner), np.log(slope * (t[1] - t[0]))


def circle(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """All vectors of length one in the plane, ``(n, 2)``."""
    angle = 2.0 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angle), np.sin(angle)]), np.full(n, np.log(2.0 * np.pi / n))


def documents(n_words: int, length: int) -> np.ndarray:
    """All documents of ``length`` tokens, as counts ``(m, n_words)``."""
    cuts = np.array(list(combinations(range(length + n_words - 1), n_words - 1)))
    ends = np.full((len(cuts), 1), length + n_words - 1)
    return np.diff(np.column_stack([-np.ones((len(cuts), 1)), cuts, ends])) - 1.0


def log_orders(counts: np.ndarray) -> np.ndarray:
    """Log of the number of orders of the tokens of each document, ``(m,)``: the multinomial coefficient."""
    return gammaln(counts.sum(axis=1) + 1.0) - gammaln(counts + 1.0).sum(axis=1)


class ScoreSuite:
    """Tests of the score of one model.  Subclass as ``TestSomething`` and give the first three methods below.

    ``bnp.score`` is the mean of these log densities: of an atom in a mixture, of a whole sequence in a hidden Markov
    model, of the held-out tokens given the rest of their document in a topic model.
    """

    n_clusters = 3
    tolerance = 1e-9
    most = 30_000
    """Most sequences in a sum."""
    never_missing: tuple[int, ...] = ()
    """Columns whose entries the likelihood needs even if it integrates over others, such as ``Given()``."""

    def model(self) -> Model:
        """An allocation times a likelihood."""
        raise NotImplementedError

    def batch(self, rng: np.random.Generator, n: int) -> Batch:
        """``n`` atoms to learn from, or as many groups or sequences of some rows, without entries missing."""
        raise NotImplementedError

    def space(self) -> Sequence[Space]:
        """All values of each column, by :func:`levels`, :func:`line`, or your own quadrature."""
        raise NotImplementedError

    def atoms(self, before: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """All rows ``(m, D)`` that may follow the row ``before`` (None for a first one), and their log measures.

        The product of :meth:`space` unless overridden, as for documents, directions, or steps with their predecessors.
        """
        return product_of(self.space())

    # -- helpers ----------------------------------------------------------------------------------------------
    def fitted(self) -> tuple[Posterior, Batch]:
        """Posterior after two local steps, and its batch."""
        rng = np.random.default_rng(0)
        batch = self.batch(rng, 12)
        bare = self.model()
        model = bare.with_prior(survey_batch(batch, may_miss=bare.marginalises))
        resp = random_resp(rng, batch.n_atoms, self.n_clusters)
        posterior = model.global_step(model.summarize(np.arange(self.n_clusters), batch, resp))
        for _ in range(2):
            posterior = model.global_step(model.local_step(posterior, batch))
        return posterior, batch

    def log_next(self, posterior: Posterior, history: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """Log density of each of some ``atoms (m, D)`` after the rows ``history (h, D)`` of one group, ``(m,)``."""
        structure = posterior.model.structure
        if not structure.is_tied:
            return log_density(posterior, Batch(atoms))
        n, h = len(atoms), len(history)
        if not structure.has_shares:  # the last atom is a step, or a leaf of a tree
            rows = np.concatenate([np.repeat(history[None], n, axis=0), atoms[:, None]], axis=1)
            before = self.log_sequences(posterior, history[None])[0] if h else 0.0
            return self.log_sequences(posterior, rows) - before
        if structure.takes_words(posterior.model):
            # words that a document has on both sides are one entry each
            counts = sparse.csr_array(history.sum(axis=0) + atoms)
            place = np.repeat(np.arange(n), np.diff(counts.indptr)), counts.indices
            return complete_held(posterior, Batch(counts), atoms[place]).value
        # held-out atoms do not affect the rest, so one group can hold out all atoms
        whole = Batch(np.concatenate([history, atoms]), groups=np.array([0, h + n]))
        return held_densities(posterior, whole, np.arange(h + n) >= h)[h:]

    def log_sequences(self, posterior: Posterior, rows: np.ndarray) -> np.ndarray:
        """Log densities of sequences of one length, ``(m, T, D)``, ``(m,)``."""
        m, length, width = rows.shape
        groups = length * np.arange(m + 1)
        batch = Batch(np.ascontiguousarray(rows.reshape(m * length, width)), groups=groups)
        return log_density(posterior, batch).reshape(m, length).sum(axis=1)

    def histories(self, posterior: Posterior, batch: Batch) -> list[np.ndarray]:
        """First rows of a group of the training batch: none, one, three; only none if atoms are independent."""
        structure = posterior.model.structure
        rows = batch.x if isinstance(batch.x, np.ndarray) else batch.x.toarray()
        if not structure.is_tied:
            return [rows[:0]]
        if batch.groups is not None:
            rows = rows[: batch.groups[1]]
        return [rows[:h] for h in (0, 1, 3)]

    def assert_one(self, log_values: np.ndarray, log_measure: np.ndarray, what: str) -> None:
        assert_allclose(np.exp(log_values + log_measure).sum(), 1.0, rtol=0.0, atol=self.tolerance, err_msg=what)

    # -- tests ------------------------------------------------------------------------------------------------
    def test_the_next_atom_has_a_probability(self) -> None:
        """Given earlier atoms of its group or sequence, if there are any."""
        posterior, batch = self.fitted()
        for history in self.histories(posterior, batch):
            atoms, measure = self.atoms(history[-1] if len(history) else None)
            self.assert_one(self.log_next(posterior, history, atoms), measure, f"after {len(history)} rows")

    def test_whole_sequences_have_a_probability(self) -> None:
        """All sequences of one length together, if there are few enough."""
        model = self.model()
        if not model.structure.is_tied or model.structure.has_shares:
            pytest.skip(f"{type(model.allocation).__name__} is about no sequences")
        posterior, _ = self.fitted()
        atoms, measure = self.atoms(None)
        for length in (1, 2, 3, 6):
            if len(atoms) ** length > self.most or type(self).atoms is not ScoreSuite.atoms:
                continue
            index = np.indices([len(atoms)] * length).reshape(length, -1).T
            self.assert_one(
                self.log_sequences(posterior, atoms[index]), measure[index].sum(axis=1), f"sequences of {length} steps"
            )

    def test_atoms_that_lack_entries_have_a_probability(self) -> None:
        """Over the entries that they have; an atom without any entry has probability one."""
        model = self.model()
        if not model.marginalises:
            pytest.skip(f"{type(model.observation).__name__} takes no missing entries here")
        posterior, batch = self.fitted()
        space = self.space()
        columns = [d for d in range(len(space)) if d not in self.never_missing]
        for history in self.histories(posterior, batch):
            gappy = history.copy()
            gappy[1:2, columns[0]] = np.nan
            for n_gone in range(1, len(columns) + 1):
                for gone in combinations(columns, n_gone):
                    nothing = np.array([np.nan]), np.zeros(1)
                    atoms, measure = product_of([nothing if d in gone else own for d, own in enumerate(space)])
                    what = f"after {len(history)} rows, without the columns {gone}"
                    self.assert_one(self.log_next(posterior, gappy, atoms), measure, what)


def product_of(space: Sequence[Space]) -> tuple[np.ndarray, np.ndarray]:
    """All rows ``(m, D)`` of values of each column, and the log of the measure of each, ``(m,)``."""
    values = np.meshgrid(*[own for own, _ in space], indexing="ij")
    measures = np.meshgrid(*[own for _, own in space], indexing="ij")
    return np.column_stack([v.ravel() for v in values]), np.sum([m.ravel() for m in measures], axis=0)
