"""Clusters of pictures, as demonstrations show them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLAT = 0.02
"""Contrast below which a cluster is called flat, in shares of white."""
ORIENTED = 0.4
"""Coherence above which a cluster is called an edge."""


@dataclass(frozen=True, eq=False)
class Look:
    """Appearance of a cluster of patches.

    Parameters
    ----------
    share
        Expected share of patches.
    contrast
        Root mean square of a pixel, in shares of white.
    angle
        Direction of its edges, degrees, 0 to 180: 0 is horizontal.
    coherence
        0: no direction.  1: all edges have one direction.
    directions
        Leading eigenvectors of the covariance, ``(3, 8, 8)``.
    samples
        Patches drawn from the cluster, ``(3, 8, 8)``.
    color
        Red, green, blue: the angle as hue, the coherence as saturation, the contrast as brightness.
    """

    share: float
    contrast: float
    angle: float
    coherence: float
    directions: np.ndarray
    samples: np.ndarray
    color: tuple[float, float, float]

    @property
    def words(self) -> str:
        """The cluster in two words."""
        if self.contrast < FLAT:
            return "flat"
        return f"edges at {self.angle:.0f} deg" if self.coherence > ORIENTED else "texture"


@dataclass(frozen=True, eq=False)
class Card:
    """A cluster: share, description, mean image ``(8, 8)``, its four most certain members ``(4, 8, 8)``."""

    share: float
    words: str
    mean: np.ndarray
    members: np.ndarray
