"""Trials that take from all topics: their documents are tried from as many starts as those of a state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from numpy.testing import assert_allclose

from bnp_dask.core.batch import Batch
from bnp_dask.core.summary import Exchange, replay
from bnp_dask.structure.base import Trial
from tests.topics.parts import begin, corpus, word_model


@pytest.mark.parametrize("kind", ["hdp", "lda"])
def test_a_trial_with_the_topics_of_a_better_state_is_judged_as_that_state_would_be(kind):
    batch = Batch(corpus(200, length=30)[0])
    model, once = (word_model(kind, start="cold", restarts=n) for n in (5, 0))
    better = begin(model, batch, seed=2, k=12)
    for _ in range(3):
        better = model.global_step(model.visit(better, batch).summary)
    born = replace(better, ids=better.ids + 100)
    poor = replace(better, observation=begin(model, batch, seed=1, k=12).observation)
    donors = tuple(int(i) for i in poor.ids)
    found = model.visit(poor, batch, trials=[Trial("t", donors, born)])
    after = replay(found.summary, [Exchange("t", donors)], found.parts)

    def objective(summary):
        return sum(model.elbo(born, summary).values())

    own = objective(model.visit(born, batch).summary)
    assert_allclose(objective(after), own, rtol=1e-12)
    # documents that are tried from one start only end lower, by more than that
    assert objective(once.visit(born, batch).summary) < own - 1e-4 * abs(own)
