"""How atoms hang together: independent rows, groups (documents), sequences.

A batch and a posterior -> tiles -> responsibilities of one kind of model -> a summary, and what restricted steps of
births, merges and deletes ask of the same read (:mod:`trials`).
"""
