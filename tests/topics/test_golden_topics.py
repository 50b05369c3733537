"""Topic models reproduce recorded objectives term by term (bnpy 0.1.7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from bnp_dask.allocation import LDA, DocumentStep, HDPTopics
from bnp_dask.allocation.hdp_topics import TopicSticks
from bnp_dask.core.batch import Batch
from bnp_dask.model import Model, Posterior
from bnp_dask.observation import Multinomial
from tests.golden.cases import recorded

GIVEN, CHOSEN = 1e-8, 1e-5
WARM = 1e-12
"""What documents that start from counts with all their digits leave; with float32 it was 2e-9."""


def setting(case, arrays, start="cold"):
    """Model, all documents as a batch, and the initial posterior."""
    local, hyper = case["hyper_bnpy"]["local"], case["hyper_thesis"]
    restarts = local["restartNumTrialsLP"] if local["restartLP"] else 0
    step = DocumentStep(
        start, local["nCoordAscentItersLP"], -1.0, restarts, local["restartNumItersLP"], restart_above=1e-3
    )
    hdp = case["allocModel"] == "HDPTopicModel"
    allocation = HDPTopics(hyper["gamma"], hyper["alpha"], step) if hdp else LDA(hyper["alpha"], step)
    model = Model(allocation, Multinomial(lam=arrays["prior_lam"]))
    shape = (len(arrays["doc_range"]) - 1, case["vocab_size"])
    batch = Batch(sparse.csr_array((arrays["word_count"], arrays["word_id"], arrays["doc_range"]), shape=shape))
    empty = model.empty_summary(np.arange(case["K"]))
    summary = replace(empty, values={**empty.values, "x": arrays["init_lam"] - arrays["prior_lam"]})
    posterior = model.global_step(summary)
    if hdp:
        posterior = replace(posterior, allocation=TopicSticks.of(arrays["init_u"], arrays["init_omega"]))
    return model, batch, posterior


def check(model, posterior, summary, arrays, t, tolerance):
    terms = model.elbo(posterior, summary)
    assert terms["data"] == pytest.approx(arrays["L_data"][t], rel=tolerance), t
    assert terms["entropy"] == pytest.approx(arrays["L_entropy"][t], rel=tolerance), t
    if "L_top" in arrays:
        own = model.allocation
        found = own.document_term(posterior.allocation, summary)
        assert found == pytest.approx(arrays["L_doc"][t], rel=tolerance), t
        assert own.top_term(posterior.allocation, summary) == pytest.approx(arrays["L_top"][t], rel=tolerance), t
    else:
        assert terms["allocation"] == pytest.approx(arrays["L_doc"][t], rel=tolerance), t
    assert sum(terms.values()) == pytest.approx(arrays["L_total"][t], rel=tolerance)
    assert_allclose(summary["N"], arrays["N_k"][t], rtol=100 * tolerance, atol=100 * tolerance)


@pytest.mark.first_case
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "name", ["hdptopic_mult_vb", "hdptopic_mult_vb_fixedu", "hdptopic_mult_vb_restarts", "lda_mult_vb"]
)
def test_full_batch(name, given):
    case, arrays = recorded(name)
    held = "HELD FIXED" in case["global_u"]
    model, batch, posterior = setting(case, arrays)
    for t in range(case["nIter"]):
        summary = model.local_step(posterior, batch)
        posterior = model.global_step(summary)
        if "u" in arrays and (given or held):
            posterior = replace(posterior, allocation=TopicSticks.of(arrays["u"][t], arrays["omega"][t]))
        check(model, posterior, summary, arrays, t, GIVEN if given or held or "u" not in arrays else CHOSEN)
    assert_allclose(posterior.observation.lam, arrays["final_lam"], rtol=1e-4, atol=1e-4)


@pytest.mark.first_case
@pytest.mark.parametrize("given", [True, False])
def test_memoized_with_warm_starts(given):
    case, arrays = recorded("hdptopic_mult_movb")
    model, batch, posterior = setting(case, arrays, "warm")
    batches = [batch.take(np.flatnonzero(arrays["batch_of_doc"] == b)) for b in range(case["nBatch"])]
    parts, states = {}, {}
    for t, b in enumerate(arrays["batch_order"].ravel()):
        found = model.visit(posterior, batches[b], states=states.get(b))
        parts[b], states[b] = found.summary, found.states[""]
        summary = sum(list(parts.values())[1:], start=next(iter(parts.values())))
        posterior = model.global_step(summary)
        if given:
            posterior = Posterior(model, posterior.ids, TopicSticks.of(arrays["u"][t], arrays["omega"][t]),
                                  posterior.observation, summary)  # fmt: skip
        check(model, posterior, summary, arrays, t, WARM if given else CHOSEN)
