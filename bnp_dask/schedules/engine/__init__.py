"""The machine behind all schedules: submit -> visit -> reduce -> fold -> decide -> commit.

One loop submits groups of batches and takes them in order (:mod:`drive`).  Workers visit batches (:mod:`visit`) and
make local steps (:mod:`local_steps`); changes of summaries are added up in a fixed order (:mod:`reduction`), with the
last visit of each batch remembered (:mod:`batch_memo`), and folded into the total (:mod:`fold`, :mod:`state`).  A lap
decides its proposals (:mod:`lap`) and is written down (:mod:`checkpoint`).
"""
