"""Writes the models and the runs of this version that later ones must load: ``python -m tests.faults.old.make``.

Run it once for every released version, when nothing but the version number is left to change, and keep for ever what
it writes: ``<version>.tar.xz`` beside this file.  A name may be given instead, ``<version>-<word>``, for a second
archive of one version.  In an archive ``<name>/`` is a saved posterior, ``runs/<name>/`` a run directory that was
stopped in the middle of its third lap, with the posterior of that moment; ``expected.json`` says what both give in the
version that wrote them.

A case that is added to :func:`models` or :func:`runs` is in the archives from then on; the tests pass over those that
lack it.  Neither the data nor the settings of a case may change, or its older archives cannot be resumed.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor
from bnp_dask.observation import with_previous
from bnp_dask.training.results import TrainResult

HERE = Path(__file__).parent

STOP = 2.5
"""Laps after which runs are stopped."""


def rows(d: int = 2) -> np.ndarray:
    """Atoms of two round clusters, ``(40, d)``."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, d)) + 6.0 * rng.integers(2, size=40)[:, None]


def counts() -> sparse.csr_array:
    """Documents of two topics, ``(30, 6)``."""
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(6) < 3, 4.0, 0.3)
    return sparse.csr_array(np.stack([rng.poisson(rates[:: (-1) ** i]) for i in range(30)]).astype(float) + 1.0)


