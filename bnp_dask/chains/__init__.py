"""Reading hidden Markov models: states of steps, how long they last, and which follow which."""

from bnp_dask.chains.durations import Durations, RunCounter, RunCounts, state_durations
from bnp_dask.chains.labels import split_sequences, without_missing
from bnp_dask.chains.states import state_path
from bnp_dask.chains.survey import SequenceSurvey, ShownSequence, survey_sequences
from bnp_dask.chains.transitions import Transitions, transitions

__all__ = [
    "Durations",
    "RunCounter",
    "RunCounts",
    "SequenceSurvey",
    "ShownSequence",
    "Transitions",
    "split_sequences",
    "state_durations",
    "state_path",
    "survey_sequences",
    "transitions",
    "without_missing",
]
