"""Golden traces: models, data and the numbers that every step must reproduce.

Each ``<name>.npz`` beside this file was recorded from another implementation (bnpy 0.1.7) and replayed from the
thesis equations; it holds data, prior (``prior_*``), settings (``hyper_*``), initial responsibilities ``r0``, the
objective term by term and cluster sizes after every step, final parameters (``final_*``), and for some the exact
change of each term for every merge of the final state (``merge_*``).  Traces of topics and states have their settings
as JSON under ``case``.  All data were drawn from toy models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from bnp_dask.allocation.dp_mixture import DPMixture
from bnp_dask.allocation.finite_mixture import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Summary
from bnp_dask.core.survey import Survey, checksum
from bnp_dask.model import Model, Posterior

FOLDER = Path(__file__).parent


def recorded(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Settings and arrays of a trace of topics (``hdptopic_...``, ``lda_...``) or of states (``hdphmm_...``)."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    return json.loads(str(arrays.pop("case"))), arrays


@dataclass(frozen=True, eq=False)
class Case:
    """One trace.

    ``model`` has its prior set; ``data`` is everything as one batch, ``batches`` the same in pieces, visited in
    the order ``order (laps, B)``; ``terms`` and ``sizes (T, K)`` are what is expected after each step.
    """

    name: str
    model: Model
    data: Batch
    batches: list[Batch]
    order: np.ndarray
    arrays: dict[str, np.ndarray]
    terms: dict[str, np.ndarray]
    sizes: np.ndarray

    @property
    def n_steps(self) -> int:
        """Number of recorded steps T."""
        return len(self.sizes)

    def start(self) -> tuple[Summary, Posterior]:
        """Summary of the initial responsibilities over all data, and the parameters that follow from it."""
        r0 = np.ascontiguousarray(self.arrays["r0"])
        summary = self.model.summarize(np.arange(r0.shape[1]), self.data, r0)
        return summary, self.model.global_step(summary)

    def learning_rate(self, step: int) -> float:
        """rho of step 0, 1, ...: of the stochastic traces."""
        delay, decay = float(self.arrays["hyper_rhodelay"]), float(self.arrays["hyper_rhoexp"])
        return (1.0 + step + delay) ** -decay

    def final(self, part: str, posterior: Posterior) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Expected and actual final parameters of ``"allocation"`` or ``"observation"`` by name."""
        params = getattr(posterior, part)
        names = [n[6:] for n in self.arrays if n.startswith("final_")]
        own = [n for n in names if (n in ("eta1", "eta0", "theta")) == (part == "allocation")]
        return {n: (self.arrays[f"final_{n}"], np.asarray(getattr(params, n))) for n in own}


def load(name: str) -> Case:
    """The trace ``name``, for example ``"dpmix_gauss_vb"``."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    atoms = sparse.csr_array(arrays["C"]) if "C" in arrays else arrays["X"]
    data = Batch(atoms, name=name)
    top = int(arrays["hyper_top"]) if "hyper_top" in arrays else None
    allocation = {"DPMixtureModel": DPMixture, "FiniteMixtureModel": FiniteMixture}[str(arrays["allocation"])]
    model = Model(allocation(gamma=float(arrays["hyper_gamma"]), top=top), _observation(arrays))
    batches, order = [data], np.zeros((len(arrays["N_k"]), 1), np.int64)
    if "batch_order" in arrays:
        order, owner = arrays["batch_order"], arrays["batch_of_row"]
        batches = [data.take(np.flatnonzero(owner == b)) for b in range(owner.max() + 1)]
    terms = {"data": arrays["L_data"] + arrays["h_total"], "entropy": arrays["L_entropy"]}
    terms["allocation"] = arrays["L_alloc"]
    return Case(name, model.with_prior(survey_of(data)), data, batches, order, arrays, terms, arrays["N_k"])


def survey_of(*batches: Batch) -> Survey:
    """Survey of a few small batches, computed directly; weights are honoured."""
    dense = np.concatenate([b.x.toarray() if b.is_sparse else b.x for b in batches])
    weights = np.concatenate([np.ones(b.n_atoms) if b.weights is None else b.weights for b in batches])
    mean = weights @ dense / weights.sum()
    variance = weights @ (dense - mean) ** 2 / weights.sum()
    return Survey(
        n_atoms=len(dense),
        total_weight=float(weights.sum()),
        mean=mean,
        variance=variance,
        minimum=dense.min(axis=0),
        maximum=dense.max(axis=0),
        is_sparse=batches[0].is_sparse,
        nbytes=sum(b.nbytes for b in batches),
        batch_atoms=tuple(b.n_atoms for b in batches),
        batch_bytes=tuple(b.nbytes for b in batches),
        checksums=tuple(checksum(b) for b in batches),
    )


def _observation(arrays: dict[str, np.ndarray]):
    kind = str(arrays["observation"])
    if kind == "Gauss":
        from bnp_dask.observation.gaussian import Gaussian

        kappa, nu = float(arrays["prior_kappa"]), float(arrays["prior_nu"])
        return Gaussian(nu=nu, B=arrays["prior_B"], m=arrays["prior_m"], kappa=kappa)
    if kind == "ZeroMeanGauss":
        from bnp_dask.observation.zero_mean_gaussian import ZeroMeanGaussian

        return ZeroMeanGaussian(nu=float(arrays["prior_nu"]), B=arrays["prior_B"])
    if kind == "Mult":
        from bnp_dask.observation.multinomial import Multinomial

        return Multinomial(lam=arrays["prior_lam"])
    raise ValueError(f"no observation model for traces of {kind}")