# -- data that no random generator makes: a resumed run compares their bits -----------------------------------------
def grid(n: int, d: int, run: int = 1) -> np.ndarray:
    """Atoms of three clusters, ``run`` in a row of each, ``(n, d)``; whole numbers over 8."""
    i, j = np.arange(n)[:, None], np.arange(d)
    return (48 * ((i // run) % 3) * (1 + j % 2) + (i * 7919 + j * 104729 + i * i * 31) % 17) / 8.0


def words(n: int = 60, v: int = 9) -> sparse.csr_array:
    """Documents of three topics, ``(n, v)`` counts."""
    i, j = np.arange(n)[:, None], np.arange(v)
    own = (j // 3 == i % 3) * (2 + (i * 7919 + j * 31) % 5)
    return sparse.csr_array((own + ((i * 13 + j * 7) % 11 == 0)).astype(float))


@dataclass(frozen=True)
class Case:
    """A run: its model and data, and how it is trained."""

    model: bnp.Model
    data: Any
    init: Any = field(default_factory=lambda: bnp.RandomExamples(3))
    schedule: Any = field(default_factory=lambda: memoized())
    moves: tuple[Any, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    def train(self, **more: Any) -> TrainResult:
        """Train, quietly, in this thread."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = {"init": self.init, "schedule": self.schedule, "moves": self.moves, **self.more, **more}
            return bnp.train(self.model, self.data, client=SerialExecutor(), **settings)


def memoized(laps: int = 5) -> bnp.Memoized:
    """A schedule that does not end by itself."""
    return bnp.Memoized(laps=laps, window=3, tolerance=0.0, count_tolerance=0.0)


MOVES = (bnp.Birth(), bnp.Merge(), bnp.Delete())


def models() -> dict[str, tuple[bnp.Model, object]]:
    """Name, model, and data that it is trained on and asked about."""
    return {
        "dp_diag": (bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()), rows()),
        "dp_full": (bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian()), rows()),
        "finite_fixed_map": (bnp.Model(bnp.FiniteMixture(0.5, top=1), bnp.FixedVarianceGaussian(), "map"), rows()),
        "dp_words": (bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial()), counts()),
        "dp_bits": (bnp.Model(bnp.DPMixture(2.0), bnp.Bernoulli()), (rows() > 3.0).astype(float)),
        "hdp_topics": (bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), counts()),
        "pitman_yor_rates": (bnp.Model(bnp.PitmanYorMixture(1.0, 0.3), bnp.Poisson()), np.floor(np.abs(rows()))),
        "dp_odds": (bnp.Model(bnp.DPMixture(2.0), bnp.NegativeBinomial()), np.floor(np.abs(rows()))),
        "dp_levels": (bnp.Model(bnp.DPMixture(2.0), bnp.Categorical()), np.clip(np.floor(rows()), 0.0, 3.0)),
    }


def runs() -> dict[str, Case]:
    """Name and case."""
    gauss, text = grid(60, 2), bnp.as_source(words(), batch_size=12)
    cut = {"batch_size": 12}
    chain = bnp.as_source(grid(90, 2, run=5), groups=np.arange(0, 91, 10), batch_size=20)
    steps, offsets = with_previous(grid(90, 2, run=15) % 5 - 2, np.arange(0, 91, 15))
    wave = bnp.as_source(steps, groups=offsets, batch_size=30)
    blocks, full = bnp.ContiguousBlocks(3), bnp.FullBatch(laps=5, window=3, tolerance=0.0, count_tolerance=0.0)
    product = bnp.Product({":2": bnp.DiagGaussian(), "2:": bnp.Poisson()})
    mixed = np.column_stack([gauss, np.floor(grid(60, 1))])
    return {
        "mixture": Case(bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian()), gauss, more=cut),
        "moves": Case(bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()), grid(60, 2), moves=MOVES, more=cut),
        "weights": Case(
            bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()), gauss, more={**cut, "weights": 1.0 + np.arange(60) % 4}
        ),
        "map": Case(bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian(), "map"), gauss, more=cut),
        "top": Case(bnp.Model(bnp.DPMixture(2.0, top=2), bnp.DiagGaussian()), gauss, more=cut),
        "poisson": Case(bnp.Model(bnp.DPMixture(2.0), bnp.Poisson()), np.floor(gauss), more=cut),
        "product": Case(bnp.Model(bnp.DPMixture(2.0), product), mixed, more=cut),
        "stochastic": Case(
            bnp.Model(bnp.FiniteMixture(1.0), bnp.FixedVarianceGaussian()),
            gauss,
            schedule=bnp.Stochastic(laps=5, window=3, tolerance=0.0, count_tolerance=0.0),
            more=cut,
        ),
        "full_batch": Case(bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), text, schedule=full),
        "lda": Case(bnp.Model(bnp.LDA(), bnp.Multinomial(lam=0.1)), text),
        "hdp": Case(bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), text, moves=MOVES),
        "hdp_patches": Case(bnp.Model(bnp.HDPTopics(), bnp.DiagGaussian()), chain),
        "finite_hmm": Case(bnp.Model(bnp.FiniteHMM(), bnp.DiagGaussian()), chain, blocks),
        "hdp_hmm": Case(bnp.Model(bnp.HDPHMM(), bnp.Gaussian()), chain, blocks, moves=MOVES),
        "sticky": Case(bnp.Model(bnp.HDPHMM(kappa=5.0), bnp.DiagGaussian()), chain, blocks),
        "autoregressive": Case(bnp.Model(bnp.HDPHMM(), bnp.AutoRegressiveGaussian()), wave, blocks),
        "pitman_yor": Case(bnp.Model(bnp.PitmanYorMixture(1.0, 0.3), bnp.DiagGaussian()), grid(60, 2), more=cut),
        "labels": Case(
            bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()),
            gauss,
            more={**cut, "labels": np.where(np.arange(60) % 5 == 0, np.arange(60) % 3, -1)},
        ),
        "links": Case(
            bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()),
            gauss,
            more={**cut, "links": np.where(np.arange(60) % 12 < 6, np.arange(60) // 3, -1)},
        ),
        "strata": Case(
            bnp.Model(bnp.StrataMixture(1.0, 2.0), bnp.Product({(0,): bnp.Given(), (1, 2): bnp.DiagGaussian()})),
            np.column_stack([np.arange(60) % 2, gauss]),
            more=cut,
        ),
        "responses": Case(
            bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)),
            text,
            more={"responses": np.where(np.arange(60) % 4 == 0, np.nan, np.arange(60) % 3)},
        ),
        "classes": Case(
            bnp.Model(bnp.LDA(response=bnp.CategoricalResponse()), bnp.Multinomial(lam=0.1)),
            text,
            more={"responses": np.array(["red", "green", "blue"])[np.arange(60) % 3]},
        ),
        "learned": Case(
            bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian(), learn_prior="full", learn_concentrations="always"),
            gauss,
            moves=MOVES,
            more=cut,
        ),
        "propagation": Case(
            bnp.Model(bnp.NRMMixture(bnp.GeneralizedGamma(1.0, 0.3, 1.0)), bnp.DiagGaussian()),
            gauss,
            None,
            bnp.ExpectationPropagation(laps=4, count_tolerance=0.0),
            more=cut,
        ),
        "gibbs": Case(bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian()), gauss, None, bnp.Gibbs(laps=5), more=cut),
        "gibbs_topics": Case(bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), text, None, bnp.Gibbs(laps=5)),
    }


@dataclass
class After:
    """A callback that stops a run after some laps."""

    laps: float
    batches: int = 0
    seen: int = 0

    def on_start(self, info: Any) -> None:
        """How many batches a lap has."""
        self.batches = info.n_batches

    def on_batch(self, done: int) -> bool:
        """Count."""
        self.seen += done == self.batches
        return self.seen + (done / self.batches) % 1 >= self.laps

    def on_lap(self, row: Any, posterior: Any) -> None:
        """Nothing."""

    def on_end(self, reason: str) -> None:
        """Nothing."""


def scores(posterior: bnp.Posterior, data: object) -> dict[str, object]:
    """What every later version must say of it."""
    soft = np.asarray(bnp.predict(posterior, data, soft=True))
    return {"ids": posterior.ids.tolist(), "weights": posterior.weights.tolist(), "soft": soft.round(12).tolist()}


def end_of(result: TrainResult) -> dict[str, object]:
    """What a run came to."""
    atoms, elbo = float(result.history[-1]["atoms"]), [float(row["elbo"]) for row in result.history]
    return {"elbo": elbo, "atoms": atoms, "ids": result.posterior.ids.tolist()}


def main(name: str) -> None:
    """Write ``<name>.tar.xz``."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected: dict[str, Any] = {"format": 1, "models": {}, "runs": {}}
        for called, (model, data) in models().items():
            init = bnp.RandomExamples(2)
            schedule = bnp.Memoized(laps=3)
            result = bnp.train(model, data, init=init, schedule=schedule, client=SerialExecutor())
            result.posterior.save(Path(folder) / called)
            expected["models"][called] = scores(result.posterior, data)
        for called, case in runs().items():
            half = case.train(store=Path(folder) / "runs" / called, callbacks=[After(STOP)])
            assert half.reason == "stopped by a callback", (called, half.reason)
            expected["runs"][called] = {"half": scores(half.posterior, case.data), **end_of(case.train())}
        (Path(folder) / "expected.json").write_text(json.dumps(expected))
        with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
            for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = path.stat().st_size
                archive.addfile(info, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else bnp.__version__)
