"""Number of topics that a corpus usually shows, by which births of topics decide how many to seek."""

from __future__ import annotations

from bnp_dask.initialize import documents_counted, topics_of_tokens
from bnp_dask.moves.base import PlanContext


def usual_number(context: PlanContext) -> int:
    """Number of topics that the corpus may show, by a rule of thumb from its tokens and documents."""
    return topics_of_tokens(context.tokens, documents_counted(context.survey))
