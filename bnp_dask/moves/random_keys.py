"""Names of the streams of random numbers that moves draw from: a number stands in the keys of each.

The numbers name streams and measure nothing.  Another number in one's place gives other draws, and so other bits.
"""

from __future__ import annotations

PLANNING = 7
"""All that a lap's plan draws itself; the purpose follows in the key."""

SPLIT_BATCHES = 1
"""Planning: batches that may split a cluster."""

ABSORBED = 19
"""Planning: atoms of a delete's target and of those who would absorb it."""

WINDOW_BATCHES = 23
"""Planning: batches whose sequences are looked into."""

BIRTH = 11
"""Small run of a birth, by target."""

BIRTH_BESIDE = 31
"""Births beside neighbours, by target."""

BESIDE_START = 1
"""Births beside neighbours: what starts of one target draw; the number of a start follows in the key."""

SPLIT = 17
"""Split of a cluster at one batch, by batch."""

WINDOW = 29
"""Windows of one batch, by batch."""

DOCUMENT_TOPICS = 23
"""New topics of whole documents."""

SPLIT_BY_NEW = 37
"""Split of a cluster by atoms of new batches, by target and round."""
