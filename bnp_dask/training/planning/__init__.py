"""What a run would take, before it starts.

A probe trains on a little of the data and meters its tasks (:mod:`probe`) -> unit costs -> a simulated lap on any
number of workers -> the plan (:mod:`plan`).
"""
