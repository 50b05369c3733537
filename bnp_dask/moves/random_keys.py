"""Names of the streams of random numbers that moves draw from: one number each, part of the key.

The numbers name streams and measure nothing.  Changing one gives other draws, and so other bits.
"""

from __future__ import annotations

PLANNING = 7
"""Draws of a lap's plan itself; the purpose follows in the key."""

SPLIT_BATCHES = 1
"""Planning: batches that may split a cluster."""

ABSORBED = 19
"""Planning: atoms of a delete's target and of its absorbing clusters."""

WINDOW_BATCHES = 23
"""Planning: batches whose sequences are looked into."""

BIRTH = 11
"""Small run of a birth, by target."""

BIRTH_BESIDE = 31
"""Births beside neighbours, by target."""

BESIDE_START = 1
"""Births beside neighbours: draws of the starts of one target; the number of the start follows in the key."""

SPLIT = 17
"""Split of a cluster at one batch, by batch."""

WINDOW = 29
"""Windows of one batch, by batch."""

DOCUMENT_TOPICS = 23
"""New topics of whole documents."""

SPLIT_BY_NEW = 37
"""Split of a cluster by atoms of new batches, by target and round."""
