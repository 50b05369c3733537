"""The machine behind all schedules: submit -> visit -> reduce -> fold -> decide -> commit.

Visits of batches run on an executor (:mod:`pipeline`, :mod:`tasks`); changes of summaries are added up in a fixed order
(:mod:`reduction`), with the last visit of each batch remembered (:mod:`batch_memo`); a lap decides its proposals
(:mod:`lap`) and is written down (:mod:`checkpoint`).
"""
