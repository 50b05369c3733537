"""Moves that change the number of clusters: planned at the start of a lap, tracked during it, decided at its end."""

from bnp_dask.moves.base import Move
from bnp_dask.moves.birth import Birth
from bnp_dask.moves.delete import Delete
from bnp_dask.moves.documents import DocumentBirth
from bnp_dask.moves.merge import Merge

__all__ = ["Birth", "Delete", "DocumentBirth", "Merge", "Move"]
