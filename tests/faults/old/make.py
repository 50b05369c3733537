"""Writes the models of this version that later ones must load: ``python -m tests.faults.old.make``.

Run it once for every released version, and keep what it writes for ever.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.execute import SerialExecutor

HERE = Path(__file__).parent


def rows(d: int = 2) -> np.ndarray:
    """Atoms of two round clusters, ``(40, d)``."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, d)) + 6.0 * rng.integers(2, size=40)[:, None]


def counts() -> sparse.csr_array:
    """Documents of two topics, ``(30, 6)``."""
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(6) < 3, 4.0, 0.3)
    return sparse.csr_array(np.stack([rng.poisson(rates[:: (-1) ** i]) for i in range(30)]).astype(float) + 1.0)


def models() -> dict[str, tuple[bnp.Model, object]]:
    """Name, model, and data that it is trained on and asked about."""
    return {
        "dp_diag": (bnp.Model(bnp.DPMixture(2.0), bnp.DiagGaussian()), rows()),
        "dp_full": (bnp.Model(bnp.DPMixture(2.0), bnp.Gaussian()), rows()),
        "finite_fixed_map": (bnp.Model(bnp.FiniteMixture(0.5, top=1), bnp.FixedVarianceGaussian(), "map"), rows()),
        "dp_words": (bnp.Model(bnp.DPMixture(2.0), bnp.Multinomial()), counts()),
        "dp_bits": (bnp.Model(bnp.DPMixture(2.0), bnp.Bernoulli()), (rows() > 3.0).astype(float)),
        "hdp_topics": (bnp.Model(bnp.HDPTopics(), bnp.Multinomial(lam=0.1)), counts()),
    }


def scores(posterior: bnp.Posterior, data: object) -> dict[str, object]:
    """What every later version must say of it."""
    soft = np.asarray(bnp.predict(posterior, data, soft=True))
    return {"ids": posterior.ids.tolist(), "weights": posterior.weights.tolist(), "soft": soft.round(12).tolist()}


def main() -> None:
    """Write ``<version>.tar.xz``."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {}
        for name, (model, data) in models().items():
            init = bnp.RandomExamples(2)
            schedule = bnp.Memoized(laps=3)
            result = bnp.train(model, data, init=init, schedule=schedule, client=SerialExecutor())
            result.posterior.save(Path(folder) / name)
            expected[name] = scores(result.posterior, data)
        (Path(folder) / "expected.json").write_text(json.dumps({"format": 1, "models": expected}))
        with tarfile.open(HERE / f"{bnp.__version__}.tar.xz", "w:xz") as archive:
            for path in sorted(p for p in Path(folder).rglob("*") if p.is_file()):
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = path.stat().st_size
                archive.addfile(info, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    main()
