"""Warming compiles what a visit needs, whatever the model, and costs nothing the second time."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.core.batch import Batch
from bnp_dask.core.survey import survey_batch
from bnp_dask.training.compiling import first_run
from bnp_dask.training.compiling.first_run import warm

ROOT = Path(__file__).resolve().parents[2]


def start(allocation, observation, batch, k=3):
    model = bnp.Model(allocation, observation).with_prior(survey_batch(batch))
    rng = np.random.default_rng(0)
    n = batch.n_atoms
    resp = rng.dirichlet(np.ones(k), n)
    return model.global_step(model.summarize(np.arange(k), batch, resp))


def counts(n=30, v=12):
    return Batch(sparse.csr_array(np.random.default_rng(1).poisson(1.0, (n, v)).astype(np.float64) + np.eye(n, v)))


def dense(n=40, d=3):
    return Batch(np.random.default_rng(2).standard_normal((n, d)))


@pytest.mark.parametrize(
    ("allocation", "observation", "batch"),
    [
        (bnp.DPMixture(), bnp.Gaussian(), dense()),
        (bnp.FiniteMixture(top=2), bnp.ZeroMeanGaussian(), dense()),
        (bnp.DPMixture(), bnp.DiagGaussian(), dense()),
        (bnp.DPMixture(), bnp.Multinomial(), counts()),
        (bnp.DPMixture(), bnp.Poisson(), counts()),
    ],
)
def test_every_kind_of_model(allocation, observation, batch):
    posterior = start(allocation, observation, batch)
    warm(posterior, batch)
    assert warm(posterior, batch) < 0.5


def test_topics_and_sequences():
    batch = counts()
    model = bnp.Model(bnp.LDA(0.5), bnp.Multinomial()).with_prior(survey_batch(batch))
    rng = np.random.default_rng(0)
    posterior = model.global_step(model.summarize(np.arange(3), batch, rng.dirichlet(np.ones(3), batch.n_atoms)))
    assert warm(posterior, batch) > 0
    steps = Batch(dense().x, groups=np.array([0, 15, 40]))
    states = start(bnp.HDPHMM(), bnp.Gaussian(), steps)
    assert warm(states, steps) > 0


def test_nothing_is_compiled_after_it():
    """In a new process: no kernel of the local step gets a new signature from real visits, of any way."""
    code = """
import numpy as np
from numba.core.dispatcher import Dispatcher
from tests.kernels.test_warm import dense, start
import bnp_dask as bnp
from bnp_dask.structure import screened
from bnp_dask.kernels import mixture
from bnp_dask.kernels.gaussian import quadratic, screen
from bnp_dask.training.compiling.first_run import warm
def signatures():
    modules = (mixture, quadratic, screen)
    found = [(m.__name__, n, f) for m in modules for n, f in vars(m).items() if isinstance(f, Dispatcher)]
    return {(m, n): len(f.signatures) for m, n, f in found}
batch = dense(5000, 5)
posterior = start(bnp.DPMixture(), bnp.Gaussian(), batch, 8)
posterior.model.elbo(posterior, posterior.summary)
warm(posterior, batch)
before = signatures()
screened.worthwhile = lambda *_: True
for way in ("coarse", "fine", "tail", "dense"):
    screen._way = lambda *_: way
    posterior.model.visit(posterior, batch, np.array([[0, 1]]))
after = signatures()
assert before == after, {k: (before[k], v) for k, v in after.items() if v != before[k]}
print("kernels", sum(before.values()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) > 10


def test_small_batches_do_not_wait_for_kernels_that_they_never_need(monkeypatch):
    called = []
    monkeypatch.setattr(first_run, "_warm_screening", lambda by_homes: called.append(True))
    for n, d, screened in ((600, 2, False), (5000, 5, True), (1000, 50, True)):
        batch = dense(n, d)
        warm(start(bnp.DPMixture(), bnp.Gaussian(), batch), batch)
        assert called == [True] * screened, (n, d)
        called.clear()
