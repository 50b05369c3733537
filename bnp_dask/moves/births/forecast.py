"""Forecast of the objective of a birth for all atoms of its target, from a sample of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.model import Model
from bnp_dask.moves.pairs import data_gains
from bnp_dask.moves.policy import SmallRunPolicy


@dataclass(frozen=True)
class Forecast:
    """Forecast of the objective of all atoms of a target, from a sample of them.

    Few atoms do not warrant the clusters that ten times as many do, so the statistics of the sample count ``factor``
    times.  They fit the sample better than the other atoms, by half a nat for each number estimated from it (as in
    Akaike's criterion); this is subtracted for each atom that was not seen.  If this correction exceeds the gain, the
    plain objective of the sample may still decide.
    """

    model: Model
    factor: float
    policy: SmallRunPolicy = field(default_factory=SmallRunPolicy)

    def value(self, summary: Summary) -> float:
        """The forecast, nats."""
        return self.sample_value(summary.without_pairs().scale(self.factor)) - self._optimism(summary)

    def unite(self, summary: Summary) -> Summary:
        """Merge tracked pairs, best first, while both the forecast and the sample's own objective rise."""
        value, plain = self.value(summary), self.sample_value(summary)
        while summary.n_pairs:
            best = int(np.argmax(self._gains(summary)))
            candidate = summary.merge(int(summary.pairs[best, 0]), int(summary.pairs[best, 1]))
            last, value = value, self.value(candidate)
            if value <= last:
                return summary
            last, plain = plain, self.sample_value(candidate)
            if plain <= last:
                return summary
            summary = candidate
        return summary

    def thin_out(self, summary: Summary, atoms: Batch) -> Summary:
        """Remove clusters, smallest first, if the others can take over their atoms (a delete on the sample)."""
        best = self.value(summary)
        for i in summary.ids[np.argsort(summary["N"], kind="stable")].tolist():
            if summary.n_clusters == 1:
                break
            candidate = summary.take(summary.ids[summary.ids != i])
            enough = best - self.policy.far * self.factor * float(summary["N"][summary.position(i)])
            for _ in range(self.policy.steps_without):
                candidate = self.model.local_step(self.model.global_step(candidate), atoms)
                value = self.value(candidate)
                if value < enough:
                    break
            if value > best:
                summary, best = candidate, value
        return summary

    def _gains(self, summary: Summary) -> np.ndarray:
        """Gain of merging each tracked pair on the sample, without the allocation term, ``(M,)`` nats."""
        place = summary.positions(summary.pairs)
        entropy = sum(
            summary.pair_values[name] - summary[name][place].sum(axis=1)
            for name, field in summary.fields.items()
            if field.merge == "tracked"
        )
        lost = sum(summary.pair_values[name] for name, field in summary.fields.items() if field.merge == "floor")
        return data_gains(self.model, summary, summary.pairs) + entropy - lost

    def sample_value(self, summary: Summary) -> float:
        """The objective of the sample alone, nats."""
        return self.model.best_objective(summary)

    def _optimism(self, summary: Summary) -> float:
        seen = [
            np.count_nonzero(np.abs(value) > 0.5)  # words without tokens in a cluster are not estimated
            for name, value in summary.values.items()
            if name in self.model.observation.fields and summary.fields[name].n_cluster_axes
        ]
        return max(self.factor - 1.0, 0.0) * (summary.n_clusters + sum(seen))
