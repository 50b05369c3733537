"""Reading hidden Markov models: states of steps, their durations, and their transitions."""

from bnp_dask.analysis.sequences.independence import independent_share
from bnp_dask.analysis.sequences.labels import (
    Durations,
    RunCounter,
    RunCounts,
    SequenceDistance,
    SequenceDistances,
    sequence_distances,
    split_sequences,
    state_durations,
    without_missing,
)
from bnp_dask.analysis.sequences.states import state_path
from bnp_dask.analysis.sequences.transitions import Transitions, transitions
from bnp_dask.analysis.sequences.usage import SequenceSurvey, ShownSequence, survey_sequences

__all__ = [
    "Durations",
    "RunCounter",
    "RunCounts",
    "SequenceDistance",
    "SequenceDistances",
    "SequenceSurvey",
    "ShownSequence",
    "Transitions",
    "independent_share",
    "sequence_distances",
    "split_sequences",
    "state_durations",
    "state_path",
    "survey_sequences",
    "transitions",
    "without_missing",
]
