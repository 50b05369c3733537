"""Reading topic models: words, sizes and documents of topics, held-out scores, pages to browse."""

from bnp_dask.analysis.topics.collapsed import collapsed_topics
from bnp_dask.analysis.topics.completion import Completion, CompletionScore, word_score
from bnp_dask.analysis.topics.explain import Explanation, TopicReason, explain
from bnp_dask.analysis.topics.over import TopicShares, topics_over
from bnp_dask.analysis.topics.responses import ResponsePrediction, predict_response
from bnp_dask.analysis.topics.usage import TopicSurvey, survey_documents, to_pyldavis, topic_relations, topic_table
from bnp_dask.analysis.topics.words import (
    TopWords,
    hellinger,
    lift,
    relevance,
    top_words,
    topic_list,
    word_probabilities,
)
from bnp_dask.core import TopicList

__all__ = [
    "Completion",
    "CompletionScore",
    "Explanation",
    "ResponsePrediction",
    "TopWords",
    "TopicList",
    "TopicReason",
    "TopicShares",
    "TopicSurvey",
    "collapsed_topics",
    "explain",
    "hellinger",
    "lift",
    "predict_response",
    "relevance",
    "survey_documents",
    "to_pyldavis",
    "top_words",
    "topic_list",
    "topic_relations",
    "topic_table",
    "topics_over",
    "word_probabilities",
    "word_score",
]
